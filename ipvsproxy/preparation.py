"""What a node needs whatever its Services are: modules, sysctls, limits, time-outs. None of it asks the API server.

`--init-only` does this and nothing else, in a privileged container that ends, so that a node boots while the API is
away. The daemon does it again at its start, finds it done, and so needs NET_ADMIN and NET_RAW alone.
Source: kubernetes v1.37.2 cmd/kube-proxy/app/server.go (InitAndExit), which asks for the Node first.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import structlog

from ipvsproxy import __version__
from ipvsproxy.config.types import Estimation, IptablesBackend, ProxyConfig
from ipvsproxy.errors import describe_errno
from ipvsproxy.kernel import modules
from ipvsproxy.kernel.api import HostFiles, Ipvs, Sysctls
from ipvsproxy.kernel.host_files import RootFiles
from ipvsproxy.kernel.ipvs import NetlinkIpvs
from ipvsproxy.kernel.sysctls import ProcSysctls, kernel_release
from ipvsproxy.model.kernel_objects import Kind, Operation, Verb
from ipvsproxy.model.real_servers import describe
from ipvsproxy.modes.ipvs.sysctls import ALL_SYSCTLS, sysctl_objects
from ipvsproxy.plan.host_settings import (
    OOM_SCORE_ADJ,
    RUN_ESTIMATION,
    HostSetting,
    conntrack_settings,
)
from ipvsproxy.sync.host_settings import KeptSettings, put_in_force, put_timeouts_in_force
from ipvsproxy.sync.outcomes import hint
from ipvsproxy.sync.scheduler_probe import require_scheduler

log = structlog.get_logger()


def run(config: ProxyConfig) -> int:
    """`--init-only`: everything here, and the exit code: 1 where traffic would not flow. Raises KernelError."""
    log.info("preparing", version=__version__)
    load_modules(config)
    net = Path(config.proc_sys_net)
    with closing(NetlinkIpvs()) as ipvs:
        require_scheduler(ipvs, config.scheduler)
        warnings = put_host_in_order(config, ipvs, RootFiles(net=net))
    refused = write_sysctls(config, ProcSysctls(ALL_SYSCTLS, net=net), kernel_release())
    log.info("prepared", refused=refused, warnings=warnings)
    return int(refused > 0)


def load_modules(config: ProxyConfig) -> None:
    """IPVS, the scheduler, and what opens the legacy tables; all others load by themselves when they are used.

    A scheduler does that under IPVS' lock, and two of them (lblc, lblcr) wait there for network namespaces that are
    just ending, which wait for that lock: as a pod ends, the node's whole network would stand still for ever. Seen on
    Linux 6.12: ip_vs_scheduler_get and ip_vs_lblc_init against cleanup_net and ip_vs_dst_event.
    Nobody but us loads ip_tables: its socket options are not known before (ENOPROTOOPT).
    """
    is_legacy = config.iptables_backend is IptablesBackend.LEGACY
    modules.load(("ip_vs", f"ip_vs_{config.scheduler}", *(("ip_tables", "ip6_tables") if is_legacy else ())))


def put_host_in_order(config: ProxyConfig, ipvs: Ipvs, files: HostFiles) -> int:
    """Connection tracking, estimation and time-outs as configured; how many of them were refused, each said once.

    Raises KernelError where IPVS does not answer.
    """
    settings = (*conntrack_settings(config.conntrack, files.online_cpus()), *_of_ipvs_module(config))
    refused = put_in_force(files, settings)
    return refused + put_timeouts_in_force(ipvs, files, *_timeouts(config))


def kept_settings(config: ProxyConfig, ipvs: Ipvs, files: HostFiles) -> KeptSettings:
    """Those of the above that are gone when IPVS' module is loaded anew."""
    return KeptSettings(ipvs, files, _timeouts(config), _of_ipvs_module(config))


def _of_ipvs_module(config: ProxyConfig) -> tuple[HostSetting, ...]:
    return (HostSetting(RUN_ESTIMATION, 0),) if config.estimation is Estimation.OFF else ()


def _timeouts(config: ProxyConfig) -> tuple[int, int, int]:
    return config.tcp_timeout_s, config.tcp_fin_timeout_s, config.udp_timeout_s


def set_oom_score(config: ProxyConfig, files: HostFiles) -> None:
    """How willingly the kernel ends this process; a refusal is only said."""
    put_in_force(files, (HostSetting(OOM_SCORE_ADJ, config.oom_score_adj),))


def write_sysctls(config: ProxyConfig, sysctls: Sysctls, release: tuple[int, int]) -> int:
    """The sysctls without which traffic does not flow, where they are not set yet; how many were refused.

    The daemon has them among its desired objects, so it audits them. Raises KernelError where they cannot be read.
    """
    wanted = sysctl_objects(strict_arp=config.strict_arp, kernel_release=release)
    found = sysctls.read()[Kind.SYSCTL]
    operations = [
        Operation(Verb.EDIT, kind, key, value) for (kind, key), value in wanted.items() if found.get(key) != value
    ]
    refused = 0
    for operation, number in zip(operations, sysctls.apply(operations), strict=True):
        if number:
            refused += 1
            log.error(
                "operation_refused",
                operation=describe(operation),
                errno=describe_errno(number),
                hint=hint(operation, number),
            )
    return refused
