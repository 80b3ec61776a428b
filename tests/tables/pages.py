"""Puts the tables of this folder into the pages of docs/ that show them: `make golden-update` calls it.

A table stands between two comments of its page; the words around it are written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run by path

from tests.tables import design, flags, hooks, snat  # noqa: E402  # needs the line above

PAGES: dict[str, Callable[[], list[str]]] = {
    "docs/data-path.md": hooks.table,
    "docs/design.md": design.table,
    "docs/flags.md": flags.table,
    "docs/snat.md": snat.table,
}

_PLACE = re.compile(
    r"(?<=<!-- table: written by `make golden-update` -->\n\n).*?(?=\n\n<!-- end of table -->)", re.DOTALL
)


def page_with(text: str, table: list[str]) -> str:
    """The page's text with this table in its place. Raises ValueError for a page without one place for it."""
    written, places = _PLACE.subn(lambda _: "\n".join(table), text)
    if places != 1:
        raise ValueError(f"the page has {places} places for a table, not 1")
    return written


def main() -> None:
    """Write all pages."""
    for name, table in PAGES.items():
        page = ROOT / name
        page.write_text(page_with(page.read_text(), table()))


if __name__ == "__main__":
    main()
