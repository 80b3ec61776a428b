"""All that `explain` says, put together: endpoints, ways in, the fixed layer, a packet's way, what would change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ipvsproxy.cluster.services import ServiceView
from ipvsproxy.cluster.slices import CompactSlice
from ipvsproxy.config.targets import Client
from ipvsproxy.inspect.endpoints import endpoint_lines
from ipvsproxy.inspect.evidence import Evidence, Standing
from ipvsproxy.inspect.frontends import WayIn, object_lines, way_in_lines
from ipvsproxy.inspect.operations import operation_lines
from ipvsproxy.inspect.way import way_lines
from ipvsproxy.model.kernel_objects import Kind, ObjectId, VirtualServerKey
from ipvsproxy.plan.desired import OwnerPlan

_EACH = (Kind.RULES, Kind.LINK, Kind.SYSCTL)  # of the fixed layer: a line each; of the rest those that are wrong


@dataclass(frozen=True, slots=True)
class Subject:
    """What is asked about: a Service with some or all of its ways in; `view` None: a frontend that no Service has."""

    keys: tuple[VirtualServerKey, ...]
    view: ServiceView | None = None
    slices: Sequence[CompactSlice] = ()
    plan: OwnerPlan | None = None
    ways: Sequence[WayIn] = ()
    remarks: tuple[str, ...] = ()


def explanation(subject: Subject, fixed: OwnerPlan, client: Client | None, evidence: Evidence) -> Iterator[str]:
    """Lines without newlines."""
    if subject.view is not None:
        yield from _service_lines(subject.view, subject.remarks)
        yield from endpoint_lines(subject.view, subject.slices, evidence)
        for way in subject.ways:
            yield from way_in_lines(way, subject.view.name, evidence)
            yield ""
    else:
        yield from _nobodys_lines(subject.keys, evidence)
    yield "What serves all Services"
    yield from _fixed_lines(fixed, evidence)
    if client is not None:
        for key in subject.keys:
            yield from ("", *way_lines(client, key, evidence))
    yield ""
    yield from _change_lines(subject, fixed, evidence)


def is_right(subject: Subject, fixed: OwnerPlan, evidence: Evidence) -> bool:
    """Whether a start would change nothing of what the subject depends on."""
    return not evidence.changes_of(_refs(subject, fixed)) and not evidence.flows_to(subject.keys)


def _refs(subject: Subject, fixed: OwnerPlan) -> set[ObjectId]:
    """Every object that matters to the subject."""
    refs = {*fixed.objects, *(ref for way in subject.ways for ref in way.refs)}
    refs.update((kind, key) for key in subject.keys for kind in (Kind.VIRTUAL_SERVER, Kind.REAL_SERVER))
    if subject.plan is not None:
        refs.update(subject.plan.objects)
    return refs


def _service_lines(view: ServiceView, remarks: Sequence[str]) -> Iterator[str]:
    said = [
        *(["externalTrafficPolicy Local"] if view.external_policy_local else []),
        *(["internalTrafficPolicy Local"] if view.internal_policy_local else []),
        *([f"sessionAffinity {view.affinity_s} s"] if view.affinity_s else []),
        *([f"loadBalancerSourceRanges {','.join(map(str, view.source_ranges)) or 'none'}"] if view.restricted else []),
        *([f"healthCheckNodePort {view.health_check_node_port}"] if view.health_check_node_port else []),
    ]
    yield f"Service {view.name!s}" + (f": {', '.join(said)}" if said else "")
    yield from (f"  note     {remark}" for remark in remarks)
    yield ""


def _nobodys_lines(keys: Sequence[VirtualServerKey], evidence: Evidence) -> Iterator[str]:
    for key in keys:
        yield f"{key!s}  no Service has it"
        ref: ObjectId = (Kind.VIRTUAL_SERVER, key)
        if evidence.standing(ref) is Standing.TOO_MUCH and not evidence.changes_of({ref}):
            yield "  left     virtual server: it is not ours"
        else:
            yield from object_lines(ref, evidence)
            yield from object_lines((Kind.REAL_SERVER, key), evidence)
        yield ""


def _fixed_lines(fixed: OwnerPlan, evidence: Evidence) -> Iterator[str]:
    for kind in _EACH:
        for ref in sorted((ref for ref in fixed.objects if ref[0] is kind), key=lambda ref: str(ref[1])):
            yield from object_lines(ref, evidence)
    others = [ref for ref in fixed.objects if ref[0] not in _EACH]
    bad = [ref for ref in others if evidence.standing(ref) is not Standing.OK]
    sets = sum(1 for kind, _ in others if kind is Kind.SET)
    if not bad:
        yield f"  {Standing.OK.value:<8} {sets} sets"
    for ref in sorted(bad, key=lambda ref: (ref[0], str(ref[1]))):
        yield from object_lines(ref, evidence)


def _change_lines(subject: Subject, fixed: OwnerPlan, evidence: Evidence) -> Iterator[str]:
    changes = evidence.changes_of(_refs(subject, fixed))
    flows = evidence.flows_to(subject.keys)
    if not changes and not flows:
        yield "As planned: a start would change nothing of this."
        return
    yield "Not as planned. A start would"
    wanted = evidence.desired.holders
    yield from (f"  {line}" for line in operation_lines(changes, evidence.observed, wanted))
    yield from (f"  delete UDP flow {flow}" for flow in flows)
