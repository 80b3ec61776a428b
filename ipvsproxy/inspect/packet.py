"""Which of our rules the first packet of a connection meets, told from rules and sets as they stand. Pure.

    from outside, or a pod      nat PREROUTING → filter INPUT → IPVS picks a real server → nat POSTROUTING
    from the node itself        mangle OUTPUT → nat OUTPUT → IPVS picks a real server → nat POSTROUTING

Only rules of ours are known, so the answer is what we do to the packet; what others do comes before or after.
Each match and target that modes/ipvs/rules.py writes is understood; a rule with any other matches nothing, and is told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from ipvsproxy.model.addr import Cidr, PackedAddr, family_of, parse_cidr
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, Match, Option, Rule, RuleLayer, RuleTable, SetEntry, State
from ipvsproxy.plan.rule_text import rule_text

_ENTRY_KINDS = (Kind.SUPPORT_ENTRY, Kind.GUARD_ENTRY, Kind.ACCEPT_ENTRY, Kind.BOUND_ENTRY)
_FINAL = frozenset({"ACCEPT", "DROP", "REJECT", "MASQUERADE"})
_MARK_BITS = 0xFFFFFFFF


class Packet(msgspec.Struct, frozen=True):
    """The first packet of a connection. `in_interface` is empty where it is not known; `mark` is the firewall mark."""

    source: PackedAddr
    destination: PackedAddr
    protocol: Protocol
    port: int
    in_interface: str = ""
    mark: int = 0


class Hook(NamedTuple):
    """Where in its way a packet is looked at."""

    table: str
    chain: str

    def __str__(self) -> str:
        return f"{self.table} {self.chain}"


FROM_OUTSIDE = (Hook("nat", "PREROUTING"), Hook("filter", "INPUT"))
FORWARDED = (Hook("nat", "PREROUTING"), Hook("filter", "FORWARD"))  # to an address that is not, or no more, here
FROM_NODE = (Hook("mangle", "OUTPUT"), Hook("nat", "OUTPUT"))
AFTER_IPVS = (Hook("nat", "POSTROUTING"),)


class Step(NamedTuple):
    """A rule that the packet met, without its comment; not `is_understood`: one that cannot be judged here."""

    hook: Hook
    rule: str
    is_understood: bool = True


class Passage(msgspec.Struct, frozen=True):
    """What became of a packet: the rules it met, the packet as it left, and the target that ended its way, if any."""

    steps: tuple[Step, ...]
    packet: Packet
    ended_by: str = ""

    @property
    def is_stopped(self) -> bool:
        """Whether it goes no further."""
        return self.ended_by in {"DROP", "REJECT"}


class RuleWalk:
    """Walks packets through our part of the tables in `state`; `own`: the node's addresses, kube-ipvs0's included."""

    def __init__(self, state: State, own: frozenset[PackedAddr]) -> None:
        self._layers = state[Kind.RULES]
        self._own = own
        self._entries: Mapping[str, set[SetEntry]] = _by_set(state)

    def through(self, packet: Packet, hooks: tuple[Hook, ...]) -> Passage:
        """The packet's way through these hooks, in order, as far as it comes."""
        steps: list[Step] = []
        ended_by = ""
        for hook in hooks:
            packet, ended_by = self._through_hook(packet, hook, steps)
            if ended_by in {"DROP", "REJECT"}:
                break
        return Passage(tuple(steps), packet, ended_by)

    def _through_hook(self, packet: Packet, hook: Hook, steps: list[Step]) -> tuple[Packet, str]:
        layer = self._layers.get(RuleTable(hook.table, family_of(packet.destination)))
        if not isinstance(layer, RuleLayer):
            return packet, ""
        rules: dict[str, list[Rule]] = defaultdict(list)
        for rule in (*layer.jumps, *layer.rules):
            rules[rule.chain].append(rule)
        return self._through_chain(packet, hook, hook.chain, rules, steps)

    def _through_chain(
        self, packet: Packet, hook: Hook, chain: str, rules: Mapping[str, list[Rule]], steps: list[Step]
    ) -> tuple[Packet, str]:
        """The packet behind the chain, and the target that ended it; RETURN and the end of the chain are none."""
        for rule in rules.get(chain, ()):
            verdict = self._matches(rule, packet)
            if verdict is False or not rule.target:  # without a target: somebody else's, or one that only counts
                continue
            steps.append(Step(hook, _told(rule), verdict is not None))
            if verdict is None:
                continue
            if rule.target == "MARK":
                packet = _marked(packet, rule)
            elif rule.target == "RETURN":
                return packet, ""
            elif rule.target in _FINAL:
                return packet, rule.target
            else:
                packet, ended_by = self._through_chain(packet, hook, rule.target, rules, steps)
                if ended_by:
                    return packet, ended_by
        return packet, ""

    def _matches(self, rule: Rule, packet: Packet) -> bool | None:
        """Whether a rule is about this packet; None where that cannot be told."""
        if not _header_matches(rule, packet):
            return False
        found = [self._option_matches(match, option, packet) for match in rule.matches for option in match.options]
        if False in found:
            return False
        return None if None in found else True

    def _option_matches(self, match: Match, option: Option, packet: Packet) -> bool | None:
        judge = _JUDGES.get((match.name, option.name))
        if judge is None:
            return None
        return judge(self, option.value, packet) is not option.negated

    def in_set(self, value: str, packet: Packet) -> bool:
        """`NAME dst,dst,src`: whether the packet's ends are in a set."""
        name, _, directions = value.partition(" ")
        return any(_fits(entry, directions.split(","), packet) for entry in self._entries.get(name, ()))

    def is_local(self, address: PackedAddr) -> bool:
        """Whether an address is this node's (addrtype LOCAL)."""
        return address in self._own


