"""A wanted state as the tools would list it: what `ipvsproxy plan -o …` prints. Sorted, so stable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from ipvsproxy.model.addr import PackedAddr, format_addr, format_host_prefix
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import (
    Kind,
    RuleLayer,
    RuleTable,
    SetEntry,
    SetSpec,
    State,
    VirtualServer,
    VirtualServerKey,
)
from ipvsproxy.model.notes import Note
from ipvsproxy.model.observed import ObservedVirtualServer, as_observed
from ipvsproxy.plan.rule_text import layer_text, rule_text
from ipvsproxy.status.order import sort_virtual_servers
from ipvsproxy.status.rules import save_lines

_ENTRY_KINDS = (Kind.SUPPORT_ENTRY, Kind.GUARD_ENTRY, Kind.ACCEPT_ENTRY, Kind.BOUND_ENTRY)


def ipvsadm_text(state: State) -> Iterator[str]:
    """Lines of `ipvsadm -S -n`."""
    return save_lines(_observed_servers(state))


def addresses_text(state: State) -> Iterator[str]:
    """One address with prefix a line, IPv4 first, by number."""
    for address in sorted(_addresses(state), key=lambda packed: (len(packed), packed)):
        yield format_host_prefix(address)


def ipset_text(state: State) -> Iterator[str]:
    """Lines of `ipset save`, without what the kernel chooses (bucketsize, initval)."""
    entries: dict[str, list[str]] = {}
    for entry in _entries(state):
        entries.setdefault(entry.set_name, []).append(entry.member)
    for name, spec in sorted((str(name), spec) for name, spec in state[Kind.SET].items() if isinstance(spec, SetSpec)):
        yield f"create {name} {spec.create_options}"
        for member in sorted(entries.get(name, ())):
            yield f"add {name} {member}"


def iptables_text(state: State) -> Iterator[str]:
    """What `iptables-save` will show of our chains and jumps."""
    return _rules_text(state, Family.IPV4)


def ip6tables_text(state: State) -> Iterator[str]:
    """What `ip6tables-save` will show of our chains and jumps."""
    return _rules_text(state, Family.IPV6)


def sysctl_text(state: State) -> Iterator[str]:
    """`key = value` lines."""
    for name, value in sorted((str(name), str(value)) for name, value in state[Kind.SYSCTL].items()):
        yield f"{name} = {value}"


def json_text(state: State, notes: Iterable[Note]) -> Iterator[str]:
    """Everything in one JSON document, with the notes."""
    document = {
        "virtualServers": [_server_document(server) for server in sort_virtual_servers(list(_observed_servers(state)))],
        "addresses": list(addresses_text(state)),
        "sets": _sets_document(state),
        "rules": {
            family.label: {
                key.table: [rule_text(rule) for rule in (*layer.jumps, *layer.rules)]
                for key, layer in _layers(state)
                if key.family is family
            }
            for family in Family
        },
        "sysctls": dict(sorted((str(name), str(value)) for name, value in state[Kind.SYSCTL].items())),
        "notes": [str(note) for note in notes],
    }
    yield msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


FORMATS: dict[str, Callable[[State], Iterator[str]]] = {
    "ipvsadm": ipvsadm_text,
    "addresses": addresses_text,
    "ipset": ipset_text,
    "iptables": iptables_text,
    "ip6tables": ip6tables_text,
    "sysctl": sysctl_text,
}


def _observed_servers(state: State) -> Iterator[ObservedVirtualServer]:
    for key in sorted(key for key in state[Kind.VIRTUAL_SERVER] if isinstance(key, VirtualServerKey)):
        settings, servers = state[Kind.VIRTUAL_SERVER][key], state[Kind.REAL_SERVER].get(key, b"")
        if isinstance(settings, VirtualServer) and isinstance(servers, bytes):
            yield as_observed(key, settings, servers)


def _server_document(server: ObservedVirtualServer) -> dict[str, object]:
    return {
        "address": format_addr(server.address),
        "port": server.port,
        "protocol": Protocol(server.protocol).name,
        "scheduler": server.scheduler,
        "flags": int(server.flags),
        "persistenceSeconds": server.timeout_s,
        "realServers": [
            {"address": format_addr(real.address), "port": real.port, "weight": real.weight}
            for real in server.real_servers
        ],
    }


def _sets_document(state: State) -> dict[str, object]:
    document: dict[str, dict[str, object]] = {
        str(name): {"type": spec.type_name, "members": []}
        for name, spec in sorted(state[Kind.SET].items(), key=lambda item: str(item[0]))
        if isinstance(spec, SetSpec)
    }
    for entry in sorted(_entries(state), key=lambda entry: (entry.set_name, entry.member)):
        members = document[entry.set_name]["members"]
        if isinstance(members, list):
            members.append(entry.member)
    return dict(document)


def _rules_text(state: State, family: Family) -> Iterator[str]:
    for key, layer in _layers(state):
        if key.family is family:
            yield from layer_text(key.table, layer).splitlines()


def _layers(state: State) -> Iterator[tuple[RuleTable, RuleLayer]]:
    for key, layer in sorted(
        ((k, v) for k, v in state[Kind.RULES].items() if isinstance(k, RuleTable)), key=lambda kv: kv[0]
    ):
        if isinstance(layer, RuleLayer):
            yield key, layer


def _entries(state: State) -> Iterator[SetEntry]:
    return (entry for kind in _ENTRY_KINDS for entry in state[kind] if isinstance(entry, SetEntry))


def _addresses(state: State) -> Iterator[PackedAddr]:
    return (PackedAddr(key) for key in state[Kind.ADDRESS] if isinstance(key, bytes))
