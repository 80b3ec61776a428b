"""A node with a running proxy that tests give Services to, and what the real tools say of a node's kernel."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from ipvsproxy import cli
from ipvsproxy.daemon import real_kernel
from ipvsproxy.kernel.api import Kernel
from ipvsproxy.kernel.iptables import LegacyRules
from ipvsproxy.model.kernel_objects import Operation
from ipvsproxy.modes.ipvs.rules import OWN_CHAINS
from tests.clusters import Svc, cluster
from tests.lab.hosts import NODE_ADDRESSES, NODE_NAME, REMOTE_ADDRESSES, Cluster, Namespace
from tests.lab.proxies import LOOK_AGAIN_S, LogLine, Manifests, Proxy, fork
from tests.lab.traffic import Servers, Transport
from tests.vm.places import A1, A2, A3, B1

PODS = {"a1": A1, "a2": A2, "a3": A3}
PORTS = (8080, 8443, 8053)
"""What Svc of tests/clusters.py makes of ports 80, 443 and 53."""
API_VERSIONS = {"Service": "v1", "EndpointSlice": "discovery.k8s.io/v1"}
LOCAL_PODS = ("10.244.1.", "2001:db8:244:1::")


def flags_with(backend: str) -> tuple[str, ...]:
    """The proxy's flags, with this flavour of iptables. Every sync is logged, also one that finds nothing to do.

    The limit of connection tracking belongs to the machine's first network namespace: here it would be a warning.
    """
    return (
        "--conntrack-max-per-core=0",
        "--v=2",
        "--proxy-mode=ipvs",
        f"--hostname-override={NODE_NAME}",
        "--cluster-cidr=10.244.0.0/16,2001:db8:244::/56",
        f"--iptables-backend={backend}",
    )


FLAGS = flags_with("legacy")
IPTABLES_SAVE = {
    version: next((name for name in names if shutil.which(name)), names[-1])
    for version, names in (
        (4, ("iptables-legacy-save", "iptables-save")),
        (6, ("ip6tables-legacy-save", "ip6tables-save")),
    )
}


def manifest(*services: Svc) -> str:
    """A List of these Services and their EndpointSlices; an endpoint is on the node if its address is."""
    items = []
    for ref, found in cluster(*services).items():
        item: dict[str, Any] = {"apiVersion": API_VERSIONS[ref.kind], "kind": ref.kind, **msgspec.to_builtins(found)}
        for endpoint in item.get("endpoints", ()):
            is_local = endpoint["addresses"][0].startswith(LOCAL_PODS)
            endpoint["nodeName"] = NODE_NAME if is_local else "n2"
        items.append(item)
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@contextlib.contextmanager
def small_cluster() -> Iterator[Cluster]:
    """The node with pods a1, a2, a3, the pod b1 on another node, and a client outside; every pod answers."""
    with Cluster() as hosts, Servers() as servers:
        places = [(name, hosts.add_pod(name, *addresses), addresses) for name, addresses in PODS.items()]
        places.append(("b1", hosts.add_remote(*B1), B1))
        hosts.add_outside()
        for name, host, addresses in places:
            for address in addresses:
                for port in PORTS:
                    for transport in (Transport.TCP, Transport.UDP):
                        servers.listen(host, name, address, port, transport)
        servers.start()
        yield hosts


class ProxyNode:
    """The node of a cluster with ipvsproxy on it, following a folder."""

    def __init__(self, hosts: Cluster, manifests: Manifests, proxy: Proxy) -> None:
        self.hosts = hosts
        self.host = hosts.node
        self.proxy = proxy
        self.manifests = manifests
        self._services: tuple[Svc, ...] = ()

    def sync(self, *services: Svc) -> None:
        """The cluster has these Services and no others; back when the kernel has them."""
        for _ in self.syncing(*services):
            pass

    def syncing(self, *services: Svc) -> Iterator[LogLine | None]:
        """The same, but yields all the while: None until the sync is done, its log line at last."""
        if services == self._services:
            return
        self._services = services
        self.proxy.mark()
        self.manifests.write("services.json", manifest(*services))
        while True:
            done = [line for line in self.proxy.news() if line["event"] == "sync_finished" and line["services"]]
            if done:
                assert not done[0]["refused"], self.proxy.text()
                yield done[0]
                return
            assert self.proxy.exit_code is None, self.proxy.text()
            yield None
            time.sleep(LOOK_AGAIN_S)


@contextlib.contextmanager
def proxy_node(hosts: Cluster, folder: Path, *flags: str, base: Sequence[str] = FLAGS) -> Iterator[ProxyNode]:
    """The node of `hosts` with a proxy at work that has no Services yet; its flags are `base` and `flags`."""
    manifests = Manifests(folder / "manifests")
    with proxy_on(hosts.node, folder, flags=(*base, *flags)) as proxy:
        proxy.wait_for("sync_finished")
        yield ProxyNode(hosts, manifests, proxy)
        assert proxy.stop() == 0


def node_objects(*nodes: tuple[str, Sequence[str]]) -> str:
    items = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "status": {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]},
        }
        for name, addresses in nodes
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@contextlib.contextmanager
def knowing_nodes(node: ProxyNode) -> Iterator[None]:
    """In the `with` block the cluster has this node and the other one as objects; back when the kernel has it."""
    manifests = node.manifests
    node.proxy.mark()
    manifests.write("nodes.json", node_objects((NODE_NAME, NODE_ADDRESSES), ("n2", REMOTE_ADDRESSES)))
    node.proxy.wait_for("sync_finished")
    try:
        yield
    finally:
        node.proxy.mark()
        manifests.remove("nodes.json")
        node.proxy.wait_for("sync_finished")


@contextlib.contextmanager
def proxy_on(
    host: Namespace,
    folder: Path,
    *services: Svc,
    flags: Sequence[str] = FLAGS,
    before: Callable[[], None] | None = None,
) -> Iterator[Proxy]:
    """ipvsproxy in `host`, given these Services from its start; does not wait for anything."""
    manifests = folder / "manifests"
    manifests.mkdir(parents=True, exist_ok=True)
    (manifests / "services.json").write_text(manifest(*services))
    log = folder / "log"
    log.unlink(missing_ok=True)
    with fork(host, [*flags, "--manifests", str(manifests)], log, before or (lambda: None)) as proxy:
        yield proxy


def cleaned_up(host: Namespace, folder: Path, flags: Sequence[str] = FLAGS) -> Proxy:
    """`ipvsproxy --cleanup` after it has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    with fork(host, [*flags, "--cleanup"], folder / "cleanup.log") as proxy:
        proxy.wait()
        return proxy