def _told(rule: Rule) -> str:
    matches = tuple(match for match in rule.matches if match.name != "comment")
    return rule_text(msgspec.structs.replace(rule, matches=matches))


def _by_set(state: State) -> dict[str, set[SetEntry]]:
    found: dict[str, set[SetEntry]] = defaultdict(set)
    for kind in _ENTRY_KINDS:
        for entry in state[kind]:
            if isinstance(entry, SetEntry):
                found[entry.set_name].add(entry)
    return found


def _fits(entry: SetEntry, directions: list[str], packet: Packet) -> bool:
    """Whether an entry is about the packet's ends, by the set's directions: an address, a port, another address."""
    ends: Iterator[PackedAddr] = iter(packet.destination if way == "dst" else packet.source for way in directions)
    if entry.address and next(ends) != entry.address:
        return False
    if entry.protocol or not entry.address:
        next(ends, None)  # its direction is always dst: a first packet's other port says nothing
        if entry.port != packet.port or entry.protocol not in {0, packet.protocol}:
            return False
    if not entry.second:
        return True
    length = entry.prefix_len or len(entry.second) * 8
    return next(ends, b"") in Cidr(PackedAddr(entry.second), length)


def _header_matches(rule: Rule, packet: Packet) -> bool:
    return (
        _is_in(packet.source, rule.source)
        and _is_in(packet.destination, rule.destination)
        and rule.protocol in {"", packet.protocol.word}
        and _is_through(packet.in_interface, rule.in_interface)
    )


def _is_in(address: PackedAddr, network: str) -> bool:
    negated, text = _negation(network)
    cidr = parse_cidr(text) if text else None
    return cidr is None or (address in cidr) is not negated


def _is_through(interface: str, pattern: str) -> bool:
    negated, name = _negation(pattern)
    if not name:
        return True
    same = interface.startswith(name[:-1]) if name.endswith("+") else interface == name
    return same is not negated


def _negation(text: str) -> tuple[bool, str]:
    return (True, text[1:].lstrip()) if text.startswith("!") else (False, text)


def _marked(packet: Packet, rule: Rule) -> Packet:
    """--set-xmark value/mask: the mask's bits are cleared, the value's are flipped (iptables-extensions(8))."""
    value, mask = _value_and_mask(next((each.value for each in rule.target_options), "0x0/0x0"))
    return msgspec.structs.replace(packet, mark=(packet.mark & ~mask & _MARK_BITS) ^ value)


def _value_and_mask(text: str) -> tuple[int, int]:
    value, slash, mask = text.partition("/")
    return int(value, 0), int(mask, 0) if slash else _MARK_BITS


def _has_mark(_: RuleWalk, text: str, packet: Packet) -> bool:
    value, mask = _value_and_mask(text)
    return packet.mark & mask == value


_Judge = Callable[[RuleWalk, str, Packet], bool]
# Of the first packet of a connection, which no bridge port has let in; TCP's is a SYN alone.
_JUDGES: dict[tuple[str, str], _Judge] = {
    ("comment", "--comment"): lambda _walk, _text, _packet: True,
    ("set", "--match-set"): RuleWalk.in_set,
    ("mark", "--mark"): _has_mark,
    ("addrtype", "--dst-type"): lambda walk, _text, packet: walk.is_local(packet.destination),
    ("addrtype", "--src-type"): lambda walk, _text, packet: walk.is_local(packet.source),
    ("physdev", "--physdev-is-in"): lambda _walk, _text, _packet: False,
    ("conntrack", "--ctstate"): lambda _walk, text, _packet: "NEW" in text.split(","),
    ("tcp", "--tcp-flags"): lambda _walk, text, _packet: text.split()[-1] == "SYN",
}
