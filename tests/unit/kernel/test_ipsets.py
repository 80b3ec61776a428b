"""The bytes of ipset messages, and how refused ones are sent again, against a socket that a test wrote."""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass, field

import pytest
import structlog
from pyroute2.ipset import AsyncIPSet, PortEntry
from pyroute2.netlink.nfnetlink.ipset import ipset_msg

from ipvsproxy.errors import Unsupported
from ipvsproxy.kernel.ipset_codec import encode_create, encode_entry, named
from ipvsproxy.kernel.ipsets import IPSET_ERR_HASH_FULL, IPSET_ERR_PROTOCOL, NetlinkIPSets
from ipvsproxy.kernel.netlink import (
    HEADER,
    NETLINK_NETFILTER,
    NLM_F_ACK,
    NLM_F_EXCL,
    NLMSG_ERROR,
    NetlinkSocket,
    split_messages,
)
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import Kind, Operation, SetEntry, SetSpec, Verb
from tests.builders import addr
from tests.unit.kernel.scripted_socket import ScriptedSocket as ScriptedKernel
from tests.unit.kernel.scripted_socket import Sent, broken, done, error, message, obey
from tests.unit.kernel.test_ipset_codec import listing

ADD, DEL, CREATE, DESTROY, TYPE, LIST, SWAP = (6 << 8 | command for command in (9, 10, 2, 3, 13, 7, 6))
REFUSED = 4109  # IPSET_ERR_IPADDR_IPV4
NFGENMSG_BYTES = 4


@dataclass
class ScriptedSocket:
    """Answers as the kernel does: a refused message, and one that asks for an acknowledgement. Notes what was sent."""

    refuse: dict[bytes, int] = field(default_factory=dict)  # number for messages that contain these bytes
    sent: list[tuple[int, int, bytes]] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)

    def send(self, data: bytearray) -> int:
        for message_type, flags, sequence, body in split_messages(bytes(data)):
            self.sent.append((message_type, flags, body))
            if message_type == TYPE:
                payload = bytes(NFGENMSG_BYTES) + struct.pack("=HHB3xHHB3x", 5, 4, 7, 5, 10, 0)
                self.answers.append(HEADER.pack(HEADER.size + len(payload), TYPE, 0, sequence, 0) + payload)
                continue
            number = next((number for part, number in self.refuse.items() if part in body), 0)
            if number or flags & NLM_F_ACK:
                self.answers.append(
                    HEADER.pack(HEADER.size + 4, NLMSG_ERROR, 0, sequence, 0) + struct.pack("=i", -number)
                )
        return len(data)

    def recv_into(self, buffer: bytearray) -> int:
        answer = self.answers.pop(0)
        buffer[: len(answer)] = answer
        return len(answer)

    def close(self) -> None:
        pass


@pytest.fixture
def scripted() -> ScriptedSocket:
    return ScriptedSocket()


@pytest.fixture
def ipsets(scripted: ScriptedSocket) -> NetlinkIPSets:
    return NetlinkIPSets({}, NetlinkSocket(NETLINK_NETFILTER, "the ipsets", lambda _: scripted))


def vip_entries(verb: Verb, *ports: int, name: str = "KUBE-CLUSTER-IP") -> list[Operation]:
    entries = [SetEntry(name, addr("10.96.0.1"), Protocol.TCP, port) for port in ports]
    return [Operation(verb, Kind.ACCEPT_ENTRY, entry) for entry in entries]


TCP_80 = PortEntry(80, protocol=socket.IPPROTO_TCP)


