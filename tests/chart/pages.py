"""Pages of documentation, followed to the letter on the control plane of the chart's tests.

kwok plays the kubelets, so of `kubectl logs` and `exec` only the target is looked at.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.lab import helm, programs
from tests.lab.apiserver import ControlPlane

ROOT = Path(__file__).resolve().parents[2]


def sections(page: str) -> dict[str, list[str]]:
    """The shell blocks of a page, by the heading that they stand below."""
    parts = re.split(r"^#+ (.*)$", _without_comments((ROOT / page).read_text()), flags=re.MULTILINE)
    return {
        heading: re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def _without_comments(text: str) -> str:
    """A comment of the shell that has its own line looks like a heading."""
    return re.sub(r"(?<=```sh\n)(?:.*\n)*?(?=```)", lambda block: re.sub(r"(?m)^# .*\n", "", block[0]), text)


class Terminal:
    """Where somebody follows a page: kubectl, and Helm of one version, in the repository."""

    def __init__(self, plane: ControlPlane, program: helm.Helm, tools: Path) -> None:
        found = programs.find()
        (tools / "helm").symlink_to(helm.make() / program)
        wrapper = tools / "kubectl"
        wrapper.write_text(
            f'#!/bin/sh\ncase "$3" in logs|exec) exec {found.kubectl} get "$4" --namespace "$2" ;; esac\n'
            f'exec {found.kubectl} "$@"\n'
        )
        wrapper.chmod(0o755)
        self._environment = {"PATH": f"{tools}:{os.defpath}", "HOME": str(tools), "KUBECONFIG": str(plane.kubeconfig)}

    def run(self, block: str) -> None:
        """Run a block as it stands."""
        command = ["bash", "-euo", "pipefail", "-c", block]
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
