"""When a pass has failed a family."""

from __future__ import annotations

import pytest

from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, RuleTable, SetEntry, empty_state
from ipvsproxy.sync.verdict import failed_families
from tests.builders import addr, vs_key

FOUR, SIX = Family.IPV4, Family.IPV6


def keys(count: int, family: Family = FOUR, start: int = 1) -> list:
    prefix = "10.96.0." if family is FOUR else "fd00::"
    return [vs_key(f"{prefix}{n}", 80) for n in range(start, start + count)]


@pytest.mark.parametrize(
    "failing,families",
    [
        pytest.param([], set(), id="nothing"),
        pytest.param([(Kind.RULES, RuleTable("nat", SIX))], {SIX}, id="the rules of a table"),
        pytest.param([(Kind.SET, "KUBE-CLUSTER-IP")], {FOUR}, id="a set"),
        pytest.param([(Kind.SET, "KUBE-6-CLUSTER-IP")], {SIX}, id="a set of IPv6"),
        pytest.param([(Kind.LINK, "kube-ipvs0")], {FOUR, SIX}, id="the link"),
        pytest.param([(Kind.SYSCTL, "net.ipv4.ip_forward")], set(), id="a sysctl"),
        pytest.param([(Kind.VIRTUAL_SERVER, key) for key in keys(1, start=9)], set(), id="one virtual server"),
        pytest.param([(Kind.VIRTUAL_SERVER, key) for key in keys(3, start=9)], set(), id="as many as stand"),
        pytest.param([(Kind.VIRTUAL_SERVER, key) for key in keys(4, start=9)], {FOUR}, id="more than stand"),
        pytest.param([(Kind.VIRTUAL_SERVER, key) for key in keys(2, SIX)], {SIX}, id="all of a family, two"),
        pytest.param([(Kind.VIRTUAL_SERVER, key) for key in keys(1, SIX)], set(), id="all of a family, one"),
        pytest.param([(Kind.ADDRESS, addr(f"10.96.1.{n}")) for n in range(4)], {FOUR}, id="addresses"),
        pytest.param(
            [(Kind.GUARD_ENTRY, SetEntry("KUBE-NO-LOCAL-ENDPOINTS", addr(f"10.0.0.{n}"))) for n in range(9)],
            set(),
            id="guards, whatever their number: what they guard waits for them and counts itself",
        ),
    ],
)
def test_a_family_has_failed_with(failing, families):
    applied = empty_state()
    applied[Kind.VIRTUAL_SERVER] = dict.fromkeys(keys(3), "rr")
    assert failed_families(failing, applied) == families