@pytest.mark.parametrize(
    "entry,members,type_name",
    [
        pytest.param(SetEntry("S", addr("10.96.0.1")), "10.96.0.1", "ip", id="hash:ip, IPv4"),
        pytest.param(SetEntry("S", addr("fd00::1")), "fd00::1", "ip", id="hash:ip, IPv6"),
        pytest.param(
            SetEntry("S", addr("10.96.0.1"), 6, 80), ("10.96.0.1", TCP_80), "ip,port", id="hash:ip,port, IPv4"
        ),
        pytest.param(SetEntry("S", addr("fd00::1"), 6, 80), ("fd00::1", TCP_80), "ip,port", id="hash:ip,port, IPv6"),
        pytest.param(
            SetEntry("S", addr("10.244.0.5"), 6, 80, addr("10.244.0.6")),
            ("10.244.0.5", TCP_80, "10.244.0.6"),
            "ip,port,ip",
            id="hash:ip,port,ip, IPv4",
        ),
        pytest.param(
            SetEntry("S", addr("fd01::5"), 6, 80, addr("fd01::6")),
            ("fd01::5", TCP_80, "fd01::6"),
            "ip,port,ip",
            id="hash:ip,port,ip, IPv6",
        ),
        pytest.param(
            SetEntry("S", addr("1.2.3.4"), 6, 80, addr("10.0.0.0"), 8),
            ("1.2.3.4", TCP_80, "10.0.0.0/8"),
            "ip,port,net",
            id="hash:ip,port,net, IPv4",
        ),
        pytest.param(
            SetEntry("S", addr("fd00::4"), 6, 80, addr("2001:db8::"), 33),
            ("fd00::4", TCP_80, "2001:db8::/33"),
            "ip,port,net",
            id="hash:ip,port,net, IPv6",
        ),
        pytest.param(SetEntry("S", port=30000), 30000, "port", id="bitmap:port"),
    ],
)
def test_an_entry_has_the_bytes_that_pyroute2_gives_it(entry, members, type_name):
    packer = AsyncIPSet.__new__(AsyncIPSet)  # its method needs no socket
    version = "IPSET_ATTR_IPADDR_IPV6" if len(entry.address) == 16 else "IPSET_ATTR_IPADDR_IPV4"
    message = ipset_msg()
    message["header"]["type"] = ADD
    message["attrs"] = [["IPSET_ATTR_DATA", {"attrs": packer._entry_to_data_attrs(members, type_name, version)}]]
    message.encode()
    assert encode_entry(entry) == bytes(message.data[HEADER.size + NFGENMSG_BYTES :])


def test_every_create_message_names_type_revision_and_family():
    body = encode_create("KUBE-X", SetSpec("hash:ip", Family.IPV6), 3)
    assert b"KUBE-X\0" in body
    assert b"hash:ip\0" in body
    assert struct.pack("=HHB3xHHB3x", 5, 4, 3, 5, 5, 10) in body


def test_entries_of_one_set_and_verb_share_a_message(ipsets, scripted):
    assert ipsets.apply(vip_entries(Verb.ADD, *range(1, 801))) == [0] * 800
    assert [message_type for message_type, _, _ in scripted.sent] == [ADD]


def test_more_than_a_message_takes_are_sent_in_one_go_all_the_same(ipsets, scripted):
    assert ipsets.apply(vip_entries(Verb.ADD, *range(1, 2002))) == [0] * 2001
    assert [message_type for message_type, _, _ in scripted.sent] == [ADD, ADD, ADD]
    assert ipsets.netlink.counters.system_calls == 2


def test_sets_and_verbs_keep_their_order(ipsets, scripted):
    batch = vip_entries(Verb.ADD, 1, 2) + vip_entries(Verb.ADD, 3, name="KUBE-B") + vip_entries(Verb.DELETE, 1, 2)
    assert ipsets.apply(batch) == [0] * 5
    assert [message_type for message_type, _, _ in scripted.sent] == [ADD, ADD, DEL]


def test_a_refused_message_is_sent_again_entry_by_entry(ipsets, scripted):
    batch = vip_entries(Verb.ADD, 1, 2, 3, 4)
    scripted.refuse = {encode_entry(batch[2].key): REFUSED}
    assert ipsets.apply(batch) == [0, 0, REFUSED, 0]
    assert len(scripted.sent) == 5


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EPERM, errno.ENOBUFS])
def test_what_concerns_all_entries_is_not_asked_again(ipsets, scripted, number):
    scripted.refuse = {b"KUBE-CLUSTER-IP": number}
    assert ipsets.apply(vip_entries(Verb.ADD, 1, 2, 3)) == [number] * 3
    assert len(scripted.sent) == 1


