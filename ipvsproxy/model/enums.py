"""The kernel's numbers under the field's names. Source: include/uapi/linux/{in,socket,ip_vs}.h."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final


class Family(IntEnum):
    """Address family; the value is the kernel's AF_ number."""

    IPV4 = 2
    IPV6 = 10

    @property
    def label(self) -> str:
        """Kubernetes' spelling (`spec.ipFamilies`, metric label `ip_family`)."""
        return "IPv4" if self is Family.IPV4 else "IPv6"

    @property
    def host_prefix_len(self) -> int:
        """Prefix length of a single address, in bits."""
        return 32 if self is Family.IPV4 else 128


class Protocol(IntEnum):
    """Transport protocol; the value is the IP protocol number."""

    TCP = 6
    UDP = 17
    SCTP = 132

    @property
    def word(self) -> str:
        """Lower-case word as ipset and iptables print it."""
        return self.name.lower()


PROTOCOL_NAMES: Final[dict[int, str]] = {protocol.value: protocol.name for protocol in Protocol}


class ForwardingMethod(IntEnum):
    """How a real server is reached (IP_VS_CONN_F_FWD_MASK)."""

    MASQ = 0
    LOCAL = 1
    TUNNEL = 2
    ROUTE = 3


class VirtualServerFlags(IntFlag):
    """IP_VS_SVC_F_*; HASHED is the kernel's own bit and never part of what is wanted."""

    NONE = 0
    PERSISTENT = 0x01
    HASHED = 0x02
    ONE_PACKET = 0x04
    SCHEDULER_1 = 0x08
    SCHEDULER_2 = 0x10
    SCHEDULER_3 = 0x20


class TunnelType(IntEnum):
    """How a tunnel wraps packets (IP_VS_CONN_F_TUNNEL_TYPE_*); kernels before 5.3 know IPIP alone."""

    IPIP = 0
    GUE = 1
    GRE = 2


class TunnelFlags(IntFlag):
    """IP_VS_TUNNEL_ENCAP_FLAG_*: checksums in the outer header of GUE and GRE."""

    NO_CHECKSUM = 0
    CHECKSUM = 0x01
    REMOTE_CHECKSUM = 0x02
