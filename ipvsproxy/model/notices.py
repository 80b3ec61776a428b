"""What the owner of an object in the cluster must know: it becomes an Event on that object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ipvsproxy.model.names import ServiceName
from ipvsproxy.model.notes import Note


class Notice(msgspec.Struct, frozen=True):
    """One thing to tell about one object.

    `kind` "Service" or "Node"; `namespace` is empty for a Node. `reason` is one word in CamelCase that does not change,
    `action` what we were doing, likewise; `text` says it in a sentence. What is no warning is a moment in the life of
    a node, and told each time.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    reason: str
    action: str
    text: str
    is_warning: bool = True


def node_notice(node: str, reason: str, text: str = "", *, is_warning: bool = True) -> Notice:
    """On a Node, about the start of this proxy there. Source: kubernetes v1.37.2 cmd/kube-proxy/app/server.go."""
    return Notice("Node", "", node, "", reason, "StartKubeProxy", text, is_warning)


def service_notices(name: ServiceName, uid: str, notes: Iterable[Note]) -> Iterator[Notice]:
    """What the owner of a Service must know of these notes on it."""
    for note in notes:
        if note.event:
            text = f"{note.reason}. {note.hint}" if note.hint else note.reason
            yield Notice("Service", *name, uid, note.event, "Program", text)
