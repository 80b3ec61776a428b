"""Makes what shells and man(1) show of the command line, from its parser: `make golden-update` calls it.

The files are part of the package and put where shells look (pyproject.toml, data-files), so a user needs no generator.
shtab knows three shells' languages; the manual is so little that a library would not make it shorter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

import shtab

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run by path

from ipvsproxy import __version__  # noqa: E402  # needs the line above
from ipvsproxy.config.command_line import EXIT_CODE_MEANINGS, make_parser  # noqa: E402
from ipvsproxy.config.flags import DIFF_OUTPUT, Commands  # noqa: E402
from ipvsproxy.config.types import (  # noqa: E402
    DetectLocalMode,
    DiffFormat,
    Estimation,
    FilterVerdict,
    IptablesBackend,
    LogFormat,
    PlanFormat,
    ProxyMode,
)
from ipvsproxy.status import own_options  # noqa: E402
from ipvsproxy.top import options as top  # noqa: E402

FOLDER = ROOT / "ipvsproxy/share"
COMPLETIONS = {"bash": "ipvsproxy", "zsh": "_ipvsproxy", "fish": "ipvsproxy.fish"}
MANUAL = "ipvsproxy.8"

_COMMANDS = {
    "plan": "print what would be programmed; touches nothing",
    "diff": "print what a start would change; touches nothing",
    "explain": "say why a Service is served as it is; touches nothing",
    "status": "list what the kernel has, as ipvsadm does",
    "top": "follow connections, rates and draining",
}
_CHOICES: dict[str, type[StrEnum]] = {
    "--detect-local-mode": DetectLocalMode,
    "--filter-verdict": FilterVerdict,
    "--ipvs-estimation": Estimation,
    "--iptables-backend": IptablesBackend,
    "--logging-format": LogFormat,
    "plan --output": PlanFormat,
    "diff --output": DiffFormat,
    "--proxy-mode": ProxyMode,
}
_SYNOPSIS = (
    ("ipvsproxy", "[flags]"),
    ("ipvsproxy --init-only", "[flags]"),
    ("ipvsproxy --cleanup", "[flags]"),
    ("ipvsproxy plan", "-o FORMAT (--manifests DIR | --from-cluster) [flags]"),
    ("ipvsproxy diff", "[--manifests DIR] [-o json] [flags]"),
    ("ipvsproxy explain", "NAMESPACE/NAME|ADDRESS:PORT[/TCP] [--from CLIENT] [flags]"),
    ("ipvsproxy status", "[--from FILE] [arguments of ipvsadm(8) that list]"),
    ("ipvsproxy status", "--names|-o FORMAT|... [options]"),
    ("ipvsproxy top", "[--once] [--interval SECONDS] [--sort COLUMN]"),
)


def completion_parser() -> argparse.ArgumentParser:
    """All commands in one parser; a switch takes no word, which the program's own parser is told beforehand."""
    parser = make_parser(Commands.PROXY)
    commands = parser.add_subparsers(title="commands")
    for name, command in (("plan", Commands.PLAN), ("diff", Commands.DIFF), ("explain", Commands.EXPLAIN)):
        commands.add_parser(name, parents=[make_parser(command)], add_help=False, help=_COMMANDS[name])
    for name, options in (("status", own_options), ("top", top)):
        commands.add_parser(name, parents=[options.make_parser()], add_help=False, help=_COMMANDS[name])
    for name, each in {"": parser, **commands.choices}.items():
        for action in each._actions:
            _describe(action, name)
    return parser


def _describe(action: argparse.Action, command: str) -> None:
    if action.const is True:
        action.nargs = 0
    if action.metavar == "FILE":
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif action.metavar == "DIR":
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    elif choices := _CHOICES.get(f"{command} {action.dest}", _CHOICES.get(action.dest)):
        action.choices = [choice.value for choice in choices if choice.value]


def files() -> dict[Path, str]:
    """Every file with its text."""
    parser = completion_parser()
    made = {FOLDER / shell / name: shtab.complete(parser, shell) for shell, name in COMPLETIONS.items()}
    return {path: text.rstrip() + "\n" for path, text in (made | {FOLDER / "man" / MANUAL: manual()}).items()}


def manual() -> str:
    """The manual page in man(7)'s language."""
    return "\n".join(_manual_lines())


def _manual_lines() -> Iterator[str]:
    proxy, plan, diff, explain = map(make_parser, (Commands.PROXY, Commands.PLAN, Commands.DIFF, Commands.EXPLAIN))
    yield f'.TH IPVSPROXY 8 "" "ipvsproxy {__version__}" "System Administration"'
    yield from (".SH NAME", r"ipvsproxy \- a Kubernetes Service proxy on Linux IPVS", ".SH SYNOPSIS")
    for index, (command, words) in enumerate(_SYNOPSIS):
        yield from ([".br"] if index else [])
        yield f".B {_escaped(command)}"
        yield _escaped(words)
    yield from (".SH DESCRIPTION", _escaped(" ".join((proxy.description or "").split())))
    yield from (".SH OPTIONS", *_groups(proxy))
    told = {action.dest for action in proxy._actions}
    yield from (".SH OPTIONS OF PLAN", "Those above that have a meaning without a kernel, and:")
    yield from _options(action for action in plan._actions if action.dest not in told)
    told |= {action.dest for action in plan._actions}
    yield from (".SH OPTIONS OF DIFF AND EXPLAIN", "Those above that have a meaning there; for diff:")
    yield from _options(action for action in diff._actions if action.dest == DIFF_OUTPUT.name)
    yield from (".PP", "and for explain:")
    yield from _options(action for action in explain._actions if action.dest not in told)
    yield from (".SH OPTIONS OF STATUS", "Those of", ".BR ipvsadm (8)", "that list, or, for a view of our own:")
    yield from _groups(own_options.make_parser())
    yield from (".SH OPTIONS OF TOP", *_options(top.make_parser()._actions))
    yield ".SH EXIT STATUS"
    for code, meaning in EXIT_CODE_MEANINGS.items():
        yield from (".TP", f".B {code.value}", _escaped(meaning))
    yield from (".SH SIGNALS", ".TP", ".B SIGTERM, SIGINT")
    yield "The sync in flight is finished; what the kernel has stays, so traffic goes on."
    yield from (".TP", ".B SIGHUP")
    yield "The configuration is read again and the daemon starts anew in its own process, if it can be used."
    yield from (".SH SEE ALSO", ".BR ipvsadm (8),", ".BR iptables (8),", ".BR ipset (8)")


def _groups(parser: argparse.ArgumentParser) -> Iterator[str]:
    for group in parser._action_groups:
        if group._group_actions and group.title:
            yield f".SS {_escaped(group.title)}"
            yield from _options(group._group_actions)


def _options(actions: Iterable[argparse.Action]) -> Iterator[str]:
    for action in actions:
        names = ", ".join(rf"\fB{_escaped(name)}\fR" for name in action.option_strings)
        value = rf" \fI{_escaped(str(action.metavar))}\fR" if action.metavar else ""
        yield from (".TP", names + value, _escaped((action.help or "").replace("%%", "%")))


def _escaped(text: str) -> str:
    """Text as groff prints it as it is: no control lines, no hyphens for minus signs."""
    shown = text.replace("\\", r"\e").replace("-", r"\-").replace("…", "...")
    return rf"\&{shown}" if shown.startswith((".", "'")) else shown


def main() -> None:
    """Write all files."""
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
