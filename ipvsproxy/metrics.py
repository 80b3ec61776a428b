"""Every metric, in three tables: what is read when somebody scrapes, what is measured as it happens, and answers.

Counts and states come from what the sync thread publishes after each pass (model/figures.py, model/vitals.py), so a
scrape asks the kernel nothing, and what it costs depends on the number of metrics and not of Services. Only durations
and sizes are observed one by one, at the end of a pass.

Names, types, labels and buckets of `kubeproxy_…` are kube-proxy's; all else is ours. Left out are those that have no
meaning for IPVS (tests/unit/test_metrics.py names each with the reason).
Source: kubernetes v1.37.2 pkg/proxy/metrics/metrics.go.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Literal, TypeAlias, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.utils import floatToGoString

from ipvsproxy import __version__
from ipvsproxy.model.enums import Family
from ipvsproxy.model.figures import Asked, Audits, Counts, Figures, Lacking, Pass, Sort, TrafficPolicy
from ipvsproxy.model.kernel_objects import OF_NO_FAMILY, Kind
from ipvsproxy.model.vitals import Heard, Moment, Vitals

_DURATIONS_S = tuple(0.001 * 2**k for k in range(15))
_PROGRAMMING_S = (0.25, 0.5, *range(1, 60), *range(60, 120, 5), *range(120, 301, 30))
_LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BATCHES = (1, 2, 5, 10, 20, 50, 100, 200)
_FAMILY, _KIND = ("ip_family",), ("kind",)
_PORT = ("namespace", "service", "port", "protocol")

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

Values: TypeAlias = Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a scrape reads, all of it published before."""

    figures: Figures
    asked: Asked
    audits: Audits
    vitals: Vitals
    heard: Mapping[str, Heard]
    now: Moment


@dataclass(frozen=True, slots=True)
class Row:
    """One metric that is read: the labels of each of its values are in the order of `labels`."""

    name: str
    type: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    help: str
    read: Callable[[State], Values]
    has_bounded_labels: bool = True  # else no text of theirs is kept: Services come and go for ever


@dataclass(frozen=True, slots=True)
class Measured:
    """One histogram; `buckets` are upper bounds."""

    name: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...]
    help: str


@dataclass(frozen=True, slots=True)
class Answered:
    """One counter of answers by status."""

    name: str
    help: str
    labels: tuple[str, ...] = ("code",)


def _by_kind(counts: Mapping[Kind, int]) -> Values:
    return {(kind,): count for kind, count in counts.items()}


def _alone(value: float | None) -> Values:
    return {} if value is None else {(): value}


def _lacking(state: State) -> Values:
    every = (Lacking(policy, family) for policy in get_args(TrafficPolicy) for family in state.vitals.families)
    return {(key.policy, key.family.label): state.figures.lacking.get(key, 0) for key in every}


def _refused_rules(state: State) -> Values:
    sent = state.figures.sent
    return {(family.label,): sent.get((Kind.RULES, family, False), 0) for family in state.vitals.families}


def _sorts(state: State) -> Iterator[Sort]:
    for kind in Kind:
        families: Iterable[Family | None] = (None,) if kind in OF_NO_FAMILY else state.vitals.families
        yield from ((kind, family) for family in families)


def _label(family: Family | None) -> str:
    """An object of no family has none: to Prometheus an empty label is no label."""
    return family.label if family else ""


def _drift(state: State) -> Values:
    counts = {**dict.fromkeys(_sorts(state), 0), **state.figures.drift}
    return {(kind, _label(family)): count for (kind, family), count in counts.items()}


def _sent(state: State) -> Values:
    """Zeros too: Prometheus sees no increase in a series that begins with its first failure."""
    every = {(kind, family, is_done): 0 for kind, family in _sorts(state) for is_done in (True, False)}
    return {
        (kind, _label(family), "done" if is_done else "refused"): count
        for (kind, family, is_done), count in {**every, **state.figures.sent}.items()
    }


def _updated(state: State) -> Values:
    times = {family: vitals.updated_at for family, vitals in state.vitals.families.items()}
    return {(family.label,): at for family, at in times.items() if at is not None}


def _queued(state: State) -> Values:
    at = state.asked.at
    return {} if at is None else {(family.label,): at for family in state.vitals.families}


def _healthy(state: State) -> Values:
    vitals, now = state.vitals, state.now.monotonic
    return {(family.label,): float(vitals.is_healthy(family, now)) for family in vitals.families}


