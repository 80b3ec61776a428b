"""Metrics: kube-proxy's by the letter, ours for what they count, all read as a scraper reads them."""

from __future__ import annotations

import errno
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from ipvsproxy.cluster.events import Changed, Listed, NodeAddresses, ObjectRef, Removed
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.kernel.monitor import DeviceChange, DeviceChanged
from ipvsproxy.metrics import ANSWERS, HISTOGRAMS, ROWS, Metrics, ServiceLevel, State, _kept_start, _start
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.figures import Asked, Audits, Figures, Pass
from ipvsproxy.model.kernel_objects import Kind, RuleTable, SetEntry, Verb, VirtualServer
from ipvsproxy.model.observed import Statistics
from ipvsproxy.model.vitals import FamilyVitals, Heard, Moment, Vitals
from ipvsproxy.sync.runner import Message, Periods, Runner, Signal
from tests.builders import ScriptedInbox, addr, flow, vs_key
from tests.clusters import Node, Svc, cluster

REFERENCE = Path(__file__).parents[1] / "data" / "kube_proxy_metrics.md"
LEFT_OUT = {
    "sync_full_proxy_rules_duration_seconds": "every sync sends differences, there are no full ones",
    "sync_partial_proxy_rules_duration_seconds": "see above",
    "sync_proxy_rules_iptables_partial_restore_failures_total": "see above",
    "sync_proxy_rules_iptables_total": "rules do not grow with Services; ipvsproxy_objects counts what does",
    "sync_proxy_rules_iptables_last": "see above",
    "iptables_ct_state_invalid_dropped_packets_total": "IPVS needs no rule that drops INVALID packets",
    "iptables_localhost_nodeports_accepted_packets_total": "IPVS serves no node ports on loopback",
}
_ROW = re.compile(r"^\| ([a-z0-9_, ]+) \| (\w+) \| ([^|]+) \| ([^|]*)\|$", re.MULTILINE)
DOUBLING = [0.001 * 2**k for k in range(15)]
BUCKETS = {
    "0.001 \u00d7 2^k, k=0..14": DOUBLING,
    "0.25, 0.5, 1..59 step 1, 60..115 step 5, 120..300 step 30": [
        *(0.25, 0.5),
        *range(1, 60),
        *range(60, 116, 5),
        *range(120, 301, 30),
    ],
}
STARTED = 1_000_000.0


class Upstream:
    """One row of the reference, with a metric each."""

    def __init__(self, name: str, kind: str, labels: str, meaning: str) -> None:
        self.name = name
        self.kind = kind
        self.labels = set(re.sub(r"\([^)]*\)", "", labels).replace(" ", "").strip("\u2013").split(",")) - {""}
        self.buckets = next((found for text, found in BUCKETS.items() if meaning.startswith(text)), None)


def reference() -> Iterator[Upstream]:
    for names, kind, labels, meaning in _ROW.findall(REFERENCE.read_text()):
        yield from (Upstream(name, kind, labels, meaning) for name in names.split(", "))


UPSTREAM = [row for row in reference() if row.name not in LEFT_OUT]


class Scraped:
    """A node with its runner and its metrics."""

    def __init__(self, fake: FakeKernel | None = None) -> None:
        self.node = Node(fake)
        self.heard: Mapping[str, Heard] = {"Service": Heard(is_connected=True, at=5.0)}
        self.runner = Runner(
            ScriptedInbox(self.node.clock), self.node.tracker, self.node.reconciler, self.node.clock, Periods(0, 30)
        )
        self.metrics = Metrics(self.state, Family)
        self.runner.report = self.metrics.take

    def state(self) -> State:
        return State(
            figures=self.runner.figures,
            asked=self.runner.asked,
            audits=self.runner.audited,
            vitals=self.runner.vitals,
            heard=self.heard,
            now=Moment(self.node.clock.now, STARTED),
        )

    def goes_on(self, *script: tuple[float, Message], until: float) -> None:
        self.runner._inbox = ScriptedInbox(self.node.clock, *script, (until, Signal.STOP))
        self.runner.run()

    @property
    def families(self) -> dict:
        body = self.metrics.render()
        return {found.name: found for found in text_string_to_metric_families(body.decode())}

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """The samples of this name, by the values of their labels in the order of the labels' names."""
        return {
            tuple(sample.labels.values()): sample.value
            for found in self.families.values()
            for sample in found.samples
            if sample.name == name
        }


