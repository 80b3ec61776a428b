"""Which of the node's addresses serve node ports.

Source: kubernetes v1.37.2 pkg/proxy/util/nodeport_addresses.go.
differs: kube-ipvs0's own addresses and link-local ones never do, whatever the networks given; upstream lets both, and
serves IPv4 link-local ones without any network given.
differs: while the Node is not known, `primary` is no address; upstream's stand-in, loopback, would mean every one.
differs: loopback never does either, and is said so once: IPVS cannot send a packet with a loopback source out (K22).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ipvsproxy.model.addr import Cidr, PackedAddr, family_of, is_loopback, parse_cidr
from ipvsproxy.model.enums import Family

_LINK_LOCAL = {Family.IPV4: parse_cidr("169.254.0.0/16"), Family.IPV6: parse_cidr("fe80::/10")}  # RFC 3927, RFC 4291
_ANY = {Family.IPV4: PackedAddr(bytes(4)), Family.IPV6: PackedAddr(bytes(16))}


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

    def health_addresses(self, host: Iterable[PackedAddr], primary: Sequence[PackedAddr]) -> tuple[PackedAddr, ...]:
        """Where health check node ports are answered: the any-address of a family in which all addresses serve.

        Loopback, where it is asked for, is among the others: what is no good to IPVS is to a socket. So is IPv4's
        link-local network; IPv6's needs to be told an interface.
        """
        found: list[PackedAddr] = []
        candidates = sorted(address for address in host if not _needs_interface(address))
        for family in Family:
            if self._takes_all(family, primary):
                found.append(_ANY[family])
            else:
                found += (a for a in candidates if family_of(a) is family and self._takes(a, primary))
        return tuple(found)

    def _takes(self, address: PackedAddr, primary: Sequence[PackedAddr]) -> bool:
        family = family_of(address)
        if self._takes_all(family, primary) or any(address in cidr for cidr in self.cidrs):
            return True
        return address in primary and self._means_primary(family, primary)

    def _takes_all(self, family: Family, primary: Sequence[PackedAddr]) -> bool:
        lengths = [cidr.prefix_len for cidr in self.cidrs if family_of(cidr.network) is family]
        return 0 in lengths or not (lengths or self._means_primary(family, primary))

    def _means_primary(self, family: Family, primary: Sequence[PackedAddr]) -> bool:
        """Whether `primary` says something of this family.

        While the Node is not known, nothing is primary: a node port on too few addresses harms less than on all.
        """
        return self.primary and (
            not primary or any(family_of(own) is family and not is_loopback(own) for own in primary)
        )


def may_serve(address: PackedAddr) -> bool:
    """Whether an interface's address can be reached from elsewhere."""
    return not is_loopback(address) and not _is_link_local(address)


def _is_link_local(address: PackedAddr) -> bool:
    network = _LINK_LOCAL[family_of(address)]
    return network is not None and address in network


def _needs_interface(address: PackedAddr) -> bool:
    """Whether a socket cannot listen there without being told an interface (ipv6(7), sin6_scope_id)."""
    return family_of(address) is Family.IPV6 and _is_link_local(address)
