"""A legacy table's bytes without their counters; the contract tests of Rules take real ones."""

from __future__ import annotations

import re
import struct
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipvsproxy.kernel
from ipvsproxy.kernel.xt_fingerprint import LAYOUTS, first_rules, without_counters
from ipvsproxy.model.enums import Family

HEAD = bytes(40)
ENTRY_BYTES = 200


def entry(family: Family, counted: int, text: bytes = b"eth0") -> bytes:
    layout = LAYOUTS[family]
    packed = bytearray(text.ljust(ENTRY_BYTES, b"\0"))
    struct.pack_into("=H", packed, layout.next_at, ENTRY_BYTES)
    struct.pack_into("=QQ", packed, layout.counters_at, counted, counted)
    return bytes(packed)


@pytest.mark.parametrize("family", Family)
def test_only_counters_make_no_difference(family):
    quiet = without_counters(bytearray(HEAD + entry(family, 0) * 3), LAYOUTS[family])
    assert without_counters(bytearray(HEAD + entry(family, 7) * 3), LAYOUTS[family]) == quiet
    assert without_counters(bytearray(HEAD + entry(family, 7, b"eth1") * 3), LAYOUTS[family]) != quiet


@given(st.sampled_from(Family), st.binary(max_size=700))
def test_no_bytes_of_a_table_raise_or_change_its_size(family, content):
    assert len(without_counters(bytearray(HEAD + content), LAYOUTS[family])) == len(HEAD + content)


OURS, FOREIGN, POLICY = b"our jump", b"foreign rule", b"policy"


def look(family: Family, *chains: list[bytes]) -> bytes:
    """The first rules of a table with these built-in chains, of which the second hook has none; all have counted."""
    starts = [sum(map(len, chains[:place])) * ENTRY_BYTES for place in range(len(chains))]
    starts.insert(1, 0xFFFFFFFF)
    info = bytearray(84)
    struct.pack_into(f"=I{len(starts)}I", info, 32, 0b101, *starts)
    rules = b"".join(entry(family, place, text) for place, text in enumerate(chain.from_iterable(chains)))
    return b"".join(first_rules(info, bytearray(HEAD + rules), LAYOUTS[family]))


@pytest.mark.parametrize("family", Family)
def test_k06_the_first_rule_of_each_built_in_chain_tells_who_has_passed_ours(family):
    right = look(family, [OURS, FOREIGN, POLICY], [OURS, POLICY])
    assert look(family, [OURS, POLICY], [OURS, FOREIGN, POLICY]) == right  # how many there are is told otherwise
    assert look(family, [FOREIGN, OURS, POLICY], [OURS, POLICY]) != right
    assert look(family, [OURS, FOREIGN, POLICY], [POLICY]) != right


def test_no_module_of_the_edge_takes_the_machine_for_little_endian():
    """The kernel's own numbers are in the machine's order: "=" to `struct`, `sys.byteorder` elsewhere."""
    folder = Path(ipvsproxy.kernel.__file__).parent
    assert [path.name for path in folder.glob("*.py") if re.search(r"[\"'](little|<)", path.read_text())] == []
