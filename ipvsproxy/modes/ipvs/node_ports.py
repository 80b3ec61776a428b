"""Which of the node's addresses serve node ports.

Source: kubernetes v1.37.2 pkg/proxy/util/nodeport_addresses.go.
differs: kube-ipvs0's own addresses and IPv6 link-local ones never do, whatever the networks given; upstream lets both.
differs: while the Node is not known, `primary` is no address; upstream's stand-in, loopback, would mean every one.
differs: loopback never does either, and is said so once: IPVS cannot send a packet with a loopback source out (K22).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ipvsproxy.model.addr import Cidr, PackedAddr, family_of, is_loopback, parse_cidr
from ipvsproxy.model.enums import Family

_LINK_LOCAL = parse_cidr("fe80::/10")


class NodePortAddresses(msgspec.Struct, frozen=True):
    """What --nodeport-addresses says: networks, and whether the node's primary addresses are among them.

    No network of a family and not `primary`: all its addresses serve; so does a network of length 0.
    """

    cidrs: tuple[Cidr, ...] = ()
    primary: bool = False

    @property
    def has_loopback(self) -> bool:
        """Whether it asks for what cannot be served."""
        return any(is_loopback(cidr.network) for cidr in self.cidrs)

    def select(self, host: Iterable[PackedAddr], primary: Sequence[PackedAddr]) -> tuple[PackedAddr, ...]:
        """Those of the node's interface addresses that serve, sorted; `primary` are the Node object's, one a family."""
        candidates = sorted(address for address in host if may_serve(address))
        return tuple(address for address in candidates if self._takes(address, primary))

    def networks(self, primary: Sequence[PackedAddr]) -> tuple[Cidr, ...]:
        """Where the addresses that serve may be; a family without one: anywhere."""
        own = tuple(Cidr(address, len(address) * 8) for address in primary) if self.primary else ()
        return (*self.cidrs, *own)

    def _takes(self, address: PackedAddr, primary: Sequence[PackedAddr]) -> bool:
        family = family_of(address)
        cidrs = [cidr for cidr in self.cidrs if family_of(cidr.network) is family]
        # While the Node is not known, nothing is primary: a node port on too few addresses harms less than on all.
        if self.primary and (not primary or any(family_of(own) is family and not is_loopback(own) for own in primary)):
            return address in primary or any(address in cidr for cidr in cidrs)
        return not cidrs or any(cidr.prefix_len == 0 or address in cidr for cidr in cidrs)


def may_serve(address: PackedAddr) -> bool:
    """Whether an interface's address can be reached from elsewhere."""
    in_link_local = _LINK_LOCAL is not None and family_of(address) is Family.IPV6 and address in _LINK_LOCAL
    return not is_loopback(address) and not in_link_local
