"""What the chart refuses, with a sentence that says what to do."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.lab import helm

HELMS = get_args(helm.Helm)
HOST = "--set=apiServer.host=192.0.2.10"
OPERATOR = "--api-versions=monitoring.coreos.com/v1/PodMonitor"


@pytest.mark.parametrize("program", HELMS)
@pytest.mark.parametrize(
    "option, named",
    [
        pytest.param("tolerationz=1", "tolerationz", id="a key at the top"),
        pytest.param("image.repo=x", "repo", id="a key of a section"),
        pytest.param("config.ipvs.sheduler=rr", "sheduler", id="a field of the configuration"),
        pytest.param("config.ipvsproxy.drainTimout=1m", "drainTimout", id="a field of our own settings"),
        pytest.param("config.conntrack.min=many", "min", id="a text for a number"),
        pytest.param("config.ipvs.strictARP=perhaps", "strictARP", id="a text for a switch"),
        pytest.param("image.pullPolicy=Sometimes", "pullPolicy", id="a policy that there is not"),
        pytest.param("image.digest=latest", "digest", id="a digest that is none"),
        pytest.param("image.repository=", "repository", id="an image without a name"),
        pytest.param("maxUnavailable=some", "maxUnavailable", id="a share that is none"),
        pytest.param("maxUnavailable=0", "maxUnavailable", id="an update that cannot begin"),
        pytest.param("maxUnavailable=0%", "maxUnavailable", id="the same as a share"),
        pytest.param("livenessProbe.treshold=3", "treshold", id="a field of a probe"),
        pytest.param("resources.limit.memory=1Gi", "limit", id="a field of resources"),
        pytest.param("affinity.nodeAfinity.x=y", "nodeAfinity", id="a kind of affinity"),
        pytest.param("apiServer.port=70000", "port", id="a port beyond all"),
        pytest.param("existingConfigMap.mountPath=etc", "mountPath", id="a relative path"),
    ],
)
def test_values_that_the_schema_does_not_know_are_refused_by_name(program: helm.Helm, option: str, named: str):
    answer = helm.template(program, HOST, f"--set={option}")
    assert answer.code != 0
    assert named in answer.err


@pytest.mark.parametrize("program", HELMS)
def test_without_an_address_of_the_api_server_nothing_is_rendered(program: helm.Helm):
    answer = helm.template(program)
    assert answer.code != 0
    assert "No address of the API server is known" in answer.err
    assert "Set apiServer.host to one that each node reaches without a Service proxy" in answer.err


@pytest.mark.parametrize(
    "host",
    [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "kubernetes.",
    ],
)
def test_the_kubernetes_service_by_name_is_refused(host: str):
    answer = helm.template("helm4", f"--set=apiServer.host={host}")
    assert answer.code != 0
    assert f"apiServer.host is {host}, which is the Service `kubernetes`" in answer.err


@pytest.mark.parametrize(
    "host",
    [
        pytest.param("https://192.0.2.10", id="a URL"),
        pytest.param("192.0.2.10:6443", id="with its port"),
        pytest.param("[2001:db8::10]:6443", id="IPv6 with its port"),
        pytest.param("192.0.2.10/", id="with a path"),
    ],
)
def test_what_is_more_than_a_host_is_refused_with_the_value_that_takes_the_port(host: str):
    answer = helm.template("helm4", f"--set=apiServer.host={host}")
    assert answer.code != 0
    assert f"apiServer.host is {host}, which is more than a name or an address" in answer.err
    assert "the port is apiServer.port" in answer.err


@pytest.mark.parametrize("host", ["192.0.2.10", "2001:db8::10", "api.example.net"])
def test_a_name_and_an_address_of_either_family_are_taken(host: str):
    answer = helm.template("helm4", f"--set=apiServer.host={host}")
    assert answer.code == 0
    assert f'value: "{host}"' in answer.out


@pytest.mark.parametrize("address", ["127.0.0.1:10249", "[::1]:10249", "127.0.0.1", ""])
def test_a_pod_monitor_of_metrics_on_loopback_is_refused(address: str):
    options = ["--set=podMonitor.enabled=true", f"--set-string=config.metricsBindAddress={address}"]
    answer = helm.template("helm4", HOST, OPERATOR, *options)
    assert answer.code != 0
    assert "Set it to 0.0.0.0:10249" in answer.err


@pytest.mark.parametrize("value, kind", [("podMonitor", "PodMonitor"), ("prometheusRule", "PrometheusRule")])
def test_an_object_that_the_cluster_does_not_know_is_refused(value: str, kind: str):
    answer = helm.template("helm4", HOST, f"--set={value}.enabled=true", "--set=config.metricsBindAddress=0.0.0.0")
    assert answer.code != 0
    assert f"{value}.enabled is set, but the cluster has no monitoring.coreos.com/v1/{kind}" in answer.err


@pytest.mark.parametrize("program", HELMS)
def test_a_kubernetes_that_is_too_old_is_refused(program: helm.Helm):
    answer = helm.template(program, HOST, "--kube-version=1.28.9")
    assert answer.code != 0
    assert "chart requires kubeVersion: >=1.29.0-0" in answer.err


def test_a_key_of_a_parent_chart_is_let_through():
    assert helm.template("helm4", HOST, "--set=global.registry=x").code == 0
