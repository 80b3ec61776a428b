"""Which source address a pod sees (K04), as one table: docs/snat.md shows it, tests/vm/test_snat.py sends every cell.

A row holds for several combinations, a cell is one of them with one client. Both families are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple


class Source(Enum):
    """Who sends to this node."""

    POD = "a pod of this node"
    NODE = "a process of this node"
    OTHER_NODE = "another node"
    OUTSIDE = "a client outside"


class Way(Enum):
    """The kind of address that it sends to."""

    CLUSTER_IP = "cluster IP"
    NODE_PORT = "node port"
    LOAD_BALANCER = "load-balancer IP"
    EXTERNAL_IP = "external IP"


class Policy(Enum):
    """The traffic policy of that address (internal for cluster IPs, else external), and where the endpoint is."""

    CLUSTER_HERE = "Cluster, here"
    CLUSTER_ELSEWHERE = "Cluster, elsewhere"
    LOCAL_HERE = "Local, here"
    LOCAL_ELSEWHERE = "Local, elsewhere only"


class Seen(Enum):
    """What comes of it: the source address that the pod sees, if any."""

    CLIENT = "the client's"
    NODE = "the node's"
    SENT_TO = "the address sent to"
    CLIENT_UNANSWERED = "the client's, and its answer goes past this node: lost"
    REFUSED = "— refused at once"
    DROPPED = "— dropped"


class Is(Enum):
    """A setting, or in a row that it does not matter."""

    YES = "yes"
    NO = "no"
    EITHER = "either"


class Config(NamedTuple):
    """--masquerade-all, and whether local pods can be told: by --cluster-cidr or another --detect-local-mode."""

    masquerade_all: Is
    knows_pods: Is


class Row(NamedTuple):
    """A line of the table. `seen` has an entry for each Source."""

    ways: tuple[Way, ...]
    policies: tuple[Policy, ...]
    masquerade_all: Is
    knows_pods: Is
    seen: tuple[Seen, Seen, Seen, Seen]


class Cell(NamedTuple):
    """One combination."""

    config: Config
    source: Source
    way: Way
    policy: Policy


CONFIGS = tuple(Config(everything, knows) for everything in (Is.NO, Is.YES) for knows in (Is.YES, Is.NO))

_HERE = (Policy.CLUSTER_HERE, Policy.LOCAL_HERE)
_CLUSTER = (Policy.CLUSTER_HERE, Policy.CLUSTER_ELSEWHERE)
_EXTERNAL = (Way.NODE_PORT, Way.LOAD_BALANCER, Way.EXTERNAL_IP)
_CLIENT, _NODE, _SENT_TO, _LOST, _REFUSED, _DROPPED = Seen

ROWS = (  # pod, node, other node, outside
    Row((Way.CLUSTER_IP,), (*_HERE, Policy.CLUSTER_ELSEWHERE), Is.YES, Is.EITHER, (_NODE, _NODE, _NODE, _NODE)),
    Row((Way.CLUSTER_IP,), (*_HERE, Policy.CLUSTER_ELSEWHERE), Is.NO, Is.YES, (_CLIENT, _NODE, _NODE, _NODE)),
    Row((Way.CLUSTER_IP,), _HERE, Is.NO, Is.NO, (_CLIENT, _NODE, _CLIENT, _CLIENT)),
    Row((Way.CLUSTER_IP,), (Policy.CLUSTER_ELSEWHERE,), Is.NO, Is.NO, (_CLIENT, _NODE, _LOST, _LOST)),
    Row((Way.CLUSTER_IP,), (Policy.LOCAL_ELSEWHERE,), Is.EITHER, Is.EITHER, (_REFUSED, _REFUSED, _REFUSED, _REFUSED)),
    Row(_EXTERNAL, _CLUSTER, Is.EITHER, Is.EITHER, (_NODE, _NODE, _NODE, _NODE)),
    Row(_EXTERNAL, (Policy.LOCAL_HERE,), Is.EITHER, Is.EITHER, (_CLIENT, _SENT_TO, _CLIENT, _CLIENT)),
    Row(_EXTERNAL, (Policy.LOCAL_ELSEWHERE,), Is.EITHER, Is.YES, (_NODE, _NODE, _DROPPED, _DROPPED)),
    Row(_EXTERNAL, (Policy.LOCAL_ELSEWHERE,), Is.EITHER, Is.NO, (_DROPPED, _NODE, _DROPPED, _DROPPED)),
)


def cells() -> Iterator[tuple[Cell, Seen]]:
    """Every combination that a row speaks of."""
    for row in ROWS:
        for config in CONFIGS:
            if all(wanted in {Is.EITHER, given} for wanted, given in zip(row[2:4], config, strict=True)):
                for way in row.ways:
                    for policy in row.policies:
                        for source, seen in zip(Source, row.seen, strict=True):
                            yield Cell(config, source, way, policy), seen


def table() -> list[str]:
    """The rows in Markdown."""
    heads = [
        "Sent to",
        "Policy, endpoint",
        "Masquerade all",
        "Pods known",
        *(f"From {source.value}" for source in Source),
    ]
    return [_line(heads), _line(["---"] * len(heads)), *(_line(_words(row)) for row in ROWS)]


def _words(row: Row) -> list[str]:
    return [
        "; ".join(way.value for way in row.ways),
        "; ".join(policy.value for policy in row.policies),
        row.masquerade_all.value,
        row.knows_pods.value,
        *(seen.value for seen in row.seen),
    ]


def _line(words: list[str]) -> str:
    return f"| {' | '.join(words)} |"
