"""Listening sockets, and how many of them a process may have."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
import sys
from collections.abc import Iterator
from typing import Final

from ipvsproxy.model.addr import PackedAddr, family_of, format_addr
from ipvsproxy.model.enums import Family
from ipvsproxy.serve.connections import MAX_CONNECTIONS
from ipvsproxy.serve.places import Place

# include/uapi/linux/in.h, in6.h; not in Python's socket module
_IP_FREEBIND: Final = 15
_IPV6_FREEBIND: Final = 78

_UNSPECIFIED = frozenset((bytes(4), bytes(16)))
_NO_IPV6 = frozenset((errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL))
_HINTS = {
    errno.EADDRINUSE: "Something else on this node listens there; `ss -ltnp` names it",
    errno.EACCES: "Give the process NET_BIND_SERVICE for ports below 1024",
    errno.EADDRNOTAVAIL: "Name an address that this node has, or 0.0.0.0 for all of them",
    errno.EMFILE: "Raise the process' limit of open files (LimitNOFILE)",
}

_BACKLOG = 1024  # a full one costs a client a second: its SYN is dropped
_KEPT_DESCRIPTORS = 256  # for all else that the process has open: netlink, watches, files


def listen(place: Place) -> socket.socket:
    """A non-blocking socket that listens at `place`. Raises OSError.

    An IPv6 one takes IPv6 alone, so that both families can listen on all addresses. An address need not be usable yet:
    a new IPv6 one is tentative for a second or two.
    """
    family = family_of(place.address)
    with _socket(family) as opened:
        if family is Family.IPV6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        else:
            opened.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        return _listening(opened, format_addr(place.address), place.port)


def listen_on(address: PackedAddr, port: int) -> socket.socket:
    """A non-blocking socket that listens at `address`, or, where that is all zeros, at every one of both families.

    Unlike `listen`, the node must have the address: a misspelt one has to show. Raises OSError.
    Source: Go's net.Listen("tcp", …).
    """
    if address in _UNSPECIFIED:
        try:
            with _socket(Family.IPV6) as opened:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                return _listening(opened, "::", port)
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
        address = PackedAddr(bytes(4))
    with _socket(family_of(address)) as opened:
        return _listening(opened, format_addr(address), port)


def listening_hint(number: int) -> str:
    """What the operator can do about an errno of `listen` or `listen_on`."""
    return _HINTS.get(number, "It is tried again")


@contextlib.contextmanager
def _socket(family: Family) -> Iterator[socket.socket]:
    """A new socket, closed where the block raises."""
    opened = socket.socket(socket.AddressFamily(family), socket.SOCK_STREAM)
    try:
        yield opened
    except OSError:
        opened.close()
        raise


def _listening(opened: socket.socket, address: str, port: int) -> socket.socket:
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past what its predecessor's clients left
    opened.bind((address, port))
    opened.listen(_BACKLOG)
    opened.settimeout(0)
    return opened


def listeners_allowed() -> int:
    """How many sockets may listen, after raising this process' limit of open files as far as it may, as Go does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # fs.nr_open may have been lowered since
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(0, soft - MAX_CONNECTIONS - _KEPT_DESCRIPTORS)
