"""The way of a client's first packet to a frontend, in words: the rules of ours that it meets, and where it ends."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ipvsproxy.config.targets import Client
from ipvsproxy.inspect.evidence import Evidence
from ipvsproxy.inspect.packet import AFTER_IPVS, FORWARDED, FROM_NODE, FROM_OUTSIDE, Packet, Passage, RuleWalk
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import PackedAddr, family_of
from ipvsproxy.model.kernel_objects import Kind, RealServer, VirtualServerKey

_ENDS = {"DROP": "dropped", "REJECT": "refused"}


def way_lines(client: Client, key: VirtualServerKey, evidence: Evidence) -> Iterator[str]:
    """A title, the rules hook by hook, and the end; by rules, sets and servers as they were observed."""
    yield f"A packet from {client!s} to {key!s}"
    if client.address is not None and family_of(client.address) is not family_of(key.address):
        yield "  → cannot come: its address is of the other family"
        return
    own = evidence.host.addresses | {PackedAddr(a) for a in evidence.observed[Kind.ADDRESS] if isinstance(a, bytes)}
    walk = RuleWalk(evidence.observed, frozenset(own))
    # Linux takes a local destination for the source of who names none (ipvsproxy's mangle rules count on it).
    source = key.address if client.address is None else client.address
    packet = Packet(source, key.address, key.protocol, key.port, client.interface)
    is_own = client.address is None or source in own
    hooks = FROM_NODE if is_own else FROM_OUTSIDE if key.address in own else FORWARDED
    before = walk.through(packet, hooks)
    yield from _step_lines(before)
    yield from _end_lines(before, key, walk, evidence, is_here=key.address in own)


def _end_lines(
    before: Passage, key: VirtualServerKey, walk: RuleWalk, evidence: Evidence, *, is_here: bool
) -> Iterator[str]:
    if before.is_stopped:
        yield f"  → {_ENDS[before.ended_by]}"
    elif not is_here:
        yield "  → leaves the node again: no interface has its destination"
    elif key not in evidence.observed[Kind.VIRTUAL_SERVER]:
        yield "  → the node itself answers: there is no virtual server"
    else:
        yield from _server_lines(before, _serving(key, evidence), walk)


def _server_lines(before: Passage, servers: list[RealServer], walk: RuleWalk) -> Iterator[str]:
    if not servers:
        yield "  → refused: its virtual server has no real server that takes new connections"
        return
    itself = [server for server in servers if server.address == before.packet.source]
    others = [server for server in servers if server not in itself]
    for group in filter(None, (others, itself)):
        after = walk.through(_sent_to(group[0], before.packet), AFTER_IPVS)
        yield from _step_lines(after)
        names = ", ".join(map(str, group))
        source = "the node's address as its source" if after.ended_by == "MASQUERADE" else "its own source address"
        yield f"  → {names}{' (itself)' if group is itself else ''}, with {source}"


def _serving(key: VirtualServerKey, evidence: Evidence) -> list[RealServer]:
    found = evidence.observed[Kind.REAL_SERVER].get(key)
    records = real_servers.split(found, len(key.address)) if isinstance(found, bytes) else []
    return [real_servers.unpack(record) for record in records if not real_servers.is_drained(record)]


def _sent_to(server: RealServer, packet: Packet) -> Packet:
    return msgspec.structs.replace(packet, destination=server.address, port=server.port)


def _step_lines(passage: Passage) -> Iterator[str]:
    hook = None
    for step in passage.steps:
        if step.hook != hook:
            hook = step.hook
            yield f"  {hook!s}"
        yield f"    {step.rule}" + ("" if step.is_understood else "   (not understood, passed over)")
