"""The Pods that the goldens show: what they may, what they are told, and that the program takes it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ipvsproxy.config.command_line import CleanUp, Diff, Prepare, Serve, parse_command_line
from ipvsproxy.config.load import load
from ipvsproxy.config.types import ProxyConfig
from tests.chart.cases import CASES, golden, objects
from tests.lab import helm

ROOT = Path(__file__).resolve().parents[2]
DAEMONS = [case for case in CASES if case != "kubeadm"]
"""Those whose configuration is rendered."""
KUBEADM = (ROOT / "tests/data/kubeadm/config.conf").read_bytes()


def pods(case: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name of the object, spec of the Pod) of all that start Pods."""
    for item in objects(golden(case)):
        if item["kind"] == "DaemonSet":
            yield item["metadata"]["name"], item["spec"]["template"]["spec"]
        if item["kind"] == "Pod":
            yield item["metadata"]["name"], item["spec"]


def containers(case: str) -> Iterator[dict[str, Any]]:
    for _, spec in pods(case):
        yield from (*spec.get("initContainers", ()), *spec["containers"])


def container(case: str, name: str) -> dict[str, Any]:
    (found,) = [item for item in containers(case) if item["name"] == name]
    return found


def daemon_spec(case: str) -> dict[str, Any]:
    return next(spec for _, spec in pods(case) if spec["containers"][0]["name"] == "ipvsproxy")


def configuration(case: str) -> bytes:
    """The file that the containers find."""
    if case == "kubeadm":
        return KUBEADM
    maps = [item for item in objects(golden(case)) if "config.conf" in item.get("data", {})]
    return maps[0]["data"]["config.conf"].encode()


def arguments(case: str, name: str) -> list[str]:
    return [word.replace("$(NODE_NAME)", "n1") for word in container(case, name)["args"]]


def config_of(case: str, name: str, kind: type) -> ProxyConfig:
    """What the program makes of a container's arguments and its file."""
    (mount,) = [mount for mount in container(case, name)["volumeMounts"] if mount["name"] == "config"]

    def read(path: str) -> bytes:
        assert Path(path).parent == Path(mount["mountPath"])
        return configuration(case)

    command = parse_command_line(arguments(case, name), read)
    assert isinstance(command, kind)
    return command.config


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "name, kind",
    [("init", Prepare), ("ipvsproxy", Serve), ("clean-up", CleanUp), ("check", Diff), ("diff", Diff)],
)
def test_the_program_takes_arguments_and_file_of_each_container(case: str, name: str, kind: type):
    config = config_of(case, name, kind)
    assert config.hostname_override == "n1"
    assert config.mode == "ipvs"
    assert not [remark for remark in config.remarks if remark.is_warning]


@pytest.mark.parametrize("case", DAEMONS)
def test_the_file_holds_no_field_that_the_program_does_not_know(case: str):
    loaded = load("config.conf", configuration(case))
    assert (loaded.unknown, loaded.duplicate) == ((), ())


def test_values_reach_the_daemon():
    config = config_of("tuned", "ipvsproxy", Serve)
    assert (config.scheduler, config.strict_arp, config.allows_external_ips) == ("lc", True, False)
    assert (config.tcp_timeout_s, config.min_sync_period_s, config.drain_timeout_s) == (7500, 0.5, 0)
    assert config.conntrack.min == 1048576


def test_the_page_on_trouble_asks_in_the_daemons_container_with_its_own_configuration():
    page = (ROOT / "docs/troubleshoot.md").read_text()
    (words,) = re.findall(r"ipvsproxy explain shop/web \\\n(.*?)'", page)
    told = [word.replace("$NODE_NAME", "n1") for word in words.split()]
    assert set(told) <= set(arguments("defaults", "ipvsproxy"))
    (kubeadms,) = re.findall(r"With kubeadm's ConfigMap the file is `(\S+)`", page)
    assert f"--config={kubeadms}" in arguments("kubeadm", "ipvsproxy")


@pytest.mark.parametrize("case", CASES)
def test_the_daemon_sets_what_is_the_networks_where_the_hosts_folder_is_mounted(case: str):
    mounts = {mount["name"]: mount for mount in container(case, "ipvsproxy")["volumeMounts"]}
    mount = mounts["proc-sys-net"]
    assert (mount["mountPath"], mount.get("readOnly", False)) == ("/host/proc/sys/net", False)
    assert config_of(case, "ipvsproxy", Serve).proc_sys_net == mount["mountPath"]
    assert config_of(case, "init", Prepare).proc_sys_net == "/proc/sys/net"


def test_flags_of_our_own_hold_beside_kubeadms_file():
    assert config_of("kubeadm", "ipvsproxy", Serve).drain_timeout_s == 300


@pytest.mark.parametrize("case", CASES)
def test_only_the_init_container_is_privileged(case: str):
    assert [item["name"] for item in containers(case) if item["securityContext"].get("privileged")] == ["init"]


