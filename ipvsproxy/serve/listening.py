"""Listening sockets of health check node ports, and how many of them a process may have."""

from __future__ import annotations

import contextlib
import resource
import socket
import sys
from typing import Final

from ipvsproxy.model.addr import family_of, format_addr
from ipvsproxy.model.enums import Family
from ipvsproxy.serve.connections import MAX_CONNECTIONS
from ipvsproxy.serve.places import Place

# include/uapi/linux/in.h, in6.h; not in Python's socket module
_IP_FREEBIND: Final = 15
_IPV6_FREEBIND: Final = 78

_BACKLOG = 1024  # a full one costs a client a second: its SYN is dropped
_KEPT_DESCRIPTORS = 256  # for all else that the process has open: netlink, watches, files


def listen(place: Place) -> socket.socket:
    """A non-blocking socket that listens at `place`. Raises OSError.

    An IPv6 one takes IPv6 alone, so that both families can listen on all addresses. An address need not be usable yet:
    a new IPv6 one is tentative for a second or two.
    """
    family = family_of(place.address)
    opened = socket.socket(socket.AddressFamily(family), socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past what its predecessor's clients left
        if family is Family.IPV6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        else:
            opened.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        opened.bind((format_addr(place.address), place.port))
        opened.listen(_BACKLOG)
        opened.settimeout(0)
    except OSError:
        opened.close()
        raise
    return opened


def listeners_allowed() -> int:
    """How many sockets may listen, after raising this process' limit of open files as far as it may, as Go does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # fs.nr_open may have been lowered since
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(0, soft - MAX_CONNECTIONS - _KEPT_DESCRIPTORS)
