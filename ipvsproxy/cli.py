"""The program: words in, exit code out. What the words mean is decided in config/, what is done in the modules called.

Each command imports what it needs when it is called, so that `--version` and `status` do not wait for the rest.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import NoReturn

from ipvsproxy.config.command_line import (
    CleanUp,
    Command,
    Diff,
    ExitCode,
    Explain,
    Plan,
    Prepare,
    Serve,
    Show,
    Status,
    Top,
    Write,
    parse_command_line,
)
from ipvsproxy.config.targets import Question
from ipvsproxy.config.types import DiffFormat, LookOptions, PlanOptions, ProxyConfig
from ipvsproxy.config_file import FirstHandedOver, write_text
from ipvsproxy.errors import AlreadyRunning, IpvsproxyError, Unsupported
from ipvsproxy.model.printable import printable
from ipvsproxy.process import accept_signals, hold_reload, restart, take_over
from ipvsproxy.stdout import discard_stdout, pass_bytes_on, print_lines

_LIKE_DIFF = frozenset({"diff", "explain"})  # commands whose exit code is an answer: trouble has a code of its own


def _serve(config: ProxyConfig, reread: Callable[[], ProxyConfig]) -> int:
    from ipvsproxy import daemon  # noqa: PLC0415  # see the module's docstring

    _start_log(config)
    outcome = daemon.run(config, reread)
    if isinstance(outcome, daemon.Restart):
        restart(outcome.config_text)
    return outcome


def _write(config: ProxyConfig, path: str, text: str) -> int:
    _start_log(config)
    write_text(path, text)
    return ExitCode.OK


def _start_log(config: ProxyConfig, least: int = logging.INFO) -> None:
    """From here on what the program has to say goes into the log; first of all what there is to say of `config`."""
    from ipvsproxy import log  # noqa: PLC0415

    log.configure(config.log_format, config.verbosity, sys.stderr, least=least)
    log.tell_remarks(config.remarks)


def _prepare(config: ProxyConfig) -> int:
    from ipvsproxy import preparation  # noqa: PLC0415

    _start_log(config)
    return preparation.run(config)


def _clean_up(config: ProxyConfig) -> int:
    from ipvsproxy import daemon  # noqa: PLC0415

    _start_log(config)
    return daemon.cleanup(config)


def _plan(config: ProxyConfig, options: PlanOptions) -> int:
    from ipvsproxy import dry_run  # noqa: PLC0415

    _start_log(config)
    is_complete = dry_run.run(config, options)
    return ExitCode.OK if is_complete else ExitCode.INCOMPLETE


def _diff(config: ProxyConfig, options: LookOptions, output: DiffFormat) -> int:
    from ipvsproxy import diff_command  # noqa: PLC0415

    _start_log(config, logging.WARNING)
    return diff_command.run(config, options, output=output)


def _explain(config: ProxyConfig, options: LookOptions, question: Question) -> int:
    from ipvsproxy import explain_command  # noqa: PLC0415

    _start_log(config, logging.WARNING)
    return explain_command.run(config, options, question)


def _status(arguments: Sequence[str]) -> int:
    from ipvsproxy import status_command  # noqa: PLC0415

    return status_command.run(arguments)


def _top(arguments: Sequence[str]) -> int:
    from ipvsproxy import top_command  # noqa: PLC0415

    return top_command.run(arguments)


def _ipvsadm(arguments: Sequence[str]) -> int:
    from ipvsproxy import status_command  # noqa: PLC0415

    return status_command.run_as_ipvsadm(arguments)


@dataclass(frozen=True, slots=True)
class Programs:
    """What each command calls; every one returns the exit code."""

    serve: Callable[[ProxyConfig, Callable[[], ProxyConfig]], int] = _serve
    write: Callable[[ProxyConfig, str, str], int] = _write
    prepare: Callable[[ProxyConfig], int] = _prepare
    clean_up: Callable[[ProxyConfig], int] = _clean_up
    plan: Callable[[ProxyConfig, PlanOptions], int] = _plan
    status: Callable[[Sequence[str]], int] = _status
    ipvsadm: Callable[[Sequence[str]], int] = _ipvsadm
    diff: Callable[[ProxyConfig, LookOptions, DiffFormat], int] = _diff
    explain: Callable[[ProxyConfig, LookOptions, Question], int] = _explain
    top: Callable[[Sequence[str]], int] = _top


def main() -> NoReturn:
    """Run the command line of this process. Under the name ipvsadm, a link to this program, it is ipvsadm's."""
    name, *words = sys.argv
    sys.exit(run(["ipvsadm", *words] if PurePath(name).name == "ipvsadm" else words, Programs()))


def run(argv: Sequence[str], programs: Programs) -> int:
    """Do what the words after the program's name say; the exit code. Errors of ours end here, as text on stderr."""
    hold_reload()
    try:
        return _call(parse_command_line(argv, FirstHandedOver(take_over()).read), programs)
    except IpvsproxyError as error:
        _complain(error)
        return ExitCode.TROUBLE if argv[:1] and argv[0] in _LIKE_DIFF else exit_code_of(error)
    except BrokenPipeError:
        discard_stdout()
        return ExitCode.BROKEN_PIPE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _call(command: Command, programs: Programs) -> int:
    if not isinstance(command, Serve):
        accept_signals()  # a terminal that hangs up ends them
    code: int = ExitCode.OK
    match command:
        case Serve(config, reread):
            code = programs.serve(config, reread)
        case Write(config, path, text):
            code = programs.write(config, path, text)
        case Prepare(config):
            code = programs.prepare(config)
        case CleanUp(config):
            code = programs.clean_up(config)
        case Plan(config, options):
            code = programs.plan(config, options)
        case Diff() | Explain():
            code = _compare(command, programs)
        case Status() | Top():
            code = _watch(command, programs)
        case Show(text):
            print_lines([text])
    return code


def _compare(command: Diff | Explain, programs: Programs) -> int:
    if isinstance(command, Diff):
        return programs.diff(command.config, command.options, command.format)
    return programs.explain(command.config, command.options, command.question)


def _watch(command: Status | Top, programs: Programs) -> int:
    match command:
        case Status(arguments, as_ipvsadm):
            pass_bytes_on()  # names and arguments may be in any encoding, and ipvsadm shows them as they are
            return (programs.ipvsadm if as_ipvsadm else programs.status)(arguments)
        case Top(arguments):
            return programs.top(arguments)


def exit_code_of(error: IpvsproxyError) -> ExitCode:
    """The documented exit code of an error that ends the program."""
    match error:
        case Unsupported():
            return ExitCode.UNSUPPORTED
        case AlreadyRunning():
            return ExitCode.ALREADY_RUNNING
        case _:
            return ExitCode.ERROR


def _complain(error: IpvsproxyError) -> None:
    for line in str(error).splitlines():
        print(f"Error: {printable(line)}", file=sys.stderr)  # noqa: T201  # before and beside logging
