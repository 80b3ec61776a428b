"""What `ipvsadm -L --timeout` and `-L --daemon` print. Source: ipvsadm 1.31, ipvsadm.c list_timeout, list_daemon."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ipvsproxy.model.addr import format_addr
from ipvsproxy.model.observed import SyncDaemon
from ipvsproxy.status.figures import signed

_MASTER = 1  # IP_VS_STATE_MASTER; there is one other


def timeout_line(tcp_s: int, tcp_fin_s: int, udp_s: int) -> str:
    """The connection time-outs in seconds; from 2^31 on they are negative there, and so they are here."""
    return f"Timeout (tcp tcpfin udp): {signed(tcp_s)} {signed(tcp_fin_s)} {signed(udp_s)}"


def daemon_lines(daemons: Iterable[SyncDaemon]) -> Iterator[str]:
    """A line each."""
    for daemon in daemons:
        fields = {
            "mcast": daemon.interface,
            " syncid": signed(daemon.sync_id),
            " maxlen": daemon.max_length or None,
            " group": format_addr(daemon.group) if daemon.group else None,
            " port": daemon.port or None,
            " ttl": daemon.ttl or None,
        }
        told = ",".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        yield f"{'master' if daemon.state & _MASTER else 'backup'} sync daemon ({told})"
