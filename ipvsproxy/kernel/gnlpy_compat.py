"""gnlpy's faults, met here and nowhere else. Import gnlpy through this module.

gnlpy 0.1.2 is the description of the IPVS messages; what keeps it from working or being enough today:

- it imports `six` and does not declare it: our pyproject.toml does;
- it packs with `array.fromstring`, which Python 3.9 removed: put back below, for gnlpy alone;
- its unpacking fails with KeyError on any attribute that a kernel newer than itself sends (tunnel attributes, generic
  netlink policies): it is never used, answers are read by `ipvs_decode`, which takes the attributes' numbers from here,
  those that gnlpy's tables lack included;
- its client speaks TCP and UDP only, one message at a time: only its message tables are used, which have no limit.
"""

from __future__ import annotations

import array
from types import SimpleNamespace
from typing import Final

import gnlpy.netlink
from gnlpy.ipvs import (
    IpvsCmdAttrList,
    IpvsDaemonAttrList,
    IpvsDestAttrList,
    IpvsInfoAttrList,
    IpvsMessage,
    IpvsServiceAttrList,
    IpvsStatsAttrList,
    IpvsStatsAttrList64,
)
from gnlpy.netlink import AttrListPacker, CtrlAttrList, CtrlMessage

__all__ = [
    "DAEMON_GROUP_IPV4",
    "DAEMON_GROUP_IPV6",
    "DAEMON_MAX_LENGTH",
    "DAEMON_PORT",
    "DAEMON_TTL",
    "TUNNEL_FLAGS",
    "TUNNEL_PORT",
    "TUNNEL_TYPE",
    "AttrListPacker",
    "CtrlAttrList",
    "CtrlMessage",
    "IpvsCmdAttrList",
    "IpvsDaemonAttrList",
    "IpvsDestAttrList",
    "IpvsInfoAttrList",
    "IpvsMessage",
    "IpvsServiceAttrList",
    "IpvsStatsAttrList",
    "IpvsStatsAttrList64",
    "attribute_number",
]

# IPVS_DEST_ATTR_TUN_*, include/uapi/linux/ip_vs.h (Linux 5.3)
TUNNEL_TYPE: Final = 13
TUNNEL_PORT: Final = 14
TUNNEL_FLAGS: Final = 15
# IPVS_DAEMON_ATTR_* (Linux 4.3)
DAEMON_MAX_LENGTH: Final = 4
DAEMON_GROUP_IPV4: Final = 5
DAEMON_GROUP_IPV6: Final = 6
DAEMON_PORT: Final = 7
DAEMON_TTL: Final = 8


class _Array(array.array):  # type: ignore[type-arg]  # array is not generic at run time before 3.12
    def fromstring(self, data: str | bytes) -> None:
        self.frombytes(data.encode("latin-1") if isinstance(data, str) else data)


gnlpy.netlink.array = SimpleNamespace(array=_Array)


def attribute_number(table: type[AttrListPacker], name: str) -> int:
    """The kernel's number of an attribute, from gnlpy's table."""
    (number,) = table(**{name: 0}).attrs
    return number