def listed(*services: Svc) -> Message:
    changed = (Changed(ref, found) for ref, found in cluster(*services).items())
    return (*changed, Listed("Service"), Listed("EndpointSlice"), Listed("Node"))


@pytest.fixture
def scraped() -> Scraped:
    """One after which every metric has a value."""
    found = Scraped()
    found.node.reconciler.traffic.limit = 10
    found.goes_on(
        (1, listed(Svc("a", ("10.96.0.20", "fd00::20"), ((53, "UDP"),), (("10.244.1.5", True), ("fd00::5", True))))),
        (2, listed(Svc("b", ("10.96.0.21",)))),
        (3, (triggered(time.time() + 60),)),
        (4, (triggered(time.time() + 60, "IPv6"),)),
        until=40,
    )
    for path in ANSWERS:
        found.metrics.count_answer(path, 200)
    return found


def triggered(at: float, family: str = "IPv4") -> Changed:
    """A slice that says when the change it tells of was made (Unix seconds)."""
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + ".123456789Z"
    metadata = api.Metadata(
        name=f"a-{family}",
        namespace="default",
        labels={"kubernetes.io/service-name": "a"},
        annotations=api.Annotations(last_change=text),
    )
    return Changed(
        ObjectRef("EndpointSlice", "default", f"a-{family}"), api.EndpointSlice(metadata=metadata, address_type=family)
    )


# kube-proxy's


def test_the_reference_is_read_whole():
    assert len(UPSTREAM) == 14
    assert LEFT_OUT.keys() == {row.name for row in reference()} - {row.name for row in UPSTREAM}


@pytest.mark.parametrize("row", UPSTREAM, ids=lambda row: row.name)
def test_a_metric_of_kube_proxy_is_there_with_its_type_labels_and_buckets(scraped, row):
    found = scraped.families["kubeproxy_" + (row.name.removesuffix("_total") if row.kind == "counter" else row.name)]
    assert (found.type, found.documentation[:8]) == (row.kind, "[ALPHA] ")
    assert found.samples, "without a value its labels cannot be compared"
    for sample in found.samples:
        assert sample.labels.keys() - {"le"} == row.labels
    if row.kind == "histogram":
        bounds = {float(sample.labels["le"]) for sample in found.samples if "le" in sample.labels}
        assert sorted(bounds) == [*row.buckets, float("inf")]


def test_no_metric_bears_kube_proxys_name_that_is_not_in_the_reference():
    names = {row.name for row in (*ROWS, *HISTOGRAMS, *ANSWERS.values())}
    assert {n for n in names if n.startswith("kubeproxy_")} == {f"kubeproxy_{row.name}" for row in UPSTREAM}


def test_both_families_have_the_labels_values_of_kube_proxy(scraped):
    assert set(scraped.values("kubeproxy_sync_proxy_rules_last_timestamp_seconds")) == {("IPv4",), ("IPv6",)}


def calls_of_a_scrape(services: int) -> int:
    """How many functions it calls, in Python and in C, on a node that serves so many Services."""
    scraped = Scraped()
    scraped.node.reconciler.traffic.limit = 10
    scraped.goes_on(
        (1, listed(*(Svc(f"s{n}", (f"10.96.{n // 250}.{n % 250 + 1}",)) for n in range(services)))),
        (2, (triggered(time.time() + 60),)),
        until=40,
    )
    scraped.metrics.render()
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        scraped.metrics.render()
    finally:
        sys.setprofile(None)
    return calls


def test_a_scrape_costs_as_much_at_a_thousand_services_as_at_ten():
    """Some 2,150 calls, which take less than a millisecond: 5 ms are allowed at 10,000 Services."""
    assert calls_of_a_scrape(10) == calls_of_a_scrape(1000) < 5_000


