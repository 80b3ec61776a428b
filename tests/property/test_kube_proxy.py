"""`plan` against an imitation of kube-proxy, for random clusters: what differs has a row on docs/differences.md."""

from __future__ import annotations

import ipaddress
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy import dry_run
from ipvsproxy.config.command_line import Plan, parse_command_line
from ipvsproxy.status import wanted
from tests.golden.comparison import one_sided
from tests.golden.differences import meant_differences, placeholder_values
from tests.golden.given import Given
from tests.golden.upstream import recorded
from tests.random_clusters import FLAGS, HOST, clusters

ROWS = meant_differences()


def command(folder: Path, flags: Sequence[str]) -> Plan:
    words = [word for flag in flags for word in flag.split()]
    host = f"--node-addresses={','.join(HOST)}"
    found = parse_command_line(
        ["plan", "-o", "json", "--manifests", str(folder), "--hostname-override=n1", host, *words]
    )
    assert isinstance(found, Plan)
    return found


@given(clusters(), st.tuples(*map(st.sampled_from, FLAGS)))
def test_plan_says_what_kube_proxy_does_but_for_the_differences_page(items, flags):
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "given.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        asked = command(Path(name), flags)
        state, _ = dry_run.plan(asked.config, asked.options)
    host = [ipaddress.ip_address(text) for text in ("127.0.0.1", "::1", *HOST)]
    started = Given(items=items, host=host, config=asked.config, families=tuple(sorted(asked.options.families)))
    theirs = recorded(started)
    values = placeholder_values(started, theirs.__getitem__)
    unexplained = [
        (plan_format, side, line)
        for plan_format, lines in theirs.items()
        for line, side in one_sided(list(wanted.FORMATS[plan_format](state)), lines)
        if not any(row.covers(plan_format, line, side, values) for row in ROWS)
    ]
    assert unexplained == []
