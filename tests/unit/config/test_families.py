"""The configuration against the families that the node turned out to serve."""

from __future__ import annotations

import pytest

from ipvsproxy.config.command_line import read_config
from ipvsproxy.config.families import check_families
from ipvsproxy.errors import ConfigError
from ipvsproxy.model.enums import Family

FOUR, SIX, BOTH = frozenset({Family.IPV4}), frozenset({Family.IPV6}), frozenset(Family)


@pytest.mark.parametrize(
    "flags,families,fields",
    [
        pytest.param({}, BOTH, [], id="the defaults, dual stack"),
        pytest.param({}, SIX, [], id="the defaults on a node of IPv6: loopback is there all the same"),
        pytest.param({"metrics-bind-address": "192.0.2.11"}, SIX, ["metricsBindAddress"], id="metrics on IPv4"),
        pytest.param({"nodeport-addresses": ["192.0.2.0/24"]}, FOUR, [], id="a network of the only family"),
        pytest.param({"nodeport-addresses": ["192.0.2.0/24"]}, BOTH, ["nodePortAddresses"], id="one of two families"),
        pytest.param({"nodeport-addresses": ["192.0.2.0/24", "primary"]}, BOTH, [], id="and primary"),
        pytest.param({"nodeport-addresses": ["192.0.2.0/24", "fd00::/8"]}, BOTH, [], id="networks of both"),
        pytest.param({"ipvs-exclude-cidrs": ["fd00::/8"]}, FOUR, ["ipvs.excludeCIDRs"], id="nothing to exclude"),
        pytest.param({"ipvs-exclude-cidrs": ["fd00::/8"]}, BOTH, [], id="something to exclude"),
        pytest.param({"healthz-bind-address": "[fd00::1]:10256"}, FOUR, ["healthzBindAddress"], id="health on IPv6"),
        pytest.param({"healthz-bind-address": "[::]:10256"}, FOUR, [], id="health on all addresses"),
    ],
)
def test_what_does_not_do_what_it_seems_to_is_said_by_field(flags, families, fields):
    config = read_config({f"--{name}": value for name, value in flags.items()})
    assert [note.subject for note in check_families(config, families)] == fields


@pytest.mark.parametrize(
    "cidrs,families",
    [pytest.param("fd00:244::/56", FOUR, id="IPv4 only"), pytest.param("10.244.0.0/16", SIX, id="IPv6 only")],
)
def test_pods_of_another_family_than_the_nodes_are_refused(cidrs, families):
    with pytest.raises(ConfigError, match=rf"clusterCIDR \(--cluster-cidr\): {cidrs} is of a family"):
        check_families(read_config({"--cluster-cidr": cidrs}), families)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({"--cluster-cidr": "10.244.0.0/16,fd00:244::/56"}, id="one of two is served"),
        pytest.param({"--cluster-cidr": "fd00:244::/56", "--detect-local-mode": "NodeCIDR"}, id="another mode"),
        pytest.param({}, id="none is given"),
    ],
)
def test_pod_networks_that_do_no_harm_are_taken(flags):
    check_families(read_config(flags), FOUR)