def test_no_series_tells_when_it_was_created(scraped):
    assert b"_created" not in scraped.metrics.render()


def test_changes_are_pending_until_a_sync_takes_them_up():
    scraped = Scraped()
    pending = []
    sync = scraped.node.reconciler.sync

    def observed():
        pending.append(scraped.values("kubeproxy_sync_proxy_rules_endpoint_changes_pending")[()])
        return sync()

    scraped.node.reconciler.sync = observed  # type: ignore[method-assign]
    scraped.goes_on((1, listed(Svc("a"))), (1, listed(Svc("b", ("10.96.0.21",)))), until=2)
    assert pending == [2]
    assert scraped.values("kubeproxy_sync_proxy_rules_endpoint_changes_pending") == {(): 0}
    assert scraped.values("kubeproxy_sync_proxy_rules_endpoint_changes_total") == {(): 2}
    assert scraped.values("kubeproxy_sync_proxy_rules_service_changes_total") == {(): 2}


@pytest.mark.parametrize(
    "fields,expected",
    [
        pytest.param(
            {"external_policy": "Local", "node_ports": (30080, 30081)}, {("IPv4", "external"): 1}, id="external"
        ),
        pytest.param({"internal_policy": "Local"}, {("IPv4", "internal"): 1}, id="internal"),
        pytest.param({"internal_policy": "Local", "local": True}, {}, id="with an endpoint here"),
        pytest.param({"internal_policy": "Local", "endpoints": ()}, {}, id="without any endpoint"),
    ],
)
def test_services_that_find_no_endpoint_on_the_node_are_counted_and_forgotten(fields, expected):
    scraped = Scraped()
    several = Svc("a", ports=((80, "TCP"), (81, "TCP")), **fields)
    scraped.goes_on((1, listed(several)), until=2)
    name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total"
    assert {labels: value for labels, value in scraped.values(name).items() if value} == expected
    scraped.goes_on((3, tuple(map(Removed, cluster(several)))), until=4)
    assert set(scraped.values(name).values()) == {0}


def test_the_time_from_a_change_to_the_kernel_is_taken_from_the_slice():
    scraped = Scraped()
    name = "kubeproxy_network_programming_duration_seconds_count"
    scraped.goes_on((1, listed(Svc("a"))), until=2)
    old, new = triggered(time.time() - 3600), triggered(time.time() + 60)
    scraped.goes_on((3, (old,)), (4, (new,)), (5, (Changed(new.ref, api.EndpointSlice()),)), until=6)
    assert scraped.values(name) == {("IPv4",): 1, ("IPv6",): 0}


def test_the_time_of_a_slice_that_is_gone_again_does_not_count():
    scraped = Scraped()
    scraped.goes_on((1, listed(Svc("a"))), until=2)
    new = triggered(time.time() + 60)
    scraped.goes_on((3, (new, Removed(new.ref))), until=4)
    assert set(scraped.values("kubeproxy_network_programming_duration_seconds_count").values()) == {0}


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-30T12:00:00", "9999999"])
def test_a_time_that_is_none_harms_nobody(text):
    scraped = Scraped()
    new = triggered(time.time() + 60)
    metadata = api.Metadata(name="a", namespace="default", annotations=api.Annotations(last_change=text))
    broken = Changed(new.ref, api.EndpointSlice(metadata=metadata, address_type="IPv4"))
    scraped.goes_on((1, listed(Svc("a"))), (3, (broken,)), until=4)
    assert set(scraped.values("kubeproxy_network_programming_duration_seconds_count").values()) == {0}


def test_rules_that_are_refused_are_counted_for_their_family():
    scraped = Scraped()
    table = RuleTable("nat", Family.IPV6)
    del scraped.node.fake.state[Kind.RULES][table]
    scraped.node.fake.faults[Verb.ADD, Kind.RULES, table] = errno.EAGAIN
    scraped.node.reconciler.distrust((Kind.RULES,))
    scraped.goes_on((1, listed(Svc("a"))), until=1.2)
    name = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total"
    assert scraped.values(name) == {("IPv4",): 0, ("IPv6",): 1}


