"""This node as `diff` and `explain` look at it: the cluster, the kernel, and what a start would do about them.

Nothing is changed. As with `ipvsadm -L`, asking for IPVS makes a kernel load the module that it lacks.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

from ipvsproxy import dry_run
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.config.types import LookOptions, ProxyConfig
from ipvsproxy.daemon import real_kernel
from ipvsproxy.first_sync import FirstSync, rehearse
from ipvsproxy.kernel.api import Kernel
from ipvsproxy.kernel.gateways import DefaultGateways, GatewayMonitor
from ipvsproxy.kernel.iptables import has_ipv6
from ipvsproxy.kernel.iptables_backend import rules_as_they_are
from ipvsproxy.kernel.monitor import AddressMonitor
from ipvsproxy.kernel.sysctls import kernel_release
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Family
from ipvsproxy.modes.ipvs.mode import IpvsMode, IpvsOptions, ipvs_options
from ipvsproxy.modes.ipvs.rules import OWN_CHAINS


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a plan depends on besides the cluster: the kernel and what it says of the node.

    `host`: the addresses of the node's interfaces but kube-ipvs0; `gateways`: those of its default routes.
    """

    kernel: Kernel
    host: frozenset[PackedAddr]
    gateways: frozenset[PackedAddr] = frozenset()
    families: frozenset[Family] = frozenset(Family)
    kernel_release: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What there is to compare, and by which rules it was planned."""

    tracker: Tracker
    options: IpvsOptions
    mode: IpvsMode
    surroundings: Surroundings
    first_sync: FirstSync


def real_surroundings(config: ProxyConfig) -> Surroundings:
    """This network namespace. Raises KernelError."""
    seen: list[DefaultGateways] = []
    with closing(GatewayMonitor(seen.append)), closing(AddressMonitor(lambda _: None)) as monitor:
        host = monitor.host_addresses
    return Surroundings(
        real_kernel(rules_as_they_are(config.iptables_backend, OWN_CHAINS)),
        host,
        frozenset(address for each in seen for address in each.addresses),
        frozenset({Family.IPV4, *([Family.IPV6] if has_ipv6() else [])}),
        kernel_release(),
    )


def look(config: ProxyConfig, options: LookOptions, here: Surroundings) -> Look:
    """Read the cluster and the kernel once. Raises IpvsproxyError."""
    families = here.families & options.families
    node_ip = config.bind_address if any(config.bind_address) else None
    tracker = dry_run.read_tracker(config, replace(options, families=families), node_ip=node_ip)
    tracker.claims.put_gateways(here.gateways)
    planned_by = ipvs_options(config, families, here.kernel_release)
    mode = IpvsMode(planned_by)
    return Look(tracker, planned_by, mode, here, rehearse(here.kernel, tracker, mode, here.host, config.exclude_cidrs))
