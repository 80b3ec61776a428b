"""Putting settings of the host in force at start: each is written where it is not met yet, and a refusal is said once.

Nothing waits for them and nothing that was refused is tried again: traffic is served without them too. What belongs to
IPVS' module is gone when somebody loads it anew, so the audits look after it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence

import structlog

from ipvsproxy.errors import KernelError, describe_errno
from ipvsproxy.kernel.api import HostFiles, Ipvs
from ipvsproxy.plan.host_settings import HASHSIZE, KEEPALIVE_TIME, OOM_SCORE_ADJ, RUN_ESTIMATION, HostSetting

log = structlog.get_logger()

_DEFAULT_HINT = "Set it on the host, run with --init-only first, privileged, or see --proc-sys-net"
_HINTS = {
    HASHSIZE: "Only the host's first network namespace may change it: run there, with /sys writable",
    OOM_SCORE_ADJ: "A lower value than now needs the capability SYS_RESOURCE",
    RUN_ESTIMATION: "Linux 5.16 and later have it: statistics go on being estimated here",
}


def put_in_force(files: HostFiles, settings: Iterable[HostSetting]) -> int:
    """Write what is not as wanted yet; how many of them were refused."""
    written: dict[str, int] = {}
    refused = 0
    for setting in settings:
        before = files.read(setting.path)
        if setting.is_met_by(before):
            continue
        number = files.write(setting.path, setting.value)
        if number == 0:
            written[setting.path] = setting.value
            continue
        refused += 1
        log.warning(
            "host_setting_refused",
            file=f"/{setting.path}",
            wanted=setting.value,
            found=before,
            errno=describe_errno(number),
            hint=_HINTS.get(setting.path, _DEFAULT_HINT),
        )
    if written:
        log.info("host_settings_written", **{path.rpartition("/")[2]: value for path, value in written.items()})
    return refused


def put_timeouts_in_force(ipvs: Ipvs, files: HostFiles, tcp_s: int, tcp_fin_s: int, udp_s: int) -> int:
    """Set IPVS' own time-outs, where 0 leaves the kernel's value, and warn of one that is too short; 1 if refused.

    They hold for connections whose next packet is still to come, also of those that are open already.
    """
    asked = (tcp_s, tcp_fin_s, udp_s)
    number = ipvs.set_timeouts(*asked) if any(asked) else 0
    if number:
        log.error("timeouts_refused", errno=describe_errno(number), hint=_TIMEOUT_HINTS.get(number, ""))
    _warn_of_idle_connections(ipvs.timeouts()[0], files.read(KEEPALIVE_TIME), is_asked=bool(tcp_s))
    return int(bool(number))


_TIMEOUT_HINTS = {errno.EPERM: "Run as root, or with the capability NET_ADMIN"}


def _warn_of_idle_connections(tcp_s: int, keepalive_s: int | None, *, is_asked: bool) -> None:
    """A time-out below the keep-alive time ends connections before anything keeps them alive (K07).

    Linux' own values are such: 900 s and 7200 s. Who leaves them is told, not warned.
    """
    if keepalive_s is not None and tcp_s < keepalive_s:
        (log.warning if is_asked else log.info)(
            "idle_connections_end_early",
            tcp_timeout_s=tcp_s,
            keepalive_s=keepalive_s,
            effect="a TCP connection that is idle for longer is forgotten, and its next packet answered by a reset",
            hint="Set --ipvs-tcp-timeout above the keep-alive time of clients and servers",
        )


class KeptSettings:
    """Time-outs (seconds: TCP, after a FIN, UDP; 0 for the kernel's own) and other settings of IPVS' module."""

    def __init__(
        self, ipvs: Ipvs, files: HostFiles, timeouts: tuple[int, int, int], settings: Sequence[HostSetting]
    ) -> None:
        self._ipvs = ipvs
        self._files = files
        self._timeouts = timeouts
        self._settings = settings
        self._were_set = False
        self._were_met: set[HostSetting] = set()

    def check(self) -> None:
        """Set again what was in force once and is not any more."""
        if any(self._timeouts):
            self._check_timeouts()
        met = {setting for setting in self._settings if setting.is_met_by(self._files.read(setting.path))}
        put_in_force(self._files, [setting for setting in self._settings if setting in self._were_met - met])
        self._were_met |= met

    def _check_timeouts(self) -> None:
        try:
            found = self._ipvs.timeouts()
        except KernelError as error:
            log.debug("timeouts_not_read", reason=str(error), errno=error.number)
            return
        are_set = all(have == wanted for have, wanted in zip(found, self._timeouts, strict=True) if wanted)
        if self._were_set and not are_set:
            refused = self._ipvs.set_timeouts(*self._timeouts) != 0
            log.warning("timeouts_lost", found_s=found, wanted_s=self._timeouts, are_set_again=not refused)
        self._were_set |= are_set