def test_flows_that_were_ended_are_counted():
    scraped = Scraped()
    udp = Svc("a", ports=((53, "UDP"),), endpoints=(("10.244.1.5", True), ("10.244.1.6", True)))
    scraped.goes_on((1, listed(udp)), until=2)
    scraped.node.fake.flows = [flow("198.51.100.7:999", "10.96.0.20:53", "10.244.1.6:8053")]
    after = cluster(Svc("a", ports=((53, "UDP"),)))
    scraped.goes_on((5, tuple(Changed(ref, found) for ref, found in after.items())), until=6)
    assert scraped.values("kubeproxy_conntrack_reconciler_deleted_entries_total") == {("IPv4",): 1, ("IPv6",): 0}
    assert scraped.values("kubeproxy_conntrack_reconciler_sync_duration_seconds_count")["IPv4",] >= 1


# Ours


def test_objects_in_force_are_counted_by_kind():
    scraped = Scraped()
    scraped.goes_on((1, listed(Svc("a"), Svc("b", ("10.96.0.21",)))), until=2)
    found = scraped.values("ipvsproxy_objects")
    assert (found["virtual server",], found["real server",], found["address",]) == (2, 2, 2)
    assert found.keys() == {(kind.value,) for kind in Kind}


def test_objects_that_are_refused_or_wait_are_counted_by_kind_and_so_are_operations_by_result():
    scraped = Scraped()
    scraped.node.fake.faults[Verb.ADD, Kind.VIRTUAL_SERVER, vs_key("10.96.0.20", 80)] = errno.ENOMEM
    scraped.goes_on((1, listed(Svc("a"), Svc("b", ("10.96.0.21",)))), until=1.2)
    assert scraped.values("ipvsproxy_objects_refused")["virtual server",] == 1
    assert scraped.values("ipvsproxy_objects_waiting")["accept entry",] == 1
    sent = scraped.values("ipvsproxy_operations_total")
    assert (sent["IPv4", "virtual server", "refused"], sent["IPv4", "virtual server", "done"]) == (1, 1)
    assert sent["", "link", "done"] == 1


def test_drift_that_was_found_is_counted_whoever_found_it():
    scraped = Scraped()
    scraped.goes_on((1, listed(Svc("a"))), until=2)
    del scraped.node.fake.state[Kind.VIRTUAL_SERVER][vs_key("10.96.0.20", 80)]
    scraped.goes_on(until=40)  # an audit
    del scraped.node.fake.state[Kind.ADDRESS][addr("10.96.0.20")]
    scraped.goes_on((41, DeviceChanged(DeviceChange.ADDRESS_LOST, addr("10.96.0.20"))), until=42)
    drift = scraped.values("ipvsproxy_drift_total")
    assert (drift["IPv4", "virtual server"], drift["IPv4", "address"], drift["", "sysctl"]) == (1, 1, 0)


def test_k52_repairs_are_counted_by_family():
    scraped = Scraped()
    scraped.goes_on((1, listed(Svc("a", ("10.96.0.20", "fd00::20")))), until=2)
    del scraped.node.fake.state[Kind.VIRTUAL_SERVER][vs_key("fd00::20", 80)]
    scraped.goes_on(until=40)  # an audit
    drift = scraped.values("ipvsproxy_drift_total")
    assert (drift["IPv4", "virtual server"], drift["IPv6", "virtual server"]) == (0, 1)


STEPS = {
    "ipvs": (Verb.ADD, Kind.VIRTUAL_SERVER, vs_key("fd00::20", 80)),
    "address": (Verb.ADD, Kind.ADDRESS, addr("fd00::20")),
    "set": (Verb.ADD, Kind.ACCEPT_ENTRY, SetEntry("KUBE-6-CLUSTER-IP", addr("fd00::20"), Protocol.TCP, 80)),
    "iptables": (Verb.ADD, Kind.RULES, RuleTable("nat", Family.IPV6)),
}


