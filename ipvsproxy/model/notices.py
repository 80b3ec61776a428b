"""What the owner of an object in the cluster must know: it becomes an Event on that object."""

from __future__ import annotations

import msgspec


class Notice(msgspec.Struct, frozen=True):
    """One thing to tell about one object.

    `kind` "Service" or "Node"; `namespace` is empty for a Node. `reason` is one word in CamelCase that does not change,
    `action` what we were doing, likewise; `text` says it in a sentence.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    reason: str
    action: str
    text: str
