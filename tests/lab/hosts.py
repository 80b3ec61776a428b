"""Test hosts: network namespaces with addresses and links between them, as a small cluster looks from one node.

                           wire (a switch)
           192.0.2.11 │       │ 192.0.2.12     │ 198.51.100.7
                    node    remote           outside
                      │       │
                 cni0 │       │ cni0    bridges, hairpin ports
            pod  pod  pod     b1

No namespace has a name: each lives as long as its open descriptor, so nothing stays behind whatever happens to us.
Programs that should run in one are started while the calling thread is inside. All of it takes root.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

_CLONE_NEWNET = 0x40000000  # include/uapi/linux/sched.h
_OWN_NAMESPACE = "/proc/thread-self/ns/net"
_COMMAND_TIMEOUT_S = 120  # a safety limit: under emulation a command may take a second

Interface: TypeAlias = ipaddress.IPv4Interface | ipaddress.IPv6Interface

BRIDGE = "cni0"
NODE_NAME = "n1"


class Namespace:
    """A network namespace of its own, loopback up. A context manager that ends it."""

    def __init__(self, name: str) -> None:
        """Raises PermissionError without root."""
        self.name = name
        with _back_afterwards():
            _call("unshare", _CLONE_NEWNET)
            self._descriptor = os.open(_OWN_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
        self.ip("link set lo up")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    @property
    def path(self) -> str:
        """A path that names it for other programs as long as we live."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """The calling thread, and the programs that it starts, are in this namespace in the `with` block."""
        with _back_afterwards():
            _call("setns", self._descriptor, _CLONE_NEWNET)
            yield

    def run(self, *argv: str, given: str | None = None) -> str:
        """What a program prints in here. Raises subprocess.CalledProcessError, its own words in the notes."""
        with self.inside():
            done = subprocess.run(
                argv, input=given, capture_output=True, text=True, check=False, timeout=_COMMAND_TIMEOUT_S
            )
        if done.returncode:
            error = subprocess.CalledProcessError(done.returncode, argv)
            error.add_note(f"in {self.name}: {done.stderr.strip() or done.stdout.strip()}")
            raise error
        return done.stdout

    def ip(self, *commands: str) -> None:
        """Carry out commands of ip(8), all by one process."""
        self.run("ip", "-batch", "-", given="".join(f"{command}\n" for command in commands))

    def socket(self, family: socket.AddressFamily, kind: socket.SocketKind, protocol: int = 0) -> socket.socket:
        """A socket that belongs to this namespace wherever it is used."""
        with self.inside():
            return socket.socket(family, kind, protocol)

    def set_sysctl(self, name: str, value: str) -> None:
        """Write a setting; `name` with slashes. Raises OSError."""
        with self.inside():
            Path("/proc/sys", name).write_text(value)

    def sysctl(self, name: str) -> str:
        """Read a setting; `name` with slashes. Raises OSError."""
        with self.inside():
            return Path("/proc/sys", name).read_text().strip()


class OwnNamespace(Namespace):
    """The one that we are in. It stays as it is at the end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._descriptor = os.open(_OWN_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
        self.ip("link set lo up")


def _call(function: str, *arguments: int) -> None:
    """setns(2) and unshare(2), which Python has since 3.12 only."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments):
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def _back_afterwards() -> Iterator[None]:
    outside = os.open(_OWN_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        _call("setns", outside, _CLONE_NEWNET)
        os.close(outside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """Where a cluster's addresses lie: prefixes, one a family, of the pods on the node and on the other one, of cluster
    IPs, and of external and load-balancer IPs.
    """

    pods: tuple[str, ...] = ("10.244.1.0/24", "2001:db8:244:1::/64")
    remote_pods: tuple[str, ...] = ("10.244.2.0/24", "2001:db8:244:2::/64")
    services: tuple[str, ...] = ("10.96.0.0/16", "2001:db8:96::/112")
    external: tuple[str, ...] = ("203.0.113.0/24", "2001:db8:113::/64")


NODE_ADDRESSES = ("192.0.2.11", "2001:db8:1::11")
REMOTE_ADDRESSES = ("192.0.2.12", "2001:db8:1::12")
OUTSIDE_ADDRESSES = ("198.51.100.7", "2001:db8:51::7")
_UNDERLAY = ("192.0.2.0/24", "2001:db8:1::/64")


class Cluster:
    """The picture above: one node to look at, its pods, and on demand another node and a client outside.

    `node` makes the node's namespace: a new one, or that of the machine, with the way that it has to other machines.
    """

    def __init__(  # Networks are frozen, so that sharing them is safe
        self, networks: Networks = Networks(), node: type[Namespace] = Namespace
    ) -> None:
        self.networks = networks
        self._stack = contextlib.ExitStack()
        self._wire: Namespace | None = None
        self._ports = 0
        self._hosts: dict[str, Namespace] = {}
        try:
            self.node = self._namespace("node", node)
            self._make_node()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all namespaces."""
        self._stack.close()

    def add_pod(self, name: str, *addresses: str) -> Namespace:
        """A pod on the node's bridge, whose port sends packets back where they came from (hairpin), as CNIs set it."""
        return self._pod(name, addresses, self.node, self.networks.pods)

    def add_remote(self, *pod_addresses: str) -> Namespace:
        """Another node, remote, with one pod, b1, which is returned. Both nodes have a route to each other's pods."""
        remote = self._attach("remote", REMOTE_ADDRESSES)
        _make_bridge(remote, self.networks.remote_pods)
        remote.ip(*_routes(self.networks.pods, NODE_ADDRESSES), *self._routes_to_services())
        self.node.ip(*_routes(self.networks.remote_pods, REMOTE_ADDRESSES))
        return self._pod("b1", pod_addresses, remote, self.networks.remote_pods)

    def add_outside(self) -> Namespace:
        """A client that belongs to no cluster, whose way to the Services leads to the node."""
        outside = self._attach("outside", OUTSIDE_ADDRESSES)
        outside.ip(*(f"route add {prefix} dev eth0" for prefix in _UNDERLAY))
        outside.ip(*self._routes_to_services())
        for host in (self.node, *([self["remote"]] if "remote" in self._hosts else [])):
            host.ip(*(f"route add {address} dev eth0" for address in OUTSIDE_ADDRESSES))
        return outside

    def __getitem__(self, name: str) -> Namespace:
        """The host of this name: node, remote, outside, or a pod's."""
        return self._hosts[name]

    def _namespace(self, name: str, make: type[Namespace] = Namespace) -> Namespace:
        self._hosts[name] = self._stack.enter_context(make(name))
        return self._hosts[name]

    def _routes_to_services(self) -> list[str]:
        networks = self.networks
        return [*_routes(networks.services, NODE_ADDRESSES), *_routes(networks.external, NODE_ADDRESSES)]

    def _make_node(self) -> None:
        """The bridge. Its traffic must pass the rules: the way back from a pod to a pod through a VIP is bridged."""
        subprocess.run(["modprobe", "-qa", "br_netfilter"], check=False)  # built in on some kernels
        _make_bridge(self.node, self.networks.pods)
        for setting in ("iptables", "ip6tables"):
            self.node.set_sysctl(f"net/bridge/bridge-nf-call-{setting}", "1")
        for setting in ("ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"):
            self.node.set_sysctl(f"net/{setting}", "0")  # tests provoke more refusals a second than it would send

    def _pod(self, name: str, addresses: Sequence[str], node: Namespace, prefixes: Sequence[str]) -> Namespace:
        pod = self._namespace(name)
        port = self._link(node, pod)
        node.ip(f"link set {port} master {BRIDGE} up", f"link set {port} type bridge_slave hairpin on")
        gateways: dict[int, Interface] = {gateway.version: gateway for gateway in map(_gateway, prefixes)}
        reached = [(address, gateways[version_of(address)]) for address in addresses]
        pod.ip(
            "link set eth0 up",
            *(f"addr add {address}/{gateway.network.prefixlen} dev eth0 nodad" for address, gateway in reached),
            *(f"route add default via {gateway.ip}" for _, gateway in reached),
        )
        return pod

    def _attach(self, name: str, addresses: Sequence[str]) -> Namespace:
        """A host on the wire."""
        host = self._namespace(name)
        self._plug(host, addresses)
        return host

    def _plug(self, host: Namespace, addresses: Sequence[str]) -> None:
        wire = self._switch()
        port = self._link(wire, host)
        wire.ip(f"link set {port} master {BRIDGE} up")
        lengths = (24, 64) if addresses != OUTSIDE_ADDRESSES else (32, 128)
        host.ip(
            "link set eth0 up",
            *(f"addr add {a}/{length} dev eth0 nodad" for a, length in zip(addresses, lengths, strict=True)),
        )

    def _switch(self) -> Namespace:
        if self._wire is None:
            self._wire = self._namespace("wire")
            self._wire.ip(f"link add {BRIDGE} type bridge forward_delay 0", f"link set {BRIDGE} up")
            self._plug(self.node, NODE_ADDRESSES)
        return self._wire

    def _link(self, near: Namespace, far: Namespace) -> str:
        """Connect two namespaces; eth0 at the far end, the name returned at the near one."""
        self._ports += 1
        port = f"port{self._ports}"
        near.ip(f"link add {port} type veth peer name eth0 netns {far.path}")
        return port


def version_of(address: str) -> int:
    """4 or 6."""
    return ipaddress.ip_address(address).version


def _gateway(prefix: str) -> Interface:
    """The bridge's own address among the pods: the last one that can be used."""
    network = ipaddress.ip_network(prefix)
    return ipaddress.ip_interface(f"{network[-2]}/{network.prefixlen}")


def _make_bridge(node: Namespace, prefixes: Sequence[str]) -> None:
    """The bridge of a node's pods, and the node forwards."""
    node.ip(
        f"link add {BRIDGE} type bridge forward_delay 0",
        f"link set {BRIDGE} up",
        *(f"addr add {gateway} dev {BRIDGE} nodad" for gateway in map(_gateway, prefixes)),
    )
    for setting in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        node.set_sysctl(f"net/{setting}", "1")


def _routes(prefixes: Sequence[str], gateways: Sequence[str]) -> list[str]:
    return [f"route add {prefix} via {gateway}" for prefix, gateway in zip(prefixes, gateways, strict=True)]
