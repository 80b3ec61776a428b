"""What the sync thread counts while it works: plain numbers, so that counting costs next to nothing.

metrics.py makes metrics of them, in the thread of whoever asks for those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ipvsproxy.model.enums import Family
from ipvsproxy.model.figures import Sent, Sort
from ipvsproxy.model.kernel_objects import Key, Kind, Operation, family_of_object


class Tally:
    """Totals since the start; and `batches` and `looks` (model/figures.py), which whoever reads them empties."""

    def __init__(self) -> None:
        self.drift: Counter[Sort] = Counter()
        self.sent: dict[Sent, int] = {}
        self.flows_deleted: Counter[Family] = Counter()
        self.flow_failures: Counter[Family] = Counter()
        self.batches: list[int] = []
        self.looks: list[tuple[Family, float]] = []

    def count(self, operations: Iterable[Operation], *, is_done: bool) -> None:
        """These were carried out, or refused."""
        for operation in operations:
            sort = operation.kind, family_of_object(operation.kind, operation.key), is_done
            self.sent[sort] = self.sent.get(sort, 0) + 1

    def found_changed(self, kind: Kind, key: Key) -> None:
        """Somebody else had changed this object of ours."""
        self.drift[kind, family_of_object(kind, key)] += 1

    def take_batches(self) -> tuple[int, ...]:
        """The batches since the last call."""
        taken, self.batches = tuple(self.batches), []
        return taken

    def take_looks(self) -> tuple[tuple[Family, float], ...]:
        """The looks since the last call."""
        taken, self.looks = tuple(self.looks), []
        return taken
