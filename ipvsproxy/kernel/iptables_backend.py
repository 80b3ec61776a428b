"""Which of the two flavours of iptables this host uses: the legacy tables, or nf_tables under iptables' names.

Rules of both are hooked into the same packet path, so both would work; but a host where each program uses its own
flavour has two rule sets of which no tool shows both, and a stale copy of our rules in the flavour that we do not use
still refuses packets. So we use the one that the kubelet uses: it leaves a chain of its own in the mangle table for
programs in our place. Nothing here brings a table into being by looking for it.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from ipvsproxy.config.types import IptablesBackend
from ipvsproxy.errors import KernelError, Unsupported
from ipvsproxy.kernel.api import Rules
from ipvsproxy.kernel.iptables import LegacyRules
from ipvsproxy.kernel.iptables_nft import NftRules
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, Operation, RuleLayer, RuleTable, State, Verb

log = structlog.get_logger()

OwnChains = Mapping[RuleTable, Iterable[str]]
Hint = Callable[[IptablesBackend], str]

# Source: kubernetes v1.37.2 pkg/kubelet/kubelet_network_linux.go. The second is in older kubelets too.
_HINTS = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")
_HINT_CHAINS = {RuleTable("mangle", family): _HINTS for family in Family}
_PERMISSION = "Run as root, or with the capabilities NET_ADMIN and NET_RAW"
_LEGACY_NAMES = {
    Family.IPV4: Path("/proc/thread-self/net/ip_tables_names"),
    Family.IPV6: Path("/proc/thread-self/net/ip6_tables_names"),
}


@dataclass(frozen=True, slots=True)
class ChosenRules:
    """The flavour that is used, and the edge to it."""

    backend: IptablesBackend
    rules: Rules


def choose_rules(setting: IptablesBackend, own_chains: OwnChains) -> ChosenRules:
    """The flavour that `setting` names, or that this host uses; logged with the reason. Raises Unsupported."""
    _require_raw_sockets()
    backend, reason = decide(setting, _kubelet_hint)
    log.info("iptables_backend_chosen", backend=backend.value, reason=reason)
    rules = NftRules(own_chains) if backend is IptablesBackend.NFT else LegacyRules(own_chains)
    return ChosenRules(backend, rules)


def _require_raw_sockets() -> None:
    """Both flavours ask for a set at one when a rule names it (libxt_set), and libiptc for all that it does.

    Without, a start succeeds on a node that has no such rule yet, and fails in the middle of it. Raises Unsupported.
    """
    try:
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW).close()
    except PermissionError as error:
        what, hint = "cannot open a raw socket, as rules that name sets need", _PERMISSION
        raise Unsupported(what, error.errno or errno.EPERM, hint) from error


def decide(setting: IptablesBackend, hint: Hint) -> tuple[IptablesBackend, str]:
    """The flavour, and why. Raises Unsupported where neither can be used.

    `hint` finds the kubelet's chain in a flavour: where it is, in words, or empty. It raises KernelError where this
    flavour cannot be used here. Order of looking: that of the wrappers in Kubernetes' own images.
    """
    if setting is not IptablesBackend.AUTO:
        return setting, "the configuration says so"
    problems: dict[IptablesBackend, KernelError] = {}
    for backend in (IptablesBackend.NFT, IptablesBackend.LEGACY):
        try:
            place = hint(backend)
        except KernelError as error:
            problems[backend] = error
        else:
            if place:
                return backend, f"the kubelet uses it: {place}"
    if IptablesBackend.NFT not in problems:
        return IptablesBackend.NFT, "; ".join(["no chain of the kubelet's is in either flavour", *_told(problems)])
    if IptablesBackend.LEGACY not in problems:
        return IptablesBackend.LEGACY, "; ".join(_told(problems))
    what, hint_text = "cannot use iptables", "install the iptables package"
    number = problems[IptablesBackend.NFT].number
    raise Unsupported(what, number, hint_text, why="; ".join(_told(problems)))


def rules_as_they_are(setting: IptablesBackend, own_chains: OwnChains) -> Rules:
    """An edge for reading: the same flavour, and of the legacy tables only those that exist. Raises Unsupported."""
    backend, _ = decide(setting, _kubelet_hint)
    return _existing(backend, own_chains) or _NoTables()


class _NoTables:
    """The legacy flavour where none of its tables has been made yet."""

    kinds = frozenset({Kind.RULES})
    families: frozenset[Family] = frozenset()

    def read(self) -> State:
        return {Kind.RULES: {}}

    def fingerprint(self) -> bytes:
        return b""

    def glance(self) -> bytes:
        return b""

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        return [errno.ENOENT] * len(operations)


def report_leftovers(used: IptablesBackend, own_chains: OwnChains) -> list[RuleTable]:
    """Tables of the other flavour that hold chains of ours, each logged as a warning. They still act on packets."""
    found = _leftovers(used, own_chains)[1]
    for key, layer in found.items():
        log.warning(
            "rules_in_other_flavour",
            table=str(key),
            backend=_other(used).value,
            chains=layer.chains,
            jumps=sum(1 for rule in layer.jumps if rule.target in layer.chains),
            effect="they can refuse or masquerade what the rules in force do not",
            hint="run ipvsproxy --cleanup once before the next start",
        )
    return list(found)


def remove_leftovers(used: IptablesBackend, own_chains: OwnChains) -> int:
    """Remove our chains from the other flavour; how many tables could not be cleaned.

    To be called before our sets are removed: no set goes while a rule names it.
    """
    rules, found = _leftovers(used, own_chains)
    if rules is None or not found:
        return 0
    operations = [Operation(Verb.DELETE, Kind.RULES, key, layer) for key, layer in found.items()]
    numbers = rules.apply(operations)
    refused = sum(1 for number in numbers if number)
    log.info("other_flavour_cleaned", backend=_other(used).value, removed=len(numbers) - refused, refused=refused)
    return refused


def _other(used: IptablesBackend) -> IptablesBackend:
    return IptablesBackend.NFT if used is IptablesBackend.LEGACY else IptablesBackend.LEGACY


def _told(problems: Mapping[IptablesBackend, KernelError]) -> list[str]:
    return [f"{backend} is not usable: {error}" for backend, error in problems.items()]


def _leftovers(used: IptablesBackend, own_chains: OwnChains) -> tuple[Rules | None, dict[RuleTable, RuleLayer]]:
    """The edge to the other flavour, None where this host lacks it or cannot read it, and what is ours there."""
    backend = _other(used)
    try:
        rules = _existing(backend, own_chains)
        found = _layers(rules)
    except KernelError as error:
        log.info("other_flavour_not_readable", backend=backend.value, reason=str(error), errno=error.number)
        return None, {}
    return rules, found


def _kubelet_hint(backend: IptablesBackend) -> str:
    """Where in this flavour the kubelet's chain is, in words; empty where it is not. Raises KernelError."""
    for key, layer in _layers(_existing(backend, _HINT_CHAINS)).items():
        return f"chain {layer.chains[0]} is among the {key}"
    return ""


def _layers(rules: Rules | None) -> dict[RuleTable, RuleLayer]:
    """What `rules` finds, in order. Raises KernelError."""
    objects = rules.read()[Kind.RULES].items() if rules else ()
    return dict(
        sorted((key, layer) for key, layer in objects if isinstance(key, RuleTable) and isinstance(layer, RuleLayer))
    )


def _existing(backend: IptablesBackend, chains: OwnChains) -> Rules | None:
    """The edge to those tables of this flavour that exist; None where there are none. Raises Unsupported.

    To open a legacy table makes it. nf_tables are listed without being named.
    """
    if backend is IptablesBackend.NFT:
        return NftRules(chains)
    existing = {key: names for key, names in chains.items() if key.table in _legacy_tables(key.family)}
    return LegacyRules(existing) if existing else None


def _legacy_tables(family: Family) -> frozenset[str]:
    """Tables that exist in this network namespace; a kernel without legacy tables has no such file."""
    try:
        return frozenset(_LEGACY_NAMES[family].read_text().split())
    except OSError:
        return frozenset()
