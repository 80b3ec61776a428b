"""Recordings of kube-proxy, and imitations of it for the objects of our golden cases."""

from __future__ import annotations

import dataclasses
import functools
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from ipvsproxy.cluster.events import ApiObject, Changed, ClusterEvent, ObjectRef
from ipvsproxy.config.command_line import Plan, parse_command_line
from ipvsproxy.config.types import PlanFormat
from ipvsproxy.kube.manifests import ManifestFolder
from ipvsproxy.model.addr import format_addr
from tests.golden.cases import CASES, FORMATS, Case
from tests.golden.comparison import normalised
from tests.golden.differences import placeholder_values
from tests.golden.given import Address, Given, node_addresses, read_items
from tests.golden.upstream import recorded

ROOT = Path(__file__).parents[1] / "data" / "kube-proxy"


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
    def name(self) -> str:
        """What the folder is called."""
        return self.folder.name

    @property
    def formats(self) -> tuple[PlanFormat, ...]:
        """What there is to compare."""
        return FORMATS

    @property
    def host_addresses(self) -> list[str]:
        """The addresses of the node's interfaces at the start, but loopback and link-local ones, which play no part."""
        return [str(address) for address in self._host() if not (address.is_loopback or address.is_link_local)]

    def _host(self) -> list[Address]:
        words = (self.folder / "node.txt").read_text().split()
        return [ipaddress.ip_interface(word).ip for word in words if "/" in word]

    @functools.cached_property
    def given(self) -> Given:
        """What kube-proxy was started with."""
        command = self.command()
        return Given(
            items=read_items(self.folder),
            host=self._host(),
            config=command.config,
            families=tuple(sorted(command.options.families)),
        )

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
        return placeholder_values(self.given, self.lines)


_VIRTUAL_SERVERS_OF_OTHERS = {
    "excluded-networks": (
        "-A -t 203.0.113.99:80 -s wlc",
        "-a -t 203.0.113.99:80 -r 203.0.113.98:80 -g -w 5",
        "-A -t 192.0.2.99:80 -s rr",
        "-A -f 7 -s rr",
        "-a -f 7 -r 203.0.113.98:0 -g -w 1",
    )
}


@dataclass(frozen=True)
class Imitation:
    """What kube-proxy would do with the objects of a golden case."""

    case: Case

    @property
    def name(self) -> str:
        """What the folder is called."""
        return self.case.name

    @property
    def formats(self) -> tuple[PlanFormat, ...]:
        """What there is to compare: not sysctls, of which the recordings say all."""
        return tuple(name for name in FORMATS if name is not PlanFormat.SYSCTL)

    def command(self) -> Plan:
        """The parsed command line of `plan`."""
        return self.case.command()

    @functools.cached_property
    def given(self) -> Given:
        """What kube-proxy would be started with."""
        command, items = self.command(), read_items(self.case.folder)
        given = Given(
            items=items,
            host=[ipaddress.ip_address(format_addr(packed)) for packed in command.options.node_addresses],
            config=command.config,
            families=tuple(sorted(command.options.families)),
            others=_VIRTUAL_SERVERS_OF_OTHERS.get(self.name, ()),
        )
        return given if given.host else dataclasses.replace(given, host=list(node_addresses(given.node)))

    @functools.cached_property
    def _lines(self) -> dict[PlanFormat, list[str]]:
        return recorded(self.given)

    def lines(self, plan_format: PlanFormat) -> list[str]:
        """What the tool would show."""
        return self._lines[plan_format]

    @functools.cached_property
    def values(self) -> dict[str, set[str]]:
        """What the placeholders of the page stand for here."""
        return placeholder_values(self.given, self.lines)


RECORDINGS = tuple(Recording(path) for path in sorted(ROOT.iterdir()) if path.is_dir())

_NOT_OF_A_CLUSTER = {
    "bad-objects",  # an API server takes none of them
    "endpoints-v1",  # a cluster's control plane makes slices of these
}

IMITATIONS = tuple(Imitation(case) for case in CASES if case.name not in _NOT_OF_A_CLUSTER)
