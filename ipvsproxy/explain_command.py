"""`ipvsproxy explain`: a Service or a frontend, wanted against actual, with reasons; and the way of a client's packet.

It answers 0 where the kernel is as planned for it, 1 where it is not; trouble, 2, is the caller's to tell. It reads
what `diff` reads and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import msgspec

from ipvsproxy.cluster.node import HostView
from ipvsproxy.cluster.services import ServiceView
from ipvsproxy.cluster.slices import CompactSlice
from ipvsproxy.config.command_line import ExitCode
from ipvsproxy.config.targets import FrontendTarget, Question, Target
from ipvsproxy.config.types import LookOptions, ProxyConfig
from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.inspect.evidence import Evidence
from ipvsproxy.inspect.explanation import Subject, explanation, is_right
from ipvsproxy.inspect.frontends import ways_in
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, VirtualServerKey
from ipvsproxy.stdout import print_lines
from ipvsproxy.this_node import Look, Surroundings, look, real_surroundings


def run(
    config: ProxyConfig,
    options: LookOptions,
    question: Question,
    find_surroundings: Callable[[ProxyConfig], Surroundings] = real_surroundings,
) -> int:
    """Print the explanation; the exit code. Raises IpvsproxyError, also where there is no such thing."""
    seen = look(config, options, find_surroundings(config))
    host = _host_view(seen)
    evidence = _evidence(seen, host)
    subject = _subject(question.target, seen, evidence)
    asked = [key for key in subject.keys if key in evidence.observed[Kind.VIRTUAL_SERVER]]
    evidence = replace(evidence, connections=seen.surroundings.kernel.ipvs.connections(asked))
    fixed = seen.mode.fixed(seen.tracker.node, host)
    print_lines(explanation(subject, fixed, question.client, evidence))
    return ExitCode.OK if is_right(subject, fixed, evidence) else ExitCode.DIFFERENT


def _host_view(seen: Look) -> HostView:
    view = seen.mode.host_view(seen.surroundings.host, seen.tracker.node)
    return msgspec.structs.replace(view, elsewhere=seen.tracker.claims.elsewhere)


def _evidence(seen: Look, host: HostView) -> Evidence:
    first = seen.first_sync
    return Evidence(
        observed=first.observed,
        remaining=first.remaining,
        desired=first.desired,
        operations=first.operations,
        flows=first.flows,
        host=host,
        options=seen.options.service,
    )


def _subject(target: Target, seen: Look, evidence: Evidence) -> Subject:
    if isinstance(target, FrontendTarget):
        return _subject_at(target, seen, evidence)
    view, slices = seen.tracker.view(target)
    if view is None:
        why = "it is not there, or no proxy serves it: headless, ExternalName, another proxy's, of no family here"
        raise IpvsproxyError(f"cannot explain Service {target}", why)
    return _subject_of(view, slices, seen, evidence)


def _subject_of(
    view: ServiceView,
    slices: Sequence[CompactSlice],
    seen: Look,
    evidence: Evidence,
    only: Collection[VirtualServerKey] = (),
) -> Subject:
    """A Service with all its ways in, or with these alone."""
    plan = seen.mode.plan(view, slices, evidence.host)
    ways = [way for way in ways_in(view, slices, evidence) if not only or way.key in only]
    notes = (*(note.reason for note in (*plan.notes, *plan.remarks)), *seen.tracker.claims.faults(view))
    if not seen.tracker.knows_node and any(piece.zones for piece in slices):
        notes = (*notes, f"Node {seen.tracker.node.name} is not known, so hints for zones are not followed")
    return Subject(tuple(way.key for way in ways), view, slices, None if only else plan, ways, notes)


def _subject_at(target: FrontendTarget, seen: Look, evidence: Evidence) -> Subject:
    """What is served at an address and port, wanted or not. Raises IpvsproxyError."""
    protocols = [target.protocol] if target.protocol else list(Protocol)
    keys = [VirtualServerKey(protocol, target.address, target.port) for protocol in protocols]
    holders = {key: evidence.desired.holders((Kind.VIRTUAL_SERVER, key)) for key in keys}
    owners = {names[0] for names in holders.values() if names}
    if len(owners) > 1:
        raise IpvsproxyError(f"cannot explain {target}", "several Services are served there", "Add /TCP, /UDP or /SCTP")
    for name in owners:
        view, slices = seen.tracker.view(name)
        if view is not None:
            return _subject_of(view, slices, seen, evidence, [key for key, names in holders.items() if names])
    found = tuple(key for key in keys if key in evidence.observed[Kind.VIRTUAL_SERVER])
    if not found:
        why = "no Service is served there, and the kernel has no virtual server"
        raise IpvsproxyError(f"cannot explain {target}", why, "ipvsproxy status -Ln lists what there is")
    return Subject(found)