@pytest.mark.parametrize("step", STEPS)
def test_k52_failures_are_counted_by_step_and_family(step):
    verb, kind, key = STEPS[step]
    scraped = Scraped()
    scraped.node.fake.state[Kind.RULES].clear()
    scraped.node.reconciler.distrust((Kind.RULES,))
    scraped.node.fake.faults[verb, kind, key] = errno.ENOMEM
    scraped.goes_on((1, listed(Svc("a", ("10.96.0.20", "fd00::20")))), until=1.2)
    refused = {
        labels[:2]: n for labels, n in scraped.values("ipvsproxy_operations_total").items() if "refused" in labels
    }
    assert {labels for labels, count in refused.items() if count} == {("IPv6", kind)}


@pytest.mark.parametrize("fault", ["flow_dump_fault", "flow_delete_fault"])
def test_k52_failures_of_connection_tracking_are_counted_by_family(fault):
    scraped = Scraped()
    name = "ipvsproxy_conntrack_failures_total"
    before, after = (Svc("a", ("fd00::20",), ((53, "UDP"),), ((end, True),)) for end in ("fd00:1::5", "fd00:1::6"))
    scraped.goes_on((1, listed(before)), until=2)
    assert scraped.values(name) == {("IPv4",): 0, ("IPv6",): 0}
    scraped.node.fake.flows = [flow("fd00:1::9:999", "fd00::20:53", "fd00:1::5:8053")]
    setattr(scraped.node.fake, fault, errno.EPERM)
    scraped.goes_on((5, tuple(Changed(ref, found) for ref, found in cluster(after).items())), until=5.5)
    assert scraped.values(name) == {("IPv4",): 0, ("IPv6",): 1}


def test_k52_what_can_fail_is_counted_from_zero_so_that_its_first_failure_shows_as_an_increase():
    sent = Scraped().values("ipvsproxy_operations_total")
    families = [("",) if kind in {Kind.LINK, Kind.SYSCTL} else ("IPv4", "IPv6") for kind in Kind]
    assert sent.keys() == {
        (family, kind.value, result)
        for kind, its_families in zip(Kind, families, strict=True)
        for family in its_families
        for result in ("done", "refused")
    }
    assert not any(count for (_, _, result), count in sent.items() if result == "refused")


def test_the_last_audit_is_told_and_how_many_there_were():
    scraped = Scraped()
    scraped.goes_on((1, listed(Svc("a"))), until=2)
    assert not scraped.values("ipvsproxy_audit_last_timestamp_seconds")
    scraped.goes_on(until=310)
    assert scraped.values("ipvsproxy_audit_last_timestamp_seconds")[()] == pytest.approx(time.time(), abs=60)
    assert scraped.values("ipvsproxy_audits_total") == {("quick",): 9, ("full",): 1}
    assert scraped.values("ipvsproxy_audit_duration_seconds_count") == {(): 10}


def test_the_time_from_the_arrival_of_news_to_the_kernel_counts_what_waited_too():
    scraped = Scraped()
    scraped.runner._periods = Periods(min_sync_s=10, audit_s=1000)
    scraped.goes_on((1, listed(Svc("a"))), (2, listed(Svc("a"))), (3, listed(Svc("a"))), until=20)
    assert scraped.values("ipvsproxy_event_to_kernel_seconds_sum") == {(): 9.0 + 8.0}  # not those of the first sync
    assert scraped.values("ipvsproxy_event_to_kernel_seconds_count") == {(): 2}


def test_batches_are_counted_by_their_size():
    scraped = Scraped()
    scraped.goes_on((1, listed(Svc("a"), Svc("b", ("10.96.0.21",)))), until=2)
    count, total = (scraped.values(f"ipvsproxy_batch_operations_{of}")[()] for of in ("count", "sum"))
    assert (count > 5, total > count) == (True, True)
    scraped.goes_on(until=70)  # audits
    assert scraped.values("ipvsproxy_batch_operations_count")[()] == count  # without news there is no batch


def test_news_that_are_nothing_to_any_service_ask_for_nothing():
    scraped = Scraped()
    scraped.goes_on((1, listed(Svc("a"))), until=2)
    asked = scraped.runner.asked
    scraped.goes_on((3, (NodeAddresses("n9", (addr("192.0.2.9"),)),)), until=20)
    assert scraped.runner.asked == asked
    scraped.goes_on((50, listed(Svc("a"))), until=51)
    assert scraped.values("ipvsproxy_event_to_kernel_seconds_count") == {(): 1}


