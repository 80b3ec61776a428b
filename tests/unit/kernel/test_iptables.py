"""The lock, the parts of rules that are packed here, and what is refused before any table is opened."""

from __future__ import annotations

import ctypes
import errno
import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel import iptc_rules
from ipvsproxy.kernel.iptables import LegacyRules
from ipvsproxy.kernel.iptc_rules import load_library
from ipvsproxy.kernel.xtables_lock import xtables_lock
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, Operation, RuleLayer, RuleTable, Verb

LAYER = RuleLayer(("KUBE-SERVICES",), (), ())
WRITES = [Operation(Verb.ADD, Kind.RULES, RuleTable(table, Family.IPV4), LAYER) for table in ("filter", "nat")]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "xtables.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


def test_the_lock_is_taken_and_given_back(tmp_path):
    path = tmp_path / "xtables.lock"
    for _ in range(2):
        with xtables_lock(path), path.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_lock_file_is_made_for_its_owner_only(tmp_path):
    path = tmp_path / "xtables.lock"
    with xtables_lock(path):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_held_lock_is_refused_at_once(held):
    with pytest.raises(KernelError) as caught, xtables_lock(held):
        pass
    assert caught.value.number == errno.EAGAIN


def test_a_lock_in_a_folder_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(KernelError, match="mount the host's lock file") as caught, xtables_lock(tmp_path / "no/lock"):
        pass
    assert caught.value.number == errno.ENOENT


@pytest.mark.parametrize("lock,number", [("xtables.lock", errno.EAGAIN), ("no/lock", errno.ENOENT)])
def test_without_the_lock_every_operation_is_refused(held, lock, number):
    rules = LegacyRules({operation.key: LAYER.chains for operation in WRITES}, lock_path=held.parent / lock)
    assert rules.apply(WRITES) == [number, number]


@pytest.mark.parametrize("base", [None, 0, 16])
@pytest.mark.parametrize("names", [[], ["physdev-in"], ["physdev-in", "physdev-is-in", "physdev-is-bridged"]])
def test_options_of_extensions_are_found_by_their_names_before_and_since_iptables_1_8_11(names, base):
    """Which has made an entry of theirs a member longer, the number's `base`; the end of them is an empty entry."""
    xtables = load_library().xtables
    known = xtables.xt_option_entry
    entry_type = known if base is None else type("Longer", (known,), {"_fields_": [("base", ctypes.c_uint)]})
    entries = (entry_type * (len(names) + 1))()
    for number, name in enumerate(names):
        entries[number].name, entries[number].id = name.encode(), number
        if base is not None:
            entries[number].base = base
    options = ctypes.cast(entries, ctypes.POINTER(known))

    def find(name: str) -> int | None:
        entry = xtables.xtables(Family.IPV4)._option_lookup(options, name.encode())
        return entry and entry.id

    assert [find(name) for name in names] == list(range(len(names)))
    assert find("physdev-out") is None


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize(
    "text,name,mask",
    [
        pytest.param("cbr0", b"cbr0", b"\xff" * 5, id="a name is compared with its end"),
        pytest.param("! cbr0", b"cbr0", b"\xff" * 5, id="not that name"),
        pytest.param("! veth+", b"veth+", b"\xff" * 4, id="of a prefix the plus sign is kept, as iptables prints it"),
        pytest.param("a23456789012345", b"a23456789012345", b"\xff" * 16, id="the longest name"),
    ],
)
def test_interfaces_are_packed_with_whole_bytes_and_read_back(family, text, name, mask):
    """python-iptables' own IPv6 mask is of 0x01 bytes, which compares one bit of each letter."""
    library = load_library()
    header = (library.Rule() if family is Family.IPV4 else library.Rule6()).get_ip()
    iptc_rules._set_in_interface(header, text)
    assert (header.iniface, header.iniface_mask) == (name, mask)
    assert iptc_rules._in_interface(header) == text


@pytest.mark.parametrize(
    "mask,length",
    [
        pytest.param(bytes(4), 0, id="everything"),
        pytest.param(b"\xff\xff\x00\x00", 16, id="a network"),
        pytest.param(b"\xff" * 16, 128, id="one IPv6 address"),
        pytest.param(b"\xff\x00\xff\x00", None, id="holes"),
    ],
)
def test_a_mask_has_a_prefix_length_where_its_ones_lead(mask, length):
    assert iptc_rules._prefix_len(mask) == length
