"""Recordings of kube-proxy and the page of meant differences, in a form in which lines can be compared.

What a tool adds on its own is taken off both sides: random and kernel-chosen numbers of sets, the built-in chains that
are always there, sysctls that still have their value of boot. Order counts inside a chain and nowhere else.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from ipvsproxy.cluster.events import ApiObject, Changed, ClusterEvent, ObjectRef
from ipvsproxy.config.command_line import Plan, parse_command_line
from ipvsproxy.config.types import PlanFormat
from ipvsproxy.kube.manifests import ManifestFolder
from ipvsproxy.model.addr import family_of, parse_addr
from ipvsproxy.model.enums import Family

ROOT = Path(__file__).parents[1] / "data" / "kube-proxy"
PAGE = Path(__file__).parents[2] / "docs" / "differences.md"

OURS, THEIRS = "ipvsproxy", "kube-proxy"
BOTH = "both, elsewhere"  # both have the line, in another place of its chain
COLUMNS = ["Where", "Line", "Only in", "Why", "Until"]

_CHOSEN_BY_KERNEL = re.compile(r" (?:bucketsize [0-9]+|initval 0x[0-9a-f]+)")
_BUILT_IN = re.compile(r":[A-Z]+ (?:ACCEPT|DROP) .*")
_PLACEHOLDER = re.compile(r"<[a-z-]+>")
_CELLS = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Difference:
    """A row of the first table of the page: a line that only one side has there, and where it may be."""

    files: tuple[str, ...]
    line: str
    only_in: str

    def covers(self, plan_format: PlanFormat, line: str, only_in: str, values: Mapping[str, Collection[str]]) -> bool:
        """Whether the row speaks of this line; `values` says what each placeholder may stand for in this recording."""
        if only_in != self.only_in or plan_format not in self.files:
            return False
        return re.fullmatch(self._pattern(values), line) is not None

    def _pattern(self, values: Mapping[str, Collection[str]]) -> str:
        """`*` is anything, `<name>` one of the values of this name, all else itself."""
        parts = re.split(r"(\*|<[a-z-]+>)", self.line)
        return "".join(map(_part(values), parts))


def _part(values: Mapping[str, Collection[str]]) -> Callable[[str], str]:
    def pattern(part: str) -> str:
        if part == "*":
            return ".*"
        if _PLACEHOLDER.fullmatch(part):
            return f"(?:{'|'.join(map(re.escape, values[part])) or '(?!)'})"
        return re.escape(part)

    return pattern


def meant_differences() -> tuple[Difference, ...]:
    """The rows of the first table of docs/differences.md."""
    lines = PAGE.read_text().splitlines()
    first = next(index for index, line in enumerate(lines) if _cells(line) == COLUMNS)
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        where, pattern, only_in, why, until = _cells(line)
        assert only_in in {OURS, THEIRS, BOTH}, line
        assert why, line
        assert until, line
        rows.append(Difference(tuple(where.split(", ")), pattern.strip("`"), only_in))
    return tuple(rows)


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in _CELLS.split(line.strip().strip("|"))]


@dataclass(frozen=True)
class Recording:
    """One folder."""

    folder: Path

    @property
    def flags(self) -> list[str]:
        """What `plan` takes of kube-proxy's flags, and what it must be told of the host."""
        flags = (self.folder / "flags.txt").read_text().split()
        kept = [flag for flag in flags if not flag.startswith("--kubeconfig")]
        host = [*kept, f"--node-addresses={','.join(self.host_addresses)}"]
        single = "net.ipv6.conf.all.disable_ipv6 = 1" in (self.folder / "node.txt").read_text().splitlines()
        return [*host, "--ip-families=IPv4"] if single else host

    @property
    def host_addresses(self) -> list[str]:
        """The addresses of the node's interfaces at the start, but loopback and link-local ones, which play no part."""
        words = (self.folder / "node.txt").read_text().split()
        found = (ipaddress.ip_interface(word).ip for word in words if "/" in word)
        return [str(address) for address in found if not (address.is_loopback or address.is_link_local)]

    def command(self) -> Plan:
        """The parsed command line of `plan`."""
        words = ["plan", "-o", PlanFormat.IPVSADM, "--manifests", str(self.folder), *self.flags]
        command = parse_command_line(words)
        assert isinstance(command, Plan)
        return command

    def events(self) -> list[ClusterEvent]:
        """What a daemon is told of the objects at its start."""
        return ManifestFolder(self.folder).load()

    def objects(self) -> dict[ObjectRef, ApiObject]:
        """The objects themselves."""
        return {event.ref: event.object for event in self.events() if isinstance(event, Changed)}

    def lines(self, plan_format: PlanFormat) -> list[str]:
        """What the tool showed, as it is compared."""
        lines = list(normalised((self.folder / f"{plan_format}.txt").read_text().splitlines()))
        if plan_format is PlanFormat.SYSCTL:
            untouched = (ROOT / "sysctl-at-boot.txt").read_text().splitlines()
            return [line for line in lines if line not in untouched]
        return lines

    @functools.cached_property
    def values(self) -> dict[str, set[str]]:
        """What the placeholders of the page stand for here."""
        items = yaml.safe_load((self.folder / "given.yaml").read_text())["items"]
        local = [
            {**item["spec"], **item["status"]["loadBalancer"]}
            for item in items
            if item["kind"] == "Service" and item["spec"].get("externalTrafficPolicy") == "Local"
        ]
        ingress = [entry.get("ip", "") for service in local for entry in service.get("ingress", ())]
        endpoints = [e for item in items if item["kind"] == "EndpointSlice" for e in item["endpoints"] or ()]
        return {
            "<node-ip>": set(_shown(self.host_addresses)),
            "<local-ip>": set(_shown([*ingress, *(ip for service in local for ip in service.get("externalIPs", ()))])),
            "<local-port>": {
                str(port["nodePort"]) for service in local for port in service["ports"] if "nodePort" in port
            },
            "<health-port>": {
                str(service["healthCheckNodePort"]) for service in local if "healthCheckNodePort" in service
            },
            "<remote-pod>": set(_shown(a for e in endpoints if e.get("nodeName") != "node1" for a in e["addresses"])),
            "<empty-set>": self._empty_sets(),
        }

    def _empty_sets(self) -> set[str]:
        words = [line.split() for line in (self.folder / "ipset.txt").read_text().splitlines()]
        return {name for verb, name, *_ in words if verb == "create"} - {
            name for verb, name, *_ in words if verb == "add"
        }


def _shown(texts: Iterable[str]) -> Iterator[str]:
    """Addresses as the tools show them: IPv6 in brackets before a port and plain elsewhere. Names are none."""
    for text in texts:
        addr = parse_addr(text)
        if addr is not None:
            yield text
            if family_of(addr) is Family.IPV6:
                yield f"[{text}]"


def normalised(lines: Iterable[str]) -> Iterator[str]:
    """The lines without what the tools or the kernel add on their own."""
    for line in lines:
        if not _BUILT_IN.fullmatch(line):
            yield _CHOSEN_BY_KERNEL.sub("", line)


def sections(lines: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """Lines by the place in which their order counts: (table, chain) of iptables-save; all others by themselves."""
    found: dict[tuple[str, str], list[str]] = {}
    table = ""
    for line in lines:
        if line.startswith("*"):
            table = line
        chain = line.split(maxsplit=2)[1] if table and line.startswith("-A ") else line
        found.setdefault((table, chain), []).append(line)
    return found


RECORDINGS = tuple(Recording(path) for path in sorted(ROOT.iterdir()) if path.is_dir())