def test_k41_how_full_connection_tracking_is_shows_from_the_first_audit_on():
    scraped = Scraped()
    scraped.goes_on((1, listed(Svc("a"))), until=2)
    assert not scraped.values("ipvsproxy_conntrack_entries")
    scraped.node.fake.flows = [flow("198.51.100.7:999", "10.96.0.20:53", "10.244.1.6:8053")]
    scraped.goes_on(until=40)
    names = ("ipvsproxy_conntrack_entries", "ipvsproxy_conntrack_limit")
    assert [scraped.values(name) for name in names] == [{(): 1}, {(): 65536}]


def test_k53_numbers_of_a_service_show_from_the_first_audit_on_where_they_are_asked_for():
    scraped = Scraped()
    scraped.goes_on((1, listed(Svc("a"))), until=40)
    assert not any(name.startswith("ipvsproxy_service_") for name, found in scraped.families.items() if found.samples)
    scraped.node.reconciler.traffic.limit = 10
    scraped.node.fake.statistics[6, addr("10.96.0.20"), 80] = Statistics(1, 2, 3, 4, 5)
    scraped.goes_on(until=80)
    name = ("default", "p80tcp", "TCP", "a")
    assert scraped.values("ipvsproxy_service_connections_total") == {name: 1}
    assert scraped.values("ipvsproxy_service_packets_total") == {("in", *name): 2, ("out", *name): 3}
    assert scraped.values("ipvsproxy_service_bytes_total") == {("in", *name): 4, ("out", *name): 5}
    assert scraped.values("ipvsproxy_service_ports_left_out") == {(): 0}


def test_k53_there_are_never_more_series_than_five_for_each_port_that_may_have_some():
    scraped = Scraped()
    scraped.node.reconciler.traffic.limit = 3
    scraped.goes_on((1, listed(*(Svc(f"web-{n}", (f"10.96.0.{n}",)) for n in range(1, 21)))), until=40)
    names = ("connections_total", "packets_total", "bytes_total")
    assert sum(len(scraped.values(f"ipvsproxy_service_{name}")) for name in names) == 3 * 5
    assert scraped.values("ipvsproxy_service_ports_left_out") == {(): 17}


def test_k40_no_text_is_kept_for_a_service_that_a_scrape_has_told_of():
    scraped = Scraped()
    scraped.node.reconciler.traffic.limit = 10
    scraped.goes_on((1, listed(Svc("a"))), until=40)
    scraped.metrics.render()
    kept = _kept_start.cache_info().currsize
    scraped.goes_on((41, listed(Svc("b", ("10.96.0.21",)))), until=80)
    scraped.metrics.render()
    assert _kept_start.cache_info().currsize == kept


def test_a_lost_api_server_shows():
    scraped = Scraped()
    scraped.heard = {"Service": Heard(is_connected=False, at=7.0), "Node": Heard(is_connected=True)}
    assert scraped.values("ipvsproxy_api_connected") == {("Service",): 0, ("Node",): 1}
    assert scraped.values("ipvsproxy_api_last_heard_timestamp_seconds") == {("Service",): 7}


def test_health_shows_family_by_family():
    scraped = Scraped()
    assert scraped.values("ipvsproxy_healthy") == {("IPv4",): 0, ("IPv6",): 0}
    scraped.goes_on((1, listed(Svc("a"))), until=2)
    assert scraped.values("ipvsproxy_healthy") == {("IPv4",): 1, ("IPv6",): 1}


def test_k48_virtual_servers_of_others_are_counted():
    fake = FakeKernel()
    fake.state[Kind.VIRTUAL_SERVER][vs_key("192.0.2.1", 80)] = VirtualServer("rr")
    scraped = Scraped(fake)
    scraped.goes_on((1, listed()), until=2)
    assert scraped.values("ipvsproxy_foreign_virtual_servers") == {(): 1}


# What a scrape costs


