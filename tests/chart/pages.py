"""A terminal in which commands of pages are typed, on the control plane of the chart's tests.

kwok plays the kubelets, so of `kubectl logs` and `exec` only the target is looked at. kubeadm is told where this
cluster's API server is.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.documented import ROOT, Command
from tests.lab import helm, programs
from tests.lab.apiserver import ControlPlane


class Terminal:
    """Where somebody follows a page: kubectl, kubeadm, and Helm of one version, in the repository."""

    def __init__(self, plane: ControlPlane, program: helm.Helm, tools: Path) -> None:
        found = programs.find()
        self.tools = tools
        (tools / "helm").symlink_to(helm.make() / program)
        target = f'case "$3" in logs|exec) exec {found.kubectl} get "$4" --namespace "$2" ;; esac'
        self.put("kubectl", f'{target}\nexec {found.kubectl} "$@"')
        here = f"--kubeconfig={plane.kubeconfig} --apiserver-bind-port={plane.port}"
        kubeadm = programs.find_program("kubeadm")
        self.put("kubeadm", f'exec {kubeadm} "$@" {here} --kubernetes-version=v{programs.VERSION}')
        self._environment = {"PATH": f"{tools}:{os.defpath}", "HOME": str(tools), "KUBECONFIG": str(plane.kubeconfig)}

    def put(self, name: str, script: str) -> None:
        """Make a program of this name of a shell script."""
        program = self.tools / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def follow(self, commands: Iterable[Command]) -> None:
        """Type commands of a page as they stand."""
        for command in commands:
            self.run(command.text)

    def run(self, text: str, folder: Path = ROOT) -> str:
        """Type a text, which must succeed, and read what it prints."""
        done = self.typed(text, folder)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def typed(self, text: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """The same, whatever comes of it."""
        command = ["bash", "-euo", "pipefail", "-c", text]
        return subprocess.run(
            command, cwd=folder, env=self._environment, capture_output=True, text=True, timeout=600, check=False
        )
