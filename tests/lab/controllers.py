"""Controllers for a control plane of tests/lab/apiserver.py: Pods of a DaemonSet come, run and go, with no container.

kwok plays the kubelet of every Node: a Pod that is placed runs at once, its init containers done.
"""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.lab import programs
from tests.lab.apiserver import HOST, ControlPlane, end, free_ports

# `helm test` waits for its Pod to end, which Pods of kwok do not.
TEST_ENDS = """
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata:
  name: test-pod-ends
spec:
  resourceRef:
    apiGroup: v1
    kind: Pod
  selector:
    matchLabels:
      app.kubernetes.io/component: test-result
    matchExpressions:
      - key: .status.phase
        operator: In
        values: [Running]
  next:
    statusTemplate: |
      phase: Succeeded
"""


@contextlib.contextmanager
def running(plane: ControlPlane) -> Iterator[None]:
    """Controllers, scheduler and kubelets for the length of a block. Raises LabError."""
    found = programs.find_controllers()
    ports = free_ports(2)
    stages = plane.folder / "stages.yaml"
    stages.write_text(found.stages.read_text() + TEST_ENDS)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for program, port in zip((found.kube_controller_manager, found.kube_scheduler), ports, strict=True):
            started.append(plane.start_program(program, _options(plane, program, port)))
        options = {"kubeconfig": plane.kubeconfig, "config": stages, "node-ip": "192.0.2.11", "cidr": "10.244.1.0/24"}
        started.append(plane.start_program(found.kwok, options, "--manage-all-nodes"))
        yield
    finally:
        for process in reversed(started):
            end(process, signal.SIGKILL)


def _options(plane: ControlPlane, program: Path, port: int) -> dict[str, object]:
    options: dict[str, object] = {
        "kubeconfig": plane.kubeconfig,
        "leader-elect": "false",
        "bind-address": HOST,
        "secure-port": port,
        "cert-dir": plane.folder / program.name,
    }
    if program.name == "kube-controller-manager":
        # kwok on a busy machine may be silent for longer than the usual 50 s, and gives no Pod its readiness back.
        options["node-monitor-grace-period"] = "1h"
        options["service-account-private-key-file"] = plane.folder / "signing.key"
        options["root-ca-file"] = plane.authority  # into the ConfigMap kube-root-ca.crt, which every Pod mounts
    return options
