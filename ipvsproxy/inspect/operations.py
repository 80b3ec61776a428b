"""Operations as lines for people: what changes, from what to what, and for which Service.

edit virtual server 10.96.0.20:80/TCP: rr → rr persistent 10800  # default/web
edit IPv4 nat rules
  - -A KUBE-SERVICES …
  + -A KUBE-SERVICES …
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator

from ipvsproxy.model import real_servers
from ipvsproxy.model.enums import VirtualServerFlags
from ipvsproxy.model.kernel_objects import (
    Kind,
    ObjectId,
    Operation,
    RuleLayer,
    SetSpec,
    Settings,
    State,
    Verb,
    VirtualServer,
    VirtualServerKey,
)
from ipvsproxy.model.names import ServiceName
from ipvsproxy.model.real_servers import describe
from ipvsproxy.plan.desired import FIXED
from ipvsproxy.plan.diff import acknowledge
from ipvsproxy.plan.rule_text import canonical_layer, rule_text

Holders = Callable[[ObjectId], tuple[ServiceName, ...]]


def operation_lines(operations: Iterable[Operation], observed: State, holders: Holders) -> Iterator[str]:
    """Lines without newlines, in the order of the operations, which begin at `observed`.

    `holders`: the Services that want an object.
    """
    state = {kind: dict(objects) for kind, objects in observed.items()}
    for operation in operations:
        before = _before(state, operation)
        yield f"{_title(operation)}{_change(before, operation)}{_for(operation, holders)}"
        if operation.kind is Kind.RULES:
            yield from _rule_lines(before, operation)
        acknowledge(state, [operation])


def settings_words(settings: Settings | None) -> str:
    """What an object is set to; empty where there is nothing to say but that it is there."""
    match settings:
        case VirtualServer(scheduler=scheduler, flags=flags, persistence_s=persistence_s):
            others = flags & ~VirtualServerFlags.PERSISTENT
            words = [scheduler, *(["flags", f"{int(others):#x}"] if others else [])]
            return " ".join([*words, *(["persistent", str(persistence_s)] if persistence_s else [])])
        case SetSpec():
            return settings.create_options
        case bytes():
            server = real_servers.unpack(settings)
            return f"weight {server.weight}" + (f" {server.method.name}" if server.method else "")
        case str():
            return settings
        case _:
            return ""


def _title(operation: Operation) -> str:
    """The operation in words; a table's key says what it is."""
    return f"{operation.verb} {operation.key!s}" if operation.kind is Kind.RULES else describe(operation)


def _before(state: State, operation: Operation) -> Settings | None:
    """What stands in the place of the operation's object; of real servers the one that it is about."""
    found = state[operation.kind].get(operation.key)
    if operation.kind is not Kind.REAL_SERVER:
        return found
    if not isinstance(found, bytes) or not isinstance(operation.settings, bytes):
        return None
    size = len(operation.key.address) if isinstance(operation.key, VirtualServerKey) else 0
    same = real_servers.identity(operation.settings)
    return next((each for each in real_servers.split(found, size) if real_servers.identity(each) == same), None)


def _change(before: Settings | None, operation: Operation) -> str:
    if operation.verb is Verb.DELETE:
        return ""
    was, becomes = settings_words(before), settings_words(operation.settings)
    if was and was != becomes:
        return f": {was} → {becomes}"
    return f": {becomes}" if becomes else ""


def _for(operation: Operation, holders: Holders) -> str:
    names = [str(name) for name in holders((operation.kind, operation.key)) if name != FIXED]
    return f"  # {', '.join(names)}" if names else ""


def _rule_lines(before: Settings | None, operation: Operation) -> Iterator[str]:
    """Rules that go and rules that come; those that stay are left out."""
    after = None if operation.verb is Verb.DELETE else operation.settings
    for line in difflib.ndiff(_rules(before), _rules(after)):
        if line.startswith(("- ", "+ ")):
            yield f"  {line}"


def _rules(layer: Settings | None) -> list[str]:
    if not isinstance(layer, RuleLayer):
        return []
    ordered = canonical_layer(layer)
    return [rule_text(rule) for rule in (*ordered.jumps, *ordered.rules)]
