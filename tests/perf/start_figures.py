"""What the program's start costs: it is run as it is, and tells its CPU time at two of its messages.

    python -m tests.perf.start_figures RESULT.json ARGUMENT…      arguments are ipvsproxy's

The first is the first message that writes to the kernel, the second the one that binds the first VIP, where it ends
itself. Time counts from exec on, with the programs that it starts.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ipvsproxy import cli
from ipvsproxy.kernel.addresses import RTM_NEWADDR
from ipvsproxy.kernel.netlink import NetlinkSocket

SendBatch = Callable[..., list[int]]


def cpu_ns() -> int:
    """CPU time of this process and of those that it started and waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + round((children.ru_utime + children.ru_stime) * 1e9)


def witnessed(send: SendBatch, result: Path) -> SendBatch:
    """`send` with a witness before it, who notes the time of the first call and of the first VIP's."""
    figures: dict[str, int] = {}

    def send_batch(sender: NetlinkSocket, message_type: int, bodies: Sequence[bytes], flags: int = 0) -> list[int]:
        figures.setdefault("start.first_message_insn", cpu_ns())
        if message_type == RTM_NEWADDR:
            figures.setdefault("start.first_vip_insn", cpu_ns())
            result.write_text(json.dumps(figures))
            signal.raise_signal(signal.SIGTERM)
        return send(sender, message_type, bodies, flags)

    return send_batch


def main(argv: list[str]) -> int:
    """Run ipvsproxy with these arguments."""
    result, *words = argv
    NetlinkSocket.send_batch = witnessed(NetlinkSocket.send_batch, Path(result))  # type: ignore[method-assign]
    return cli.run(words, cli.Programs())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
