"""The watch of the other Nodes: it comes and goes as asked, tells of addresses alone, and lives with a refusal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from structlog.testing import capture_logs

from ipvsproxy.clock import SystemClock
from ipvsproxy.cluster.events import OTHER_NODE, ClusterEvent, Forbidden, Listed, NodeAddresses
from ipvsproxy.kube.client import Access, ApiServer
from ipvsproxy.kube.other_nodes import OtherNodesWatch
from ipvsproxy.kube.snapshot import read_other_nodes
from ipvsproxy.model.addr import format_addr
from tests.kube.following import QUICK, Following, running
from tests.kube.scripted_server import (
    CUT,
    HOLD,
    Gate,
    added,
    bookmark,
    line,
    page,
    refusal,
    serving,
    status,
    stream,
)


def node(name: str, version: int, *addresses: str, kind: str = "InternalIP", **conditions: str) -> dict[str, Any]:
    """A Node as a kubelet writes it, cut short; `conditions` differ from one heartbeat to the next."""
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "resourceVersion": str(version), "labels": {"kubernetes.io/hostname": name}},
        "spec": {"podCIDR": "10.244.2.0/24"},
        "status": {
            "conditions": [{"type": type_, "lastHeartbeatTime": time} for type_, time in conditions.items()],
            "addresses": [
                {"type": "Hostname", "address": name},
                *({"type": kind, "address": address} for address in addresses),
            ],
            "images": [{"names": ["registry.example/a:1"], "sizeBytes": 1}],
        },
    }


N2, N3 = node("n2", 2, "192.0.2.12", "2001:db8:1::12"), node("n3", 3, "198.51.100.13", kind="ExternalIP")
TOLD_N2, TOLD_N3 = "n2 192.0.2.12 2001:db8:1::12", "n3 198.51.100.13"
END = bookmark(9, ends_list=True)


@contextlib.contextmanager
def other_nodes(url: str) -> Iterator[Following]:
    """Not wanted yet."""
    watch = OtherNodesWatch(ApiServer(Access(master=url)), "n1", SystemClock(), timing=QUICK)
    with running(watch) as found:
        yield found


def follow(found: Following, *, wanted: bool = True) -> None:
    assert isinstance(found.watch, OtherNodesWatch)
    found.watch.follow(wanted=wanted)


def test_nothing_is_asked_before_it_is_wanted_and_then_all_nodes_but_ours():
    with serving([stream(added(N2, N3), END, HOLD)]) as server, other_nodes(server.url) as found:
        assert server.requests == []
        follow(found)
        found.wait_for(TOLD_N2, TOLD_N3, "Listed")
        (request,) = server.requests
    assert request.path == "/api/v1/nodes"
    assert request.query["fieldSelector"] == "metadata.name!=n1"
    assert "sendInitialEvents" in request.query


def test_our_own_node_is_left_out_where_the_server_does_not_select():
    script = [refusal(400, "BadRequest"), stream(added(node("n1", 1, "192.0.2.11"), N2), END, HOLD)]
    with serving(script) as server, other_nodes(server.url) as found:
        follow(found)
        found.wait_for(TOLD_N2, "Listed")


def test_a_heartbeat_is_not_told_and_a_new_address_is():
    beat = line("MODIFIED", node("n2", 10, "192.0.2.12", "2001:db8:1::12", Ready="2026-01-01T00:05:00Z"))
    moved = line("MODIFIED", node("n2", 11, "192.0.2.99"))
    with serving([stream(added(N2), END, beat, moved, HOLD)]) as server, other_nodes(server.url) as found:
        follow(found)
        found.wait_for(TOLD_N2, "Listed", "n2 192.0.2.99")
        assert [len(batch) for batch in found.batches] == [1, 1, 1]


def test_a_node_that_goes_or_loses_its_addresses_is_told_without():
    bare, gone = line("MODIFIED", node("n2", 10)), line("DELETED", node("n3", 11, "198.51.100.13"))
    again = line("DELETED", node("n2", 12))
    with serving([stream(added(N2, N3), END, bare, gone, again, HOLD)]) as server, other_nodes(server.url) as found:
        follow(found)
        found.wait_for(TOLD_N2, TOLD_N3, "Listed", "n2", "n3")


def test_it_ends_when_it_is_not_wanted_and_begins_anew_when_it_is():
    script = [stream(added(N2, N3), END, HOLD), stream(added(N3), END, HOLD)]
    with serving(script) as server, other_nodes(server.url) as found:
        follow(found)
        found.wait_for(TOLD_N2, TOLD_N3, "Listed")
        follow(found, wanted=False)
        found.wait_for(TOLD_N2, TOLD_N3, "Listed", "Forgotten")
        follow(found)
        found.wait_for(TOLD_N2, TOLD_N3, "Listed", "Forgotten", TOLD_N3, "Listed")
        assert all("sendInitialEvents" in request.query for request in server.requests)


def test_who_changes_his_mind_in_the_middle_of_a_list_gets_a_whole_one():
    gate = Gate()
    script = [stream(added(N2), gate, added(N3), END, HOLD), stream(added(N3), END, HOLD)]
    with serving(script) as server, other_nodes(server.url) as found:
        follow(found)
        found.wait_for(TOLD_N2)
        follow(found, wanted=False)
        follow(found)
        found.wait_for(TOLD_N2, "Forgotten", TOLD_N3, "Listed")
        gate.open.set()


def test_a_list_that_is_cut_tells_nothing_twice_and_forgets_nothing():
    script = [stream(added(N2), CUT), stream(added(N2, N3), END, HOLD)]
    with serving(script) as server, other_nodes(server.url) as found:
        follow(found)
        found.wait_for(TOLD_N2, TOLD_N3, "Listed")


def test_an_expired_watch_tells_who_has_gone_meanwhile():
    expired = line("ERROR", status(410, "Expired"))
    script = [stream(added(N2, N3), END, expired), stream(added(N3), bookmark(12, ends_list=True), HOLD)]
    with serving(script) as server, other_nodes(server.url) as found:
        follow(found)
        found.wait_for(TOLD_N2, TOLD_N3, "Listed", "n2", "Listed")


def test_k33_a_list_that_is_forbidden_is_told_once_and_tried_until_the_role_is_there():
    script = [*[refusal(403, "Forbidden")] * 5, stream(added(N2), END, HOLD)]
    with serving(script) as server, capture_logs() as logs, other_nodes(server.url) as found:
        follow(found)
        found.wait_for("Forbidden", TOLD_N2, "Listed")
    (event,) = [event for batch in found.batches for event in batch if isinstance(event, Forbidden)]
    assert event == Forbidden(OTHER_NODE, "refused (403): Forbidden was the message")
    lost = [entry for entry in logs if entry["event"] == "watch_lost"]
    assert [entry["log_level"] for entry in lost] == ["warning", *["debug"] * 4]


def test_a_node_that_cannot_be_read_keeps_its_addresses_and_is_named():
    broken = node("n2", 10)
    broken["status"]["addresses"] = "text"
    with serving([stream(added(N2), END, added(broken, N3), HOLD)]) as server, other_nodes(server.url) as found:
        follow(found)
        # N3's version is older than the list: not told, which shows that nothing else is.
        found.wait_for(TOLD_N2, "Listed", "!OtherNode n2")


def test_it_stops_while_it_waits_to_be_wanted():
    with serving([]) as server, other_nodes(server.url):
        pass
    assert server.requests == []


def test_snapshot_tells_the_addresses_of_all_pages():
    told: list[ClusterEvent] = []
    with serving([page([N2], 9, "more", "NodeList"), page([N3], 9, kind="NodeList")]) as server:
        read_other_nodes(ApiServer(Access(master=server.url)), "n1", told.extend)
    assert isinstance(told[0], NodeAddresses)
    assert [format_addr(address) for address in told[0].addresses] == ["192.0.2.12", "2001:db8:1::12"]
    assert told[-1] == Listed(OTHER_NODE)
    assert len(told) == 3


def test_snapshot_lives_with_nodes_that_may_not_be_listed():
    told: list[ClusterEvent] = []
    with serving([refusal(403, "Forbidden")]) as server:
        read_other_nodes(ApiServer(Access(master=server.url)), "n1", told.extend)
        assert len(server.requests) == 1
    assert told == [Forbidden(OTHER_NODE, "refused (403): Forbidden was the message")]
