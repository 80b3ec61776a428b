"""A node as `explain` and `diff` find it: a folder of objects, and a fake kernel to which a start has done its work."""

from __future__ import annotations

import json

from ipvsproxy import explain_command
from ipvsproxy.config.command_line import Explain, parse_command_line
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.this_node import Surroundings, look
from tests.builders import addr

HOST = "192.0.2.11"
ZONES = {"n1": "a", "n2": "b"}


def endpoint(address, node="n1", zone=None, for_zones=(), **conditions):
    hints = {"hints": {"forZones": [{"name": name} for name in for_zones]}} if for_zones else {}
    place = {"nodeName": node} if node else {}
    zone = zone or ZONES.get(node)
    return {"addresses": [address], "conditions": conditions, **place, **({"zone": zone} if zone else {}), **hints}


def service(name="web", namespace="shop", ip="10.96.0.20", port=80, protocol="TCP", **spec):
    ingress = [{"ip": ip} for ip in spec.pop("ingress", ())]
    ports = [{"name": "http", "port": port, "protocol": protocol, **spec.pop("more", {})}]
    return {
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": spec.pop("created", None)},
        "spec": {"clusterIP": ip, "ports": ports, **spec}, "status": {"loadBalancer": {"ingress": ingress}},
    }  # fmt: skip


def endpoints(*found, name="web", namespace="shop", port_name="http", protocol="TCP"):
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": f"{name}-1", "namespace": namespace, "labels": {"kubernetes.io/service-name": name}},
        "endpoints": list(found), "ports": [{"name": port_name, "port": 8080, "protocol": protocol}],
    }  # fmt: skip


NODE = {
    "apiVersion": "v1", "kind": "Node", "status": {"addresses": [{"type": "InternalIP", "address": HOST}]},
    "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "a"}},
}  # fmt: skip
PUBLIC = {"type": "LoadBalancer", "ingress": ["203.0.113.20"], "more": {"nodePort": 30080}}
WEB = (service(), endpoints(endpoint("10.244.1.5"), endpoint("10.244.2.5", "n2")))
SHOP = (
    service(
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        loadBalancerSourceRanges=["198.51.100.0/24"],
        ingress=["203.0.113.20"],
    ),
    endpoints(
        endpoint("10.244.1.5"),
        endpoint("10.244.1.6", ready=False),
        endpoint("10.244.1.7", ready=False, serving=True, terminating=True),
        endpoint("10.244.2.5", "n2"),
    ),
)
"""What pages show: shop/web, behind a load-balancer IP with policy Local and source ranges."""


class Place:
    """A cluster as a folder, and a kernel to which all was done that a start would do."""

    def __init__(self, folder, *objects, flags=("--cluster-cidr=10.244.0.0/16",), gateways=()):
        document = {"apiVersion": "v1", "kind": "List", "items": [NODE, *objects]}
        (folder / "objects.json").write_text(json.dumps(document))
        self.flags = ("--manifests", str(folder), "--hostname-override=n1", "--ip-families=IPv4", *flags)
        self.fake = FakeKernel()
        self.here = Surroundings(self.fake.kernel, frozenset({addr(HOST)}), frozenset(map(addr, gateways)))
        command = self.command("a/b")
        for operation in look(command.config, command.options, self.here).first_sync.operations:
            assert self.fake.kernel.apply([operation]) == [0]

    def command(self, *words):
        command = parse_command_line(["explain", *words, *self.flags])
        assert isinstance(command, Explain)
        return command

    def explain(self, *words) -> int:
        command = self.command(*words)
        return explain_command.run(command.config, command.options, command.question, lambda _: self.here)
