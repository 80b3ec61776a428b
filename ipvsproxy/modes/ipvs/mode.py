"""The ipvs mode as the sync thread and the dry run see it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from ipvsproxy.cluster.node import HostView, NodeView
from ipvsproxy.cluster.services import ServiceView
from ipvsproxy.cluster.slices import CompactSlice
from ipvsproxy.config.types import DetectLocalMode, FilterVerdict, ProxyConfig
from ipvsproxy.model.addr import PackedAddr, family_of
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind
from ipvsproxy.model.names import DUMMY_DEVICE
from ipvsproxy.modes.ipvs import rules, service, sets, sysctls
from ipvsproxy.modes.ipvs.node_ports import NodePortAddresses
from ipvsproxy.plan.desired import FIXED, OwnerPlan


class IpvsOptions(msgspec.Struct, frozen=True):
    """All that an ipvs plan depends on besides the cluster's objects.

    `node_cidrs_are_local`: local pods are told by the pod networks of our Node object instead of `rules.local`.
    `kernel_release` is (major, minor); None plans for a kernel that needs no work-around.
    """

    service: service.ServiceOptions
    rules: rules.RuleOptions = rules.RuleOptions()
    node_cidrs_are_local: bool = False
    strict_arp: bool = False
    kernel_release: tuple[int, int] | None = None
    node_ports: NodePortAddresses = NodePortAddresses()
    drain_s: float = 900.0  # as long as the kernel remembers an idle TCP connection (ip_vs_proto_tcp.c, ESTABLISHED)


def ipvs_options(
    config: ProxyConfig, families: Collection[Family], kernel_release: tuple[int, int] | None = None
) -> IpvsOptions:
    """What `config` means for this mode, on a node that serves `families`."""
    detect = config.detect_local_mode
    local = rules.LocalTraffic()
    if detect is DetectLocalMode.CLUSTER_CIDR:
        local = rules.LocalTraffic(cidrs=config.cluster_cidrs)
    elif detect is DetectLocalMode.BRIDGE_INTERFACE:
        local = rules.LocalTraffic(interface=config.bridge_interface)
    elif detect is DetectLocalMode.INTERFACE_NAME_PREFIX:
        local = rules.LocalTraffic(interface=f"{config.interface_name_prefix}+")
    return IpvsOptions(
        service=service.ServiceOptions(frozenset(families), config.scheduler, config.exclude_cidrs),
        rules=rules.RuleOptions(
            config.masquerade_bit, config.masquerade_all, local, accepts=config.filter_verdict is FilterVerdict.ACCEPT
        ),
        node_cidrs_are_local=detect is DetectLocalMode.NODE_CIDR,
        strict_arp=config.strict_arp,
        kernel_release=kernel_release,
        node_ports=NodePortAddresses(config.node_port_cidrs, config.node_ports_on_primary),
        drain_s=config.drain_timeout_s,
    )


class IpvsMode:
    """Plans for IPVS."""

    name = "ipvs"
    guard_sets = sets.GUARD_SETS

    def __init__(self, options: IpvsOptions) -> None:
        self._options = options
        self.drain_s = options.drain_s
        self.depends_on_node = options.node_cidrs_are_local or options.node_ports.primary

    def lacks(self, node: NodeView) -> str:
        """What our Node does not say though plans depend on it, in words; empty where it says all."""
        found = []
        if self._options.node_cidrs_are_local and not node.pod_cidrs:
            found.append("pod networks")
        if self._options.node_ports.primary and not node.primary_ips:
            found.append("addresses")
        return " and ".join(found)

    def fixed(self, node: NodeView, host: HostView) -> OwnerPlan:
        """Sysctls, sets, rules, the link and the traces of node ports: what stands whatever the Services are."""
        options = self._options
        families = options.service.families
        networks = options.node_ports.networks(node.primary_ips)
        rule_options = msgspec.structs.replace(options.rules, node_port_networks=networks, local=self._local(node))
        objects = sysctls.sysctl_objects(strict_arp=options.strict_arp, kernel_release=options.kernel_release)
        objects |= sets.set_objects(families)
        objects |= sets.node_port_traces(address for address in host.node_port_addresses if self._may_touch(address))
        objects |= rules.rule_objects(families, rule_options)
        objects[Kind.LINK, DUMMY_DEVICE] = "dummy"
        return OwnerPlan(FIXED, "", objects)

    def families_that_cannot_tell_pods(self, node: NodeView) -> frozenset[Family]:
        """Those in which a packet from a local pod looks like any other's."""
        local = self._local(node)
        if local.interface:
            return frozenset()
        return self._options.service.families - {family_of(cidr.network) for cidr in local.cidrs}

    def _local(self, node: NodeView) -> rules.LocalTraffic:
        options = self._options
        return rules.LocalTraffic(cidrs=node.pod_cidrs) if options.node_cidrs_are_local else options.rules.local

    def _may_touch(self, address: PackedAddr) -> bool:
        served = self._options.service
        return family_of(address) in served.families and not any(address in cidr for cidr in served.exclude)

    def host_view(self, addresses: frozenset[PackedAddr], node: NodeView) -> HostView:
        """What plans of Services need to know of the node."""
        node_ports = self._options.node_ports
        return HostView(
            addresses,
            node_ports.select(addresses, node.primary_ips),
            node.primary_ips,
            node.zone,
            health_addresses=node_ports.health_addresses(addresses, node.primary_ips),
        )

    def depends_on_host(self, view: ServiceView, slices: Sequence[CompactSlice]) -> bool:
        """Whether the plan of this Service changes with the host view."""
        return service.depends_on_host(view, slices)

    def plan(self, view: ServiceView, slices: Sequence[CompactSlice], host: HostView) -> OwnerPlan:
        """What one Service wants."""
        return service.plan_service(view, slices, host, self._options.service)
