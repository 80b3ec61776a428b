"""What commands print that need a kernel, as the README shows it: `make golden-update` writes it there.

Each stands in the block that begins with its command line. The kernel is the fake one, in a state that says something.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import structlog
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run by path

from ipvsproxy.model.kernel_objects import Kind  # noqa: E402  # needs the line above
from ipvsproxy.top.figures import Order  # noqa: E402
from ipvsproxy.top.screen import View, screen  # noqa: E402
from tests.builders import addr, blob, vs_key  # noqa: E402
from tests.explained import SHOP, Place  # noqa: E402
from tests.top_figures import FIGURES  # noqa: E402

PAGE = ROOT / "README.md"
_TOP_LINES = 12


def explain() -> str:
    """A load-balancer IP with policy Local that somebody has taken from the node's device."""
    key = vs_key("203.0.113.20", 80)
    out = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out):
        place = Place(Path(folder), *SHOP)
        place.fake.state[Kind.REAL_SERVER][key] = blob(("10.244.1.5", 8080), ("10.244.1.7", 8080, 0))
        place.fake.connections[key, blob(("10.244.1.7", 8080))[:-3]] = 3
        del place.fake.state[Kind.ADDRESS][addr("203.0.113.20")]
        place.explain("203.0.113.20:80", "--from", "192.0.2.12")
    return out.getvalue()


def top() -> str:
    """A quiet node, on a terminal of 80 columns."""
    out = io.StringIO()
    drawn = screen(FIGURES, View(Order.CONNECTIONS, is_reversed=False, lines=_TOP_LINES, columns=80))
    Console(file=out, width=80, height=_TOP_LINES).print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


SCREENS: dict[str, Callable[[], str]] = {
    "ipvsproxy explain 203.0.113.20:80 --from 192.0.2.12": explain,
    "ipvsproxy top": top,
}


def page_with(text: str, command: str, shown: str) -> str:
    """The page's text with what a command prints below it. Raises ValueError for a page without one place for it."""
    place = re.compile(rf"(```console\n\$ {re.escape(command)}\n).*?(```\n)", re.DOTALL)
    written, places = place.subn(lambda found: f"{found[1]}{shown}{found[2]}", text)
    if places != 1:
        raise ValueError(f"the page has {places} places for {command}, not 1")
    return written


def main() -> None:
    """Write all screens."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # nothing is to stand between
    text = PAGE.read_text()
    for command, show in SCREENS.items():
        text = page_with(text, command, show())
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
