"""Bad objects beside good ones, 10,000 and more a run: each loses only itself, and is one note (point 10's promise).

They are written as JSON, as a folder of manifests has them, and planned whole: reading, tracking, planning.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ipvsproxy import dry_run
from ipvsproxy.config.command_line import Plan, parse_command_line
from ipvsproxy.model.kernel_objects import Key, Kind, Settings
from ipvsproxy.model.notes import Note

JsonObject: TypeAlias = dict[str, Any]

FLAGS = ("--hostname-override=n1", "--cluster-cidr=10.244.0.0/16", "--node-addresses=192.0.2.11,2001:db8:1::11")
OBJECTS = 125  # an example of each test; the profiles have 40 examples and more

NODE: JsonObject = {
    "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z"}},
}  # fmt: skip
DELETED = object()


def service(name: str, index: int, namespace: str = "evil") -> JsonObject:
    """One with every field that is read, on addresses of its own."""
    high, low = divmod(index, 250)
    ips = [f"10.97.{high}.{low + 1}", f"fd00:97::{index + 1:x}"]
    return {
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": name, "namespace": namespace, "resourceVersion": "7", "creationTimestamp": "2020-01-01T00:00:00Z",
            "annotations": {"ipvsproxy.io/drain-timeout": "5m"}, "labels": {"a": "b"},
        },
        "spec": {
            "type": "LoadBalancer", "clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": ["IPv4", "IPv6"],
            "ports": [
                {"name": "a", "port": 80, "protocol": "TCP", "nodePort": 20000 + index},
                {"name": "b", "port": 53, "protocol": "UDP"},
            ],
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "externalIPs": [f"198.18.{high}.{low + 1}"], "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster", "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "healthCheckNodePort": 40000 + index,
        },
        "status": {"loadBalancer": {"ingress": [{"ip": f"198.19.{high}.{low + 1}", "ipMode": "VIP"}]}},
    }  # fmt: skip


def endpoint_slice(name: str, index: int, owner: str, namespace: str = "evil") -> JsonObject:
    """One with every field that is read."""
    high, low = divmod(index, 250)
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": name, "namespace": namespace, "resourceVersion": "8",
            "labels": {"kubernetes.io/service-name": owner},
        },
        "endpoints": [
            {
                "addresses": [f"10.245.{high}.{low + 1}"], "nodeName": "n1", "zone": "z",
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n1"}]},
            }
        ],
        "ports": [{"name": "a", "port": 8080, "protocol": "TCP"}],
    }  # fmt: skip


GOOD = [NODE, service("web", 3_000, "default"), endpoint_slice("web-1", 3_000, "web", "default")]

JUNK: tuple[object, ...] = (
    None, True, False, 0, -1, 65536, 2**31, 2**63, 2**64, 10**400, 1.5, 1e308, float("nan"), float("inf"),
    "", " ", "x" * 2000, "\u0000", "\ud7ff\u202e", "0.0.0.0", "255.255.255.255", "127.0.0.1", "::", "::1", "fe80::1",
    "224.0.0.1", "ff02::1", "::ffff:127.0.0.1", "1.2.3.4/33", "0/0", "::/129", "1.2.3.4/-1", "\u0661.2.3.4",
    "10.97.0.1\n", "9" * 2000, "1.2.3.4/" + "9" * 2000, [], {}, [[]], [None], [[[[[[]]]]]], {"name": None}, ["a"] * 100,
    "None", "Local", "FQDN", "IPv4", "-1h", "1" * 30 + "h", "NaN", "0x10", "1_0", "UDP", "SCTP", "ClusterIP",
)  # fmt: skip


def paths(item: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to each value inside."""
    inner = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from paths(value, (*path, key))


def spoil(item: JsonObject, path: tuple[str | int, ...], value: object) -> None:
    """Put a value where another one is, or nothing."""
    inner: object = item
    for key in path[:-1]:
        inner = inner[key]  # type: ignore[index]
    if value is DELETED:
        del inner[path[-1]]  # type: ignore[attr-defined]
    else:
        inner[path[-1]] = copy.deepcopy(value)  # type: ignore[index]


KEPT = (("apiVersion",), ("kind",), ("metadata",), ("metadata", "name"), ("metadata", "namespace"))


def hostile(random: Random, index: int) -> JsonObject:
    """A Service or a slice with junk in one to four places; it keeps its name, so that each is an object of its own."""
    owner = f"s{index // 2}"
    item = service(owner, index) if index % 2 == 0 else endpoint_slice(f"{owner}-1", index, owner)
    for _ in range(random.choice((1, 1, 2, 4))):
        path = random.choice([path for path in paths(item) if path not in KEPT])
        spoil(item, path, random.choice((*JUNK, DELETED)))
    return item


