"""Whose the external addresses are that Services name: those of somebody else are not to be touched here (K33).

The author of a Service writes any address he likes. One that is another Node's, a pod's or our gateway's would, once
bound here, end at this node whatever is sent to it: the other one is cut off from here. So nothing is programmed for
it, packets go to its owner as ever, and a note says so. Cluster IPs are not claims: the API server hands them out.

What somebody else has is looked up by address. A Node that comes, goes or changes so costs one look-up for each of its
addresses, whatever the numbers of Nodes and Services; the Services that name one of them are planned anew, no others.

The other Nodes are known some time after the Services. Until then no address is touched that is not bound already:
a start must not cut off a Node for the length of a list, nor interrupt what a former run has served (K13).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from ipvsproxy.cluster.node import NodeView
from ipvsproxy.cluster.services import ServiceView
from ipvsproxy.model.addr import Cidr, PackedAddr, format_addr
from ipvsproxy.model.names import ServiceName

_NOT_KNOWN_YET = ""  # no reason that anybody has to be told


class Claims:
    """The claimed addresses and who else has them.

    `cluster_cidrs`: where the pods of all Nodes are. `waits_for_nodes`: the other Nodes will be told, and listed.
    """

    def __init__(self, cluster_cidrs: Sequence[Cidr] = (), *, waits_for_nodes: bool = False) -> None:
        self.knows_nodes = not waits_for_nodes
        self._claimants: dict[PackedAddr, set[ServiceName]] = {}
        self._released: set[PackedAddr] = set()  # by their last Service since the last `put_lingering`
        self._lingering: frozenset[PackedAddr] = frozenset()
        self._nodes: dict[str, tuple[PackedAddr, ...]] = {}
        self._nodes_at: dict[PackedAddr, tuple[str, ...]] = {}  # the same by address; two Nodes of one are a mistake
        self._own: frozenset[PackedAddr] = frozenset()
        self._our_node: frozenset[PackedAddr] = frozenset()
        self._gateways: frozenset[PackedAddr] = frozenset()
        self._cluster_cidrs = cluster_cidrs
        self._pod_networks: tuple[Cidr, ...] = ()
        self._refused: dict[PackedAddr, str] = {}
        self._elsewhere: frozenset[PackedAddr] = frozenset()
        self._unsettled: set[PackedAddr] = set()

    @property
    def elsewhere(self) -> frozenset[PackedAddr]:
        """The claimed addresses for which nothing may be planned here, as of the last `settle`."""
        return self._elsewhere

    @property
    def wants_nodes(self) -> bool:
        """Whether it matters which addresses other Nodes have."""
        return bool(self._claimants or self._lingering or self._released)

    @property
    def waiting(self) -> int:
        """How many addresses are left alone only because the other Nodes are not known."""
        return sum(reason == _NOT_KNOWN_YET for reason in self._refused.values())

    def has_claimant(self, address: PackedAddr) -> bool:
        """Whether a Service names this address."""
        return address in self._claimants

    def __len__(self) -> int:
        """The number of addresses held, of all sorts; 0 when no Service claims any and no Node is known."""
        held = (self._claimants, self._released, self._lingering, self._nodes_at, self._refused)
        return sum(map(len, held))

    def claim(self, before: ServiceView | None, now: ServiceView | None) -> None:
        """A Service was like this and is like that now."""
        old, new = _claimed(before), _claimed(now)
        if old == new:
            return
        if before is not None:
            for address in old:
                self._release(address, before.name)
        if now is not None:
            for address in new:
                self._claimants.setdefault(address, set()).add(now.name)
        self._unsettled.update(old, new)

    def put_node(self, name: str, addresses: tuple[PackedAddr, ...]) -> bool:
        """Another Node has these addresses now; whether there is anything to settle."""
        before = self._nodes.pop(name, ())
        for address in before:
            self._leave(address, name)
        for address in addresses:
            self._nodes_at[address] = (*self._nodes_at.get(address, ()), name)
        if addresses:
            self._nodes[name] = addresses
        self._unsettle((*before, *addresses))
        return bool(self._unsettled)

    def know_nodes(self) -> None:
        """All Nodes have been told, or never will be."""
        self.knows_nodes = True
        self._unsettle(self._refused)

    def forget_nodes(self) -> None:
        """The Nodes are not followed any more."""
        self.knows_nodes = False
        self._nodes.clear()
        self._nodes_at.clear()
        self._unsettle((*self._claimants, *self._lingering))

    def put_lingering(self, addresses: frozenset[PackedAddr]) -> None:
        """These stay bound though they have lost their Services: what was a claim remains one."""
        former = self._lingering | self._released
        self._lingering = addresses & former
        self._released.clear()
        self._unsettled |= former - self._lingering

    def put_own(self, addresses: frozenset[PackedAddr]) -> None:
        """The node's own interfaces have these: never somebody else's, whatever others say (K32)."""
        self._unsettle(self._own ^ addresses)
        self._own = addresses

    def put_gateways(self, addresses: frozenset[PackedAddr]) -> bool:
        """The gateways of the node's default routes; whether there is anything to settle."""
        self._unsettle(self._gateways ^ addresses)
        self._gateways = addresses
        return bool(self._unsettled)

    def put_our_node(self, node: NodeView) -> None:
        """Our Node is like this. An address that it alone has, and no interface, is another's: a cloud's, say.

        Its pod networks, and the cluster's, are where only pods have addresses. But not a network that it has an
        address in itself: some clouds give pods, Nodes and load balancers addresses of one network. So none counts
        while our Node is not known.
        """
        self._unsettle(self._our_node.symmetric_difference(node.addresses))
        self._our_node = frozenset(node.addresses)
        networks = dict.fromkeys((*self._cluster_cidrs, *node.pod_cidrs) if node.addresses else ())
        before = self._pod_networks
        self._pod_networks = tuple(net for net in networks if not any(own in net for own in node.addresses))
        if before != self._pod_networks:
            self._unsettle((*self._claimants, *self._lingering))

    def settle(self, bound: Container[object] = ()) -> set[ServiceName]:
        """Judge anew what has changed; the Services whose addresses are judged otherwise than before.

        `bound`: the addresses that stand on kube-ipvs0.
        """
        judged = {address: self._judge(address, bound) for address in self._unsettled}
        self._unsettled.clear()
        news = {address: reason for address, reason in judged.items() if reason != self._refused.get(address)}
        for address, reason in news.items():
            if reason is None:
                del self._refused[address]
            else:
                self._refused[address] = reason
        if news:
            self._elsewhere = frozenset(self._refused)
        return {name for address in news for name in self._claimants.get(address, ())}

    def faults(self, view: ServiceView) -> Iterator[str]:
        """Why addresses of this Service are not served here, as of the last `settle`."""
        for what, addresses in (("external IP", view.external_ips), ("load-balancer IP", view.load_balancer_ips)):
            for address in addresses:
                reason = self._refused.get(address)
                if reason:
                    yield f"{what} {format_addr(address)} {reason}"

    def _judge(self, address: PackedAddr, bound: Container[object]) -> str | None:
        """Why an address is left alone; None where nothing speaks against it, or nobody claims it."""
        if not self._is_claimed(address) or address in self._own:
            return None
        nodes = self._nodes_at.get(address)
        if nodes:
            return f"is an address of Node {min(nodes)}"
        if address in self._our_node:
            return "is an address of this Node that none of its interfaces has"
        if address in self._gateways:
            return "is the gateway of a default route of this node"
        network = next((network for network in self._pod_networks if address in network), None)
        if network is not None:
            return f"is in the pod network {network}"
        return None if self.knows_nodes or address in bound else _NOT_KNOWN_YET

    def _unsettle(self, addresses: Iterable[PackedAddr]) -> None:
        self._unsettled.update(address for address in addresses if self._is_claimed(address))

    def _is_claimed(self, address: PackedAddr) -> bool:
        return any(address in claimed for claimed in (self._claimants, self._lingering, self._released))

    def _release(self, address: PackedAddr, name: ServiceName) -> None:
        claimants = self._claimants[address]
        claimants.discard(name)
        if not claimants:
            del self._claimants[address]
            self._released.add(address)

    def _leave(self, address: PackedAddr, node: str) -> None:
        left = tuple(name for name in self._nodes_at[address] if name != node)
        if left:
            self._nodes_at[address] = left
        else:
            del self._nodes_at[address]


def _claimed(view: ServiceView | None) -> tuple[PackedAddr, ...]:
    return () if view is None else tuple(dict.fromkeys((*view.external_ips, *view.load_balancer_ips)))