@pytest.mark.parametrize("case", CASES)
def test_no_container_writes_to_its_root_or_has_more_than_two_capabilities(case: str):
    for item in containers(case):
        context = item["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        if item["name"] == "init":
            continue
        assert context["allowPrivilegeEscalation"] is False
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert context["capabilities"]["drop"] == ["ALL"]
        needs_kernel = item["name"] in {"ipvsproxy", "clean-up", "check", "diff"}
        assert context["capabilities"].get("add", []) == (["NET_ADMIN", "NET_RAW"] if needs_kernel else [])
        assert context.get("runAsNonRoot", False) is not needs_kernel


@pytest.mark.parametrize("case", CASES)
def test_k44_paths_of_the_host_are_just_those_that_are_needed_the_lock_as_a_file(case: str):
    found = {
        (volume["hostPath"]["path"], volume["hostPath"]["type"])
        for volume in daemon_spec(case)["volumes"]
        if "hostPath" in volume
    }
    assert found == {
        ("/lib/modules", "Directory"),
        ("/proc/sys/net", "Directory"),
        ("/run/xtables.lock", "FileOrCreate"),
        ("/run/ipvsproxy", "DirectoryOrCreate"),
    }
    modules = [mount for item in containers(case) for mount in item.get("volumeMounts", ()) if "lib" in mount["name"]]
    assert modules == [{"name": "lib-modules", "mountPath": "/lib/modules", "readOnly": True}]


@pytest.mark.parametrize("case", CASES)
def test_every_mount_has_its_volume_and_every_volume_a_mount(case: str):
    for name, spec in pods(case):
        users = (*spec.get("initContainers", ()), *spec["containers"])
        mounted = {mount["name"] for item in users for mount in item.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in spec["volumes"]}, name


@pytest.mark.parametrize("case", CASES)
def test_probes_ask_the_health_server_on_loopback(case: str):
    config = config_of(case, "ipvsproxy", Serve)
    daemon = container(case, "ipvsproxy")
    ports = {port["name"]: port["containerPort"] for port in daemon["ports"]}
    assert config.healthz is not None
    assert config.metrics is not None
    assert ports == {"healthz": config.healthz.port, "metrics": config.metrics.port}
    paths = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    for probe, path in paths.items():
        asked = daemon[probe]["httpGet"]
        assert (asked["host"] in {"127.0.0.1", "::1"}, asked["path"], asked["port"]) == (True, path, "healthz")


@pytest.mark.parametrize("case", CASES)
def test_whoever_asks_the_api_server_is_kept_from_the_kubernetes_service(case: str):
    for item in containers(case):
        names = {entry["name"] for entry in item.get("env", ())}
        if item["name"] in {"ipvsproxy", "check", "diff", "wait"}:
            assert {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"} <= names


@pytest.mark.parametrize("case", CASES)
def test_a_daemon_stays_where_it_is_needed(case: str):
    spec = daemon_spec(case)
    assert spec["hostNetwork"] is True
    assert spec["dnsPolicy"] == "Default"
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["nodeSelector"]["kubernetes.io/os"] == "linux"
    assert spec["terminationGracePeriodSeconds"] >= 30


def _terms(spec: dict[str, Any]) -> list[list[dict[str, Any]]]:
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [term["matchExpressions"] for term in required["nodeSelectorTerms"]]


@pytest.mark.parametrize("case", CASES)
def test_no_node_has_both_a_daemon_and_its_clean_up(case: str):
    cleaning = next(spec for name, spec in pods(case) if name.endswith("-clean-up"))
    key = "ipvsproxy.io/clean-up"
    for term in _terms(daemon_spec(case)):
        assert {"key": key, "operator": "DoesNotExist"} in term
    for term in _terms(cleaning):
        assert {"key": key, "operator": "Exists"} in term
    assert len(_terms(daemon_spec(case))) == len(_terms(cleaning))


@pytest.mark.parametrize("case", CASES)
def test_a_check_runs_where_its_label_stands_alone_whichever_nodes_the_daemon_serves(case: str):
    spec = next(spec for name, spec in pods(case) if name.endswith("-check"))
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "ipvsproxy.io/check": "true"}
    assert "affinity" not in spec


@pytest.mark.parametrize("answer, code", [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_a_check_that_finds_differences_has_done_its_work_and_trouble_is_tried_again(
    tmp_path: Path, answer: int, code: int
):
    """Its command with another program of that name, which says what it was told."""
    program = tmp_path / "ipvsproxy"
    program.write_text(f'#!/bin/sh\necho "$@"\nexit {answer}\n')
    program.chmod(0o755)
    check = container("defaults", "check")
    environment = {"PATH": f"{tmp_path}:{os.defpath}"}
    done = subprocess.run(
        [*check["command"], *check["args"]], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [" ".join(check["args"]), f"exit code {answer}"]
    assert done.returncode == code


def test_a_change_of_the_configuration_shows_in_the_pods_where_that_is_asked_for():
    base = ["--set=apiServer.host=192.0.2.10", "--set=restartOnConfigChange=true"]
    texts = [helm.template("helm4", *base, f"--set=config.ipvs.scheduler={name}").out for name in ("rr", "lc")]
    sums = [re.findall(r"checksum/config: (\w+)", text) for text in texts]
    assert [len(found) for found in sums] == [1, 1]
    assert sums[0] != sums[1]


def test_memory_that_is_asked_for_is_more_than_was_measured_and_less_than_is_allowed():
    page = (ROOT / "docs/performance.md").read_text()
    (highest,) = re.findall(r"\| Highest memory until then, MiB \| ([0-9.]+) \|", page)
    resources = yaml.safe_load((helm.CHART / "values.yaml").read_text())["resources"]
    asked, allowed = (int(resources[part]["memory"].removesuffix("Mi")) for part in ("requests", "limits"))
    assert float(highest) < asked < allowed / 2


def test_the_role_is_what_the_daemon_watches_and_tells():
    (role,) = [item for item in objects(golden("defaults")) if item["kind"] == "ClusterRole"]
    found = {
        (group, resource): rule["verbs"]
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert found == {
        ("", "services"): ["list", "watch"],
        ("", "nodes"): ["list", "watch"],
        ("discovery.k8s.io", "endpointslices"): ["list", "watch"],
        ("events.k8s.io", "events"): ["create"],
    }
