"""What connection tracking could not track, from /proc: 17 columns in hexadecimal, a line for each CPU.

Source: net/netfilter/nf_conntrack_standalone.c, ct_cpu_seq_show. Columns go by their names in the first line, for
kernels have other ones; a kernel without CONFIG_NF_CONNTRACK_PROCFS has no such file.
"""

from __future__ import annotations

from pathlib import Path

from ipvsproxy.model.flows import TrackingErrors

_FILE = Path("/proc/thread-self/net/stat/nf_conntrack")  # of the reading thread's network namespace


def read_tracking_errors(path: Path = _FILE) -> TrackingErrors | None:
    """The sums over all CPUs; None where the kernel does not tell."""
    try:
        titles, *lines = (line.split() for line in path.read_text("ascii", "replace").splitlines())
    except (OSError, ValueError):
        return None
    try:
        columns = {title: sum(int(line[at], 16) for line in lines) for at, title in enumerate(titles)}
        return TrackingErrors(columns["insert_failed"], columns["drop"] + columns["early_drop"])
    except (KeyError, IndexError, ValueError):
        return None
