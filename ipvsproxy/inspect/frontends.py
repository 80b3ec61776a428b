"""Every way in to a Service: what is wanted for it and what stands, object by object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ipvsproxy.cluster.services import ServicePort, ServiceView
from ipvsproxy.cluster.slices import CompactSlice
from ipvsproxy.inspect.evidence import Evidence, Standing
from ipvsproxy.inspect.operations import settings_words
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import format_addr, format_host_prefix
from ipvsproxy.model.kernel_objects import Kind, ObjectId, SetEntry, Settings, VirtualServerKey
from ipvsproxy.model.names import DUMMY_DEVICE, ServiceName
from ipvsproxy.modes.ipvs.service import choose_backends, endpoints_of_ports, frontends
from ipvsproxy.plan.order import bound_entry
from ipvsproxy.plan.ownership import is_excluded


class WayIn(msgspec.Struct, frozen=True):
    """One frontend of a port; `names` says what its address is to the Service. The same key twice is one way in."""

    key: VirtualServerKey
    port: ServicePort
    names: str
    entries: tuple[ObjectId, ...]
    is_bound: bool

    @property
    def refs(self) -> tuple[ObjectId, ...]:
        """Every object that it is made of."""
        address: tuple[ObjectId, ...] = ()
        if self.is_bound:
            address = (Kind.ADDRESS, self.key.address), bound_entry(self.key.address)
        return (Kind.VIRTUAL_SERVER, self.key), (Kind.REAL_SERVER, self.key), *address, *self.entries


def ways_in(view: ServiceView, slices: Sequence[CompactSlice], evidence: Evidence) -> list[WayIn]:
    """As the planner finds them, those of excluded networks included; of two ports with one key the first."""
    found: dict[VirtualServerKey, WayIn] = {}
    for port, family, behind in endpoints_of_ports(view, slices, evidence.host.zone, evidence.options.families):
        backends = choose_backends(view, behind)
        for front in frontends(view, port, family, evidence.host, backends):
            known = found.setdefault(front.key, WayIn(front.key, port, _names(view, front.key), (), front.is_bound))
            if known.port is port:
                entries = tuple(dict.fromkeys((*known.entries, *front.entries)))
                bound = known.is_bound or front.is_bound
                found[front.key] = msgspec.structs.replace(known, entries=entries, is_bound=bound)
    return list(found.values())


def way_in_lines(way: WayIn, owner: ServiceName, evidence: Evidence) -> Iterator[str]:
    """Its title, and a line for each of its objects."""
    yield f"{way.key!s}  {way.names}"
    if is_excluded(way.key, evidence.options.exclude):
        yield "  not served: its address is in --ipvs-exclude-cidrs"
        return
    holders = evidence.desired.holders((Kind.VIRTUAL_SERVER, way.key))
    if holders and holders[0] != owner:
        yield f"  not served for this Service: {holders[0]} has it, which is older"
        return
    if not way.is_bound and way.key.address in evidence.host.addresses:
        yield "  (an address of the node's own: it is served, and not bound)"
    for ref in way.refs:
        yield from object_lines(ref, evidence)


def object_lines(ref: ObjectId, evidence: Evidence) -> Iterator[str]:
    """How one object stands; of real servers a line each; none for what neither is there nor should be."""
    kind, key = ref
    if kind is Kind.REAL_SERVER and isinstance(key, VirtualServerKey):
        yield from _real_server_lines(key, evidence)
        return
    standing = evidence.standing(ref)
    if standing is not None:
        have, shall = evidence.observed[kind].get(key), evidence.remaining[kind].get(key)
        yield _line(standing, f"{_what(ref)}{_settings(standing, have, shall)}")


def _real_server_lines(key: VirtualServerKey, evidence: Evidence) -> Iterator[str]:
    ref: ObjectId = (Kind.REAL_SERVER, key)
    have, shall, want = (
        _records(key, settings)
        for settings in (
            evidence.observed[Kind.REAL_SERVER].get(key),
            evidence.remaining[Kind.REAL_SERVER].get(key),
            evidence.desired.get(ref),
        )
    )
    for identity in sorted({**have, **shall}):
        standing = _standing(have.get(identity), shall.get(identity), is_wanted=identity in want)
        record = shall.get(identity) or have[identity]
        words = _settings(standing, have.get(identity), shall.get(identity))
        count = evidence.connections.get(key, {}).get(identity)
        connected = "" if count is None else f", {count} connection{'' if count == 1 else 's'}"
        yield _line(standing, f"real server {real_servers.unpack(record)!s}{words}{connected}")
    if not shall:
        yield "           no real server: whoever comes is refused"


def _standing(have: bytes | None, shall: bytes | None, *, is_wanted: bool) -> Standing:
    if have == shall:
        return Standing.OK if is_wanted else Standing.DRAINS
    if have is None:
        return Standing.MISSING
    return Standing.TOO_MUCH if shall is None else Standing.DIFFERENT


def _records(key: VirtualServerKey, settings: Settings | None) -> dict[bytes, bytes]:
    records = real_servers.split(settings, len(key.address)) if isinstance(settings, bytes) else []
    return {real_servers.identity(record): record for record in records}


def _settings(standing: Standing, have: Settings | None, shall: Settings | None) -> str:
    was, becomes = settings_words(have), settings_words(shall)
    if standing is Standing.DIFFERENT and was != becomes:
        return f": {was}, should be {becomes}"
    words = was or becomes
    return f": {words}" if words else ""


def _what(ref: ObjectId) -> str:
    kind, key = ref
    if kind is Kind.VIRTUAL_SERVER:
        return kind.value
    if kind is Kind.ADDRESS and isinstance(key, bytes):
        return f"address {format_host_prefix(key)} on {DUMMY_DEVICE}"
    if isinstance(key, SetEntry):
        return f"entry {key!s}"
    return str(key) if kind is Kind.RULES else f"{kind} {key!s}"


def _line(standing: Standing, text: str) -> str:
    return f"  {standing.value:<8} {text}"


def _names(view: ServiceView, key: VirtualServerKey) -> str:
    """What an address is to the Service: several things where it was given for several."""
    roles = (
        ("cluster IP", view.cluster_ips),
        ("external IP", view.external_ips),
        ("load-balancer IP", view.load_balancer_ips),
    )
    ports = {port.port for port in view.ports if port.protocol is key.protocol}
    names = [name for name, addresses in roles if key.address in addresses and key.port in ports]
    names += ["node port"] if any(port.node_port == key.port for port in view.ports) and not names else []
    return " and ".join(names) or format_addr(key.address)
