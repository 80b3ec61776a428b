"""Entries of connection tracking put into a real kernel's table without a packet, and that kernel as an older one."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from ipvsproxy.kernel.conntrack import NEW, STATUS, TIMEOUT, TUPLE_ORIG, TUPLE_REPLY, encode_tuple, header
from ipvsproxy.kernel.netlink import NLM_F_CREATE, NLM_F_EXCL, NetlinkSocket, Picked, attribute
from ipvsproxy.model.addr import family_of
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.flows import UdpFlow, unpack_endpoint

_LIFE_S = 3600
_SEEN_REPLY_ASSURED_CONFIRMED = 0xE  # IPS_*, include/uapi/linux/netfilter/nf_conntrack_common.h
_REST = attribute(TIMEOUT, struct.pack(">I", _LIFE_S)) + attribute(
    STATUS, struct.pack(">I", _SEEN_REPLY_ASSURED_CONFIRMED)
)


def entry(flow: UdpFlow, protocol: Protocol = Protocol.UDP, more: bytes = b"") -> bytes:
    """What the kernel would tell of this flow, more or less; its number left out, which is the kernel's to give."""
    number = bytes([protocol])
    return (
        header(family_of(unpack_endpoint(flow.client)[0]))
        + encode_tuple(TUPLE_ORIG, flow.client, flow.destination, number)
        + encode_tuple(TUPLE_REPLY, flow.server, flow.client, number)
        + _REST
        + more
    )


def create(
    netlink: NetlinkSocket, flows: Iterable[UdpFlow], protocol: Protocol = Protocol.UDP, more: bytes = b""
) -> list[int]:
    """Make entries that stay for an hour; one error number each."""
    return netlink.send_batch(NEW, [entry(flow, protocol, more) for flow in flows], NLM_F_CREATE | NLM_F_EXCL)


class OldKernelSocket(NetlinkSocket):
    """A kernel before 5.8 as a dump of flows meets it: it does not know the filter, and sends all of the family."""

    def select(
        self,
        message_type: int,
        body: bytes,
        pick: Callable[[bytes, int, int], Picked | None],
        pick_run: Callable[[bytes, int], list[Picked] | None] | None = None,
    ) -> list[Picked]:
        """Without what such a kernel would pass over."""
        return super().select(message_type, body[: len(header(Family.IPV4))], pick, pick_run)