NOT_TEXT = (7, True, [], {}, 1.5)
NO_LIST = ("text", 7, {"a": 1}, True)
NO_NAMES = ("", "N 1", "x" * 300, "a/b", "\u0000", 7, ["a"])
NO_ADDRESS = ("10.96.0.999", "nowhere", "127.0.0.1", "fe80::1", "224.0.0.1", "\u0661.2.3.4", "1.2.3.4\n", "9" * 2000)

FATAL_TO_SERVICES: tuple[tuple[tuple[str, ...], tuple[object, ...]], ...] = (
    (("kind",), ("Deployment", "", None, 7, DELETED)),
    (("apiVersion",), ("v2", "apps/v1", None, 7, DELETED)),
    (("metadata",), ("text", 7, [], DELETED)),
    (("metadata", "name"), (*NO_NAMES, DELETED)),
    (("metadata", "labels"), (["a"], 7, {"a": 1})),
    (("spec",), ("text", 7, [1], DELETED)),
    (("spec", "ports"), (*NO_LIST, [], [7], [{"port": "80"}], [{"port": 70000}], [{"port": 80, "protocol": "QUIC"}])),
    (("spec", "clusterIPs"), (*NO_LIST, [7])),
    (("spec", "externalIPs"), NO_LIST),
    (("spec", "sessionAffinity"), NOT_TEXT),
    (("status",), ("text", 7, [1])),
)
FATAL_TO_SLICES: tuple[tuple[tuple[str, ...], tuple[object, ...]], ...] = (
    (("kind",), ("EndpointSlices", "", None, 7, DELETED)),
    (("metadata", "name"), (*NO_NAMES, DELETED)),
    (("metadata", "labels"), ("text", ["a"], {"kubernetes.io/service-name": 7})),
    (("addressType",), (7, [], "IPv9")),
    (("endpoints",), (*NO_LIST, [7], [{"addresses": "10.0.0.1"}], *([{"addresses": [ip]}] for ip in NO_ADDRESS))),
    (("ports",), (*NO_LIST, [7], [{"port": "80"}], [{"name": "a", "port": 70000}], [{"name": "a", "protocol": "Q"}])),
)


def hopeless(random: Random, index: int) -> JsonObject | int | str | list[object]:
    """Something of which nothing can be used; the slices call themselves a good Service's."""
    if random.random() < 0.02:
        return random.choice((7, "text", [1], []))
    is_service = random.random() < 0.5
    item = service(f"s{index}", index) if is_service else endpoint_slice(f"web-{index}", index, "web", "default")
    path, values = random.choice(FATAL_TO_SERVICES if is_service else FATAL_TO_SLICES)
    spoil(item, path, random.choice(values))
    return item


Objects: TypeAlias = dict[tuple[Kind, Key], Settings]


def plan(folder: Path, *objects: object) -> tuple[Objects, list[Note]]:
    """What a folder with these objects, one a line, is planned to; a note on one that cannot be read says its line."""
    lines = ",\n".join(map(json.dumps, objects))
    (folder / "all.json").write_text(f'{{"apiVersion": "v1", "kind": "List", "items": [\n{lines}]}}')
    command = parse_command_line(["plan", "-o", "json", "--manifests", str(folder), *FLAGS])
    assert isinstance(command, Plan)
    state, notes = dry_run.plan(command.config, command.options)
    return {(kind, key): value for kind, found in state.items() for key, value in found.items()}, list(notes)


def unlike(one: Objects, other: Objects) -> list[tuple[Kind, Key]]:
    """What is not in both, or not the same."""
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]


def made(seed: int, make: Callable[[Random, int], object]) -> list[object]:
    random = Random(seed)  # noqa: S311  # examples, not secrets
    return [make(random, index) for index in range(OBJECTS)]


# A seed has no simpler one, so there is nothing to shrink.
seeds = given(st.integers(0, 2**64 - 1))
unshrunk = settings(phases=(Phase.explicit, Phase.reuse, Phase.generate))


@seeds
@unshrunk
def test_objects_of_which_nothing_can_be_used_are_one_note_each_and_change_nothing(seed):
    bad = made(seed, hopeless)
    with tempfile.TemporaryDirectory() as name:
        good, none = plan(Path(name), *GOOD)
        state, notes = plan(Path(name), *GOOD, *bad)
    assert none == []
    assert unlike(state, good) == []
    assert len(notes) == len(bad)


@seeds
@unshrunk
def test_objects_with_junk_anywhere_are_at_most_one_note_each_and_change_nothing_of_others(seed):
    bad = made(seed, hostile)
    with tempfile.TemporaryDirectory() as name:
        good, _ = plan(Path(name), *GOOD)
        alone, alone_notes = plan(Path(name), NODE, *bad)
        state, notes = plan(Path(name), *GOOD, *bad)
    assert unlike(state, alone | good) == []
    assert len(notes) == len(alone_notes)
    assert [subject for subject, count in Counter(note.subject for note in notes).items() if count > 1] == []
