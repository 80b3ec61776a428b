"""`ipvsproxy status` and the program name `ipvsadm`: what ipvsadm 1.31 prints of the kernel's IPVS, proxy or not.

    words ─ a command that writes? refused ─ kernel there? ─ arguments.parse ─ Request ─ lines, one by one ─ stdout

Output, messages and exit codes are ipvsadm's, to the byte. The kernel is asked before the words are looked at, as by
ipvsadm.
`--from FILE` lists what a file tells instead. It is an option of `ipvsproxy status` alone, and `run` is where such
options are taken out: the name ipvsadm never has them.
Source: ipvsadm 1.31, ipvsadm.c main, process_options, libipvs.c ipvs_strerror.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path

from ipvsproxy.errors import IpvsproxyError, KernelError, describe_errno
from ipvsproxy.model.observed import IpvsTable
from ipvsproxy.resolver import SystemResolver
from ipvsproxy.status.arguments import parse, written_by
from ipvsproxy.status.connections import connection_lines
from ipvsproxy.status.endpoints import Endpoint, Resolver, by_name, numeric
from ipvsproxy.status.listing import dotted, list_all, list_one
from ipvsproxy.status.option_words import Refused
from ipvsproxy.status.own_words import is_own
from ipvsproxy.status.requests import Connections, Daemons, Request, Rules, Table, Text, Timeouts
from ipvsproxy.status.rules import save
from ipvsproxy.status.rules_file import read_rules
from ipvsproxy.status.settings import daemon_lines, timeout_line
from ipvsproxy.status.source import Source, TableSource, not_told
from ipvsproxy.stdout import print_lines

_FROM = "--from"
_OK, _LISTING_FAILED, _REFUSED = 0, 1, 2
_NO_SUCH_SERVICE = "No such service"
_NO_IPVS = "Are you sure that IP Virtual Server is built in the kernel or as module?"
_OLDEST_VERSION = 0x010104

_REASONS = {
    errno.ESRCH: _NO_SUCH_SERVICE,
    errno.EPERM: "Permission denied (you must be root)",
    errno.EINVAL: "Invalid operation.  Possibly wrong module version, address not unicast, ...",
    errno.ENOPROTOOPT: "Protocol not available",
    errno.ENOMEM: "Memory allocation problem",
    errno.EOPNOTSUPP: "Operation not supported with IPv6",
    errno.EAFNOSUPPORT: "Operation not supported with specified address family",
    errno.EMSGSIZE: "Module is wrong version",
}


def _open_kernel() -> AbstractContextManager[Source]:
    from ipvsproxy.kernel.ipvs import NetlinkIpvs  # noqa: PLC0415  # not needed for a file

    return closing(NetlinkIpvs())


def _load_module() -> bool:
    from ipvsproxy.kernel import ipvs_presence  # noqa: PLC0415  # not needed where IPVS answers

    return ipvs_presence.load_module()


def _refusal() -> int:
    from ipvsproxy.kernel import ipvs_presence  # noqa: PLC0415  # as above

    return ipvs_presence.refusal()


_RESOLVER = SystemResolver()
_CONNECTIONS = Path("/proc/net/ip_vs_conn")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a listing is made from; by default this machine's."""

    open_kernel: Callable[[], AbstractContextManager[Source]] = _open_kernel
    resolver: Resolver = _RESOLVER
    connections: Path | None = _CONNECTIONS
    load_module: Callable[[], bool] = _load_module
    refusal: Callable[[], int] = _refusal
    """The errno that says why the kernel does not answer, where the kernel's answer does not."""


def run(arguments: Sequence[str], around: Surroundings = Surroundings()) -> int:
    """Print what `ipvsproxy status` is asked for; ipvsadm's exit code. Raises BrokenPipeError, IpvsproxyError."""
    if is_own(arguments):
        return _view(arguments, around)
    path, words = _take_from(arguments)
    if path is None:
        return run_as_ipvsadm(words, around)
    if code := _refuse_writing(words):
        return code
    source = _file_source(path, around)
    return _answer(words, source, source.info(), replace(around, connections=None))


def table_of(text: str, resolver: Resolver) -> IpvsTable:
    """The table that a snapshot file tells. Raises IpvsproxyError."""
    if not text.lstrip().startswith("{"):
        return read_rules(text, resolver)
    from ipvsproxy.status.document import read_table  # noqa: PLC0415  # 20 ms that all others do without

    return read_table(text)


def _view(words: Sequence[str], around: Surroundings) -> int:
    """With an option that ipvsadm does not have. What fails in the kernel is told in ipvsadm's words here too."""
    from ipvsproxy import status_view  # noqa: PLC0415  # ipvsadm's own arguments do without

    def with_source(path: str, show: Callable[[Source], int]) -> int:
        if path:
            return show(_file_source(path, around))
        with around.open_kernel() as kernel:
            try:
                _start(kernel, around)
            except KernelError as error:
                return _refuse_to_start(error, around)
            try:
                return show(kernel)
            except KernelError as error:
                _complain(_reason(error.number))
                return _LISTING_FAILED

    return status_view.run(words, with_source)