@pytest.mark.parametrize(
    "type_name,family,revision",
    [
        pytest.param("hash:ip", Family.IPV4, 0, id="without protocols the first"),
        pytest.param("hash:ip,port", Family.IPV6, 1, id="with protocols the first that knows SCTP"),
        pytest.param("bitmap:port", None, 0, id="ports"),
    ],
)
def test_a_set_is_created_with_the_lowest_revision_that_holds_our_entries(
    ipsets, scripted, type_name, family, revision
):
    spec = SetSpec(type_name, family)
    assert ipsets.apply([Operation(Verb.ADD, Kind.SET, name, spec) for name in ("KUBE-A", "KUBE-B")]) == [0, 0]
    assert [message_type for message_type, _, _ in scripted.sent] == [TYPE, CREATE, CREATE]
    assert [body for _, _, body in scripted.sent[1:]] == [encode_create(f"KUBE-{x}", spec, revision) for x in "AB"]


def test_deleting_a_set_asks_to_be_told_that_it_is_missing(ipsets, scripted):
    scripted.refuse = {b"KUBE-A\0": errno.ENOENT}
    assert ipsets.apply([Operation(Verb.DELETE, Kind.SET, "KUBE-A")]) == [errno.ENOENT]
    message_type, flags, _ = scripted.sent[-1]
    assert message_type == DESTROY
    assert flags & NLM_F_EXCL


@pytest.mark.parametrize("there", [0, errno.ENOENT])
def test_deleting_a_set_takes_the_copy_along_that_a_killed_run_has_left(ipsets, scripted, there):
    scripted.refuse = {b"KUBE-A-TMP\0": there}
    assert ipsets.apply([Operation(Verb.DELETE, Kind.SET, "KUBE-A")]) == [0]
    assert [body for message_type, _, body in scripted.sent if message_type == DESTROY] == [
        named("KUBE-A-TMP"),
        named("KUBE-A"),
    ]


