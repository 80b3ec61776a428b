"""Settings of the host that a start puts in force once: limits of connection tracking, what memory pressure spares.

They are no part of the desired state: a limit that somebody has raised meanwhile is his decision, so no audit puts
these back; and our rules hold connection tracking's module, so nobody loads it anew. Of IPVS' module that is no more
than `rmmod` and a packet: see sync/host_settings.py. A setting is a file below / that holds a whole number.
Source: kubernetes v1.37.2 cmd/kube-proxy/app/server_linux.go getConntrackMax, pkg/proxy/conntrack/sysctls.go.

differs: a larger minimum holds also where the cap is reached; upstream forgets it then.
differs: what cannot be written is a warning, not the end of the program: in a container /proc/sys may be read-only
while the host, or an init container, has set the values (K41).
"""

from __future__ import annotations

import msgspec

from ipvsproxy.config.types import ConntrackConfig

MAX_SCALED = 1 << 20  # entries; on hosts with hundreds of cores the rest would be memory that nobody uses
ENTRIES_PER_BUCKET = 4

_NETFILTER = "proc/sys/net/netfilter"
CONNTRACK_MAX = f"{_NETFILTER}/nf_conntrack_max"
HASHSIZE = "sys/module/nf_conntrack/parameters/hashsize"
OOM_SCORE_ADJ = "proc/self/oom_score_adj"
RUN_ESTIMATION = "proc/sys/net/ipv4/vs/run_estimation"
KEEPALIVE_TIME = "proc/sys/net/ipv4/tcp_keepalive_time"


class HostSetting(msgspec.Struct, frozen=True):
    """One file, relative to /, and the number that it shall hold; `at_least`: a higher one stays."""

    path: str
    value: int
    at_least: bool = False

    def is_met_by(self, current: int | None) -> bool:
        """Whether there is nothing to write; None is a value that cannot be read."""
        if current is None:
            return False
        return current >= self.value if self.at_least else current == self.value


def conntrack_max(max_per_core: int, minimum: int, cpus: int) -> int:
    """How many connections are to be trackable on a host with `cpus` online cores; 0: as many as now."""
    return max(min(max_per_core * cpus, MAX_SCALED), minimum) if max_per_core else 0


def conntrack_settings(config: ConntrackConfig, cpus: int) -> tuple[HostSetting, ...]:
    """What `config` asks of the host, in the order in which it is to be written."""
    found: list[HostSetting] = []
    entries = conntrack_max(config.max_per_core, config.min, cpus)
    if entries:
        found.append(HostSetting(CONNTRACK_MAX, entries, at_least=True))
        found.append(HostSetting(HASHSIZE, entries // ENTRIES_PER_BUCKET, at_least=True))
    for name, value in (
        ("tcp_timeout_established", config.tcp_established_timeout_s),
        ("tcp_timeout_close_wait", config.tcp_close_wait_timeout_s),
        ("tcp_be_liberal", int(config.tcp_be_liberal)),
        ("udp_timeout", config.udp_timeout_s),
        ("udp_timeout_stream", config.udp_stream_timeout_s),
    ):
        if value:
            found.append(HostSetting(f"{_NETFILTER}/nf_conntrack_{name}", value))
    return tuple(found)


def parse_cpu_list(text: str) -> int:
    """How many CPUs a list of the kernel's ("0-3,8") names; 0 where it is none.

    Source: Linux Documentation/admin-guide/cputopology.rst, the format of /sys/devices/system/cpu/online.
    """
    count = 0
    for item in text.strip().split(","):
        first, _, last = item.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return 0
        count += int(last or first) - int(first) + 1
    return count
