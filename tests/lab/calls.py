"""Calls from this machine into a VM, through the folder that both share: a file for each call, one for its answer.

The VM's network would do as well, but a folder needs no port, and what was said lies there afterwards.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

LOOK_AGAIN_S = 0.1
END = "end"
Verbs = Mapping[str, Callable[..., Any]]


class CallError(Exception):
    """What was called has raised this, or the VM has ended."""


class Caller:
    """The side that asks. `is_alive` tells whether anybody is there to answer."""

    def __init__(self, folder: Path, is_alive: Callable[[], bool]) -> None:
        self._folder = folder
        self._is_alive = is_alive
        self._numbers = iter(range(1, 1_000_000))
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, verb: str, limit_s: float = 600, **arguments: Any) -> Any:
        """What `verb` returns, by way of JSON. Raises CallError."""
        number = next(self._numbers)
        _write(self._folder / f"{number}.call", {"verb": verb, "arguments": arguments})
        deadline = time.monotonic() + limit_s
        while not (path := self._folder / f"{number}.answer").exists():
            if not self._is_alive() or time.monotonic() > deadline:
                raise CallError(f"{verb}: nobody answers")
            time.sleep(LOOK_AGAIN_S)
        answer = json.loads(path.read_text())
        if "error" in answer:
            raise CallError(f"{verb}: {answer['error']}")
        return answer["result"]


def serve(folder: Path, verbs: Verbs) -> None:
    """Answer calls in their order, until one is END."""
    for number, call in _calls(folder):
        try:
            answer = {"result": None if call["verb"] == END else verbs[call["verb"]](**call["arguments"])}
        except Exception as error:  # noqa: BLE001  # whatever it is, the caller has to know
            answer = {"error": "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])}
        _write(folder / f"{number}.answer", answer)
        if call["verb"] == END:
            return


def _calls(folder: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = 1
    while True:
        path = folder / f"{number}.call"
        if path.exists():
            yield number, json.loads(path.read_text())
            number += 1
        else:
            time.sleep(LOOK_AGAIN_S)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """In one step for who looks whether it is there."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content))
    draft.rename(path)
