"""The dummy link kube-ipvs0 and the VIPs on it, over rtnetlink.

pyroute2 describes the messages to send: it encodes the link's and, for each verb and family, one address message, from
which a template is cut. They go through a socket of our own, many in one send: 46 µs an address instead of 1300. Its
import takes 0.3 s, so it happens at the first change, and not at all in a process that only reads.

The link is made down and left so: a down link carries local routes all the same, each address costs more on one that is
up, and going down again removes every IPv6 address. IPv6 addresses skip duplicate detection (NODAD), as there is nobody
to ask, and bring no route (NOPREFIXROUTE). A link of our name that is no dummy is not ours: no verb touches it.
"""

from __future__ import annotations

import errno
import hashlib
import socket
import struct
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.netlink import (
    ATTRIBUTE,
    NETLINK_ROUTE,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NetlinkSocket,
    read_attributes,
)
from ipvsproxy.kernel.template import Field, Template
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Key, Kind, Operation, Settings, State, Verb
from ipvsproxy.model.names import DUMMY_DEVICE

if TYPE_CHECKING:
    from pyroute2.netlink import nlmsg

# include/uapi/linux/rtnetlink.h, if_link.h, if_addr.h
RTM_NEWLINK: Final = 16
RTM_DELLINK: Final = 17
RTM_GETLINK: Final = 18
RTM_NEWADDR: Final = 20
RTM_DELADDR: Final = 21
RTM_GETADDR: Final = 22
IFLA_IFNAME: Final = 3
IFLA_LINKINFO: Final = 18
IFLA_INFO_KIND: Final = 1
IFA_ADDRESS: Final = 1
IFA_LOCAL: Final = 2
IFA_F_NODAD: Final = 0x002
IFA_F_NOPREFIXROUTE: Final = 0x200
LINK_HEADER: Final = struct.Struct("=BxHiII")  # family, type, index, flags, mask of flags to change
ADDRESS_HEADER: Final = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index

_NETLINK_HEADER_BYTES = 16
_FAMILIES = frozenset(Family)
_KIND = "dummy"
_INDEX = Field("I", 0x71727374)


class Link(msgspec.Struct, frozen=True):
    """A network link: index, kind ("dummy", "veth", …; empty for hardware), IFF_ flags."""

    index: int
    kind: str
    flags: int


class HeldAddress(NamedTuple):
    """An address as a link has it, which is named by index. One text may be there twice, by prefix length or peer."""

    link: int
    prefix_len: int
    peer: bytes
    address: PackedAddr


class NetlinkAddresses:
    """kube-ipvs0 of the network namespace in which it is first used. Meets kernel/api.py's `Addresses`."""

    kinds = frozenset({Kind.LINK, Kind.ADDRESS})

    def __init__(self, netlink: NetlinkSocket | None = None) -> None:
        self.netlink = netlink or NetlinkSocket(NETLINK_ROUTE, f"the link {DUMMY_DEVICE}")

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """One message an operation, in order, after one that asks for the link.

        Adding what is there answers EEXIST; deleting an address that is not, EADDRNOTAVAIL. What needs the link
        answers ENODEV where it is missing or no dummy. An edit is an addition: there is nothing else to set.
        """
        errors: list[int] = []
        for (kind, deletes), run in groupby(operations, key=lambda operation: (operation.kind, _deletes(operation))):
            errors += self._apply_run(kind, list(run), deletes=deletes)
        return errors

    def read(self) -> State:
        """The link and the host prefixes on it. Raises KernelError, also where a foreign link has its name."""
        link = find_link(self.netlink, DUMMY_DEVICE)
        if link is None:
            return {Kind.LINK: {}, Kind.ADDRESS: {}}
        if link.kind != _KIND:
            raise KernelError(
                f"cannot use the link {DUMMY_DEVICE}",
                errno.EEXIST,
                "Rename or remove that link, nothing of it has been changed",
                f"a link of that name exists which is no {_KIND} link but {link.kind or 'hardware'}",
            )
        bodies = self.netlink.dump(RTM_GETADDR, ADDRESS_HEADER.pack(socket.AF_UNSPEC, 0, 0, 0, link.index))
        addresses = (decode_address(body, link.index) for body in bodies)
        bound: dict[Key, Settings] = {address: True for address in addresses if address is not None}
        return {Kind.LINK: {DUMMY_DEVICE: _KIND}, Kind.ADDRESS: bound}

    def fingerprint(self) -> bytes:
        """One value for the link and its addresses as listed, undecoded. Raises KernelError."""
        link = find_link(self.netlink, DUMMY_DEVICE)
        if link is None:
            return b""
        listed = self.netlink.dump(RTM_GETADDR, ADDRESS_HEADER.pack(socket.AF_UNSPEC, 0, 0, 0, link.index))
        return hashlib.blake2b(link.kind.encode() + b"".join(listed), digest_size=16).digest()

    def close(self) -> None:
        """Close the socket; the next use opens another one."""
        self.netlink.close()

    def _apply_run(self, kind: Kind, operations: Sequence[Operation], *, deletes: bool) -> list[int]:
        """Operations of one kind, all of which delete or none."""
        if kind is Kind.LINK and not deletes:
            return self.netlink.send_batch(RTM_NEWLINK, [_new_link()] * len(operations), NLM_F_CREATE | NLM_F_EXCL)
        try:
            link = find_link(self.netlink, DUMMY_DEVICE)
        except KernelError as error:
            return [error.number] * len(operations)
        if link is None or link.kind != _KIND:
            return [errno.ENODEV] * len(operations)
        if kind is Kind.LINK:
            body = LINK_HEADER.pack(socket.AF_UNSPEC, 0, link.index, 0, 0)
            return self.netlink.send_batch(RTM_DELLINK, [body] * len(operations))
        bodies = [_encode_address(cast("PackedAddr", o.key), link.index, deletes=deletes) for o in operations]
        if deletes:
            return self.netlink.send_batch(RTM_DELADDR, bodies)
        return self.netlink.send_batch(RTM_NEWADDR, bodies, NLM_F_CREATE | NLM_F_EXCL)


