"""The commands that the documentation shows. Whoever runs some takes them from here, and so runs what the page says.

A command is a line of a shell block, continued lines being one, or code in a sentence or a table that begins with the
name of a program and goes on. tests/unit/test_documented_commands.py fails where no test takes a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "charts/*/README.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md"
)
PROGRAMS = frozenset(
    "apt buildah conntrack crictl ctr curl docker echo git go grep helm ip ip6tables iptables ipset ipvsadm ipvsproxy "  # noqa: SIM905
    "journalctl jq k3s kubeadm kubectl ln make modprobe nerdctl nft nsenter pip podman prek pytest python python3 rm "
    "runc sh ss sysctl systemctl tcpdump".split()
)
"""What code in a sentence begins with if it is a command. In a block each line is one, whatever it begins with."""
TAKEN: set[Command] = set()
"""What `documented` has given away in this process."""

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


class Command(NamedTuple):
    """A command and where it stands; `block`: in which one below its heading, from 1, or 0 in a sentence."""

    page: str
    heading: str
    text: str
    block: int

    @property
    def program(self) -> str:
        """What it starts, by its name."""
        return Path(self.text.split()[0]).name

    def filled(self, given: Mapping[str, str]) -> str:
        """The text, with words of ours in the place of those that stand for the reader's own."""
        return re.sub("|".join(map(re.escape, given)), lambda word: given[word[0]], self.text)


def documented(
    page: str = "",
    heading: str = "",
    *,
    program: str = "",
    pattern: str = "",
    in_block: bool | None = None,
    block: int | None = None,
) -> list[Command]:
    """The commands with all of that, which the caller runs; `pattern`: of all the text. Raises LookupError for none."""
    found = [
        command
        for command in commands()
        if page in {"", command.page}
        and heading in {"", command.heading}
        and program in {"", command.program}
        and in_block in {None, command.block > 0}
        and block in {None, command.block}
        and (not pattern or re.fullmatch(pattern, command.text, re.DOTALL))
    ]
    if not found:
        raise LookupError(f"no such command: {page} {heading} {program} {pattern}")
    TAKEN.update(found)
    return found


@cache
def commands() -> tuple[Command, ...]:
    """All of them, in the order of the pages."""
    return tuple(command for page in PAGES for command in commands_in(page, (ROOT / page).read_text()))


def commands_in(page: str, text: str) -> Iterator[Command]:
    """Those of a page's text."""
    for heading, section in _sections(text):
        for number, (shell, block) in enumerate(_BLOCK.findall(section), 1):
            for line in _lines(shell, block):
                yield Command(page, heading, line, number)
        for code in codes_in(section):
            words = code.split()
            if len(words) > 1 and Path(words[0]).name in PROGRAMS:
                yield Command(page, heading, " ".join(words), 0)


def codes_in(text: str) -> list[str]:
    """What stands as code in its sentences and tables."""
    return _CODE.findall(_BLOCK.sub("", text))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Each heading with what stands below it. A comment in a block is no heading."""
    inside = [found.span() for found in _BLOCK.finditer(text)]
    heads = [
        head
        for head in re.finditer(r"^#+ (.*)$", text, re.MULTILINE)
        if not any(start < head.start() < end for start, end in inside)
    ]
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=True):
        yield head[1], text[head.end() : end]


def _lines(shell: str, block: str) -> Iterator[str]:
    """The commands of a block, without comments. On a console they stand behind a prompt, and the rest is answers."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    if shell == "console":
        yield from (line[2:] for line in lines if line.startswith(("$ ", "# ")))
    if shell == "sh":
        command = ""
        for line in lines:
            command += f"\n{line}" if command else line
            if command.count("'") % 2 == 0 and not command.endswith(("|", "&&")):  # else it goes on
                text = re.sub(r"(^|\s+)# .*$", "", command)
                command = ""
                if text:
                    yield text
