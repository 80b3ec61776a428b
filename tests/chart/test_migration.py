"""docs/migrate.md, followed to the letter on a real control plane: both DaemonSets' Pods come and go as it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from tests.chart.conftest import KUBEADM as KUBEADM_FILES
from tests.chart.migration import (
    ALL,
    BACK,
    BACK_IN_THE_END,
    END,
    KUBEADM,
    OLD_KUBEADM,
    OLD_KUBEADM_BACK,
    PAGE,
    Migration,
    kube_proxy,
    migration_of,
)
from tests.chart.test_installs import SYSTEM, environment_of, replaced
from tests.documented import ROOT, documented
from tests.lab import helm
from tests.lab.apiserver import ControlPlane
from tests.lab.machine import LabError

pytestmark = pytest.mark.timeout(900)

HELMS = get_args(helm.Helm)
K3S = documented(PAGE, "k3s and rke2", program="helm", in_block=True)
(LOOK,) = documented(PAGE, pattern="kubectl .* get daemonset kube-proxy")
(ADDON,) = documented(PAGE, program="kubeadm")
ANOTHER_MODE = documented(PAGE, "From the iptables or nftables mode", program="kubectl", in_block=True)


@pytest.fixture(params=HELMS)
def migration(cluster: ControlPlane, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Migration]:
    """By each Helm."""
    with migration_of(cluster, request.param, tmp_path) as migration:
        yield migration


@pytest.fixture
def migration4(cluster: ControlPlane, tmp_path: Path) -> Iterator[Migration]:
    """By Helm 4 alone, where the Helms have no say."""
    with migration_of(cluster, "helm4", tmp_path) as migration:
        yield migration


def uids(pods: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {node: pod["metadata"]["uid"] for node, pod in pods.items()}


def test_the_way_of_kubeadm_leads_from_kube_proxy_on_all_nodes_to_ipvsproxy_on_all(migration: Migration):
    steps = iter(KUBEADM)
    before = uids(migration.kube_proxies())
    migration.follow(next(steps))  # kube-proxy learns to step aside: replaced once, still everywhere
    migration.comes_to(ALL, set())
    assert before.items().isdisjoint(uids(migration.kube_proxies()).items())
    stay = uids(migration.kube_proxies())
    migration.follow(next(steps))  # installed, and nowhere
    migration.follow(next(steps))  # checked
    assert migration.served() == (ALL, set())
    assert uids(migration.kube_proxies()) == stay
    migration.follow(next(steps))  # n1
    migration.comes_to({"n2", "n3"}, {"n1"})
    migration.follow(next(steps))  # verified
    assert migration.served() == ({"n2", "n3"}, {"n1"})
    migration.follow(next(steps))  # the others
    migration.comes_to(set(), ALL)
    migration.follow(BACK)
    migration.comes_to({"n1"}, {"n2", "n3"})
    migration.label("n1", "ipvsproxy.io/serve=true")
    migration.comes_to(set(), ALL)
    migration.follow(next(steps))  # kube-proxy goes, and the selector
    migration.comes_to(set(), ALL)
    assert next(steps, None) is None
    selector = migration.release.get("daemonset", "ipvsproxy")["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"kubernetes.io/os": "linux"}
    assert "NotFound" in migration.terminal.typed(LOOK.text).stderr
    migration.follow(BACK_IN_THE_END)  # kube-proxy is there again, and on no node
    migration.comes_to(set(), ALL)
    migration.follow(BACK)
    migration.comes_to({"n1"}, {"n2", "n3"})
    migration.label("--all", "ipvsproxy.io/serve-")
    migration.comes_to(ALL, set())
    migration.follow([END])
    assert migration.release.run("status").code != 0
    assert migration.served() == (ALL, set())


def test_for_an_old_kubeadm_the_configuration_gets_another_name_before_kube_proxys_goes(migration4: Migration):
    plane, config = migration4.plane, (KUBEADM_FILES / "config.conf").read_text()
    with replaced(plane, "kube-system", "kube-proxy", config_conf=config):
        for step in (*KUBEADM[:2], KUBEADM[-1], OLD_KUBEADM):
            migration4.follow(step)
        copy = migration4.release.get("configmap", "ipvsproxy-config")["data"]
        assert copy == {"config.conf": config}
        volumes = [pod["spec"]["volumes"] for pod in migration4.release.pods().values()]
        assert [volume["configMap"]["name"] for each in volumes for volume in each if volume["name"] == "config"] == [
            "ipvsproxy-config"
        ] * len(ALL)
        with pytest.raises(LabError, match="not found"):
            plane.kubectl("get", "configmap", "kube-proxy", SYSTEM)
        migration4.follow(OLD_KUBEADM_BACK)
        assert migration4.release.get("configmap", "kube-proxy")["data"] == copy
        migration4.follow(BACK_IN_THE_END)
        migration4.comes_to(set(), ALL)


def test_where_helm_fails_a_pasted_block_takes_nothing_away_from_who_serves(migration4: Migration):
    """An interactive shell goes on behind an error."""
    plane, terminal = migration4.plane, migration4.terminal
    for step in KUBEADM[:2]:
        migration4.follow(step)
    migration4.label("--all", "ipvsproxy.io/serve=true")
    migration4.comes_to(set(), ALL)
    (terminal.tools / "helm").unlink()
    terminal.put("helm", "exit 1")
    with replaced(plane, "kube-system", "kube-proxy", config_conf=(KUBEADM_FILES / "config.conf").read_text()):
        for step in (KUBEADM[-1], OLD_KUBEADM):
            pasted = "\n".join(command.text for command in step)
            assert terminal.typed(f"set +e\n{pasted}").returncode != 0
        plane.kubectl("get", "configmap", "kube-proxy", SYSTEM)
    nodes = migration4.release.get("node", *ALL)["items"]
    assert {node["metadata"]["labels"].get("ipvsproxy.io/serve") for node in nodes} == {"true"}
    migration4.comes_to(set(), ALL)


def test_kubeadm_would_start_kube_proxy_on_all_nodes_without_its_settings(migration4: Migration):
    """As the page warns."""
    migration4.follow(KUBEADM[1])
    config = yaml.safe_dump({"kind": "KubeProxyConfiguration", "mode": "ipvs", "clusterCIDR": "10.244.0.0/16"})
    with replaced(migration4.plane, "kube-system", "kube-proxy", config_conf=config, kubeconfig_conf="{}"):
        migration4.follow(KUBEADM[-1])
        migration4.comes_to(set(), ALL)
        migration4.follow([ADDON])
        migration4.comes_to(ALL, ALL)
        found = yaml.safe_load(migration4.release.get("configmap", "kube-proxy")["data"]["config.conf"])
        assert (found["mode"], found["clusterCIDR"]) == ("iptables", "")


def test_both_are_upgraded_in_a_mixed_cluster_each_on_its_own_nodes(migration4: Migration):
    for step in KUBEADM[:2]:
        migration4.follow(step)
    migration4.follow(KUBEADM[3])
    migration4.comes_to({"n2", "n3"}, {"n1"})
    plane, release = migration4.plane, migration4.release
    theirs, ours = uids(migration4.kube_proxies()), uids(release.pods())
    plane.kubectl("set", "image", "daemonset/kube-proxy", "kube-proxy=kube-proxy:next", SYSTEM)
    release.do("upgrade", str(helm.CHART), "--reuse-values", "--set=image.tag=next", "--wait", "--timeout=4m")
    plane.kubectl("rollout", "status", "daemonset/kube-proxy", SYSTEM, "--timeout=4m")
    migration4.comes_to({"n2", "n3"}, {"n1"})
    assert release.images() == {"localhost/ipvsproxy:next"}
    assert theirs.items().isdisjoint(uids(migration4.kube_proxies()).items())
    assert ours.items().isdisjoint(uids(release.pods()).items())


def test_a_daemon_set_that_kubeadm_writes_anew_is_back_on_every_node(migration4: Migration):
    """Hence the table of step 7."""
    for step in KUBEADM[:2]:
        migration4.follow(step)
    migration4.follow(KUBEADM[3])
    migration4.comes_to({"n2", "n3"}, {"n1"})
    migration4.plane.kubectl("replace", "--filename=-", objects=[kube_proxy()])
    migration4.comes_to(ALL, {"n1"})


def test_a_node_of_another_mode_is_emptied_switched_and_taken_back(migration4: Migration):
    for step in KUBEADM[:2]:
        migration4.follow(step)
    migration4.follow(ANOTHER_MODE)
    migration4.comes_to({"n2", "n3"}, {"n1"})
    assert "unschedulable" not in migration4.release.get("node", "n1")["spec"]


def test_on_k3s_the_api_server_is_at_the_nodes_own_port(migration4: Migration):
    migration4.follow(K3S)
    found = environment_of(migration4.release)
    assert (found["KUBERNETES_SERVICE_HOST"], found["KUBERNETES_SERVICE_PORT"]) == ("127.0.0.1", "6444")
    assert migration4.release.pods() == {}
    config = yaml.safe_load(migration4.release.get("configmap", "ipvsproxy")["data"]["config.conf"])
    assert config["clusterCIDR"] == "10.42.0.0/16"


def test_the_containers_whose_logs_it_reads_are_the_charts(migration4: Migration):
    migration4.release.do("install", str(helm.CHART), "--set=existingConfigMap.name=kube-proxy")
    asked = set(re.findall(r"(?:logs|exec) (daemonset/\S+)(?: --container (\S+))?", (ROOT / PAGE).read_text()))
    assert asked == {("daemonset/ipvsproxy-check", "check"), ("daemonset/ipvsproxy", "")}
    for target, container in asked:
        template = migration4.release.get(*target.split("/"))["spec"]["template"]
        default = template["metadata"].get("annotations", {}).get("kubectl.kubernetes.io/default-container")
        assert (container or default) in [
            item["name"] for kind in ("initContainers", "containers") for item in template["spec"][kind]
        ]
