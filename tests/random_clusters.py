"""Random clusters for kube-proxy and for us: Services of every kind and policy, and Nodes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.golden.given import Item

HOST = ("192.0.2.11", "198.51.100.11", "169.254.3.3", "2001:db8:1::11", "fe80::11")
OUTSIDE = (
    "203.0.113.10", "203.0.113.11", "203.0.113.12", "2001:db8:113::10", "2001:db8:113::11",
    "192.0.2.11", "2001:db8:1::11",  # our own
    "198.51.100.50",  # our own, and on no interface
    "192.0.2.12", "2001:db8:1::12",  # another Node's
    "10.244.2.9", "2001:db8:244:2::9",  # a pod's
    "127.0.0.5", "169.254.7.7", "224.0.0.9", "fe80::7",  # nobody's
    "198.18.0.20",  # excluded by some
)  # fmt: skip
PODS = {"IPv4": "10.244.{node}.{host}", "IPv6": "2001:db8:244:{node}::{host}"}
FLAGS = (
    ("--cluster-cidr=10.244.0.0/16", "--cluster-cidr=10.244.0.0/16,2001:db8:244::/56", ""),
    ("", "--detect-local-mode=NodeCIDR", "--detect-local-mode=BridgeInterface --pod-bridge-interface=cni0",
     "--detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=cali"),
    ("", "--masquerade-all"),
    ("", "--ipvs-scheduler=mh", "--ipvs-scheduler=wlc"),
    ("", "--iptables-masquerade-bit=10"),
    ("", "--ipvs-exclude-cidrs=198.18.0.0/15,2001:db8:113::11/128,192.0.2.0/24"),
    ("", "--nodeport-addresses=192.0.2.0/24", "--nodeport-addresses=primary", "--nodeport-addresses=198.18.0.0/15",
     "--nodeport-addresses=10.96.0.0/16,2001:db8:1::/64", "--nodeport-addresses=169.254.0.0/16,0.0.0.0/0,fe80::/10"),
    ("", "--ip-families=IPv4", "--ip-families=IPv6"),
)  # fmt: skip

RANGES = (
    "10.0.0.0/8", "192.0.2.0/24", "198.51.100.7/32", "0.0.0.0/0", "2001:db8:1::/64", "::/0", " 203.0.113.0/24 ",
)  # fmt: skip
HINTS = ({}, {"forZones": ["a"]}, {"forZones": ["b"]}, {"forNodes": ["n1"]}, {"forNodes": ["n2"]})

policies = st.sampled_from(["Cluster", "Local"])
ranges = st.lists(st.sampled_from(RANGES), max_size=3, unique=True)


@st.composite
def endpoints(draw: st.DrawFn, family: str, host: int) -> Item:
    node = draw(st.sampled_from([1, 2, 3]))
    conditions = {name: draw(st.booleans()) for name in ("ready", "serving", "terminating")}
    hints = draw(st.sampled_from(HINTS))
    return {
        "addresses": [PODS[family].format(node=node, host=host)],
        "conditions": draw(st.sampled_from([conditions, {"ready": True}, {}])),
        "nodeName": f"n{node}",
        "hints": {key: [{"name": name} for name in names] for key, names in hints.items()},
    }


@st.composite
def services(draw: st.DrawFn, number: int, addresses: Sequence[str] = OUTSIDE, port: int = 80) -> list[Item]:
    """A Service and its slices; `addresses`: what external and load-balancer IPs are taken from."""
    outside = st.lists(st.sampled_from(addresses), max_size=2, unique=True)
    families = draw(st.sampled_from([["IPv4"], ["IPv6"], ["IPv4", "IPv6"], ["IPv6", "IPv4"]]))
    kind = draw(st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer"]))
    ips = [{"IPv4": f"10.96.0.{number}", "IPv6": f"2001:db8:96::{number}"}[family] for family in families]
    node_port = {"nodePort": 30000 + number} if kind != "ClusterIP" else {}
    protocols = draw(st.lists(st.sampled_from(["TCP", "UDP", "SCTP"]), min_size=1, max_size=3, unique=True))
    ports = [{"name": name.lower(), "port": port, "protocol": name, **node_port} for name in protocols]
    spec = {
        "type": kind, "clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": families, "ports": ports,
        "internalTrafficPolicy": draw(policies), "externalTrafficPolicy": draw(policies), "externalIPs": draw(outside),
        "sessionAffinity": draw(st.sampled_from(["None", "ClientIP"])),
    }  # fmt: skip
    balanced = draw(load_balancers(number, spec, outside)) if kind == "LoadBalancer" else {"spec": spec}
    metadata = {
        "name": f"s{number}",
        "namespace": "default",
        "creationTimestamp": f"2026-11-01T08:{number // 60:02}:{number % 60:02}Z",
    }
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, **balanced}
    return [service, *(draw(slices(number, family, ports)) for family in families)]


@st.composite
def load_balancers(draw: st.DrawFn, number: int, spec: Item, outside: st.SearchStrategy[list[str]]) -> Item:
    """What type LoadBalancer adds."""
    mode = draw(st.sampled_from([{}, {"ipMode": "VIP"}, {"ipMode": "Proxy"}]))
    health = {"healthCheckNodePort": 32000 + number} if spec["externalTrafficPolicy"] == "Local" else {}
    ingress = [{"ip": ip, **mode} for ip in draw(outside)]
    more = {"loadBalancerSourceRanges": draw(ranges), **health}
    return {"spec": {**spec, **more}, "status": {"loadBalancer": {"ingress": ingress}}}


@st.composite
def slices(draw: st.DrawFn, number: int, family: str, ports: Sequence[Item]) -> Item:
    """The slice of a Service in a family."""
    hosts = draw(st.lists(st.integers(5, 8), max_size=3, unique=True))
    labels = {"kubernetes.io/service-name": f"s{number}"}
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
        "metadata": {"name": f"s{number}-{family.lower()}", "namespace": "default", "labels": labels},
        "endpoints": [draw(endpoints(family, host)) for host in hosts],
        "ports": [{"name": port["name"], "port": 8080, "protocol": port["protocol"]} for port in ports],
    }  # fmt: skip


def node(name: str, number: int) -> Item:
    ips = {"InternalIP": (f"192.0.2.{number}", f"2001:db8:1::{number}"), "ExternalIP": (f"198.51.100.{number + 39}",)}
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": "a"}},
        "spec": {"podCIDRs": [f"10.244.{name[1]}.0/24", f"2001:db8:244:{name[1]}::/64"]},
        "status": {"addresses": [{"type": kind, "address": ip} for kind in ips for ip in ips[kind]]},
    }  # fmt: skip


@st.composite
def clusters(draw: st.DrawFn) -> list[Item]:
    found = [node("n1", 11), node("n2", 12)]
    for number in range(1, draw(st.integers(1, 4)) + 1):
        found += draw(services(number))
    return found
