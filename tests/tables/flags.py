"""Every flag as docs/flags.md shows it: the program's table of flags and the help that is made of it, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ipvsproxy.config.command_line import make_parser
from ipvsproxy.config.flags import FLAGS, Commands, Flag, Group

_DEFAULT = re.compile(r"(?P<told>.*?)(?: \(default (?P<value>.*)\))?")
_COMMANDS = {
    Commands.PROXY: "the daemon",
    Commands.PLAN: "`plan`",
    Commands.DIFF: "`diff`",
    Commands.EXPLAIN: "`explain`",
}


def table() -> list[str]:
    """A heading and a table for each group of the help, in its order."""
    lines: list[str] = []
    for group in Group:
        rows = [_row(flag) for flag in FLAGS if flag.group is group]
        lines += [f"## {group}", "", "| Flag | Field | Default | Meaning |", "|---|---|---|---|", *rows, ""]
    return lines[:-1]


def _row(flag: Flag) -> str:
    told, default = _help(flag)
    names = f"`{flag.name}`" + (f", `{flag.short}`" if flag.short else "")
    only = "" if flag.commands == Commands.EVERY else f" Only for {', '.join(_taken_by(flag))}."
    cells = (names, f"`{flag.field}`" if flag.field else "", f"`{default}`" if default else "", f"{told}{only}")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |".replace("|  |", "| |").replace(
        "|  |", "| |"
    )


def _help(flag: Flag) -> tuple[str, str]:
    """What it is for, and its default, as `--help` has them."""
    command = next(command for command in _COMMANDS if command & flag.commands)
    (text,) = [action.help for action in make_parser(command)._actions if flag.name in action.option_strings]
    found = _DEFAULT.fullmatch((text or "").replace("%%", "%"))
    return (found["told"], found["value"] or "") if found else ("", "")


def _taken_by(flag: Flag) -> Iterator[str]:
    return (name for command, name in _COMMANDS.items() if command & flag.commands)