@pytest.mark.parametrize("verb,number", [(Verb.DELETE, 0), (Verb.ADD, IPSET_ERR_PROTOCOL)])
def test_an_entry_of_another_form_than_its_sets_is_not_in_it(ipsets, scripted, verb, number):
    """What stood in a set of another type went with it, and its deletion may follow."""
    bare = Operation(verb, Kind.ACCEPT_ENTRY, SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.1")))
    scripted.refuse = {encode_entry(bare.key): IPSET_ERR_PROTOCOL}
    assert ipsets.apply([bare, *vip_entries(verb, 1)]) == [number, 0]


# Where a set must be listed before something can be done about it


class FullSet:
    """A kernel whose set is full, and whose listing of it is what the test says: bodies, or an errno."""

    def __init__(self, listed: list[bytes] | int, grows: bool = False) -> None:  # noqa: FBT001, FBT002
        self.listed = listed
        self.is_full = True
        self.commands: list[int] = []
        self._grows = grows

    def __call__(self, batch: list[Sent]) -> list[bytes | OSError]:
        self.commands += [sent.message_type for sent in batch]
        if batch[0].message_type == LIST:
            if isinstance(self.listed, int):
                lost = self.listed in {errno.ETIMEDOUT, errno.ENOBUFS}
                return [broken(self.listed) if lost else error(batch[0], self.listed)]
            return [message(LIST, batch[0].sequence, body) for body in self.listed] + [done(batch[0])]
        if batch[0].message_type == TYPE:
            body = bytes(NFGENMSG_BYTES) + struct.pack("=HHB3xHHB3x", 5, 4, 7, 5, 10, 0)
            return [message(TYPE, batch[0].sequence, body)]
        if batch[0].message_type == SWAP and self._grows:
            self.is_full = False
        if batch[0].message_type == ADD and self.is_full and b"-TMP" not in batch[0].body:
            return [error(sent, IPSET_ERR_HASH_FULL) for sent in batch]
        return obey(batch)

    def apply(self, *batches: list[Operation]) -> list[list[int]]:
        ipsets = NetlinkIPSets({}, NetlinkSocket(NETLINK_NETFILTER, "the ipsets", lambda _: ScriptedKernel(self)))
        return [ipsets.apply(batch) for batch in batches]


LISTED = [listing(b"hash:ip,port", Family.IPV4)]


@pytest.mark.parametrize(
    "listed,number",
    [
        pytest.param(errno.ETIMEDOUT, errno.ETIMEDOUT, id="the answer is lost"),
        pytest.param(errno.ENOBUFS, errno.ENOBUFS, id="the queue overflows"),
        pytest.param(errno.EINTR, IPSET_ERR_HASH_FULL, id="it changes while it is read"),
        pytest.param(errno.ENOENT, errno.ENOENT, id="it is gone meanwhile"),
        pytest.param([], errno.ENOENT, id="it is gone and the listing empty"),
        pytest.param([listing(b"hash:net", 2)], IPSET_ERR_HASH_FULL, id="it is of a type that is not ours"),
        pytest.param([b""], IPSET_ERR_HASH_FULL, id="its listing is empty bytes"),
        pytest.param(LISTED, IPSET_ERR_HASH_FULL, id="it stays full after it has grown"),
    ],
)
def test_a_full_set_that_cannot_grow_answers_a_number_for_each_entry(listed, number):
    kernel = FullSet(listed)
    entries = vip_entries(Verb.ADD, 1, 2)
    assert kernel.apply(entries) == [[number] * 2]
    assert (SWAP in kernel.commands) is (listed is LISTED)


def test_a_full_set_that_grows_takes_its_entries():
    assert FullSet(LISTED, grows=True).apply(vip_entries(Verb.ADD, 1, 2)) == [[0, 0]]


def test_a_set_that_cannot_grow_warns_once_and_not_at_each_retry():
    with structlog.testing.capture_logs() as logs:
        FullSet(errno.EINTR).apply(*[vip_entries(Verb.ADD, 1)] * 3)
    told = [(entry["log_level"], entry["set"]) for entry in logs if entry["event"] == "set_not_grown"]
    assert told == [("warning", "KUBE-CLUSTER-IP"), *[("debug", "KUBE-CLUSTER-IP")] * 2]


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.ENOBUFS, errno.EPERM])
def test_a_set_that_cannot_be_listed_is_not_replaced_and_answers_so(number):
    kernel = FullSet(number)
    edit = Operation(Verb.EDIT, Kind.SET, "KUBE-A", SetSpec("hash:ip", Family.IPV4))
    assert kernel.apply([edit]) == [[number]]
    assert DESTROY not in kernel.commands


def test_a_kernel_that_tells_no_revision_refuses_the_set():
    def respond(batch: list[Sent]) -> list[bytes]:
        return [message(TYPE, sent.sequence, bytes(NFGENMSG_BYTES)) for sent in batch]

    ipsets = NetlinkIPSets({}, NetlinkSocket(NETLINK_NETFILTER, "the ipsets", lambda _: ScriptedKernel(respond)))
    assert ipsets.apply([Operation(Verb.ADD, Kind.SET, "KUBE-A", SetSpec("hash:ip", Family.IPV4))]) == [errno.EBADMSG]


@pytest.mark.parametrize(
    "number, advice",
    [
        pytest.param(errno.EINVAL, "Load the module ip_set", id="no ipsets"),
        pytest.param(errno.EPERM, "Run as root, or with the capability NET_ADMIN", id="no permission"),
    ],
)
@pytest.mark.parametrize("ask", [NetlinkIPSets.read, NetlinkIPSets.fingerprint])
def test_k45_a_machine_that_has_no_ipsets_is_told_what_to_do(ask, number, advice):
    def respond(batch: list[Sent]) -> list[bytes]:
        return [error(sent, number) for sent in batch]

    netlink = NetlinkSocket(NETLINK_NETFILTER, "the ipsets", lambda _: ScriptedKernel(respond))
    with pytest.raises(Unsupported, match=advice) as refused:
        ask(NetlinkIPSets({"KUBE-CLUSTER-IP": Kind.ACCEPT_ENTRY}, netlink))
    assert refused.value.number == number
