"""What is wrong with a field, in the words that kube-proxy uses, so that what people know and search for stays true.

Source: k8s.io/apimachinery v0.37.2 pkg/util/validation/field/errors.go.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ipvsproxy.errors import ConfigError

FieldValue: TypeAlias = str | int | Sequence[str]

_WITHOUT_VALUE = frozenset({"Required value", "Forbidden"})


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field that cannot be used: upstream's `path`, the value, and what is allowed; `written_as` names its flag."""

    path: str
    value: FieldValue
    detail: str
    problem: str = "Invalid value"
    written_as: str = ""

    def __str__(self) -> str:
        value = "" if self.problem in _WITHOUT_VALUE else f": {quoted(self.value)}"
        sentence = f"{self.path}: {self.problem}{value}" + (f": {self.detail}" if self.detail else "")
        return f"{sentence} ({self.written_as})" if self.written_as else sentence


class InvalidConfigError(ConfigError):
    """Everything that is wrong with a configuration, one line each."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__("invalid configuration", "; ".join(map(str, errors)))
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def quoted(value: FieldValue) -> str:
    """A value as Go prints it in messages: text in double quotes with control characters escaped, lists in brackets."""
    if not isinstance(value, str | int):
        value = list(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
