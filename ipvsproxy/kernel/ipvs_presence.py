"""Where IPVS does not answer over netlink: getting its module, and the reason that ipvsadm would name.

ipvsadm asks in an older way then, over a raw socket, and reports how that fails. So without root the reason is the
permission, whether or not there is IPVS. Source: ipvsadm 1.31, ipvsadm.c modprobe_ipvs, libipvs.c ipvs_init.
"""

from __future__ import annotations

import socket
import subprocess

_MODPROBE = ("/sbin/modprobe", "--", "ip_vs")
_TIMEOUT_S = 60
_GET_INFO = 64 + 1024 + 64 + 1  # IP_VS_SO_GET_INFO, include/uapi/linux/ip_vs.h
_INFO_BYTES = 12


def load_module() -> bool:
    """Whether modprobe says that the module is there now; what else it says goes to our stderr, as from ipvsadm."""
    try:
        done = subprocess.run(_MODPROBE, check=False, timeout=_TIMEOUT_S)  # noqa: S603  # a constant, no shell
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def refusal() -> int:
    """The errno of the older way to ask, 0 where it works."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as asked:
            asked.getsockopt(socket.IPPROTO_IP, _GET_INFO, _INFO_BYTES)
    except OSError as error:
        return error.errno or 0
    return 0
