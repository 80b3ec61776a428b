"""What `kernel/api.py` promises of IPSets, on the fake and the real kernel; there compared with the `ipset` program."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable

import pytest

from ipvsproxy.kernel.api import IPSets
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.kernel.ipsets import NetlinkIPSets
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import Kind, Operation, SetEntry, SetSpec, Verb
from ipvsproxy.modes.ipvs.sets import ENTRY_KIND_BY_NAME
from tests.builders import addr

IPSET_ERR_BUSY = 4100  # include/uapi/linux/netfilter/ipset/ip_set.h
IPSET_ERR_PRIVATE = 4096

SPECS = {
    "KUBE-IPVS-IPS": SetSpec("hash:ip", Family.IPV4),
    "KUBE-6-IPVS-IPS": SetSpec("hash:ip", Family.IPV6),
    "KUBE-CLUSTER-IP": SetSpec("hash:ip,port", Family.IPV4),
    "KUBE-6-CLUSTER-IP": SetSpec("hash:ip,port", Family.IPV6),
    "KUBE-LOOP-BACK": SetSpec("hash:ip,port,ip", Family.IPV4),
    "KUBE-6-LOOP-BACK": SetSpec("hash:ip,port,ip", Family.IPV6),
    "KUBE-LOAD-BALANCER-SOURCE-CIDR": SetSpec("hash:ip,port,net", Family.IPV4),
    "KUBE-6-LOAD-BALANCER-SOURCE-CID": SetSpec("hash:ip,port,net", Family.IPV6),
    "KUBE-NODE-PORT-TCP": SetSpec("bitmap:port", None),
}
EXTERNAL = SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.1"), Protocol.TCP, 443)
ENTRIES = [
    SetEntry("KUBE-IPVS-IPS", addr("10.96.0.1")),
    SetEntry("KUBE-6-IPVS-IPS", addr("fd00::1")),
    EXTERNAL,
    SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.1"), Protocol.UDP, 53),
    SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.1"), Protocol.SCTP, 65535),
    SetEntry("KUBE-6-CLUSTER-IP", addr("fd00::1"), Protocol.SCTP, 1),
    SetEntry("KUBE-LOOP-BACK", addr("10.244.0.5"), Protocol.TCP, 80, addr("10.244.0.5")),
    SetEntry("KUBE-6-LOOP-BACK", addr("fd01::5"), Protocol.TCP, 80, addr("fd01::5")),
    SetEntry("KUBE-LOAD-BALANCER-SOURCE-CIDR", addr("1.2.3.4"), Protocol.TCP, 80, addr("10.0.0.0"), 8),
    SetEntry("KUBE-LOAD-BALANCER-SOURCE-CIDR", addr("1.2.3.4"), Protocol.TCP, 80, addr("192.0.2.1"), 32),
    SetEntry("KUBE-6-LOAD-BALANCER-SOURCE-CID", addr("fd00::4"), Protocol.UDP, 80, addr("2001:db8::"), 33),
    SetEntry("KUBE-6-LOAD-BALANCER-SOURCE-CID", addr("fd00::4"), Protocol.UDP, 80, addr("2001:db8::1"), 128),
    SetEntry("KUBE-NODE-PORT-TCP", port=30000),
    SetEntry("KUBE-NODE-PORT-TCP", port=0),
]


@pytest.fixture
def ipsets(pick: Callable, fake_kernel: FakeKernel) -> IPSets:
    return pick(fake_kernel.kernel.ipsets, lambda: NetlinkIPSets(ENTRY_KIND_BY_NAME))


@pytest.fixture
def with_sets(ipsets: IPSets) -> IPSets:
    """With one set of each type and family there."""
    assert ipsets.apply(sets(Verb.ADD)) == [0] * len(SPECS)
    return ipsets


@pytest.fixture
def real(with_sets: IPSets, real_kernel: None) -> NetlinkIPSets:  # noqa: ARG001  # the fake has no ipset program
    assert isinstance(with_sets, NetlinkIPSets)
    return with_sets


def sets(verb: Verb, specs: dict[str, SetSpec] = SPECS) -> list[Operation]:
    return [Operation(verb, Kind.SET, name, spec) for name, spec in specs.items()]


def entries(verb: Verb, *members: SetEntry) -> list[Operation]:
    return [Operation(verb, ENTRY_KIND_BY_NAME[member.set_name], member) for member in members]


def read_entries(ipsets: IPSets) -> set:
    state = ipsets.read()
    return {entry for kind in ipsets.kinds - {Kind.SET} for entry in state.get(kind, {})}


def ipset(*words: str) -> str:
    return subprocess.run(["ipset", *words], check=True, capture_output=True, text=True).stdout


def test_nothing_there_reads_as_empty(ipsets):
    assert not any(ipsets.read().values())


def test_no_operations_have_no_answers(ipsets):
    assert ipsets.apply([]) == []


def test_sets_read_back_with_type_and_family(with_sets):
    assert with_sets.read()[Kind.SET] == SPECS


def test_creating_a_set_that_is_there_with_our_type_succeeds_and_keeps_its_entries(with_sets):
    with_sets.apply(entries(Verb.ADD, EXTERNAL))
    assert with_sets.apply(sets(Verb.ADD)) == [0] * len(SPECS)
    assert read_entries(with_sets) == {EXTERNAL}


def test_creating_a_set_that_is_there_with_another_type_answers_eexist(with_sets):
    other = {"KUBE-CLUSTER-IP": SetSpec("hash:ip", Family.IPV4)}
    assert with_sets.apply(sets(Verb.ADD, other)) == [errno.EEXIST]
    assert with_sets.read()[Kind.SET] == SPECS


def test_a_deleted_set_is_gone_with_its_entries(with_sets):
    with_sets.apply(entries(Verb.ADD, *ENTRIES))
    assert with_sets.apply(sets(Verb.DELETE)) == [0] * len(SPECS)
    assert not any(with_sets.read().values())


def test_deleting_a_set_that_is_not_there_answers_enoent(ipsets):
    assert ipsets.apply(sets(Verb.DELETE)) == [errno.ENOENT] * len(SPECS)


@pytest.mark.parametrize("entry", [pytest.param(entry, id=str(entry)) for entry in ENTRIES])
def test_an_added_entry_reads_back_under_its_kind_and_can_be_deleted(with_sets, entry):
    assert with_sets.apply(entries(Verb.ADD, entry)) == [0]
    assert with_sets.read()[ENTRY_KIND_BY_NAME[entry.set_name]] == {entry: True}
    assert with_sets.apply(entries(Verb.DELETE, entry)) == [0]
    assert read_entries(with_sets) == set()


def test_adding_what_is_there_and_deleting_what_is_not_both_succeed(with_sets):
    assert with_sets.apply(entries(Verb.DELETE, *ENTRIES)) == [0] * len(ENTRIES)
    assert with_sets.apply(entries(Verb.ADD, *ENTRIES, *ENTRIES)) == [0] * 2 * len(ENTRIES)
    assert read_entries(with_sets) == set(ENTRIES)


@pytest.mark.parametrize("verb", [Verb.ADD, Verb.DELETE])
def test_entries_of_a_set_that_is_not_there_answer_enoent_and_others_are_carried_out(with_sets, verb):
    missing = [SetEntry("KUBE-EXTERNAL-IP", addr("192.0.2.1"), Protocol.TCP, port) for port in (1, 2)]
    answers = with_sets.apply(entries(verb, *missing, EXTERNAL))
    assert answers == [errno.ENOENT, errno.ENOENT, 0]


def test_operations_on_the_same_entry_are_carried_out_in_order(with_sets):
    batch = entries(Verb.ADD, EXTERNAL) + entries(Verb.DELETE, EXTERNAL) + entries(Verb.ADD, EXTERNAL)
    assert with_sets.apply(batch) == [0, 0, 0]
    assert read_entries(with_sets) == {EXTERNAL}


@pytest.mark.parametrize("family", Family)
def test_more_entries_than_one_message_takes_are_all_there(with_sets, family):
    start = addr("10.96.0.0" if family is Family.IPV4 else "fd00::")[:-2]
    name = "KUBE-CLUSTER-IP" if family is Family.IPV4 else "KUBE-6-CLUSTER-IP"
    many = [SetEntry(name, start + number.to_bytes(2), Protocol.TCP, 80) for number in range(5000)]
    assert with_sets.apply(entries(Verb.ADD, *many)) == [0] * len(many)
    assert read_entries(with_sets) == set(many)
    assert with_sets.apply(entries(Verb.DELETE, *many[1:])) == [0] * (len(many) - 1)
    assert read_entries(with_sets) == {many[0]}


def test_editing_a_set_into_what_it_is_changes_nothing(with_sets):
    with_sets.apply(entries(Verb.ADD, *ENTRIES))
    assert with_sets.apply(sets(Verb.EDIT)) == [0] * len(SPECS)
    assert read_entries(with_sets) == set(ENTRIES)


def test_a_set_of_another_type_is_edited_into_ours_without_its_entries(ipsets):
    name = "KUBE-EXTERNAL-IP"
    assert ipsets.apply(sets(Verb.ADD, {name: SetSpec("hash:ip", Family.IPV4)})) == [0]
    assert ipsets.apply(sets(Verb.EDIT, {name: SetSpec("hash:ip,port", Family.IPV4)})) == [0]
    assert ipsets.read()[Kind.SET][name] == SetSpec("hash:ip,port", Family.IPV4)


# What only the real kernel has: refusals, and the ipset program to compare with.


def test_a_refused_entry_loses_only_itself(real):
    wrong = SetEntry("KUBE-CLUSTER-IP", addr("fd00::1"), Protocol.TCP, 80)  # an IPv6 address in a set of IPv4
    good = [SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.9"), Protocol.TCP, port) for port in range(1, 7)]
    answers = real.apply(entries(Verb.ADD, *good[:2], wrong, *good[2:4], wrong, *good[4:]))
    assert [number > IPSET_ERR_PRIVATE for number in answers] == [False, False, True, False, False, True, False, False]
    assert read_entries(real) == set(good)


def held_by_a_rule(name: str) -> None:
    rule = ["-A", "INPUT", "-m", "set", "--match-set", name, "dst,dst", "-j", "ACCEPT"]
    subprocess.run(["iptables-legacy", *rule], check=True)


def rules_of_input() -> str:
    return subprocess.run(["iptables-legacy", "-S", "INPUT"], check=True, capture_output=True, text=True).stdout


def remake(name: str, *options: str) -> None:
    """The set as another program has made it."""
    ipset("destroy", name)
    ipset("create", name, *options)


def test_k46_a_full_set_makes_room_by_a_swap_and_the_rules_that_hold_it_stay(real):
    remake("KUBE-CLUSTER-IP", "hash:ip,port", "maxelem", "2")
    held_by_a_rule("KUBE-CLUSTER-IP")
    members = [SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.9"), Protocol.TCP, port) for port in range(1, 6)]
    assert real.apply(entries(Verb.ADD, *members)) == [0] * 5
    assert read_entries(real) == set(members)
    assert "KUBE-CLUSTER-IP dst,dst" in rules_of_input()
    assert "maxelem 65536" in ipset("save", "KUBE-CLUSTER-IP")
    assert "-TMP" not in ipset("list", "-n")


def test_k46_more_entries_than_a_set_of_kube_proxys_size_holds_fit(real):
    many = [
        SetEntry("KUBE-CLUSTER-IP", addr(f"10.96.{n // 256}.{n % 256}"), Protocol.TCP, port)
        for n in range(1400)
        for port in range(1, 51)
    ]
    assert len(many) == 70_000
    assert set(real.apply(entries(Verb.ADD, *many))) == {0}
    assert len(read_entries(real)) == 70_000
    assert "maxelem 131072" in ipset("save", "KUBE-CLUSTER-IP")


def test_k46_a_set_with_comments_is_used_as_it_is(real):
    remake("KUBE-CLUSTER-IP", "hash:ip,port", "comment")
    ipset("add", "KUBE-CLUSTER-IP", "10.96.0.1,tcp:443", "comment", "kept")
    there = SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.1"), Protocol.TCP, 443)
    assert real.read()[Kind.SET] == SPECS
    assert read_entries(real) == {there}
    new = SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.2"), Protocol.TCP, 443)
    assert real.apply([*entries(Verb.ADD, new), *entries(Verb.DELETE, there)]) == [0, 0]
    assert read_entries(real) == {new}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["hash:net"], id="another type"),
        pytest.param(["hash:ip,port", "family", "inet6"], id="the other family"),
    ],
)
def test_k46_a_set_that_cannot_hold_our_entries_is_replaced(real, options):
    remake("KUBE-CLUSTER-IP", *options)
    assert real.apply(sets(Verb.EDIT, {"KUBE-CLUSTER-IP": SPECS["KUBE-CLUSTER-IP"]})) == [0]
    assert real.read()[Kind.SET] == SPECS


def test_k46_a_set_of_another_type_that_somebodys_rule_holds_is_reported_and_not_broken(real):
    remake("KUBE-CLUSTER-IP", "hash:ip,port,ip")
    held_by_a_rule("KUBE-CLUSTER-IP")
    assert real.apply(sets(Verb.EDIT, {"KUBE-CLUSTER-IP": SPECS["KUBE-CLUSTER-IP"]})) == [IPSET_ERR_BUSY]
    assert real.read()[Kind.SET]["KUBE-CLUSTER-IP"] == SetSpec("hash:ip,port,ip", Family.IPV4)
    assert "KUBE-CLUSTER-IP dst,dst" in rules_of_input()


def test_a_set_that_a_rule_names_cannot_be_deleted(real):
    rule = ["-A", "INPUT", "-m", "set", "--match-set", "KUBE-IPVS-IPS", "dst", "-j", "ACCEPT"]
    subprocess.run(["iptables-legacy", *rule], check=True)
    assert real.apply(sets(Verb.DELETE, {"KUBE-IPVS-IPS": SPECS["KUBE-IPVS-IPS"]})) == [IPSET_ERR_BUSY]


def test_ipset_save_shows_our_sets_and_members(real):
    real.apply(entries(Verb.ADD, *ENTRIES))
    wanted = [f"create {name} {spec.create_options}" for name, spec in SPECS.items()]
    wanted += [f"add {entry.set_name} {entry.member}" for entry in ENTRIES]
    assert sorted(ipset("save").splitlines()) == sorted(wanted)


def test_the_ipset_program_accepts_our_sets_as_its_own(real):
    """kube-proxy creates each set again before it uses it."""
    for name, spec in SPECS.items():
        ipset("create", "-exist", name, *spec.create_options.split())
    assert real.read()[Kind.SET] == SPECS


def test_a_set_of_another_type_reads_as_it_is_and_keeps_foreign_entries_to_itself(real):
    ipset("destroy", "KUBE-CLUSTER-IP")
    ipset("create", "KUBE-CLUSTER-IP", "hash:net")
    ipset("add", "KUBE-CLUSTER-IP", "10.0.0.0/8")
    assert real.read()[Kind.SET]["KUBE-CLUSTER-IP"] == SetSpec("hash:net", Family.IPV4)
    assert read_entries(real) == set()


def test_a_set_of_the_other_family_reads_as_it_is(real):
    """The kernel answers 0 to creating it again with our family, so only reading tells."""
    ipset("destroy", "KUBE-CLUSTER-IP")
    ipset("create", "KUBE-CLUSTER-IP", "hash:ip,port", "family", "inet6")
    assert real.apply(sets(Verb.ADD, {"KUBE-CLUSTER-IP": SPECS["KUBE-CLUSTER-IP"]})) == [0]
    assert real.read()[Kind.SET]["KUBE-CLUSTER-IP"] == SetSpec("hash:ip,port", Family.IPV6)


@pytest.mark.parametrize(
    "member,entry",
    [
        pytest.param("10.96.0.20,icmp:8/0", SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.20"), 1, 0x0800), id="icmp"),
        pytest.param("10.96.0.20,udplite:53", SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.20"), 136, 53), id="udplite"),
    ],
)
def test_an_entry_of_a_protocol_that_no_service_has_is_read_and_can_be_deleted(real, member, entry):
    ipset("add", "KUBE-CLUSTER-IP", member)
    assert read_entries(real) == {entry}
    assert entry.member
    assert real.apply(entries(Verb.DELETE, entry)) == [0]
    assert read_entries(real) == set()


FOREIGN_SETS = {
    "hash:ip": (["hash:ip"], "10.96.0.20"),
    "hash:ip of the other family": (["hash:ip", "family", "inet6"], "fd00::20"),
    "hash:ip,port of the other family": (["hash:ip,port", "family", "inet6"], "fd00::20,tcp:80"),
    "hash:ip,port,net": (["hash:ip,port,net"], "10.96.0.20,icmp:8/0,10.0.0.0/8"),
    "bitmap:port": (["bitmap:port", "range", "0-1023"], "80"),
    "bitmap:ip,mac": (["bitmap:ip,mac", "range", "10.96.0.0/24"], "10.96.0.20,02:00:00:00:00:01"),
    "list:set": (["list:set"], "KUBE-IPVS-IPS"),
    "time-outs and counters": (["hash:ip,port", "timeout", "600", "counters"], "10.96.0.20,tcp:80"),
    "a comment that is no text": (["hash:ip,port", "comment"], "10.96.0.20,udp:53"),
}


@pytest.mark.parametrize("name", FOREIGN_SETS)
def test_a_set_of_our_name_that_others_have_made_is_read_and_edited_into_ours(real, name):
    options, member = FOREIGN_SETS[name]
    remake("KUBE-CLUSTER-IP", *options)
    comment = [b"comment", b"caf\xe9"] if "comment" in options else []
    subprocess.run(["ipset", "add", "KUBE-CLUSTER-IP", member, *comment], check=True)
    assert real.fingerprint()
    found = read_entries(real)
    assert all(entry.member for entry in found)
    assert real.apply(sets(Verb.EDIT, {"KUBE-CLUSTER-IP": SPECS["KUBE-CLUSTER-IP"]})) == [0]
    assert real.read()[Kind.SET] == SPECS
    assert real.apply(entries(Verb.DELETE, *found)) == [0] * len(found)
    assert read_entries(real) == set()


@pytest.mark.parametrize("is_used", [False, True])
def test_a_copy_that_a_killed_run_has_left_goes_with_its_set(real, is_used):
    ipset("create", "KUBE-CLUSTER-IP-TMP", "hash:ip,port", "maxelem", "7")
    if is_used:
        held_by_a_rule("KUBE-CLUSTER-IP-TMP")
    assert real.apply(sets(Verb.DELETE, {"KUBE-CLUSTER-IP": SPECS["KUBE-CLUSTER-IP"]})) == [0]
    assert ("KUBE-CLUSTER-IP-TMP" in ipset("list", "-n")) is is_used
    assert "KUBE-CLUSTER-IP\n" not in ipset("list", "-n")


def test_a_full_set_of_a_type_that_is_not_ours_is_left_as_it_is(real):
    remake("KUBE-CLUSTER-IP", "hash:net", "maxelem", "1")
    ipset("add", "KUBE-CLUSTER-IP", "10.0.0.0/8")
    (number,) = real.apply(entries(Verb.ADD, EXTERNAL))
    assert number
    assert "10.0.0.0/8" in ipset("save", "KUBE-CLUSTER-IP")


def test_sets_that_are_not_ours_are_not_read(real):
    ipset("create", "cali40all", "hash:ip")
    ipset("add", "cali40all", "192.0.2.1")
    assert real.read()[Kind.SET] == SPECS
    assert read_entries(real) == set()


def test_a_type_that_the_kernel_lacks_answers_its_number_and_others_are_created(real):
    unknown = {"KUBE-X": SetSpec("hash:nothing", Family.IPV4), "KUBE-EXTERNAL-IP": SetSpec("hash:ip,port", Family.IPV4)}
    assert real.apply(sets(Verb.ADD, unknown)) == [4098, 0]  # IPSET_ERR_FIND_TYPE
