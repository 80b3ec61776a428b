"""The error tree. A class exists because somebody handles it; each message says what, why and what to do."""

from __future__ import annotations

import errno
import os


class IpvsproxyError(Exception):
    """Anything this program raises on purpose: `what`, `why`, and a `hint` on what to do."""

    def __init__(self, what: str, why: str, hint: str = "") -> None:
        super().__init__(what, why, hint)
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" + (f". {self.hint}" if self.hint else "")


class ConfigError(IpvsproxyError):
    """A flag, field or path that cannot be used; `what` names it. Exit code 1."""


class KernelError(IpvsproxyError):
    """The kernel refused or does not have something; `number` is the errno, 0 where there is none."""

    def __init__(self, what: str, number: int, hint: str = "", why: str = "") -> None:
        super().__init__(what, why or describe_errno(number), hint)
        self.number = number


class Unsupported(KernelError):  # noqa: N818 - reads as a state, like its siblings
    """Missing module, matcher, sysctl, library or permission: found at start, exit code 3."""


class NotInKernel(Unsupported):
    """The kernel does not have this part and cannot load it, so nothing is in it that a clean-up could leave."""


class DumpInterrupted(KernelError):  # noqa: N818 - as above
    """A dump that stayed inconsistent after all retries: nothing may be concluded from it."""


class AlreadyRunning(IpvsproxyError):  # noqa: N818 - as above
    """Another daemon works in this network namespace. Exit code 4."""


def describe_errno(number: int) -> str:
    """`ENOENT (No such file or directory)`; ipset's own codes, which start at 4096, by number."""
    name = errno.errorcode.get(number)
    if name:
        return f"{name} ({os.strerror(number)})"
    return _IPSET_ERRORS.get(number, f"error {number}")


# include/uapi/linux/netfilter/ipset/ip_set.h, and the hash types' own from 4352 up
_IPSET_ERRORS = {
    4097: "IPSET_ERR_PROTOCOL (the entry does not fit the set's type)",
    4098: "IPSET_ERR_FIND_TYPE (the kernel does not have this type of set)",
    4099: "IPSET_ERR_MAX_SETS (no more sets can be made)",
    4100: "IPSET_ERR_BUSY (a rule or another set uses it)",
    4103: "IPSET_ERR_EXIST (it is there already)",
    4109: "IPSET_ERR_IPADDR_IPV4 (the set holds IPv4 addresses)",
    4110: "IPSET_ERR_IPADDR_IPV6 (the set holds IPv6 addresses)",
    4352: "IPSET_ERR_HASH_FULL (the set is full)",
}
