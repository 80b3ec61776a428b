"""What is told to runc of a Pod: each line of a Pod's specification has its effect, and none is passed over."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.chart.cases import golden, objects
from tests.lab.containers import ALL_CAPABILITIES, Image, Object, expand, in_bytes, in_millis, oci_config, seccomp

IMAGE = Image(Path("/image/rootfs"), ("ipvsproxy",), {"PATH": "/opt/bin"})
PROFILE: dict[str, Any] = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "defaultErrnoRet": 38,
    "syscalls": [
        {"names": ["read", "mount"], "action": "SCMP_ACT_ALLOW", "args": [], "includes": {}, "excludes": {}},
        {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
        {"names": ["mount"], "action": "SCMP_ACT_ERRNO", "excludes": {"caps": ["CAP_SYS_ADMIN"]}, "errnoRet": 1},
        {"names": ["arch_prctl"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["amd64", "x32"]}},
        {"names": ["breakpoint"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["arm", "arm64"]}},
    ],
}


@pytest.fixture
def pod() -> dict[str, Any]:
    """A Pod of the chart's DaemonSet on the node n1."""
    (daemons,) = [item for item in objects(golden("defaults")) if item["metadata"]["name"] == "ipvsproxy" and
                  item["kind"] == "DaemonSet"]  # fmt: skip
    return {"metadata": {"name": "ipvsproxy-x"}, "spec": {**daemons["spec"]["template"]["spec"], "nodeName": "n1"}}


def config(pod: Object, name: str = "ipvsproxy") -> dict[str, Any]:
    volumes = {volume["name"]: Path("/volumes", volume["name"]) for volume in pod["spec"]["volumes"]}
    return oci_config(pod, name, IMAGE, volumes, PROFILE)


def changed(pod: dict[str, Any], name: str = "ipvsproxy", **security: Any) -> dict[str, Any]:
    """What becomes of the container with these fields of its security context."""
    made = copy.deepcopy(pod)
    for container in (*made["spec"]["initContainers"], *made["spec"]["containers"]):
        if container["name"] == name:
            container["securityContext"] |= security
    return config(made, name)


