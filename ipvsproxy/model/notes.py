"""What pure code has to say about bad input: returned beside the result, logged or printed by the shell."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ipvsproxy.model.printable import printable

_REASONS_SHOWN = 3
_LONGEST = 300  # characters


class Note(msgspec.Struct, frozen=True, order=True):
    """One thing left out or put right: about what, why, and what to do.

    `subject` names the object ("Service default/web", "file.yaml:12"); texts are one line each. `event` is the reason
    of the Event by which the object's owner hears of it, in CamelCase; empty where the log is enough.
    """

    subject: str
    reason: str
    hint: str = ""
    event: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}" + (f". {self.hint}" if self.hint else "")


def gather(subject: str, reasons: Sequence[str], hint: str = "", event: str = "") -> tuple[Note, ...]:
    """One note for all that is wrong with one object, cut after three reasons; none where there are none."""
    if not reasons:
        return ()
    more = len(reasons) - _REASONS_SHOWN
    text = "; ".join(map(one_line, reasons[:_REASONS_SHOWN])) + (f"; and {more} more" if more > 0 else "")
    return (Note(one_line(subject), text, hint, event),)


def one_line(text: str) -> str:
    """The text fit for a log line, whatever a manifest put into it: printable characters only, and not without end."""
    return printable(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")
