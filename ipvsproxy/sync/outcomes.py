"""What an error number means for the operation that got it. Pure.

Errnos measured on Linux 6.12 (tests/contract). There is no upsert in IPVS: what exists
already is edited instead, what has gone is made anew, once.
"""

from __future__ import annotations

import errno
from enum import Enum, auto

from ipvsproxy.model.kernel_objects import Kind, Operation, Verb


class Outcome(Enum):
    """What to do about an answer."""

    DONE = auto()
    EDIT_INSTEAD = auto()
    ADD_INSTEAD = auto()
    UNKNOWN = auto()  # the answer was lost: the subsystem must be read again
    REFUSED = auto()


_LOST = frozenset({errno.ENOBUFS, errno.ETIMEDOUT, errno.EBADMSG})

_MEANINGS: dict[tuple[Kind, Verb, int], Outcome] = {
    (Kind.VIRTUAL_SERVER, Verb.ADD, errno.EEXIST): Outcome.EDIT_INSTEAD,
    (Kind.VIRTUAL_SERVER, Verb.EDIT, errno.ESRCH): Outcome.ADD_INSTEAD,
    (Kind.VIRTUAL_SERVER, Verb.DELETE, errno.ESRCH): Outcome.DONE,
    (Kind.VIRTUAL_SERVER, Verb.DELETE, errno.ENOENT): Outcome.DONE,  # no IPVS at all (any more)
    (Kind.REAL_SERVER, Verb.ADD, errno.EEXIST): Outcome.EDIT_INSTEAD,
    (Kind.REAL_SERVER, Verb.EDIT, errno.ENOENT): Outcome.ADD_INSTEAD,
    (Kind.REAL_SERVER, Verb.DELETE, errno.ENOENT): Outcome.DONE,
    # The virtual server itself is gone: somebody else's doing, so what else is there must be read.
    (Kind.REAL_SERVER, Verb.ADD, errno.ESRCH): Outcome.UNKNOWN,
    (Kind.REAL_SERVER, Verb.EDIT, errno.ESRCH): Outcome.UNKNOWN,
    (Kind.REAL_SERVER, Verb.DELETE, errno.ESRCH): Outcome.UNKNOWN,
    (Kind.ADDRESS, Verb.ADD, errno.EEXIST): Outcome.DONE,
    (Kind.ADDRESS, Verb.ADD, errno.ENODEV): Outcome.UNKNOWN,
    (Kind.ADDRESS, Verb.DELETE, errno.EADDRNOTAVAIL): Outcome.DONE,
    (Kind.ADDRESS, Verb.DELETE, errno.ENODEV): Outcome.DONE,
    (Kind.LINK, Verb.ADD, errno.EEXIST): Outcome.DONE,
    (Kind.LINK, Verb.DELETE, errno.ENODEV): Outcome.DONE,
    (Kind.SET, Verb.DELETE, errno.ENOENT): Outcome.DONE,
    (Kind.SUPPORT_ENTRY, Verb.ADD, errno.ENOENT): Outcome.UNKNOWN,
    (Kind.GUARD_ENTRY, Verb.ADD, errno.ENOENT): Outcome.UNKNOWN,
    (Kind.ACCEPT_ENTRY, Verb.ADD, errno.ENOENT): Outcome.UNKNOWN,
    (Kind.BOUND_ENTRY, Verb.ADD, errno.ENOENT): Outcome.UNKNOWN,
    (Kind.SUPPORT_ENTRY, Verb.DELETE, errno.ENOENT): Outcome.DONE,
    (Kind.GUARD_ENTRY, Verb.DELETE, errno.ENOENT): Outcome.DONE,
    (Kind.ACCEPT_ENTRY, Verb.DELETE, errno.ENOENT): Outcome.DONE,
    (Kind.BOUND_ENTRY, Verb.DELETE, errno.ENOENT): Outcome.DONE,
}


def judge(operation: Operation, number: int) -> Outcome:
    """The outcome of `operation` when the kernel answered `number`."""
    if number == 0:
        return Outcome.DONE
    if number in _LOST:
        return Outcome.UNKNOWN
    return _MEANINGS.get((operation.kind, operation.verb, number), Outcome.REFUSED)


_PERMISSION = "Run as root, or with the capabilities NET_ADMIN and NET_RAW"
_HINTS: dict[tuple[Kind | None, int | None], str] = {
    (Kind.VIRTUAL_SERVER, errno.ENOENT): (
        "Load the scheduler's module (ip_vs_<scheduler>) on the node or set --ipvs-scheduler to rr"
    ),
    (Kind.ADDRESS, errno.EACCES): "Switch IPv6 on for the device: net.ipv6.conf.kube-ipvs0.disable_ipv6 = 0",
    (Kind.RULES, errno.EAGAIN): "Another program holds the xtables lock; it is tried again",
    (None, errno.EPERM): _PERMISSION,
    (None, errno.EACCES): _PERMISSION,
    (
        None,
        errno.EROFS,
    ): "/proc/sys is read-only here: set it on the host, or mount the host's folder and name it by --proc-sys-net",
    (Kind.SET, None): (
        "A set of this name but of another type is there; destroy it, or the rule or program that uses it"
    ),
}


def hint(operation: Operation, number: int) -> str:
    """What the operator can do about a refusal; empty where nothing is known."""
    rows = ((operation.kind, number), (None, number), (operation.kind, None))
    return next((_HINTS[row] for row in rows if row in _HINTS), "")