def program(host: Namespace, *argv: str) -> tuple[int, str]:
    """Exit code and stdout of the program, called in this process, in the namespace."""
    out = io.StringIO()
    with host.inside(), contextlib.redirect_stdout(out):
        code = cli.run(argv, cli.Programs())
    return code, out.getvalue()


@contextlib.contextmanager
def kernel_of(host: Namespace) -> Iterator[Kernel]:
    """The edges to this namespace, for the calling thread, which is inside in the `with` block."""
    with host.inside(), contextlib.ExitStack() as stack:
        kernel = real_kernel(LegacyRules(OWN_CHAINS))
        for edge in (*kernel.subsystems, kernel.conntrack):
            if hasattr(edge, "close"):
                stack.callback(edge.close)
        yield kernel


class AddressLog:
    """Collects from the kernel's notifications the addresses that are deleted while the `with` block runs.

    Also those of former tests, which stay for a while where somebody was connected.
    """

    _GROUPS = 0x10 | 0x100  # RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR of include/uapi/linux/rtnetlink.h
    _DELETED = 21  # RTM_DELADDR
    _FAMILY_AT, _ATTRIBUTES_AT = 16, 24  # behind struct nlmsghdr, and struct ifaddrmsg; the first one is IFA_ADDRESS

    def __init__(self, host: Namespace) -> None:
        self._socket = host.socket(socket.AF_NETLINK, socket.SOCK_RAW)  # protocol 0 is NETLINK_ROUTE
        self.deleted: set[str] = set()

    def __enter__(self) -> Self:
        self._socket.bind((0, self._GROUPS))
        self._socket.settimeout(0)
        return self

    def __exit__(self, *_: object) -> None:
        """The kernel queues a notification before it acknowledges the change, so all of them are here."""
        with self._socket, contextlib.suppress(BlockingIOError):
            while True:
                told = self._socket.recv(65536)
                if struct.unpack_from("=IH", told)[1] == self._DELETED:
                    (size,) = struct.unpack_from("=H", told, self._ATTRIBUTES_AT)
                    packed = told[self._ATTRIBUTES_AT + 4 : self._ATTRIBUTES_AT + size]
                    self.deleted.add(socket.inet_ntop(told[self._FAMILY_AT], packed))