def mounts(made: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """place → (source, access) of what the Pod mounts."""
    return {
        mount["destination"]: (mount["source"], mount["options"][-1])
        for mount in made["mounts"]
        if mount["type"] == "bind"
    }


def test_the_daemon_has_two_capabilities_and_can_gain_none(pod: dict[str, Any]):
    process = config(pod)["process"]
    two = ["CAP_NET_ADMIN", "CAP_NET_RAW"]
    assert process["capabilities"] == {"bounding": two, "effective": two, "permitted": two}
    assert process["noNewPrivileges"] is True
    assert process["user"] == {"uid": 0, "gid": 0}


def test_a_capability_that_is_not_asked_for_is_not_there(pod: dict[str, Any]):
    made = changed(pod, capabilities={"drop": ["ALL"], "add": ["NET_RAW"]})
    assert made["process"]["capabilities"]["bounding"] == ["CAP_NET_RAW"]


def test_without_a_word_a_container_has_the_runtimes_default(pod: dict[str, Any]):
    made = changed(pod, capabilities={})
    assert "CAP_CHOWN" in made["process"]["capabilities"]["bounding"]
    assert "CAP_NET_ADMIN" not in made["process"]["capabilities"]["bounding"]


def test_who_is_not_root_holds_nothing_of_what_it_may(pod: dict[str, Any]):
    found = changed(pod, runAsUser=65534, runAsNonRoot=True)["process"]["capabilities"]
    assert (found["effective"], found["permitted"]) == ([], [])


def test_root_where_it_is_ruled_out_is_refused(pod: dict[str, Any]):
    with pytest.raises(ValueError, match="runAsNonRoot"):
        changed(pod, runAsNonRoot=True)


def test_the_init_container_is_privileged(pod: dict[str, Any]):
    made = config(pod, "init")
    assert made["process"]["capabilities"]["bounding"] == [f"CAP_{name}" for name in sorted(ALL_CAPABILITIES)]
    assert made["process"]["noNewPrivileges"] is False
    assert made["linux"].keys() == {"namespaces", "resources"}
    assert made["linux"]["resources"]["devices"] == [{"allow": True, "access": "rwm"}]


def test_the_daemons_proc_is_read_only_and_its_system_calls_are_filtered(pod: dict[str, Any]):
    linux = config(pod)["linux"]
    assert "/proc/sys" in linux["readonlyPaths"]
    assert linux["seccomp"] == seccomp(PROFILE, frozenset({"NET_ADMIN", "NET_RAW"}))
    assert linux["resources"]["devices"] == [{"allow": False, "access": "rwm"}]


@pytest.mark.parametrize("name", ["init", "ipvsproxy"])
def test_the_root_is_read_only_and_the_network_is_the_nodes(pod: dict[str, Any], name: str):
    made = config(pod, name)
    assert made["root"] == {"path": "/image/rootfs", "readonly": True}
    assert {space["type"] for space in made["linux"]["namespaces"]} == {"pid", "ipc", "mount", "cgroup"}


def test_a_pod_with_a_network_of_its_own_is_refused(pod: dict[str, Any]):
    pod["spec"]["hostNetwork"] = False
    with pytest.raises(ValueError, match="network"):
        config(pod)


def test_a_field_that_would_have_no_effect_here_is_refused(pod: dict[str, Any]):
    with pytest.raises(ValueError, match="procMount"):
        changed(pod, procMount="Unmasked")


def test_volumes_are_where_they_are_mounted_and_read_only_where_that_is_said(pod: dict[str, Any]):
    assert mounts(config(pod)) == {
        "/etc/ipvsproxy": ("/volumes/config", "ro"),
        "/tmp": ("/volumes/tmp", "rw"),  # noqa: S108
        "/run/xtables.lock": ("/volumes/xtables-lock", "rw"),
        "/run/ipvsproxy": ("/volumes/run", "rw"),
        "/host/proc/sys/net": ("/volumes/proc-sys-net", "rw"),
    }
    assert mounts(config(pod, "init"))["/lib/modules"] == ("/volumes/lib-modules", "ro")


def test_words_and_environment_are_the_images_and_the_pods(pod: dict[str, Any]):
    process = config(pod)["process"]
    assert process["args"][:4] == [
        "ipvsproxy",
        "--config=/etc/ipvsproxy/config.conf",
        "--proxy-mode=ipvs",
        "--hostname-override=n1",
    ]
    assert {"PATH=/opt/bin", "NODE_NAME=n1", "KUBERNETES_SERVICE_HOST=192.0.2.10"} <= {*process["env"]}


def test_a_container_that_says_nothing_is_told_of_the_service_kubernetes(pod: dict[str, Any]):
    assert "KUBERNETES_SERVICE_HOST=10.96.0.1" in config(pod, "init")["process"]["env"]


def test_resources_and_rank_are_the_pods(pod: dict[str, Any]):
    made = config(pod)
    limit = 512 << 20
    assert made["linux"]["resources"]["memory"] == {"limit": limit, "swap": limit}
    assert made["linux"]["resources"]["cpu"] == {"shares": 51}
    assert made["process"]["oomScoreAdj"] == -997


@pytest.mark.parametrize(
    "text, meant",
    [
        pytest.param("--node=$(NODE)", "--node=n1", id="a variable"),
        pytest.param("$(OTHER)", "$(OTHER)", id="one that there is not"),
        pytest.param("$$(NODE)", "$(NODE)", id="an escaped one"),
        pytest.param("$NODE", "$NODE", id="the shell's form"),
    ],
)
def test_variables_in_arguments_are_kubernetes_own(text: str, meant: str):
    assert expand(text, {"NODE": "n1"}) == meant


def test_quantities():
    assert [in_bytes(text) for text in ("512Mi", "1Gi", "100")] == [512 << 20, 1 << 30, 100]
    assert [in_millis(text) for text in ("50m", "2", "0.5")] == [50, 2000, 500]


def test_a_system_call_is_allowed_where_capabilities_and_architecture_are_right():
    def rules(*allowed: str) -> set[tuple[str, str]]:
        found = seccomp(PROFILE, frozenset(allowed))["syscalls"]
        return {(name, rule["action"].removeprefix("SCMP_ACT_")) for rule in found for name in rule["names"]}

    assert rules() == {("read", "ALLOW"), ("arch_prctl", "ALLOW"), ("mount", "ERRNO")}
    assert rules("SYS_ADMIN") == {("read", "ALLOW"), ("arch_prctl", "ALLOW"), ("mount", "ALLOW")}