def _of_families(counts: Mapping[Family, int], state: State) -> Values:
    return {(family.label,): counts.get(family, 0) for family in state.vitals.families}


def _traffic(*counts: tuple[str, Callable[[Counts], int]]) -> Callable[[State], Values]:
    """Each Service port's counts, with a direction as the last label where there are two."""

    def read(state: State) -> Values:
        ports = state.figures.traffic.ports if state.figures.traffic else {}
        return {
            (*name, direction) if direction else tuple(name): count(found)
            for name, found in ports.items()
            for direction, count in counts
        }

    return read


# One metric a row, long or not.
# fmt: off
ROWS = (
    Row("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "gauge", _FAMILY,
        "[ALPHA] When the cluster last asked for something", _queued),
    Row("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "gauge", _FAMILY,
        "[ALPHA] When the family was last brought to what the cluster asks for", _updated),
    Row("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "gauge", (),
        "[ALPHA] Changes of EndpointSlices that no sync has taken up yet", lambda s: _alone(s.asked.slices_pending)),
    Row("kubeproxy_sync_proxy_rules_endpoint_changes_total", "counter", (),
        "[ALPHA] Changes of EndpointSlices", lambda s: _alone(s.asked.slices)),
    Row("kubeproxy_sync_proxy_rules_service_changes_pending", "gauge", (),
        "[ALPHA] Changes of Services that no sync has taken up yet", lambda s: _alone(s.asked.services_pending)),
    Row("kubeproxy_sync_proxy_rules_service_changes_total", "counter", (),
        "[ALPHA] Changes of Services", lambda s: _alone(s.asked.services)),
    Row("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "gauge", ("traffic_policy", "ip_family"),
        "[ALPHA] Services whose traffic shall stay on its node and finds endpoints elsewhere only", _lacking),
    Row("kubeproxy_sync_proxy_rules_iptables_restore_failures_total", "counter", _FAMILY,
        "[ALPHA] Times that the kernel refused our part of an iptables table", _refused_rules),
    Row("kubeproxy_conntrack_reconciler_deleted_entries_total", "counter", _FAMILY,
        "[ALPHA] Flows of UDP clients that were ended because they led to endpoints that have left",
        lambda s: _of_families(s.figures.flows_deleted, s)),

    Row("ipvsproxy_objects", "gauge", _KIND,
        "Objects in force in the kernel", lambda s: _by_kind(s.figures.in_force)),
    Row("ipvsproxy_objects_refused", "gauge", _KIND,
        "Objects that the kernel refuses and that are tried again",
        lambda s: _by_kind({kind: s.figures.refused.get(kind, 0) for kind in Kind})),
    Row("ipvsproxy_objects_waiting", "gauge", _KIND,
        "Objects that wait for one that is refused",
        lambda s: _by_kind({kind: s.figures.waiting.get(kind, 0) for kind in Kind})),
    Row("ipvsproxy_operations_total", "counter", ("kind", "ip_family", "result"),
        "Operations that the kernel was asked for, by what became of them: done or refused", _sent),
    Row("ipvsproxy_drift_total", "counter", ("kind", "ip_family"),
        "Objects of ours that somebody else had changed and that were put right", _drift),
    Row("ipvsproxy_conntrack_failures_total", "counter", _FAMILY,
        "Looks for flows of UDP clients that lead to endpoints that have left, and deletions of them, that failed",
        lambda s: _of_families(s.figures.flow_failures, s)),
    Row("ipvsproxy_draining_virtual_servers", "gauge", (),
        "Virtual servers of which something drains", lambda s: _alone(s.figures.draining)),
    Row("ipvsproxy_foreign_virtual_servers", "gauge", (),
        "Virtual servers that are somebody else's and left alone", lambda s: _alone(s.figures.foreign)),
    Row("ipvsproxy_unread_subsystems", "gauge", (),
        "Parts of the kernel that could not be read when they had to be", lambda s: _alone(s.figures.unread)),
    Row("ipvsproxy_services", "gauge", (),
        "Services that are known", lambda s: _alone(s.figures.services)),
    Row("ipvsproxy_endpoint_slices", "gauge", (),
        "EndpointSlices that are known", lambda s: _alone(s.figures.slices)),
    Row("ipvsproxy_faulty_objects", "gauge", (),
        "Objects of the cluster of which something could not be used", lambda s: _alone(s.figures.rejected)),
    Row("ipvsproxy_audits_total", "counter", ("depth",),
        "Looks at the kernel for what others have changed",
        lambda s: {("quick",): s.audits.quick, ("full",): s.audits.in_full}),
    Row("ipvsproxy_audit_last_timestamp_seconds", "gauge", (),
        "When the last such look ended", lambda s: _alone(s.audits.at)),
    Row("ipvsproxy_conntrack_entries", "gauge", (),
        "Entries of connection tracking, at the last audit",
        lambda s: _alone(s.figures.usage.entries if s.figures.usage else None)),
    Row("ipvsproxy_conntrack_limit", "gauge", (),
        "Entries that connection tracking may have; each connection through IPVS takes one",
        lambda s: _alone(s.figures.usage.limit if s.figures.usage else None)),
    Row("ipvsproxy_service_connections_total", "counter", _PORT,
        "Connections to a Service port, at the last audit",
        _traffic(("", lambda c: c.connections)), has_bounded_labels=False),
    Row("ipvsproxy_service_packets_total", "counter", (*_PORT, "direction"),
        "Packets to and from a Service port, at the last audit",
        _traffic(("in", lambda c: c.packets_in), ("out", lambda c: c.packets_out)), has_bounded_labels=False),
    Row("ipvsproxy_service_bytes_total", "counter", (*_PORT, "direction"),
        "Bytes to and from a Service port, at the last audit",
        _traffic(("in", lambda c: c.bytes_in), ("out", lambda c: c.bytes_out)), has_bounded_labels=False),
    Row("ipvsproxy_service_ports_left_out", "gauge", (),
        "Service ports that have no metrics of their own, for there are more than --service-metrics",
        lambda s: _alone(s.figures.traffic.left_out if s.figures.traffic else None)),
    Row("ipvsproxy_healthy", "gauge", _FAMILY,
        "Whether the family is served as the cluster asks for", _healthy),
    Row("ipvsproxy_node_eligible", "gauge", (),
        "Whether load balancers may send to this node", lambda s: _alone(s.vitals.node_is_eligible)),
    Row("ipvsproxy_api_connected", "gauge", _KIND,
        "Whether the watch of this kind of object is connected to the API server",
        lambda s: {(kind,): heard.is_connected for kind, heard in s.heard.items()}),
    Row("ipvsproxy_api_last_heard_timestamp_seconds", "gauge", _KIND,
        "When the watch of this kind of object last told something",
        lambda s: {(kind,): heard.at for kind, heard in s.heard.items() if heard.at is not None}),
    Row("ipvsproxy_build_info", "gauge", ("version", "mode", "python"),
        "Always 1, with what runs here as labels",
        lambda _: {(__version__, "ipvs", platform.python_version()): 1}),
)
HISTOGRAMS = (
    Measured("kubeproxy_sync_proxy_rules_duration_seconds", _FAMILY, _DURATIONS_S,
             "[ALPHA] Duration of a sync, which is of both families at once"),
    Measured("kubeproxy_network_programming_duration_seconds", _FAMILY, _PROGRAMMING_S,
             "[ALPHA] From a change of endpoints, by the cluster's clock, until it is in the kernel"),
    Measured("kubeproxy_conntrack_reconciler_sync_duration_seconds", _FAMILY, _DURATIONS_S,
             "[ALPHA] Duration of a look for flows of UDP clients that lead to endpoints that have left"),
    Measured("ipvsproxy_event_to_kernel_seconds", (), _LATENCIES_S,
             "From the arrival of news of the cluster until they are in the kernel"),
    Measured("ipvsproxy_batch_operations", (), _BATCHES,
             "Operations in one batch to the kernel"),
    Measured("ipvsproxy_audit_duration_seconds", (), _DURATIONS_S,
             "Duration of a look at the kernel for what others have changed"),
)

