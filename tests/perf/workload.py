"""The cluster that the figures are about, as an API server's JSON: Services of one port, each with one EndpointSlice.

And Nodes, as many as a large cluster has.

The objects carry what real ones carry and nobody reads here (managed fields, owners, zones): skipping it is a part of
the cost. Everything follows from a Service's number, so two runs see the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address
from pathlib import Path

SERVICES = 1000
FEW_SERVICES = 10
ENDPOINTS = 10
NODES = 5000
NODE_NAME = "node-1"

JsonObject = dict[str, object]

_VIPS = int(IPv4Address("10.96.0.0"))
_PODS = int(IPv4Address("10.128.0.0"))
_PODS_APART = 64
_NODES = int(IPv4Address("10.0.0.0"))
_IMAGES = 38  # a kubelet tells up to 50; with these a Node is 10 kB long
_CREATED = "2026-01-01T00:00:00Z"


def service(number: int) -> JsonObject:
    """Service `number` from 1 on: a cluster IP, TCP port 80."""
    vip = str(IPv4Address(_VIPS + number))
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {
            **_metadata(number, _name(number)),
            "labels": {"app": _name(number), "app.kubernetes.io/managed-by": "Helm", "team": "web"},
            "annotations": {"meta.helm.sh/release-name": _name(number), "meta.helm.sh/release-namespace": "shop"},
            "managedFields": _managed("helm", ("f:labels", "f:annotations"), ("f:ports", "f:selector", "f:type")),
        },
        "spec": {
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
            "selector": {"app": _name(number)},
            "clusterIP": vip,
            "clusterIPs": [vip],
            "type": "ClusterIP",
            "sessionAffinity": "None",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
        },
        "status": {"loadBalancer": {}},
    }


def endpoint_slice(number: int, endpoints: int = ENDPOINTS) -> JsonObject:
    """The EndpointSlice of Service `number`: this many ready endpoints, port 8080."""
    owner = {
        "apiVersion": "v1",
        "kind": "Service",
        "name": _name(number),
        "uid": _uid("5e", number),
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            **_metadata(number, f"{_name(number)}-x7k2p"),
            "generateName": f"{_name(number)}-",
            "labels": {
                "app": _name(number),
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": _name(number),
            },
            "ownerReferences": [owner],
            "managedFields": _managed("kube-controller-manager", ("f:labels", "f:ownerReferences"), ("f:endpoints",)),
        },
        "addressType": "IPv4",
        "endpoints": [_endpoint(number, place) for place in range(1, endpoints + 1)],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }


def node(number: int, heartbeat: int = 0) -> JsonObject:
    """Node `number` with an internal address of each family, as its kubelet writes it the `heartbeat`-th time."""
    name, beat = f"node-{number}", f"2026-01-01T{heartbeat // 12:02}:{heartbeat % 12 * 5:02}:00Z"
    address = IPv4Address(_NODES + number)
    labels: JsonObject = {f"topology.kubernetes.io/{what}": "eu-1" for what in ("region", "zone")}
    labels |= {f"{prefix}kubernetes.io/{what}": "amd64" for prefix in ("", "beta.") for what in ("arch", "os")}
    capacity: JsonObject = {"cpu": "16", "ephemeral-storage": "203056560Ki", "memory": "65848316Ki", "pods": "110"}
    managed = _managed("kubelet", ("f:labels", "f:annotations"), ("f:conditions", "f:images", "f:addresses"))
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": _uid("c0", number),
            "creationTimestamp": _CREATED,
            "labels": labels | {"kubernetes.io/hostname": name, "node.kubernetes.io/instance-type": "m16"},
            "annotations": {"node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-attach": "true"},
            "managedFields": managed,
        },
        "spec": {"podCIDR": "10.128.0.0/24", "podCIDRs": ["10.128.0.0/24"], "providerID": f"cloud:///eu-1/{name}"},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [_condition(kind, beat) for kind in ("Memory", "Disk", "PID", "Ready")],
            "addresses": [
                {"type": "InternalIP", "address": str(address)},
                {"type": "InternalIP", "address": f"2001:db8::{number:x}"},
                {"type": "Hostname", "address": name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {what: _uid("d0", number) for what in ("machineID", "systemUUID", "bootID", "kernelVersion")},
            "images": [_image(place) for place in range(_IMAGES)],
        },
    }


def watch_line(event: str, changed: JsonObject, version: int) -> bytes:
    """One line of a watch; `version` counts all events."""
    metadata = changed["metadata"]
    assert isinstance(metadata, dict)
    versioned = {**changed, "metadata": {**metadata, "resourceVersion": str(version)}}
    return json.dumps({"type": event, "object": versioned}, separators=(",", ":")).encode()


def write_watch(path: Path, objects: Iterable[JsonObject]) -> None:
    """What a streaming list tells, a line an object."""
    with path.open("wb") as file:
        for version, found in enumerate(objects, 1):
            file.write(watch_line("ADDED", found, version) + b"\n")


def write_manifests(folder: Path, services: int) -> None:
    """The same cluster as a folder of manifests."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"apiVersion": "v1", "kind": "List", "items": list(_manifests(services))}
    (folder / "cluster.json").write_text(json.dumps(document))


def _manifests(services: int) -> Iterator[JsonObject]:
    for number in range(1, services + 1):
        yield service(number)
        yield endpoint_slice(number)


def _name(number: int) -> str:
    return f"shop-{number:04d}"


def _uid(kind: str, number: int) -> str:
    return f"{kind}000000-0000-4000-8000-{number:012d}"


def _metadata(number: int, name: str) -> JsonObject:
    return {"name": name, "namespace": "shop", "uid": _uid("a0", number), "creationTimestamp": _CREATED}


def _managed(manager: str, metadata: Iterable[str], spec: Iterable[str]) -> list[JsonObject]:
    """Field ownership as server-side apply records it: long, and of no interest here."""
    fields: JsonObject = {"f:metadata": {name: {".": {}, "f:app": {}, "f:team": {}} for name in metadata}}
    fields["f:spec"] = {name: {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}} for name in spec}
    return [
        {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": _CREATED, "fieldsType": "FieldsV1"}
        | {"fieldsV1": fields}
    ]


def _condition(kind: str, beat: str) -> JsonObject:
    return {
        "type": kind,
        "status": "True" if kind == "Ready" else "False",
        "lastHeartbeatTime": beat,
        "lastTransitionTime": _CREATED,
        "reason": f"Kubelet{kind}",
        "message": f"kubelet has looked at {kind} and has nothing to report",
    }


def _image(place: int) -> JsonObject:
    name = f"registry.example.com/shop/component-{place}"
    return {"names": [f"{name}@sha256:{place:064x}", f"{name}:v1.{place}.0"], "sizeBytes": 100_000_000 + place}


def _endpoint(number: int, place: int) -> JsonObject:
    node = f"node-{place % 5 + 2}"  # never this one: local endpoints bring entries of their own
    return {
        "addresses": [str(IPv4Address(_PODS + number * _PODS_APART + place))],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {
            "kind": "Pod",
            "namespace": "shop",
            "name": f"{_name(number)}-6b7f9c8d5-{place:05d}",
            "uid": _uid("b0", number * _PODS_APART + place),
        },
        "nodeName": node,
        "zone": f"zone-{place % 3}",
        "hints": {"forZones": [{"name": f"zone-{place % 3}"}]},
    }
