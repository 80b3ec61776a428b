"""Operations in words, for programs and as lines for people: what changes, from what to what, for which Service.

edit virtual server 10.96.0.20:80/TCP: rr → rr persistent 10800  # default/web
edit IPv4 nat rules
  - -A KUBE-SERVICES …
  + -A KUBE-SERVICES …
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

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
    format_key,
)
from ipvsproxy.model.names import ServiceName
from ipvsproxy.plan.desired import FIXED
from ipvsproxy.plan.diff import acknowledge
from ipvsproxy.plan.rule_text import canonical_layer, rule_text

Holders = Callable[[ObjectId], tuple[ServiceName, ...]]


class RuleChange(msgspec.Struct, frozen=True):
    """A rule of a table that goes or comes, as iptables-save writes it."""

    verb: Literal["add", "delete"]
    rule: str


class Change(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An operation: what is done to which object, and for which Services.

    `object` is a virtual server's address, port and protocol, for a real server too; an address with its prefix; a set,
    an entry, a link, a sysctl or a table of rules by its name. `before` and `after` are its settings, empty where there
    are none. Of a table only the rules that go and come are told, from top to bottom.
    """

    verb: Verb
    kind: Kind
    object: str
    real_server: str = ""
    before: str = ""
    after: str = ""
    services: tuple[str, ...] = ()
    rules: tuple[RuleChange, ...] = ()


def changes(operations: Iterable[Operation], observed: State, holders: Holders) -> Iterator[Change]:
    """In the order of the operations, which begin at `observed`. `holders`: the Services that want an object."""
    state = {kind: dict(objects) for kind, objects in observed.items()}
    for operation in operations:
        before = _before(state, operation)
        after = None if operation.verb is Verb.DELETE else operation.settings
        names = holders((operation.kind, operation.key))
        yield Change(
            operation.verb,
            operation.kind,
            format_key(operation.kind, operation.key),
            _real_server(operation),
            settings_words(before),
            settings_words(after),
            tuple(str(name) for name in names if name != FIXED),
            tuple(_rule_changes(before, after)) if operation.kind is Kind.RULES else (),
        )
        acknowledge(state, [operation])


def operation_lines(operations: Iterable[Operation], observed: State, holders: Holders) -> Iterator[str]:
    """The same as lines without newlines."""
    for change in changes(operations, observed, holders):
        yield f"{_title(change)}{_from_to(change)}{_for(change)}"
        yield from (f"  {'+' if each.verb == 'add' else '-'} {each.rule}" for each in change.rules)


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


def _title(change: Change) -> str:
    """The operation in words; a table's name says what it is."""
    if change.kind is Kind.RULES:
        return f"{change.verb} {change.object}"
    return f"{change.verb} {change.kind} {f'{change.real_server} of ' if change.real_server else ''}{change.object}"


def _from_to(change: Change) -> str:
    if change.verb is Verb.DELETE:
        return ""
    if change.before and change.before != change.after:
        return f": {change.before} → {change.after}"
    return f": {change.after}" if change.after else ""


def _for(change: Change) -> str:
    return f"  # {', '.join(change.services)}" if change.services else ""


def _real_server(operation: Operation) -> str:
    if operation.kind is Kind.REAL_SERVER and isinstance(operation.settings, bytes):
        return str(real_servers.unpack(operation.settings))
    return ""


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


def _rule_changes(before: Settings | None, after: Settings | None) -> Iterator[RuleChange]:
    """Rules that go and rules that come; those that stay are left out."""
    for line in difflib.ndiff(_rules(before), _rules(after)):
        if line.startswith(("- ", "+ ")):
            yield RuleChange("add" if line[0] == "+" else "delete", line[2:])


def _rules(layer: Settings | None) -> list[str]:
    if not isinstance(layer, RuleLayer):
        return []
    ordered = canonical_layer(layer)
    return [rule_text(rule) for rule in (*ordered.jumps, *ordered.rules)]
