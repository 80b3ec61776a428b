"""The real binary: arguments and a file in, the configuration in force or the exact error out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from ipvsproxy.config.types import KubeProxyConfiguration

KUBEADM = (Path(__file__).parents[1] / "data/kubeadm/config.conf").read_text()
HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
DEFAULTS = msgspec.json.decode(msgspec.json.encode(KubeProxyConfiguration())) | {
    "mode": "ipvs",
    "detectLocalMode": "ClusterCIDR",
}
SYNC = "KubeProxyConfiguration.SyncPeriod: Invalid value"


def run(folder, *words):
    return subprocess.run(
        [sys.executable, "-m", "ipvsproxy", *words],
        capture_output=True,
        check=False,
        timeout=60,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )


def in_force(folder, *words):
    """Fields that are not the default, by path, after the program has written its configuration."""
    done = run(folder, *words, "--write-config-to=out.yaml")
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    written = yaml.safe_load((folder / "out.yaml").read_text())
    assert (written.pop("apiVersion"), written.pop("kind")) == tuple(yaml.safe_load(HEAD).values())
    return dict(differing(written, DEFAULTS, ""))


def differing(document, defaults, path):
    for key, value in document.items():
        if isinstance(value, dict) and value:
            yield from differing(value, defaults[key], f"{path}{key}.")
        elif value != defaults.get(key):
            yield path + key, value


@pytest.mark.parametrize(
    "words,text,fields",
    [
        pytest.param([], None, {}, id="nothing is given"),
        pytest.param(
            ["--config=c.yaml"],
            KUBEADM,
            {
                "clientConnection.kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf",
                "clusterCIDR": "10.244.0.0/16,fd00:10:244::/56",
            },
            id="kubeadm's file",
        ),
        pytest.param(
            [
                "--bind_address",
                "::",
                "--conntrack-min=5",
                "--ipvs-exclude-cidrs=10.0.0.0/8,fd00::/8",
                "--masquerade-all",
            ],
            None,
            {
                "bindAddress": "::",
                "conntrack.min": 5,
                "ipvs.excludeCIDRs": ["10.0.0.0/8", "fd00::/8"],
                "iptables.masqueradeAll": True,
            },
            id="flags alone; the addresses to listen on do not follow --bind-address",
        ),
        pytest.param(
            ["--config=c.yaml"],
            HEAD + "bindAddress: '::'",
            {"bindAddress": "::", "healthzBindAddress": "[::]:10256", "metricsBindAddress": "[::1]:10249"},
            id="a file: they follow bindAddress",
        ),
        pytest.param(
            ["--config=c.yaml", "--proxy-mode=ipvs", "--ipvs-scheduler=lc", "--hostname-override=n1", "-v", "2"],
            HEAD + "mode: iptables\nhostnameOverride: n0\nipvs: {scheduler: sh}",
            {"hostnameOverride": "n1", "ipvs.scheduler": "sh", "logging.verbosity": 2},
            id="file and flags",
        ),
        pytest.param(
            ["--config=c.yaml", "--filter-verdict=return"],
            HEAD + "ipvsproxy: {drainTimeout: 5s, filterVerdict: accept}",
            {"ipvsproxy.drainTimeout": "5s", "ipvsproxy.filterVerdict": "return"},
            id="our own section and flags",
        ),
        pytest.param(
            ["--healthz-port=1234", "--metrics-bind-address=192.0.2.1", "--metrics-port=99"],
            None,
            {"metricsBindAddress": "192.0.2.1:99"},
            id="a deprecated port fills a missing one and nothing else",
        ),
        pytest.param(
            ["--feature-gates=A=true", "--feature-gates=A=false,B=true", "--vmodule=a=1"],
            None,
            {
                "featureGates": {"A": False, "B": True},
                "logging.vmodule": [{"filePattern": "a", "verbosity": 1}],
            },
            id="maps add up, and the last value counts",
        ),
    ],
)
def test_arguments_and_file_make_this_configuration(tmp_path, words, text, fields):
    if text is not None:
        (tmp_path / "c.yaml").write_text(text)
    found = in_force(tmp_path, *words)
    gates = {key.partition(".")[2]: found.pop(key) for key in list(found) if key.startswith("featureGates.")}
    assert found | ({"featureGates": gates} if gates else {}) == fields


@pytest.mark.parametrize(
    "words,text,error",
    [
        pytest.param(["--config=c.yaml"], None, "--config c.yaml: No such file or directory", id="no file"),
        pytest.param(
            ["--config=c.yaml"],
            HEAD + "mode: iptables",
            'KubeProxyConfiguration.Mode.ProxyMode: Invalid value: "iptables": must be ipvs, or blank '
            "(blank means ipvs): ipvsproxy has no other mode "
            "(mode in c.yaml; give --proxy-mode=ipvs to start with this file as it is)",
            id="another mode in the file",
        ),
        pytest.param(
            ["--ipvs-sync-period=1s", "--ipvs-min-sync-period=2s"],
            None,
            f'{SYNC}: "2s": must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod '
            "(--ipvs-min-sync-period)",
            id="a rule, and the flag that breaks it",
        ),
        pytest.param(
            ["--config=c.yaml"],
            HEAD + "ipvs: {syncPeriod: -1s}",
            f'{SYNC}: "-1s": must be greater than 0 (ipvs.syncPeriod in c.yaml)\n'
            f'Error: {SYNC}: "0s": must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod '
            "(ipvs.minSyncPeriod in c.yaml)",
            id="two rules, and the field in the file",
        ),
        pytest.param(
            ["--healthz-port=0"],
            None,
            '--write-config-to: a file cannot say healthzBindAddress: ""; it would be read as "0.0.0.0:10256". '
            "Leave the flag that says so out",
            id="what no file can say",
        ),
        pytest.param(
            ["--metrics-port=0"],
            None,
            '--write-config-to: a file cannot say metricsBindAddress: ""; it would be read as "127.0.0.1:10249". '
            "Leave the flag that says so out",
            id="no metrics server, which no file can say either",
        ),
        pytest.param(
            ["--write-config-to=no/such"], None, "--write-config-to no/such: No such file or directory", id="no folder"
        ),
        pytest.param(
            ["--feature-gates=A"], None, '--feature-gates: invalid value "A": missing bool value for A', id="a gate"
        ),
    ],
)
def test_arguments_and_file_that_cannot_be_used_end_with_this_error(tmp_path, words, text, error):
    if text is not None:
        (tmp_path / "c.yaml").write_text(text)
    done = run(tmp_path, "--write-config-to=out.yaml", *words)
    assert (done.returncode, done.stderr.decode()) == (1, f"Error: {error}\n")
    assert not (tmp_path / "out.yaml").exists()


def test_what_was_ignored_is_told_on_standard_error(tmp_path):
    (tmp_path / "c.yaml").write_text(HEAD + "mode: iptables\nfoo: 1\nportRange: 1-2")
    done = run(tmp_path, "--config=c.yaml", "--proxy-mode=ipvs", "--masquerade-all", "--write-config-to=out.yaml")
    events = [msgspec.json.decode(line)["event"] for line in done.stderr.splitlines()]
    assert events == ["config_file_not_strict", "flags_ignored", "mode_in_file_overridden", "settings_without_effect"]


def test_a_value_that_is_no_text_cannot_be_written(tmp_path):
    done = run(tmp_path, b"--hostname-override=\xff", "--write-config-to=out.yaml")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"Error: --write-config-to: ")
