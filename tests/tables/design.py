"""The architecture as docs/design.md shows it: the docstring of the package, which is its one place, as Markdown."""

from __future__ import annotations

import ipvsproxy


def table() -> list[str]:
    """Lines: headings, paragraphs, and what stands indented below a `::` as a block."""
    lines: list[str] = []
    is_block = False
    for line in (ipvsproxy.__doc__ or "").strip().splitlines()[2:]:
        if is_block and line and not line.startswith("    "):
            lines[-1:] = ["```", ""]
            is_block = False
        if set(line) == {"="}:
            lines[-1:] = [f"## {lines[-1]}", ""]
        elif line.endswith("::"):
            lines += [line.removesuffix("::") + ":", "", "```text"]
            is_block = True
        elif not (is_block and lines[-1] == "```text" and not line):
            lines.append(line.removeprefix("    ") if is_block else line)
    return lines
