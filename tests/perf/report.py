"""The figures as people read them, and which of them may not change unnoticed.

Names are `what.services.part_unit`, where the unit is `insn`, `bytes`, or none for counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKED_IN = ROOT / "tests/perf/figures.json"
PAGE = ROOT / "docs/performance.md"
TOLERANCE = 0.10
BEGIN, END = "<!-- figures: `make bench` writes what follows -->\n", "<!-- end of figures -->\n"

_MEGA = 1_000_000
_MIB = 1 << 20
Figures = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one run, by name, and the versions that they were measured on."""

    environment: Mapping[str, str]
    figures: Figures

    @classmethod
    def load(cls, path: Path) -> Measured:
        """Read a result, or the checked-in one."""
        document = json.loads(path.read_text())
        return cls(document["environment"], document["figures"])


def totals(figures: Figures) -> dict[str, int]:
    """What is added up of several figures, in instructions."""
    ours = {part: figures[f"cold.1000.{part}_insn"] for part in ("decode", "plan", "diff", "encode", "kernel")}
    tools = {
        f"{tool}.{mode}": figures[f"tools.{tool}.{mode}_insn"]
        for tool in ("ipvsadm", "ip", "ipset")
        for mode in ("user", "kernel")
    }
    return {
        "cold.user": sum(ours.values()) - ours["kernel"],
        "cold.kernel": ours["kernel"],
        "cold.programming": ours["diff"] + ours["encode"] + ours["kernel"],
        "tools.user": sum(found for name, found in tools.items() if name.endswith("user")),
        "tools.kernel": sum(found for name, found in tools.items() if name.endswith("kernel")),
        **{f"tools.{tool}": tools[f"{tool}.user"] + tools[f"{tool}.kernel"] for tool in ("ipvsadm", "ip", "ipset")},
    }


def table(measured: Measured) -> str:
    """All of it as Markdown."""
    return "\n".join(_lines(measured)) + "\n"


def _lines(measured: Measured) -> Iterator[str]:
    figures, total = measured.figures, totals(measured.figures)
    yield "Measured on " + ", ".join(f"{name} {version}" for name, version in measured.environment.items()) + "."
    yield from _cold(figures, total)
    yield from _changes_and_audits(figures)
    yield from _nodes(figures)
    yield from _stale_flows(figures)
    yield from _process(figures)
    yield from _idle(figures)


def _cold(figures: Figures, total: Figures) -> Iterator[str]:
    yield from ("", "### 1,000 Services of 10 endpoints, from an empty kernel", "")
    yield from ("| Millions of instructions | User | Kernel | Together |", "|---|---|---|---|")
    for title, part in (
        ("ipvsproxy: decode and compact the watch's lines", "decode"),
        ("ipvsproxy: plan", "plan"),
        ("ipvsproxy: diff, order, remember", "diff"),
        ("ipvsproxy: encode messages, read answers", "encode"),
    ):
        yield f"| {title} | {_millions(figures[f'cold.1000.{part}_insn'])} | | |"
    user, kernel = total["cold.user"], total["cold.kernel"]
    yield f"| **ipvsproxy, all** | {_millions(user)} | {_millions(kernel)} | {_millions(user + kernel)} |"
    yield f"| of this, without decoding and planning | | | {_millions(total['cold.programming'])} |"
    for title, tool in (("`ipvsadm -R`", "ipvsadm"), ("`ip -batch`", "ip"), ("`ipset restore`", "ipset")):
        user, kernel = figures[f"tools.{tool}.user_insn"], figures[f"tools.{tool}.kernel_insn"]
        yield f"| {title} | {_millions(user)} | {_millions(kernel)} | {_millions(user + kernel)} |"
    user, kernel = total["tools.user"], total["tools.kernel"]
    yield f"| **The tools, all** | {_millions(user)} | {_millions(kernel)} | {_millions(user + kernel)} |"
    yield ""
    yield (
        f"ipvsproxy sends {figures['cold.1000.messages']:,} messages in {figures['cold.1000.system_calls']:,} system "
        f"calls and reads nothing back ({figures['cold.1000.dumps']} dumps)."
    )


def _changes_and_audits(figures: Figures) -> Iterator[str]:
    yield from ("", "### One endpoint more, and audits", "")
    yield from ("| | 10 Services | 1,000 Services |", "|---|---|---|")
    for title, name in (
        ("One endpoint more: messages", "endpoint.{}.messages"),
        ("One endpoint more: user, millions of instructions", "endpoint.{}.user_insn"),
        ("One endpoint more: kernel, millions of instructions", "endpoint.{}.kernel_insn"),
        ("Quick audit: millions of instructions", "audit_quick.{}.total_insn"),
        ("of this, virtual and real servers", "audit_quick.{}.ipvs_insn"),
        ("Quick audit: dumps", "audit_quick.{}.dumps"),
        ("Full audit: millions of instructions", "audit_full.{}.total_insn"),
        ("Full audit: dumps", "audit_full.{}.dumps"),
    ):
        cells = [figures[name.format(services)] for services in (10, 1000)]
        shown = [f"{cell / _MEGA:.3g}" if name.endswith("_insn") else f"{cell:,}" for cell in cells]
        yield f"| {title} | {' | '.join(shown)} |"


