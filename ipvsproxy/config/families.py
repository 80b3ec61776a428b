"""Whether a configuration fits the address families that this node serves, which is known only once it runs.

Source: kubernetes v1.37.2 cmd/kube-proxy/app/server.go checkBadConfig, checkBadIPConfig.
differs: what upstream logs as an error although it goes on is a warning here; node ports on every address, which is
the default, are none. Pod networks of another family than the node's never end the program: they may change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ipvsproxy.config.types import DetectLocalMode, ProxyConfig
from ipvsproxy.errors import ConfigError
from ipvsproxy.model.addr import Cidr, PackedAddr, family_of, format_addr, is_loopback
from ipvsproxy.model.enums import Family
from ipvsproxy.model.notes import Note


def check_families(config: ProxyConfig, families: Collection[Family]) -> tuple[Note, ...]:
    """What of `config` does not do what it seems to. Raises ConfigError where local pods could not be told at all."""
    served = " and ".join(family.label for family in sorted(families))
    networks = {family_of(cidr.network) for cidr in config.cluster_cidrs}
    if config.detect_local_mode is DetectLocalMode.CLUSTER_CIDR and networks and networks.isdisjoint(families):
        raise ConfigError(
            "clusterCIDR (--cluster-cidr)",
            f"{_texts(config.cluster_cidrs)} is of a family that this node does not serve: {served} only",
            "Add the network of the pods in that family, or leave it out",
        )
    return tuple(_notes(config, families, served))


def _notes(config: ProxyConfig, families: Collection[Family], served: str) -> Iterator[Note]:
    open_families = _without(config.node_port_cidrs, families)
    if config.node_port_cidrs and not config.node_ports_on_primary and open_families:
        labels = " and ".join(family.label for family in open_families)
        reason = f"no network of {labels} is given, so every address of {labels} serves node ports"
        yield Note("nodePortAddresses", reason, "Add a network of each family, or primary")
    if config.exclude_cidrs and len(_without(config.exclude_cidrs, families)) == len(families):
        reason = f"{_texts(config.exclude_cidrs)} excludes nothing: this node serves {served} only"
        yield Note("ipvs.excludeCIDRs", reason)
    for field, listener in (("healthzBindAddress", config.healthz), ("metricsBindAddress", config.metrics)):
        if listener and _is_of_none(listener.address, families):
            reason = f"{format_addr(listener.address)} is of a family that this node does not serve: {served} only"
            yield Note(field, reason)


def _without(cidrs: Collection[Cidr], families: Collection[Family]) -> list[Family]:
    """The families of which there is no network."""
    given = {family_of(cidr.network) for cidr in cidrs}
    return sorted(family for family in families if family not in given)


def _is_of_none(address: PackedAddr, families: Collection[Family]) -> bool:
    """Whether the family is not served here; zeros stand for all addresses, and loopback is always there."""
    return any(address) and not is_loopback(address) and family_of(address) not in families


def _texts(cidrs: Collection[Cidr]) -> str:
    return ",".join(map(str, cidrs))
