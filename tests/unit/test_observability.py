"""Dashboard and alerts ask for metrics that there are, by labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ipvsproxy.metrics import ANSWERS, HISTOGRAMS, ROWS

FILES = Path(__file__).parents[2] / "charts" / "ipvsproxy" / "files"
ALERTS = [rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((FILES / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
_METRIC = re.compile(r"\b(?:kubeproxy|ipvsproxy|process|up)(?:_[a-z0-9_]+)?\b(?!\.\*)")
_BY = re.compile(r"\bby \(([^)]*)\)")
_GIVEN = {"instance", "job", "le"}  # by Prometheus itself, and by histograms


def labels_by_name() -> dict[str, set[str]]:
    """Every series that a scrape may have, with its own labels."""
    found = {row.name: set(row.labels) for row in (*ROWS, *ANSWERS.values())}
    found |= {row.name + end: set(row.labels) for row in HISTOGRAMS for end in ("_bucket", "_count", "_sum")}
    # Of the library (ProcessCollector), and of Prometheus.
    return found | {name: set() for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "up")}


SERIES = labels_by_name()


def expressions() -> Iterator[tuple[str, str]]:
    yield from ((rule["alert"], rule["expr"]) for rule in ALERTS)
    for panel in PANELS:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize("text", [text for _, text in EXPRESSIONS], ids=[name for name, _ in EXPRESSIONS])
def test_every_metric_that_is_asked_for_is_there_with_the_labels_it_is_grouped_by(text):
    without_strings = re.sub(r'"[^"]*"', '""', text)
    names = set(_METRIC.findall(without_strings))
    assert names
    assert names <= SERIES.keys()
    labels = set().union(_GIVEN, *(SERIES[name] for name in names))
    assert {label.strip() for group in _BY.findall(without_strings) for label in group.split(",")} <= labels


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_what_has_happened_and_what_to_do(rule):
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"].keys() == {"summary", "description"}
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    kept = {label.strip() for group in _BY.findall(rule["expr"]) for label in group.split(",")}
    assert used <= (kept or _GIVEN)


def test_alerts_and_panels_have_names_of_their_own():
    for names in ([rule["alert"] for rule in ALERTS], [panel["title"] for panel in PANELS]):
        assert len(names) == len(set(names))


def test_panels_do_not_overlap_and_take_the_data_source_from_the_variable():
    taken = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells
        taken |= cells
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


def test_events_that_a_description_names_are_in_the_code():
    package = FILES.parents[2] / "ipvsproxy"
    code = "".join(path.read_text() for path in package.rglob("*.py"))
    named = {
        word for rule in ALERTS for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", rule["annotations"]["description"])
    }
    assert named
    assert {word for word in named if f'"{word}"' not in code} == set()


def test_the_page_on_monitoring_has_every_metric_with_its_type_and_labels_and_no_other():
    page = (FILES.parents[2] / "docs" / "monitoring.md").read_text()
    found = {
        (name, kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in re.findall(
            r"^\| `(\w+)` \| (gauge|counter|histogram) \| ([^|]*) \|", page, re.MULTILINE
        )
    }
    assert found == {
        *((row.name, row.type, row.labels) for row in ROWS),
        *((row.name, "histogram", row.labels) for row in HISTOGRAMS),
        *((row.name, "counter", row.labels) for row in ANSWERS.values()),
    }
