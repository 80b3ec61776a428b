"""The project's own files: one version."""

from __future__ import annotations

import re
from pathlib import Path

import ipvsproxy

ROOT = Path(__file__).parents[2]
WRITTEN_BY_GOLDEN_UPDATE = {"charts/ipvsproxy/Chart.yaml", "ipvsproxy/share/man/ipvsproxy.8"}


def test_the_version_stands_in_one_place_by_hand():
    folders = (ROOT / name for name in ("ipvsproxy", "charts", "docs", ".github", ".ci"))
    inside = (path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts)
    paths = [path for path in (*ROOT.iterdir(), *inside) if path.is_file() and "requirements" not in path.name]
    number = re.compile(rf"(?<![\d.]){re.escape(ipvsproxy.__version__)}(?![\d.]*\d)")
    holds = {str(path.relative_to(ROOT)) for path in paths if number.search(path.read_text(errors="replace"))}
    assert holds == {"ipvsproxy/__init__.py"} | WRITTEN_BY_GOLDEN_UPDATE