class CountingKernel:
    """Passes everything on and counts the operations; `limit`: dies at the first one beyond."""

    def __init__(self, kernel: Kernel, limit: int | None = None) -> None:
        self._kernel = kernel
        self._limit = limit
        self.operations: list[Operation] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        if self._limit is not None and len(self.operations) + len(operations) > self._limit:
            self._kernel.apply(operations[: self._limit - len(self.operations)])
            raise KilledError
        self.operations += operations
        return self._kernel.apply(operations)


class KilledError(Exception):
    """The process is gone in the middle of a sync."""


def virtual_servers(host: Namespace) -> list[str]:
    """`ipvsadm -S -n`, sorted: the kernel's order is its hash table's."""
    return sorted(line.rstrip() for line in host.run("ipvsadm", "-S", "-n").splitlines())


def weights(host: Namespace, address: str, port: int = 80) -> dict[str, int] | None:
    """Each real server behind this address and TCP port with its weight; None without the virtual server."""
    front = f"-t {f'[{address}]' if ':' in address else address}:{port} "
    lines = [line for line in virtual_servers(host) if front in line]
    found = {}
    for words in (line.split() for line in lines if line.startswith("-a ")):
        found[words[4].rpartition(":")[0].strip("[]")] = int(words[7])
    return found if lines else None


def bound(host: Namespace) -> set[str]:
    """Addresses on kube-ipvs0, with prefix; empty without it."""
    if "kube-ipvs0" not in host.run("ip", "-o", "link", "show"):
        return set()
    return {line.split()[3] for line in host.run("ip", "-o", "addr", "show", "dev", "kube-ipvs0").splitlines()}


def sets(host: Namespace) -> list[str]:
    """`ipset save`, sorted, without the figures that differ from set to set."""
    text = re.sub(r" (bucketsize|initval) \S+", "", host.run("ipset", "save"))
    return sorted(line.rstrip() for line in text.splitlines())


def rules(host: Namespace, version: int) -> dict[str, dict[str, list[str]]]:
    """The legacy tables that are ours: table → chain → its rules in order; built-in chains without a rule left out."""
    tables = ("filter", "mangle", "nat")
    return chains("".join(host.run(IPTABLES_SAVE[version], "-t", table) for table in tables))


def chains(text: str) -> dict[str, dict[str, list[str]]]:
    """The same from the text of iptables-save."""
    tables: dict[str, dict[str, list[str]]] = {}
    table: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("*"):
            table = tables.setdefault(line[1:], {})
        elif line.startswith(":") and line.split()[1] == "-":
            table.setdefault(line[1:].split()[0], [])
        elif line.startswith("-A "):
            table.setdefault(line.split()[1], []).append(line.rstrip())
    return tables


def without_chains(tables: Mapping[str, Mapping[str, list[str]]]) -> bool:
    """Whether no chain and no rule is there."""
    return not any(tables.values())
