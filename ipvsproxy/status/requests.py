"""What a command line of ipvsadm asks for, once it is understood."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from ipvsproxy.model.observed import ServiceName


class Columns(Enum):
    """What a table tells of each server. Of several that are asked for the first counts."""

    STATISTICS = auto()
    RATES = auto()
    THRESHOLDS = auto()
    PERSISTENCE = auto()
    TUNNELS = auto()
    PLAIN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`-L`: all virtual servers, or one."""

    only: ServiceName | None = None
    columns: Columns = Columns.PLAIN
    is_numeric: bool = False
    is_exact: bool = False
    is_sorted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`-S`."""

    is_numeric: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """`-L -c`; with the persistence engines' data where asked for."""

    is_numeric: bool = False
    with_engines: bool = False


@dataclass(frozen=True, slots=True)
class Timeouts:
    """`-L --timeout`."""


@dataclass(frozen=True, slots=True)
class Daemons:
    """`-L --daemon`."""


@dataclass(frozen=True, slots=True)
class Text:
    """`-h` and `-v`."""

    text: str


Request: TypeAlias = Table | Rules | Connections | Timeouts | Daemons | Text