def _nodes(figures: Figures) -> Iterator[str]:
    yield from ("", "### The addresses of 5,000 other Nodes", "")
    yield from ("| | |", "|---|---|")
    yield f"| One Node in the watch, kB | {figures['nodes.line_bytes'] / 1000:.1f} |"
    yield f"| The list: millions of instructions | {_millions(figures['nodes.5000.list_insn'])} |"
    yield f"| A kubelet's heartbeat: thousands of instructions | {figures['nodes.5000.heartbeat_insn'] / 1000:,.0f} |"
    yield f"| Memory held, MiB | {figures['nodes.5000.held_bytes'] / _MIB:.1f} |"


def _stale_flows(figures: Figures) -> Iterator[str]:
    yield from ("", "### 100 stale UDP flows, in a connection tracking table of 100,000", "")
    yield from (
        "| Millions of instructions | User | Kernel | Together | System calls |",
        "|---|---|---|---|---|",
    )
    for title, name in (
        ("One frontend", "filter.one"),
        ("Frontends with neither address nor port in common", "filter.unlike"),
        ("One frontend, a kernel without the filter (before 5.8)", "no_filter.one"),
        ("Frontends with nothing in common, likewise", "no_filter.unlike"),
    ):
        user, kernel = figures[f"flows.{name}.user_insn"], figures[f"flows.{name}.kernel_insn"]
        calls = figures[f"flows.{name}.system_calls"]
        shown = (f"{figure / _MEGA:,.0f}" for figure in (user, kernel, user + kernel))
        yield f"| {title} | {' | '.join(shown)} | {calls:,} |"


def _process(figures: Figures) -> Iterator[str]:
    yield from ("", "### The process", "")
    yield from ("| | |", "|---|---|")
    for title, name in (("first message that writes", "first_message"), ("first VIP", "first_vip")):
        spent = _millions(figures[f"start.{name}_insn"])
        yield f"| CPU from exec to the {title}, one Service, millions of instructions | {spent} |"
    for title, name in (
        ("Memory of a bare interpreter", "memory.bare.rss"),
        ("Memory after the imports", "memory.imports.1000.rss"),
        ("Memory after the first sync, 10 Services", "memory.synced.10.rss"),
        ("Memory after the first sync, 1,000 Services", "memory.synced.1000.rss"),
        ("Highest memory until then", "memory.synced.1000.peak"),
    ):
        yield f"| {title}, MiB | {figures[f'{name}_bytes'] / _MIB:.1f} |"


def _idle(figures: Figures) -> Iterator[str]:
    spent = figures.get("idle.1000.second_insn")
    if spent is None:
        return  # figures of before it was counted
    yield from ("", "### While nothing changes, audits apart", "")
    yield from ("| | |", "|---|---|")
    yield f"| One second, 1,000 Services, thousands of instructions | {spent / 1000:,.1f} |"
    yield f"| Times that any thread was woken in two minutes | {figures['idle.1000.wakeups_in_120_s']:,} |"


def _millions(instructions: int) -> str:
    return f"{instructions / _MEGA:,.0f}"


def changes(measured: Measured, before: Measured) -> list[str]:
    """A sentence for each guarded figure that is other than `before`: counts by anything, the rest by a tenth."""
    found = []
    for name, old in guarded(before.figures).items():
        new = guarded(measured.figures)[name]
        allowed = old * TOLERANCE if name.endswith(("_insn", "_bytes")) else 0
        if abs(new - old) > allowed:
            found.append(
                f"{name} is {new:,} and was {old:,} ({new / old - 1:+.1%})" if old else f"{name} is {new:,}, not 0"
            )
    return found


def guarded(figures: Figures) -> dict[str, int]:
    """Ours, but no small parts; the tools' are there to stand beside ours. Idleness has a bound of its own."""
    return {
        name: figure
        for name, figure in figures.items()
        if not name.startswith(("tools.", "memory.bare", "idle.")) and not _is_small(name)
    }


def _is_small(name: str) -> bool:
    """Whether it is a share so small that a tenth of it means nothing."""
    is_part = name.startswith(("cold.10.", "audit_quick.")) and not name.endswith(".total_insn")
    return is_part and name.endswith("_insn")


def publish(measured: Measured) -> None:
    """Make these the checked-in figures, and the page's."""
    document = {"environment": dict(measured.environment), "figures": dict(measured.figures)}
    CHECKED_IN.write_text(json.dumps(document, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), measured))


def with_table(page: str, measured: Measured) -> str:
    """The page with these figures between its two marks."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table(measured)}\n{END}{after}"
