"""Has a pass done its work? Pure.

One refused object is its owner's trouble: it is said in the log, counted, tried again, and all else is served. A family
has failed where what everything in it stands on is missing, or where more is refused of it than stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, ObjectId, State, family_of_object

_FOUNDATION = frozenset({Kind.LINK, Kind.SET, Kind.RULES})
_SERVING = frozenset({Kind.VIRTUAL_SERVER, Kind.REAL_SERVER, Kind.ADDRESS, Kind.ACCEPT_ENTRY})


def failed_families(failing: Iterable[ObjectId], applied: State) -> frozenset[Family]:
    """The families that the last pass left where they were; `failing`: what is refused, or waits for such.

    Costs what fails, and not what stands, as long as most does.
    """
    counts: Counter[tuple[Kind, Family]] = Counter()
    failed: set[Family] = set()
    for kind, key in dict.fromkeys(failing):
        family = family_of_object(kind, key)
        if kind in _FOUNDATION:
            failed |= {family} if family is not None else set(Family)
        elif kind in _SERVING and family is not None:
            counts[kind, family] += 1
    several = ((kind, family, count) for (kind, family), count in counts.items() if count > 1)
    failed |= {family for kind, family, count in several if _outnumber(count, kind, family, applied)}
    return frozenset(failed)


def _outnumber(count: int, kind: Kind, family: Family, applied: State) -> bool:
    """Whether fewer than `count` objects of this kind and family stand; looks no further than it must."""
    for key in applied[kind]:
        count -= family_of_object(kind, key) is family
        if count <= 0:
            return False
    return True