ANSWERS = {
    "/healthz": Answered("kubeproxy_proxy_healthz_total", "[ALPHA] Answers of /healthz"),
    "/livez": Answered("kubeproxy_proxy_livez_total", "[ALPHA] Answers of /livez"),
    "/readyz": Answered("ipvsproxy_readyz_total", "Answers of /readyz"),
}
# fmt: on


class _Buckets:
    """One series of a histogram. The library's own costs ten times as much to observe, and each sync observes five."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count it where it belongs: a bound is the greatest value of its bucket."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class _Measurements:
    """One histogram: a series for each family, or a single one. `observe` belongs to the sync thread."""

    def __init__(self, row: Measured, families: Iterable[Family]) -> None:
        self._row = row
        keys: Iterable[Family | None] = families if row.labels else (None,)
        self._series = {key: _Buckets(row.buckets) for key in keys}

    def observe(self, value: float, family: Family | None = None) -> None:
        """Count a value; what is of a family that this node does not serve is nothing to it."""
        if family in self._series:
            self._series[family].observe(value)

    def lines(self) -> Iterator[str]:
        """The series as they are: for each bound how many values do not exceed it, then their number and sum."""
        row = self._row
        yield _head(row.name, "histogram", row.help)
        for family, buckets in self._series.items():
            labels = (family.label,) if family else ()
            counts = list(accumulate(buckets.counts))
            yield from map(str.__add__, _bucket_starts(row, labels), map("{}\n".format, counts))
            yield f"{_kept_start(row.name + '_count', row.labels, labels)}{counts[-1]}\n"
            yield f"{_kept_start(row.name + '_sum', row.labels, labels)}{buckets.total!r}\n"


@cache
def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _start(name: str, labels: tuple[str, ...], values: tuple[str, ...]) -> str:
    """A line up to its value; mostly the same at each scrape, and there are some hundred of them."""
    pairs = ",".join(
        f'{label}="{value.translate(_ESCAPES)}"' for label, value in sorted(zip(labels, values, strict=True))
    )
    return f"{name}{{{pairs}}} " if pairs else f"{name} "


_kept_start = cache(_start)


@cache
def _bucket_starts(row: Measured, values: tuple[str, ...]) -> tuple[str, ...]:
    bounds = (*map(floatToGoString, row.buckets), "+Inf")
    return tuple(_start(row.name + "_bucket", (*row.labels, "le"), (*values, bound)) for bound in bounds)


_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Metrics:
    """All metrics of one daemon, which serves `families`. `state` is called for each scrape."""

    def __init__(self, state: Callable[[], State], families: Collection[Family]) -> None:
        # kube-proxy has no `…_created` series
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has forgotten to say that it has none
        registry = self._registry = CollectorRegistry()
        self._state = state
        measured = self._measured = [_Measurements(row, families) for row in HISTOGRAMS]
        self._sync_s, self._programming_s, self._look_s, self._latency_s, self._batch, self._audit_s = measured
        ProcessCollector(registry=registry)
        self._answers = {
            path: Counter(row.name, row.help, row.labels, registry=registry) for path, row in ANSWERS.items()
        }

    def take(self, done: Pass) -> None:
        """A pass is over; called by the sync thread."""
        if done.is_audit:
            self._audit_s.observe(done.duration)
        elif done.is_full:
            for family in done.families:
                self._sync_s.observe(done.duration, family)
        for size in done.batches:
            self._batch.observe(size)
        for latency in done.latencies:
            self._latency_s.observe(latency)
        for family, latency in done.programming:
            self._programming_s.observe(latency, family)
        for family, duration in done.looks:
            self._look_s.observe(duration, family)

    def count_answer(self, path: str, code: int) -> None:
        """A probe was answered."""
        self._answers[path].labels(str(code)).inc()

    def render(self) -> bytes:
        """All metrics in Prometheus' text format, as CONTENT_TYPE. Called in the thread of who asks.

        The library's writer spends 40,000 instructions on a line, for it looks at every name anew: it writes the few
        that are its own. The format is the same; kube-proxy has no other text either.
        """
        state = self._state()
        lines = [line for row in ROWS for line in _lines(row, state)]
        lines += [line for measured in self._measured for line in measured.lines()]
        return "".join(lines).encode() + generate_latest(self._registry)


def _lines(row: Row, state: State) -> Iterator[str]:
    yield _head(row.name, row.type, row.help)
    start = _kept_start if row.has_bounded_labels else _start
    for values, value in row.read(state).items():
        yield f"{start(row.name, row.labels, values)}{float(value)!r}\n"


class ServiceLevel:
    """What /metrics/slis tells: the answers of the metrics server's own /healthz, as upstream's components have it.

    Source: component-base v0.37.2 metrics/prometheus/slis.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._check = Gauge(
            "kubernetes_healthcheck", "Result of a health check", ("name", "type"), registry=self._registry
        )
        self._checks = Counter(
            "kubernetes_healthchecks_total", "Health checks", ("name", "type", "status"), registry=self._registry
        )

    def count(self) -> None:
        """It has answered, which is all that it checks."""
        self._check.labels("ping", "healthz").set(1)
        self._checks.labels("ping", "healthz", "success").inc()

    def reset(self) -> None:
        """Begin anew."""
        self._check.clear()
        self._checks.clear()

    def render(self) -> bytes:
        """As Metrics.render."""
        return generate_latest(self._registry)
