"""The bytes of ipset messages, and how refused ones are sent again, against a socket that a test wrote."""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass, field

import pytest
from pyroute2.ipset import AsyncIPSet, PortEntry
from pyroute2.netlink.nfnetlink.ipset import ipset_msg

from ipvsproxy.kernel.ipset_codec import encode_create, encode_entry
from ipvsproxy.kernel.ipsets import NetlinkIPSets
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

ADD, DEL, CREATE, DESTROY, TYPE = (6 << 8 | command for command in (9, 10, 2, 3, 13))
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
    ipsets.apply([Operation(Verb.DELETE, Kind.SET, "KUBE-A")])
    ((message_type, flags, _),) = scripted.sent
    assert message_type == DESTROY
    assert flags & NLM_F_EXCL