def find_link(netlink: NetlinkSocket, name: str) -> Link | None:
    """The link of this name in the socket's network namespace. Raises KernelError."""
    text = name.encode() + b"\0"
    padding = bytes(-len(text) % 4)
    wanted = ATTRIBUTE.pack(ATTRIBUTE.size + len(text), IFLA_IFNAME) + text + padding
    try:
        answer = netlink.request(RTM_GETLINK, LINK_HEADER.pack(0, 0, 0, 0, 0) + wanted)
    except KernelError as error:
        if error.number == errno.ENODEV:
            return None
        raise
    _, _, index, flags, _ = LINK_HEADER.unpack_from(answer.ljust(LINK_HEADER.size, b"\0"))
    if index <= 0:
        raise KernelError(f"cannot read the link {name}", errno.EBADMSG)
    info = read_attributes(answer, LINK_HEADER.size).get(IFLA_LINKINFO, b"")
    kind = read_attributes(info, 0).get(IFLA_INFO_KIND, b"")
    return Link(index, kind.rstrip(b"\0").decode("ascii", "replace"), flags)


def decode_address(body: bytes, index: int) -> PackedAddr | None:
    """The address in an address message, if it is on the link `index` and its prefix holds nothing else.

    One with a peer is none of ours: our messages would not name it.
    """
    held = decode_held(body)
    if held is None or held.link != index or held.prefix_len != len(held.address) * 8 or held.peer != held.address:
        return None
    return held.address


def decode_held(body: bytes) -> HeldAddress | None:
    """The address in an address message, whatever its link and prefix; None for families that are not ours."""
    if len(body) < ADDRESS_HEADER.size:
        return None
    family, prefix_len, _, _, index = ADDRESS_HEADER.unpack_from(body)
    found = read_attributes(body, ADDRESS_HEADER.size)
    address = found.get(IFA_LOCAL) or found.get(IFA_ADDRESS, b"")
    if family not in _FAMILIES or len(address) * 8 != Family(family).host_prefix_len:
        return None
    return HeldAddress(index, prefix_len, found.get(IFA_ADDRESS, address), PackedAddr(address))


def _deletes(operation: Operation) -> bool:
    return operation.verb is Verb.DELETE


def _encode_address(address: PackedAddr, index: int, *, deletes: bool) -> bytes:
    if len(address) == Family.IPV4.host_prefix_len // 8:
        return _address_template(Family.IPV4, deletes).pack(index, address, address)
    return _address_template(Family.IPV6, deletes).pack(index, address)


@cache
def _address_template(family: Family, deletes: bool) -> Template:  # noqa: FBT001  # a cache key, not a switch
    """What pyroute2's `IPRoute().addr("add" or "del", …)` sends."""
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg  # noqa: PLC0415  # 0.3 s and 10 MB: only where something changes

    address, local = (
        Field(f"{family.host_prefix_len // 8}s", bytes(range(first, first + family.host_prefix_len // 8)))
        for first in (0x80, 0xA0)
    )
    message = ifaddrmsg()
    message["family"] = family
    message["prefixlen"] = family.host_prefix_len
    message["index"] = _INDEX.sentinel
    message["attrs"] = [("IFA_ADDRESS", socket.inet_ntop(family, address.encoded))]
    if family is Family.IPV4:  # an address and its peer, which are the same
        message["attrs"].append(("IFA_LOCAL", socket.inet_ntop(family, local.encoded)))
        return Template(_encoded(message), [_INDEX, address, local])
    if not deletes:
        message["attrs"].append(("IFA_FLAGS", IFA_F_NODAD | IFA_F_NOPREFIXROUTE))
    return Template(_encoded(message), [_INDEX, address])


@cache
def _new_link() -> bytes:
    """What pyroute2's `IPRoute().link("add", …)` sends."""
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg  # noqa: PLC0415  # see _address_template

    message = ifinfmsg()
    message["attrs"] = [
        ("IFLA_IFNAME", DUMMY_DEVICE),
        ("IFLA_TXQLEN", 0),
        ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", _KIND)]}),
    ]
    return _encoded(message)


def _encoded(message: nlmsg) -> bytes:
    """The message without the netlink header, which the socket writes."""
    message.encode()
    return bytes(message.data[_NETLINK_HEADER_BYTES:])
