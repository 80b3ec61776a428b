"""The cases of tests/data/ipvsadm: what the real ipvsadm printed of which state."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ipvsproxy.kernel.ipvs import NetlinkIpvs
from ipvsproxy.kernel.netlink import NETLINK_GENERIC, NetlinkSocket
from ipvsproxy.status.endpoints import Resolver
from ipvsproxy.status_command import Surroundings
from tests.data.ipvsadm_oracle.oracle import State, StateSocket
from tests.unit.status.name_tables import FileResolver

DATA = Path(__file__).parents[2] / "data" / "ipvsadm"
NAMES = FileResolver(DATA)


class Case(NamedTuple):
    """One call of ipvsadm. `stdout` and `stderr` name the files with what it wrote, if any."""

    state: str
    arguments: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str | None
    is_unprivileged: bool

    def expected(self) -> tuple[int, str, str]:
        """Exit code and output."""
        out, err = ((DATA / name).read_text() if name else "" for name in (self.stdout, self.stderr))
        return self.exit_code, out, err


def cases() -> Iterator[tuple[str, Case]]:
    """Each with a name."""
    for path in sorted(DATA.glob("*.index.json")):
        for case in json.loads(path.read_text())["cases"]:
            found = Case(
                case["state"],
                tuple(case["argv"]),
                case["rc"],
                case["stdout"],
                case.get("stderr"),
                case.get("unprivileged", False),
            )
            yield f"{case['state']}: {case['option']}: {' '.join(case['argv'])}", found


def surroundings(case: Case) -> Surroundings:
    """A kernel in the state of the case, seen by somebody who may or may not look."""
    state: dict[str, Any] = {"services": []}
    if (DATA / f"{case.state}.state.json").exists():
        state = json.loads((DATA / f"{case.state}.state.json").read_text())
    if case.state == "absent":
        state["errors"] = {"GET_FAMILY": errno.ENOENT}
    elif case.is_unprivileged:
        state["errors"] = {"GET_INFO": errno.EPERM}
    return around(state, connections=DATA / f"{case.state}.ip_vs_conn")


def around(state: State, connections: Path = Path("/nowhere"), resolver: Resolver = NAMES) -> Surroundings:
    """A kernel in this state; no module can be loaded, and nobody else knows why it does not answer."""
    netlink = partial(NetlinkSocket, NETLINK_GENERIC, "IPVS", lambda _: StateSocket(state))
    return Surroundings(
        open_kernel=lambda: closing(NetlinkIpvs(netlink(), load=list)),
        resolver=resolver,
        connections=connections,
        load_module=lambda: False,
        refusal=lambda: 0,
    )
