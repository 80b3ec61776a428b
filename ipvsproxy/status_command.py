"""`ipvsproxy status`: what the kernel's IPVS holds, as `ipvsadm -L -n` and `ipvsadm -S -n` print it, proxy or not.

Messages and exit codes of what fails are ipvsadm's too (ipvsadm 1.31, libipvs.c ipvs_strerror). differs: only these two
forms are there, and another argument is refused before the kernel is asked.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeAlias

from ipvsproxy.config.command_line import ExitCode
from ipvsproxy.config.field_errors import quoted
from ipvsproxy.errors import KernelError, Unsupported
from ipvsproxy.model.observed import IpvsTable
from ipvsproxy.status.listing import list_table, save
from ipvsproxy.stdout import print_lines

_Form: TypeAlias = Callable[[IpvsTable], Iterator[str]]
_FORMS: dict[tuple[str, ...], _Form] = {
    (): list_table,
    ("-L", "-n"): list_table,
    ("-Ln",): list_table,
    ("-l", "-n"): list_table,
    ("-ln",): list_table,
    ("--list", "--numeric"): list_table,
    ("-S", "-n"): save,
    ("-Sn",): save,
    ("--save", "--numeric"): save,
}
_USAGE = """\
usage: ipvsproxy status [-L -n]   list the kernel's virtual and real servers, as ipvsadm -L -n does
       ipvsproxy status -S -n     print them as rules for ipvsadm -R, as ipvsadm -S -n does

Exit codes are ipvsadm's: 0 success, 1 the kernel failed while listing, 2 a usage error, no IPVS or no permission."""

_NO_IPVS = 2
_USAGE_ERROR = 2
_LISTING_FAILED = 1

_MUST_BE_ROOT = "Permission denied (you must be root)"
_REASONS = {
    errno.ESRCH: "No such service",
    errno.EINVAL: "Invalid operation.  Possibly wrong module version, address not unicast, ...",
    errno.ENOPROTOOPT: "Protocol not available",
    errno.ENOMEM: "Memory allocation problem",
    errno.EOPNOTSUPP: "Operation not supported with IPv6",
    errno.EAFNOSUPPORT: "Operation not supported with specified address family",
    errno.EMSGSIZE: "Module is wrong version",
}


def _read_kernel() -> IpvsTable:
    from ipvsproxy.kernel.ipvs import NetlinkIpvs  # noqa: PLC0415  # not needed for a usage error

    with closing(NetlinkIpvs()) as ipvs:
        return ipvs.dump()


def run(arguments: Sequence[str], read_table: Callable[[], IpvsTable] = _read_kernel) -> int:
    """Print the listing that the arguments ask for; ipvsadm's exit code. Raises BrokenPipeError."""
    if tuple(arguments) in {("-h",), ("--help",)}:
        print_lines([_USAGE])
        return ExitCode.OK
    form = _FORMS.get(tuple(arguments))
    if form is None:
        _complain(f"ipvsproxy status: {quoted(' '.join(arguments))} is not supported, only -L -n and -S -n are")
        return _USAGE_ERROR
    try:
        table = read_table()
    except KernelError as error:
        return _explain(error)
    print_lines(form(table))
    return ExitCode.OK


def _explain(error: KernelError) -> int:
    """As ipvsadm, which asks for IPVS itself first, so a missing module or permission is found before any listing."""
    if error.number in {errno.EPERM, errno.EACCES}:
        return _refuse_to_start(_MUST_BE_ROOT)
    if isinstance(error, Unsupported):
        return _refuse_to_start(_REASONS[errno.ENOPROTOOPT])
    _complain(_REASONS.get(error.number, os.strerror(error.number)))
    return _LISTING_FAILED


def _refuse_to_start(reason: str) -> int:
    _complain(f"Can't initialize ipvs: {reason}")
    _complain("Are you sure that IP Virtual Server is built in the kernel or as module?")
    return _NO_IPVS


def _complain(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201  # ipvsadm's own words