def samples(services: int) -> int:
    scraped = Scraped()
    many = (Svc(f"s{n}", (f"10.96.{n >> 8}.{n & 255}",)) for n in range(1, services + 1))
    scraped.goes_on((1, listed(*many)), until=2)
    return sum(len(found.samples) for found in scraped.families.values())


def test_what_is_of_a_family_that_this_node_does_not_serve_is_not_measured():
    metrics = Metrics(Scraped().state, [Family.IPV4])
    metrics.take(Pass((Family.IPV4,), 1.0, programming=((Family.IPV6, 1.0), (Family.IPV4, 2.0))))
    body = metrics.render().decode()
    assert 'kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 1' in body
    assert 'duration_seconds_count{ip_family="IPv6"}' not in body


def test_a_value_counts_in_every_bucket_that_it_does_not_exceed():
    metrics = Metrics(Scraped().state, Family)
    for size in (1, 5, 6, 1000):
        metrics.take(Pass((), 0.0, is_full=False, batches=(size,)))
    lines = [line for line in metrics.render().decode().splitlines() if line.startswith("ipvsproxy_batch")]
    counts = {line.split('"')[1]: float(line.split()[-1]) for line in lines if "_bucket" in line}
    assert (counts["1.0"], counts["2.0"], counts["5.0"], counts["10.0"], counts["+Inf"]) == (1, 1, 2, 3, 4)
    assert "ipvsproxy_batch_operations_sum 1012.0" in lines


def test_the_number_of_series_does_not_depend_on_the_number_of_services():
    assert samples(1) == samples(500)


def test_a_scrape_asks_the_kernel_and_the_sync_thread_nothing():
    """All that it can reach is this value."""
    family = FamilyVitals(updated_at=1.0)
    vitals = Vitals({Family.IPV4: family}, 60.0, 0.0)
    state = State(
        figures=Figures(), asked=Asked(), audits=Audits(), vitals=vitals, heard={}, now=Moment(monotonic=0.0, unix=0.0)
    )
    body = Metrics(lambda: state, [Family.IPV4]).render()
    assert b'kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1.0' in body


# Forms


def test_the_text_is_what_the_library_would_write_of_it(scraped):
    """Its parser reads it, and its writer writes what was read in the same lines."""
    registry = CollectorRegistry()
    registry.register(Read(scraped.metrics.render().decode()))
    own, librarys = scraped.metrics.render().decode().splitlines(), generate_latest(registry).decode().splitlines()
    assert {as_number(line) for line in own} == {as_number(line) for line in librarys}


class Read(Collector):
    def __init__(self, text: str) -> None:
        self.text = text

    def collect(self):
        return text_string_to_metric_families(self.text)


def as_number(line: str) -> str:
    """A line with its value in one form."""
    if line.startswith("#"):
        return line
    start, _, value = line.rpartition(" ")
    return f"{start} {float(value)}" if not start.startswith("process_") else start


def test_a_label_that_is_no_plain_word_is_escaped():
    assert _start("a", ("b", "a"), ('x"y', "back\\slash\nline")) == 'a{a="back\\\\slash\\nline",b="x\\"y"} '


def test_every_metric_has_a_help_text_and_a_name_by_the_rules(scraped):
    for found in scraped.families.values():
        assert found.documentation
    for row in (*ROWS, *HISTOGRAMS, *ANSWERS.values()):
        assert re.fullmatch(r"(kubeproxy|ipvsproxy)_[a-z_]+", row.name)


def test_the_metrics_servers_own_checks_are_counted_until_somebody_resets_them():
    levels = ServiceLevel()
    levels.count()
    levels.count()
    assert b'kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 2.0' in levels.render()
    levels.reset()
    assert b"success" not in levels.render()


def test_a_pass_before_the_cluster_is_known_has_no_duration(scraped):
    before = scraped.values("kubeproxy_sync_proxy_rules_duration_seconds_count")
    scraped.metrics.take(Pass((Family.IPV4,), 1.0, is_full=False))
    assert scraped.values("kubeproxy_sync_proxy_rules_duration_seconds_count") == before
