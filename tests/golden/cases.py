"""The golden cases: folders of given objects, flags, and the texts that the tools must show for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ipvsproxy import dry_run
from ipvsproxy.clock import Clock
from ipvsproxy.cluster.claims import Claims
from ipvsproxy.cluster.events import ClusterEvent
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.config.command_line import Plan, parse_command_line
from ipvsproxy.config.types import PlanFormat
from ipvsproxy.kernel.api import Kernel
from ipvsproxy.kube.manifests import ManifestFolder
from ipvsproxy.model.kernel_objects import State
from ipvsproxy.modes.ipvs.mode import IpvsMode, ipvs_options
from ipvsproxy.sync.reconciler import Reconciler, SyncResult

ROOT = Path(__file__).parent

FORMATS = tuple(name for name in PlanFormat if name is not PlanFormat.JSON)
"""Every format of `plan -o` that is a tool's; JSON says the same once more and has no golden file."""

PLAN_ONLY_FLAGS = ("--ip-families", "--node-addresses")
"""What only a dry run is told; the daemon finds it out from its kernel."""


@dataclass(frozen=True)
class Case:
    """One folder."""

    folder: Path

    @property
    def name(self) -> str:
        """What the folder is called."""
        return self.folder.name

    @property
    def flags(self) -> list[str]:
        """The flags of `plan`, without the folder and the format."""
        return (self.folder / "flags.txt").read_text().split()

    def file(self, plan_format: PlanFormat) -> Path:
        """The file that holds the text of this format."""
        return self.folder / f"{plan_format}.txt"

    def command(self, plan_format: PlanFormat = PlanFormat.IPVSADM) -> Plan:
        """The parsed command line of `plan`."""
        command = parse_command_line(["plan", "-o", plan_format, "--manifests", str(self.folder), *self.flags])
        assert isinstance(command, Plan)
        return command

    def plan(self) -> State:
        """The wanted state."""
        command = self.command()
        return dry_run.plan(command.config, command.options)[0]

    def events(self) -> list[ClusterEvent]:
        """What the daemon is told of the folder at its start."""
        return ManifestFolder(self.folder).load()


class Daemon:
    """What the daemon does with a kernel under the flags of a `plan`.

    Its interfaces have the addresses that `plan` takes them to have: --node-addresses, or the Node object's.
    """

    def __init__(self, command: Plan, kernel: Kernel, clock: Clock) -> None:
        families = command.options.families
        claims = Claims(command.config.cluster_cidrs)
        self.tracker = Tracker(command.config.hostname_override, families, claims=claims)
        self.reconciler = Reconciler(kernel, self.tracker, IpvsMode(ipvs_options(command.config, families)), clock)
        self._addresses = command.options.node_addresses
        self.reconciler.host_changed(frozenset(self._addresses))
        self.reconciler.start()

    def sync(self, events: Iterable[ClusterEvent]) -> SyncResult:
        """One sync after these events."""
        for event in events:
            self.tracker.note(event)
        self.reconciler.host_changed(frozenset(self._addresses or self.tracker.node.addresses))
        return self.reconciler.sync()


def _found() -> Iterator[Case]:
    for path in sorted(ROOT.iterdir()):
        if path.is_dir() and not path.name.startswith("_"):
            yield Case(path)


CASES = tuple(_found())
