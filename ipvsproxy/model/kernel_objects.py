"""The kernel objects that we plan, program and compare, each split into a key and its settings.

A state (`State`) maps each kind of object to its objects: key → settings. What is wanted, what we believe is applied
and what was just read all have this one form, so one differ serves syncs, start and clean-up.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from ipvsproxy.model.addr import PackedAddr, family_of, format_addr, format_endpoint, format_host_prefix
from ipvsproxy.model.enums import Family, ForwardingMethod, Protocol, VirtualServerFlags
from ipvsproxy.model.names import family_of_set


class Kind(StrEnum):
    """Kinds of kernel objects. Set entries are four kinds, since their place in the order differs (plan/order.py)."""

    SYSCTL = "sysctl"
    SET = "set"
    RULES = "rules"
    LINK = "link"
    SUPPORT_ENTRY = (
        "support entry"  # must stand before a virtual server serves: masquerade, hairpin and source-range sets
    )
    GUARD_ENTRY = "guard entry"  # closes (address, protocol, port) to some sources: must stand before it serves
    ACCEPT_ENTRY = "accept entry"  # lets the filter pass (address, protocol, port)
    BOUND_ENTRY = "bound entry"  # makes the filter refuse every other port of an address: KUBE-IPVS-IPS
    VIRTUAL_SERVER = "virtual server"
    REAL_SERVER = "real server"
    ADDRESS = "address"


class Verb(StrEnum):
    """What is done to an object."""

    ADD = "add"
    EDIT = "edit"
    DELETE = "delete"


class VirtualServerKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """A virtual server's identity; the address says the family. Firewall-mark services have none: never ours."""

    protocol: Protocol
    address: PackedAddr
    port: int

    def __str__(self) -> str:
        return f"{format_endpoint(self.address, self.port)}/{self.protocol.name}"


class VirtualServer(msgspec.Struct, frozen=True, gc=False):
    """A virtual server's settings. `persistence_s` in seconds, 0 without the PERSISTENT flag."""

    scheduler: str
    flags: VirtualServerFlags = VirtualServerFlags.NONE
    persistence_s: int = 0


class RealServer(msgspec.Struct, frozen=True, gc=False):
    """The public form of one real server; inside it is a packed record (model/real_servers.py)."""

    address: PackedAddr
    port: int
    weight: int = 1
    method: ForwardingMethod = ForwardingMethod.MASQ

    def __str__(self) -> str:
        return format_endpoint(self.address, self.port)


_PROTOCOL_WORDS: dict[int, str] = {protocol.value: protocol.word for protocol in Protocol}


class SetEntry(msgspec.Struct, frozen=True, order=True, gc=False):
    """One member of one of our ipsets. Fields its type does not have stay empty; `second` is IP2 or the network."""

    set_name: str
    address: bytes = b""
    protocol: int = 0
    port: int = 0
    second: bytes = b""
    prefix_len: int = 0

    @property
    def member(self) -> str:
        """The member as `ipset save` prints it; a full-length network has no prefix there.

        A protocol that no Service has, which only others put there, is told by its number.
        """
        parts = [format_addr(self.address)] if self.address else []
        if self.protocol:
            parts.append(f"{_PROTOCOL_WORDS.get(self.protocol, self.protocol)}:{self.port}")
        elif not self.address:
            parts.append(str(self.port))
        if self.second:
            whole = self.prefix_len in {0, len(self.second) * 8}
            parts.append(format_addr(self.second) + ("" if whole else f"/{self.prefix_len}"))
        return ",".join(parts)

    def __str__(self) -> str:
        return f"{self.set_name} {self.member}"


class SetSpec(msgspec.Struct, frozen=True):
    """What a set is created with. `family` is None for bitmap:port, which has none."""

    type_name: str
    family: Family | None

    @property
    def create_options(self) -> str:
        """The rest of the `create` line in ipset's save format."""
        if self.family is None:
            return f"{self.type_name} range 0-65535"
        word = "inet" if self.family is Family.IPV4 else "inet6"
        return f"{self.type_name} family {word} hashsize 1024 maxelem 65536"


class Option(msgspec.Struct, frozen=True):
    """One option of a match or target as iptables-save prints it: `! --name value`."""

    name: str
    value: str = ""
    negated: bool = False


class Match(msgspec.Struct, frozen=True):
    """One `-m name …` of a rule."""

    name: str
    options: tuple[Option, ...]


class Rule(msgspec.Struct, frozen=True):
    """One iptables rule. A leading `!` in `source` or `in_interface` negates it; source and destination are CIDRs."""

    chain: str
    target: str
    matches: tuple[Match, ...] = ()
    target_options: tuple[Option, ...] = ()
    source: str = ""
    destination: str = ""
    in_interface: str = ""
    protocol: str = ""


class RuleTable(NamedTuple):
    """Key of our part of one table; sorts filter before mangle before nat, the order of commits."""

    table: str
    family: Family

    def __str__(self) -> str:
        return f"{self.family.label} {self.table} rules"


class RuleLayer(msgspec.Struct, frozen=True):
    """Our part of a table: our chains, the jumps into them from built-in chains (top down), the chains' rules."""

    chains: tuple[str, ...]
    jumps: tuple[Rule, ...]
    rules: tuple[Rule, ...]


Key: TypeAlias = str | RuleTable | SetEntry | VirtualServerKey | PackedAddr
Settings: TypeAlias = str | SetSpec | RuleLayer | VirtualServer | bytes | bool
ObjectId: TypeAlias = tuple[Kind, Key]
State: TypeAlias = dict[Kind, dict[Key, Settings]]


def empty_state() -> State:
    """A state with no objects."""
    return {kind: {} for kind in Kind}


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One change to one kernel object: one netlink message, or one entry of a batch.

    `settings` is what to set, for REAL_SERVER a single packed record (also on delete, where only its address and port
    count).
    """

    verb: Verb
    kind: Kind
    key: Key
    settings: Settings = True

    def __str__(self) -> str:
        return f"{self.verb} {self.kind} {format_key(self.kind, self.key)}"


OF_NO_FAMILY: Final = frozenset({Kind.LINK, Kind.SYSCTL})  # they serve both


def family_of_object(kind: Kind, key: Key) -> Family | None:
    """The family that an object serves; None for kinds of no family."""
    match key:
        case VirtualServerKey(address=address):
            return family_of(address)
        case SetEntry(set_name=name):
            return family_of_set(name)
        case RuleTable(family=family):
            return family
        case bytes():
            return family_of(key)
        case _:
            return family_of_set(key) if kind is Kind.SET else None


def format_key(kind: Kind, key: Key) -> str:
    """A key in words, for logs and messages."""
    if kind is Kind.ADDRESS and isinstance(key, bytes):
        return format_host_prefix(key)
    return str(key)
