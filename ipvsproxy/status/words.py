"""Words that the table and the rules of a virtual server have in common. Source: ipvsadm 1.31, ipvsadm.c."""

from __future__ import annotations

import re
import sys

from ipvsproxy.model.addr import format_addr
from ipvsproxy.model.enums import Family, VirtualServerFlags
from ipvsproxy.model.observed import ObservedVirtualServer, full_netmask
from ipvsproxy.status.figures import signed

FORWARD_MASK = 0x07
UNKNOWN_METHOD = "(null)"  # what C's printf makes of ipvsadm's missing word

KERNEL_NAME = re.compile(r"[!-~]{0,15}")  # of a scheduler or an engine: IP_VS_SCHEDNAME_MAXLEN, IP_VS_PENAME_MAXLEN

_SCHEDULER_BITS = (VirtualServerFlags.SCHEDULER_1, VirtualServerFlags.SCHEDULER_2, VirtualServerFlags.SCHEDULER_3)
ANY_SCHEDULER_BIT = int(_SCHEDULER_BITS[0] | _SCHEDULER_BITS[1] | _SCHEDULER_BITS[2])
_FLAG_NAMES = {"sh": ("sh-fallback", "sh-port"), "mh": ("mh-fallback", "mh-port")}
_OTHER_FLAG_NAMES = ("flag-1", "flag-2", "flag-3")

FLAG_BITS: dict[str, tuple[int, str]] = {
    name: (int(bit), scheduler)
    for scheduler, names in {**_FLAG_NAMES, "": _OTHER_FLAG_NAMES}.items()
    for bit, name in zip(_SCHEDULER_BITS, names, strict=False)
}
"""A flag's bit and the scheduler that calls it so, if only that one does."""


def scheduler_flags(server: ObservedVirtualServer) -> str:
    """Names of the scheduler's flag bits, which each scheduler reads its own way; sh and mh have none for the third."""
    names = _FLAG_NAMES.get(server.scheduler, _OTHER_FLAG_NAMES)
    return ",".join(name for bit, name in zip(_SCHEDULER_BITS, names, strict=False) if server.flags & bit)


def partial_mask(server: ObservedVirtualServer) -> str:
    """The mask by which clients are grouped, empty where each address counts alone."""
    if server.netmask == full_netmask(server.family):
        return ""
    if server.family is Family.IPV4:
        return format_addr(server.netmask)
    return str(signed(int.from_bytes(server.netmask, sys.byteorder)))


def option(name: str, value: str) -> list[str]:
    """Two words, or none without a value."""
    return [name, value] if value else []