def _file_source(path: str, around: Surroundings) -> TableSource:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise IpvsproxyError(f"{_FROM} {path}", f"cannot be read: {describe_errno(error.errno or 0)}") from error
    return TableSource(table_of(text, around.resolver))


def run_as_ipvsadm(words: Sequence[str], around: Surroundings = Surroundings()) -> int:
    """The same for words that are ipvsadm's alone. Raises likewise."""
    if code := _refuse_writing(words):
        return code
    with around.open_kernel() as kernel:
        try:
            info = _start(kernel, around)
        except KernelError as error:
            return _refuse_to_start(error, around)
        return _answer(words, kernel, info, around)


def _take_from(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The file of --from, and the other words. Raises IpvsproxyError where the file is missing."""
    words = list(arguments)
    for at, word in enumerate(words):
        name, equals, path = word.partition("=")
        if name == _FROM:
            behind = at + 1 if equals else at + 2
            path = path if equals else "".join(words[at + 1 : behind])
            if not path:
                raise IpvsproxyError(_FROM, "it needs the name of a file")
            return path, words[:at] + words[behind:]
    return None, words


def _refuse_writing(words: Sequence[str]) -> int:
    command = written_by(words)
    if command is None:
        return _OK
    _complain(f"{command}: ipvsproxy lists what IPVS has and changes nothing by hand. Use the package ipvsadm for that")
    return _REFUSED


def _start(kernel: Source, around: Surroundings) -> tuple[int, int]:
    """What the kernel tells of itself. Raises KernelError."""
    try:
        info = kernel.info()
    except KernelError:
        if not around.load_module():
            raise
        info = kernel.info()
    if info[0] < _OLDEST_VERSION:
        _warn_of_old_kernel(info[0])
    return info


def _warn_of_old_kernel(version: int) -> None:
    """Of what no kernel has been for twenty years. The blank lines and double blank are ipvsadm's."""
    _complain("Warning: IPVS version mismatch: ")
    _complain(f"  Kernel compiled with IPVS version {dotted(version)}")
    _complain(f"  ipvsadm v1.31  requires minimum IPVS version {dotted(_OLDEST_VERSION)}\n")


def _refuse_to_start(error: KernelError, around: Surroundings) -> int:
    number = around.refusal() or error.number
    reason = _reason(errno.ENOPROTOOPT if number == errno.ENOENT else number)
    _complain(f"Can't initialize ipvs: {reason}")
    _complain(_NO_IPVS)
    return _REFUSED


def _answer(words: Sequence[str], source: Source, info: tuple[int, int], around: Surroundings) -> int:
    try:
        print_lines(_lines(parse(words, around.resolver), source, info, around))
    except Refused as refused:
        if str(refused):
            _complain(str(refused))
        return refused.exit_code
    except KernelError as error:
        _complain(_reason(error.number))
        return _LISTING_FAILED
    return _OK


def _lines(request: Request, source: Source, info: tuple[int, int], around: Surroundings) -> Iterator[str]:
    match request:
        case Text(text):
            return iter((text,))
        case Rules(is_numeric=is_numeric):
            return save(source, _endpoint(around, is_numeric=is_numeric))
        case Timeouts():
            return _settings(lambda: iter((timeout_line(*source.timeouts()),)))
        case Daemons():
            return _settings(lambda: daemon_lines(source.sync_daemons()))
        case Connections():
            return _connection_lines(request, around)
        case Table():
            return _table_lines(request, source, info, around)


def _table_lines(table: Table, source: Source, info: tuple[int, int], around: Surroundings) -> Iterator[str]:
    endpoint = _endpoint(around, is_numeric=table.is_numeric)
    if table.only is None:
        return list_all(source, info, table, endpoint)
    lines = list_one(source, table, endpoint)
    if lines is None:
        raise Refused(_NO_SUCH_SERVICE, _LISTING_FAILED)
    return lines


def _settings(read: Callable[[], Iterator[str]]) -> Iterator[str]:
    """Like ipvsadm it says nothing where these cannot be read."""
    try:
        return read()
    except KernelError as error:
        raise Refused("", _LISTING_FAILED) from error


def _connection_lines(request: Connections, around: Surroundings) -> Iterator[str]:
    if around.connections is None:
        raise not_told("connections")
    try:
        file = around.connections.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Refused(f"cannot open file {around.connections}", _LISTING_FAILED) from error
    with file:
        if not file.readline():
            raise Refused(f"unexpected input from {around.connections}", _LISTING_FAILED)
        endpoint = _endpoint(around, is_numeric=request.is_numeric)
        yield from connection_lines(file, endpoint, with_engines=request.with_engines)


def _endpoint(around: Surroundings, *, is_numeric: bool) -> Endpoint:
    return numeric if is_numeric else by_name(around.resolver)


def _reason(number: int) -> str:
    return _REASONS.get(number) or os.strerror(number)


def _complain(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201  # ipvsadm's own words
