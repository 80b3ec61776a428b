"""Which of iptables' chains a packet passes on its way from a pod to a Service and back (K54), as one table.

docs/data-path.md shows it, tests/vm/test_packet_path.py counts it with rules of its own.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Address(Enum):
    """Whose address stands in a packet."""

    CLIENT = "client"
    NODE = "node"
    VIP = "VIP"
    ENDPOINT = "endpoint"


class Trip(Enum):
    """Who asks whom, seen from the node that the question comes to."""

    POD_TO_POD = "a pod asks a cluster IP, endpoint on the same node"
    POD_AWAY = "a pod asks a cluster IP, endpoint on another node"
    MASQUERADED = "a client outside asks a load-balancer IP, policy Cluster"
    LOCAL = "a client outside asks a load-balancer IP, policy Local"
    NODE = "a process of the node asks a cluster IP"


class Pass(NamedTuple):
    """A packet as a rule of table mangle sees it in this chain."""

    chain: str
    source: Address
    destination: Address


class Passes(NamedTuple):
    """The chains that a question passes, and those that the answer passes, in order."""

    question: tuple[Pass, ...]
    answer: tuple[Pass, ...]


CHAINS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")

_CLIENT, _NODE, _VIP, _ENDPOINT = Address

# IPVS takes the question at the end of INPUT and sends it through OUTPUT, not FORWARD; there it looks at the answer.
_IN = (
    Pass("PREROUTING", _CLIENT, _VIP),
    Pass("INPUT", _CLIENT, _VIP),
    Pass("OUTPUT", _CLIENT, _ENDPOINT),
    Pass("POSTROUTING", _CLIENT, _ENDPOINT),
)
_BACK = (
    Pass("PREROUTING", _ENDPOINT, _CLIENT),
    Pass("FORWARD", _ENDPOINT, _CLIENT),
    Pass("POSTROUTING", _VIP, _CLIENT),
)

PASSES = {
    Trip.POD_TO_POD: Passes(_IN, _BACK),
    Trip.POD_AWAY: Passes(_IN, _BACK),
    # Table nat comes after mangle: masquerade in POSTROUTING does not show there yet, nor its end in PREROUTING.
    Trip.MASQUERADED: Passes(_IN, (Pass("PREROUTING", _ENDPOINT, _NODE), *_BACK[1:])),
    Trip.LOCAL: Passes(_IN, _BACK),
    Trip.NODE: Passes(
        (
            Pass("OUTPUT", _VIP, _VIP),
            Pass("OUTPUT", _VIP, _ENDPOINT),
            Pass("POSTROUTING", _VIP, _ENDPOINT),
        ),
        (
            Pass("PREROUTING", _ENDPOINT, _NODE),
            Pass("INPUT", _ENDPOINT, _VIP),
        ),
    ),
}


def table() -> list[str]:
    """The trips in Markdown."""
    rows = (f"| {trip.value} | {_words(way.question)} | {_words(way.answer)} |" for trip, way in PASSES.items())
    return ["| Who asks whom | The question passes | The answer passes |", "| --- | --- | --- |", *rows]


def _words(passes: tuple[Pass, ...]) -> str:
    return "<br>".join(f"{chain}: {source.value} → {destination.value}" for chain, source, destination in passes)
