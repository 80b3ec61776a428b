"""The sysctls that IPVS mode needs. Source: kubernetes v1.37.2 pkg/proxy/ipvs/proxier.go NewProxier.

differs: a value that cannot be written is an error on the retry list, not the end of the program, since the rest still
serves.
"""

from __future__ import annotations

from ipvsproxy.model.kernel_objects import Kind, ObjectId, Settings

_CONNTRACK = "net.ipv4.vs.conntrack"
_CONN_REUSE_MODE = "net.ipv4.vs.conn_reuse_mode"
_ALWAYS = {
    _CONNTRACK: "1",
    "net.ipv4.vs.expire_nodest_conn": "1",
    "net.ipv4.vs.expire_quiescent_template": "1",
    "net.ipv4.ip_forward": "1",
}
_STRICT_ARP = {"net.ipv4.conf.all.arp_ignore": "1", "net.ipv4.conf.all.arp_announce": "2"}

REUSE_DROPS_SYN = ((4, 1), (5, 9))  # from, before: kernels whose reuse mode 1 costs a second a reused port (K01)


def sysctl_objects(*, strict_arp: bool, kernel_release: tuple[int, int] | None) -> dict[ObjectId, Settings]:
    """The sysctls to set on a kernel of this release (major, minor); None where it is not known and taken for new."""
    wanted = dict(_ALWAYS)
    first, fixed = REUSE_DROPS_SYN
    if kernel_release is not None and first <= kernel_release < fixed:
        wanted[_CONN_REUSE_MODE] = "0"
    if strict_arp:
        wanted |= _STRICT_ARP
    return {(Kind.SYSCTL, name): value for name, value in wanted.items()}


ALL_SYSCTLS = frozenset(_ALWAYS) | frozenset(_STRICT_ARP) | {_CONN_REUSE_MODE}
