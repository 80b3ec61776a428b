"""The proxy on the nf_tables flavour of iptables, and what it makes of rules in the flavour that it does not use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ipvsproxy.config.command_line import ExitCode
from tests.clusters import Svc
from tests.lab.hosts import Cluster, Namespace
from tests.lab.traffic import Servers, Transport, ask
from tests.vm.nodes import chains, cleaned_up, flags_with, manifest, program, proxy_on, without_chains
from tests.vm.places import A1, A3, every_family, ready

VIPS = ("10.96.0.20", "2001:db8:96::20")
WEB = Svc("web", VIPS, endpoints=ready(A1))
PROGRAMS = {4: "iptables", 6: "ip6tables"}

# What an earlier run left in the legacy tables, beside a chain of somebody else. One table a family.
LEFT = {
    4: "*nat\n:KUBE-SERVICES - [0:0]\n:THEIRS - [0:0]\n-A OUTPUT -j KUBE-SERVICES\n-A OUTPUT -j THEIRS\n"
    "-A KUBE-SERVICES -d 10.96.0.20/32 -j RETURN\nCOMMIT\n",
    6: "*filter\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\n-A KUBE-FORWARD -j ACCEPT\nCOMMIT\n",
}


@pytest.fixture(scope="module")
def nft_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A node whose proxy uses nft, with the endpoint a1, the client a3, and a server of the node's own on port 22."""
    folder = tmp_path_factory.mktemp("nft")
    with Cluster() as hosts, Servers() as servers:
        for name, addresses in (("a1", A1), ("a3", A3)):
            hosts.add_pod(name, *addresses)
        for address in A1:
            servers.listen(hosts["a1"], "a1", address, 8080, Transport.TCP)
        servers.listen(hosts.node, "sshd", "::", 22, Transport.TCP)
        servers.start()
        with proxy_on(hosts.node, folder, WEB, flags=flags_with("nft")) as proxy:
            proxy.wait_for_services()
            yield hosts
            assert proxy.stop() == ExitCode.OK


def saved(host: Namespace, version: int, backend: str) -> dict[str, dict[str, list[str]]]:
    """The tables that exist in this flavour; nothing is made by looking."""
    return chains(host.run(f"{PROGRAMS[version]}-{backend}-save"))


def ours(host: Namespace, backend: str) -> set[tuple[int, str, str]]:
    """(IP version, table, chain) of our chains in this flavour."""
    return {
        (version, table, chain)
        for version in PROGRAMS
        for table, found in saved(host, version, backend).items()
        for chain in found
        if chain.startswith("KUBE-") and "CANARY" not in chain
    }


@pytest.mark.parametrize("version", [4, 6])
def test_the_planned_rules_stand_in_nf_tables_and_none_in_the_legacy_tables(nft_hosts, version, tmp_path):
    (tmp_path / "services.json").write_text(manifest(WEB))
    command = ("plan", "-o", PROGRAMS[version], "--manifests", str(tmp_path), *flags_with("nft"))
    code, text = program(nft_hosts.node, *command)
    assert code == 0
    found = {table: rules for table, rules in saved(nft_hosts.node, version, "nft").items() if rules}
    assert found == chains(text)
    assert without_chains(saved(nft_hosts.node, version, "legacy"))


@every_family
def test_a_cluster_ip_is_served_and_its_other_ports_are_closed(nft_hosts, family):
    assert ask(nft_hosts["a3"], VIPS[family], 80).server == "a1"
    with pytest.raises(ConnectionRefusedError):
        ask(nft_hosts["a3"], VIPS[family], 22)


def test_leftovers_in_the_legacy_tables_are_told_once_and_cleaned_with_the_rest(empty_host, tmp_path):
    put_leftovers(empty_host)
    with proxy_on(empty_host, tmp_path, WEB, flags=flags_with("nft")) as proxy:
        proxy.wait_for_services()
        assert proxy.stop() == ExitCode.OK
    told = [line for line in proxy.lines() if line["event"] == "rules_in_other_flavour"]
    assert [(line["level"], line["backend"], line["chains"], line["jumps"]) for line in told] == [
        ("warning", "legacy", ["KUBE-FORWARD"], 1),
        ("warning", "legacy", ["KUBE-SERVICES"], 1),
    ]
    assert ours(empty_host, "nft")
    assert cleaned_up(empty_host, tmp_path, flags_with("nft")).exit_code == ExitCode.OK
    assert ours(empty_host, "nft") == ours(empty_host, "legacy") == set()
    assert saved(empty_host, 4, "legacy")["nat"] == {"THEIRS": [], "OUTPUT": ["-A OUTPUT -j THEIRS"]}


def put_leftovers(host: Namespace) -> None:
    for version, text in LEFT.items():
        host.run(f"{PROGRAMS[version]}-legacy-restore", "--noflush", given=text)


@pytest.mark.parametrize("used, other", [("legacy", "nft"), ("nft", "legacy")])
def test_auto_uses_the_flavour_in_which_the_kubelet_left_its_chain(empty_host, tmp_path, used, other):
    empty_host.run(f"iptables-{used}", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
    with proxy_on(empty_host, tmp_path, WEB, flags=flags_with("auto")) as proxy:
        assert proxy.wait_for("iptables_backend_chosen")["backend"] == used
        proxy.wait_for("fixed_layer_stands")
        assert {(4, "nat", "KUBE-SERVICES"), (6, "filter", "KUBE-IPVS-FILTER")} <= ours(empty_host, used)
        assert ours(empty_host, other) == set()
