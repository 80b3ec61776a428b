"""IPVS messages against gnlpy's bytes, and answers against recorded ones of a real kernel."""

from __future__ import annotations

import errno
import json
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from gnlpy.netlink import serialize_message
from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.errors import KernelError, Unsupported
from ipvsproxy.kernel import ipvs_decode
from ipvsproxy.kernel.gnlpy_compat import IpvsCmdAttrList, IpvsDestAttrList, IpvsMessage, IpvsServiceAttrList
from ipvsproxy.kernel.ipvs import NetlinkIpvs
from ipvsproxy.kernel.ipvs_encode import encode, encode_dest_dump
from ipvsproxy.kernel.netlink import HEADER, NETLINK_GENERIC, NLM_F_DUMP, NetlinkSocket
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Family, ForwardingMethod, Protocol, VirtualServerFlags
from ipvsproxy.model.kernel_objects import Kind, Operation, RealServer, Verb, VirtualServer, VirtualServerKey
from tests.builders import blob, vs_key
from tests.unit.kernel.scripted_socket import ScriptedSocket, Sent, done, error, message, obey
from tests.unit.status.ipvs_states import observed_table

DATA = Path(__file__).parents[2] / "data" / "ipvsadm"
RECORDED = sorted(path.name.split(".")[0] for path in DATA.glob("*.netlink-raw.json"))
CONTROLLER = 16
IPVS_FAMILY = 35
NEWFAMILY = bytes.fromhex("01020000060001002300 000008000400 000000000c000600 deadbeefdeadbeef")
GET_SERVICE, GET_DEST, GET_INFO = 4, 8, 15
INFO = bytes.fromhex("01000000 0800010001020100 0800020000100000")
WEB = vs_key("10.96.0.20", 80)


# What is sent

schedulers = st.sampled_from(["rr", "wrr", "lblcr", "mh"])
ports = st.integers(0, 65535)
sizes = st.sampled_from([4, 16])


@st.composite
def virtual_servers(draw: st.DrawFn) -> tuple[VirtualServerKey, VirtualServer]:
    size = draw(sizes)
    address = PackedAddr(draw(st.binary(min_size=size, max_size=size)))
    key = VirtualServerKey(draw(st.sampled_from(Protocol)), address, draw(ports))
    flags = VirtualServerFlags(draw(st.integers(0, 0x3F)))
    return key, VirtualServer(draw(schedulers), flags, draw(st.integers(0, 2**32 - 1)))


@st.composite
def real_servers_of(draw: st.DrawFn, size: int) -> RealServer:
    address = PackedAddr(draw(st.binary(min_size=size, max_size=size)))
    return RealServer(address, draw(ports), draw(ports), draw(st.sampled_from(ForwardingMethod)))


def by_gnlpy(command: str, **attributes: object) -> bytes:
    """What gnlpy sends, without the netlink header."""
    packed = IpvsMessage(command, IpvsCmdAttrList(**attributes))
    packed.__class__.family = IPVS_FAMILY
    return bytes(serialize_message(packed, 0, 0))[HEADER.size :]


def identity(key: VirtualServerKey) -> dict[str, object]:
    family = Family.IPV4 if len(key.address) == 4 else Family.IPV6
    return {"af": family, "protocol": key.protocol, "addr": key.address, "port": key.port}


@given(virtual_servers(), st.sampled_from([(Verb.ADD, "new_service"), (Verb.EDIT, "set_service")]))
def test_setting_a_virtual_server_sends_gnlpys_bytes(virtual_server, verb_and_command):
    (key, settings), (verb, command) = virtual_server, verb_and_command
    service = IpvsServiceAttrList(
        **identity(key),
        sched_name=settings.scheduler,
        flags=struct.pack("=II", settings.flags, 0xFFFFFFFF),
        timeout=settings.persistence_s,
        netmask=0xFFFFFFFF if len(key.address) == 4 else 128,
    )
    assert encode([Operation(verb, Kind.VIRTUAL_SERVER, key, settings)]) == [by_gnlpy(command, service=service)]


@given(virtual_servers())
def test_deleting_a_virtual_server_sends_gnlpys_bytes(virtual_server):
    key, settings = virtual_server
    wanted = by_gnlpy("del_service", service=IpvsServiceAttrList(**identity(key)))
    assert encode([Operation(Verb.DELETE, Kind.VIRTUAL_SERVER, key, settings)]) == [wanted]


@given(st.data(), virtual_servers(), st.sampled_from([(Verb.ADD, "new_dest"), (Verb.EDIT, "set_dest")]))
def test_setting_a_real_server_sends_gnlpys_bytes(data, virtual_server, verb_and_command):
    (key, _), (verb, command) = virtual_server, verb_and_command
    server = data.draw(real_servers_of(len(key.address)))
    dest = IpvsDestAttrList(
        addr=server.address, port=server.port, fwd_method=server.method, weight=server.weight, u_thresh=0, l_thresh=0
    )
    wanted = by_gnlpy(command, service=IpvsServiceAttrList(**identity(key)), dest=dest)
    assert encode([Operation(verb, Kind.REAL_SERVER, key, real_servers.pack(server))]) == [wanted]


@given(st.data(), virtual_servers())
def test_deleting_a_real_server_sends_gnlpys_bytes(data, virtual_server):
    key, _ = virtual_server
    server = data.draw(real_servers_of(len(key.address)))
    dest = IpvsDestAttrList(addr=server.address, port=server.port)
    wanted = by_gnlpy("del_dest", service=IpvsServiceAttrList(**identity(key)), dest=dest)
    assert encode([Operation(Verb.DELETE, Kind.REAL_SERVER, key, real_servers.pack(server))]) == [wanted]


@given(st.data(), st.lists(virtual_servers(), min_size=1, max_size=3))
def test_a_batch_is_the_messages_of_its_operations_in_their_order(data, virtual_servers):
    operations = []
    for key, settings in virtual_servers:
        servers = data.draw(st.lists(real_servers_of(len(key.address)), max_size=3))
        operations.append(Operation(Verb.ADD, Kind.VIRTUAL_SERVER, key, settings))
        operations += [Operation(Verb.ADD, Kind.REAL_SERVER, key, real_servers.pack(server)) for server in servers]
        operations += [Operation(Verb.DELETE, Kind.REAL_SERVER, key, real_servers.pack(server)) for server in servers]
    mixed = data.draw(st.permutations(operations))
    assert encode(mixed) == [body for operation in mixed for body in encode([operation])]


@given(virtual_servers())
def test_asking_for_real_servers_sends_gnlpys_bytes(virtual_server):
    key, _ = virtual_server
    family = Family.IPV4 if len(key.address) == 4 else Family.IPV6
    wanted = by_gnlpy("get_dest", service=IpvsServiceAttrList(**identity(key)))
    assert encode_dest_dump(family, key.protocol, key.address, key.port, 0) == wanted


def test_asking_for_real_servers_of_a_firewall_mark_names_the_mark_only():
    wanted = by_gnlpy("get_dest", service=IpvsServiceAttrList(af=Family.IPV6, fwmark=7))
    assert encode_dest_dump(Family.IPV6, 0, PackedAddr(bytes(16)), 0, 7) == wanted


# What is read


class RecordedKernel:
    """Answers as the kernel of a recording did: the family, the info, the services, and each service's real servers."""

    def __init__(self, recording: dict) -> None:
        self._info = bytes.fromhex(recording["info"])
        self._services = [bytes.fromhex(entry["service"]) for entry in recording["services"]]
        self._dests = [[bytes.fromhex(dest) for dest in entry["dests"]] for entry in recording["services"]]
        self._asked = 0

    def __call__(self, batch: list[Sent]) -> Iterable[bytes]:
        (sent,) = batch
        if sent.message_type == CONTROLLER:
            return [message(CONTROLLER, sent.sequence, NEWFAMILY)]
        assert sent.message_type == IPVS_FAMILY
        if sent.body[0] == GET_INFO:
            return [message(IPVS_FAMILY, sent.sequence, bytes(4) + self._info)]
        if sent.body[0] == GET_SERVICE:
            return self._dump(sent, self._services)
        assert sent.body[0] == GET_DEST
        self._asked += 1
        return self._dump(sent, self._dests[self._asked - 1])

    @staticmethod
    def _dump(sent: Sent, bodies: list[bytes]) -> list[bytes]:
        return [b"".join(message(IPVS_FAMILY, sent.sequence, bytes(4) + body) for body in bodies) + done(sent)]


def ipvs_of(kernel: object, load: Callable[[Sequence[str]], list[str]] = list) -> NetlinkIpvs:
    """`load` stands for modprobe; as a rule no module is to be had."""
    return NetlinkIpvs(NetlinkSocket(NETLINK_GENERIC, "IPVS", lambda _: ScriptedSocket(kernel)), load)


def recording(name: str) -> dict:
    return json.loads((DATA / f"{name}.netlink-raw.json").read_text())


def state(name: str) -> dict:
    return json.loads((DATA / f"{name}.state.json").read_text())


@pytest.mark.parametrize("name", RECORDED)
def test_a_dump_of_recorded_answers_is_what_was_recorded(name):
    assert ipvs_of(RecordedKernel(recording(name))).dump() == observed_table(state(name))


@pytest.mark.parametrize("name", RECORDED)
def test_each_answer_reads_the_same_whatever_was_read_before(name):
    """Shapes alternate: what was learned from one message is not taken for another one's layout."""
    services = [bytes(4) + bytes.fromhex(entry["service"]) for entry in recording(name)["services"]]
    once = [ipvs_decode.decode_service(body) for body in services]
    assert [ipvs_decode.decode_service(body) for body in reversed(services)] == once[::-1]


@pytest.mark.parametrize("name", RECORDED)
def test_connections_are_the_active_and_the_inactive_ones_of_what_a_dump_tells(name):
    for entry in recording(name)["services"]:
        family = ipvs_decode.decode_service(bytes(4) + bytes.fromhex(entry["service"])).family
        for body in (bytes(4) + bytes.fromhex(dest) for dest in entry["dests"]):
            server = ipvs_decode.decode_dest(body, family)
            found = ipvs_decode.decode_connections(body, family)
            if len(server.address) * 8 == family.host_prefix_len:
                assert found == (server.address + server.port.to_bytes(2), server.active + server.inactive)
            else:
                assert found is None


def test_the_recordings_have_real_servers_with_connections_of_both_kinds():
    found = [
        ipvs_decode.decode_dest(bytes(4) + bytes.fromhex(dest), Family.IPV4)
        for name in RECORDED
        for entry in recording(name)["services"]
        for dest in entry["dests"]
    ]
    assert any(server.active for server in found)
    assert any(server.inactive for server in found)


def test_attributes_of_a_newer_kernel_are_passed_over():
    body = bytes(4) + bytes.fromhex(recording("kube-basic")["services"][0]["service"])
    unknown = b"\x08\x00\x63\x00new!"
    length = int.from_bytes(body[4:6], sys.byteorder) + 2 * len(unknown)
    inside = body[:4] + length.to_bytes(2, sys.byteorder) + body[6:8] + unknown + body[8:] + unknown
    assert ipvs_decode.decode_service(inside + unknown) == ipvs_decode.decode_service(body)


def test_a_read_has_virtual_servers_and_packed_real_servers_under_our_keys():
    kernel = ipvs_of(RecordedKernel(recording("dual"))).read()
    assert kernel[Kind.VIRTUAL_SERVER] == dict.fromkeys(kernel[Kind.REAL_SERVER], VirtualServer("rr"))
    assert kernel[Kind.REAL_SERVER] == {
        vs_key("10.96.3.4", 80): blob(("10.244.1.5", 8080)),
        vs_key("10.96.3.4", 80, Protocol.UDP): blob(("10.244.1.6", 80)),
        vs_key("10.96.3.5", 2905, Protocol.SCTP): blob(("10.244.1.9", 2905)),
        vs_key("fd00:96::10", 80): blob(("fd00:244::5", 8080), ("fd00:244:0:1::6", 8080)),
        vs_key("fd00:96::a", 53, Protocol.UDP): blob(("fd00:244::2", 53)),
        vs_key("fd00:96::2905", 2905, Protocol.SCTP): blob(("fd00:244::9", 2905)),
    }


def test_a_read_leaves_firewall_mark_services_out():
    kernel = ipvs_of(RecordedKernel(recording("fwmark"))).read()
    assert kernel == {
        Kind.VIRTUAL_SERVER: {vs_key("10.0.0.1", 80): VirtualServer("rr")},
        Kind.REAL_SERVER: {vs_key("10.0.0.1", 80): b""},
    }


def test_a_read_tells_persistence_without_the_kernels_own_flag():
    found = ipvs_of(RecordedKernel(recording("persist"))).read()[Kind.VIRTUAL_SERVER]
    assert found[vs_key("10.0.0.2", 80)] == VirtualServer("rr", VirtualServerFlags.PERSISTENT, 10800)


def test_a_read_keeps_the_forwarding_method_and_leaves_out_real_servers_of_the_other_family():
    blob_of = ipvs_of(RecordedKernel(recording("forward"))).read()[Kind.REAL_SERVER][vs_key("10.0.0.1", 80)]
    assert isinstance(blob_of, bytes)
    servers = [real_servers.unpack(record) for record in real_servers.split(blob_of, 4)]
    method = ForwardingMethod
    assert [server.method for server in servers] == [method.MASQ, method.ROUTE, *[method.TUNNEL] * 5, method.ROUTE]


PROTOCOL_ATTRIBUTE = 2


def of_protocol(body: bytes, number: int) -> bytes:
    """The recorded TCP service as one of another protocol, which the kernel takes from anybody."""
    return body.replace(*(struct.pack("=HHH", 6, PROTOCOL_ATTRIBUTE, value) for value in (Protocol.TCP, number)), 1)


def test_a_read_leaves_virtual_servers_of_other_protocols_out_which_a_dump_has():
    odd = recording("kube-basic")
    entry = odd["services"][0]
    entry["service"] = of_protocol(bytes.fromhex(entry["service"]), 50).hex()
    odd["services"] = [entry]
    assert [server.protocol for server in ipvs_of(RecordedKernel(odd)).dump().virtual_servers] == [50]
    assert ipvs_of(RecordedKernel(odd)).read() == {Kind.VIRTUAL_SERVER: {}, Kind.REAL_SERVER: {}}


@given(st.data())
def test_no_bytes_of_an_answer_raise_anything_but_a_kernel_error(data):
    entry = data.draw(st.sampled_from(recording("forward")["services"]))
    body = bytearray(bytes(4) + bytes.fromhex(data.draw(st.sampled_from([entry["service"], *entry["dests"]]))))
    for at, value in data.draw(st.dictionaries(st.integers(0, len(body) - 1), st.integers(0, 255), max_size=9)).items():
        body[at] = value
    odd = bytes(body)[: data.draw(st.integers(0, len(body)))]

    def respond(batch: list[Sent]) -> Iterable[bytes]:
        (sent,) = batch
        if sent.message_type == CONTROLLER:
            return [message(CONTROLLER, sent.sequence, data.draw(st.sampled_from([NEWFAMILY, NEWFAMILY, odd])))]
        if sent.flags & NLM_F_DUMP:
            return [message(IPVS_FAMILY, sent.sequence, odd) + done(sent)]
        return [message(IPVS_FAMILY, sent.sequence, data.draw(st.sampled_from([INFO, INFO, odd])))]

    for ask in (NetlinkIpvs.read, NetlinkIpvs.dump):
        with suppress(KernelError):
            ask(ipvs_of(respond))


def test_a_family_number_of_another_size_is_not_understood():
    sized = struct.pack("=4xHH8s", 12, 1, bytes(range(8)))  # would be no message type

    def respond(batch: list[Sent]) -> Iterable[bytes]:
        return [message(CONTROLLER, sent.sequence, sized) for sent in batch]

    with pytest.raises(KernelError, match="FAMILY_ID of 8 bytes"):
        ipvs_of(respond).read()


# What the machine lacks


@pytest.mark.parametrize(
    "number, advice",
    [
        pytest.param(errno.ENOENT, "Load the module ip_vs", id="no IPVS"),
        pytest.param(errno.EPERM, "Run as root, or with the capability NET_ADMIN", id="no permission"),
    ],
)
def test_k45_a_machine_that_cannot_do_it_is_told_what_to_do(number, advice):
    def respond(batch: list[Sent]) -> list[bytes]:
        return [error(sent, number) for sent in batch]

    with pytest.raises(Unsupported, match=advice):
        ipvs_of(respond).dump()


class ReloadedKernel:
    """Its IPVS was unloaded and loaded: the family has another number, or is gone for good."""

    def __init__(self) -> None:
        self.number: int | None = IPVS_FAMILY
        self.asked = 0

    def __call__(self, batch: list[Sent]) -> Iterable[bytes]:
        if batch[0].message_type == CONTROLLER:
            self.asked += 1
            if self.number is None:
                return [error(batch[0], errno.ENOENT)]
            return [message(CONTROLLER, batch[0].sequence, NEWFAMILY.replace(b"\x23", bytes([self.number])))]
        if batch[0].message_type != self.number:
            return [error(sent, errno.ENOENT) for sent in batch]
        if batch[0].flags & NLM_F_DUMP:
            return [done(batch[0])]
        return [message(IPVS_FAMILY, batch[0].sequence, INFO)] if batch[0].body[0] == GET_INFO else obey(batch)


NEW_WEB = Operation(Verb.ADD, Kind.VIRTUAL_SERVER, WEB, VirtualServer("rr"))
USES = {
    "reading": lambda ipvs: ipvs.read()[Kind.VIRTUAL_SERVER] == {},
    "dumping": lambda ipvs: ipvs.dump().virtual_servers == (),
    "applying": lambda ipvs: ipvs.apply([NEW_WEB, NEW_WEB]) == [0, 0],
    "setting time-outs": lambda ipvs: ipvs.set_timeouts(1, 2, 3) == 0,
}


@pytest.mark.parametrize("use", [pytest.param(use, id=name) for name, use in USES.items()])
def test_a_reloaded_module_is_asked_for_its_new_number_once(use):
    kernel = ReloadedKernel()
    ipvs = ipvs_of(kernel)
    assert use(ipvs)
    kernel.number = IPVS_FAMILY + 1
    assert use(ipvs)
    assert use(ipvs)
    assert kernel.asked == 2


@pytest.mark.parametrize("read", [NetlinkIpvs.read, NetlinkIpvs.dump])
def test_k45_a_module_that_was_unloaded_is_told_and_found_again_later(read):
    kernel = ReloadedKernel()
    ipvs = ipvs_of(kernel)
    read(ipvs)
    kernel.number = None
    for _ in range(2):
        with pytest.raises(Unsupported, match="Load the module ip_vs"):
            read(ipvs)
    kernel.number = IPVS_FAMILY + 1
    read(ipvs)


@pytest.mark.parametrize("use", [pytest.param(use, id=name) for name, use in USES.items()])
def test_k45_a_module_that_the_kernel_does_not_load_by_itself_is_loaded(use):
    """As before Linux 5.16, at the start and where somebody has unloaded it since."""
    kernel = ReloadedKernel()
    kernel.number = None
    loaded = []

    def load(names: Sequence[str]) -> list[str]:
        loaded.extend(names)
        kernel.number = IPVS_FAMILY + len(loaded)
        return []

    ipvs = ipvs_of(kernel, load)
    assert use(ipvs)
    kernel.number = None
    assert use(ipvs)
    assert use(ipvs)
    assert loaded == ["ip_vs", "ip_vs"]


def test_without_ipvs_every_operation_is_refused_and_nothing_raised():
    kernel = ReloadedKernel()
    kernel.number = None
    assert ipvs_of(kernel).apply([NEW_WEB, NEW_WEB]) == [errno.ENOENT] * 2
    assert ipvs_of(kernel).set_timeouts(1, 2, 3) == errno.ENOENT
    assert ipvs_of(lambda _: []).apply([NEW_WEB]) == [errno.ETIMEDOUT]


def test_a_scheduler_that_is_missing_is_not_sent_again():
    def respond(batch: list[Sent]) -> Iterable[bytes]:
        if batch[0].message_type == CONTROLLER:
            return [message(CONTROLLER, batch[0].sequence, NEWFAMILY)]
        return [error(sent, errno.ENOENT) for sent in batch]

    ipvs = ipvs_of(respond)
    assert ipvs.apply([NEW_WEB]) == [errno.ENOENT]
    assert ipvs.netlink.counters.messages == 3  # the number, the operation, the number again


# Cost


def test_one_endpoint_is_one_message_and_two_system_calls():
    def respond(batch: list[Sent]) -> Iterable[bytes]:
        if batch[0].message_type == CONTROLLER:
            return [message(CONTROLLER, batch[0].sequence, NEWFAMILY)]
        return obey(batch)

    ipvs = ipvs_of(respond)
    ipvs.apply([Operation(Verb.ADD, Kind.VIRTUAL_SERVER, WEB, VirtualServer("rr"))])
    counters = ipvs.netlink.counters
    before = counters.messages, counters.system_calls
    assert ipvs.apply([Operation(Verb.ADD, Kind.REAL_SERVER, WEB, blob(("10.244.1.5", 8080)))]) == [0]
    assert (counters.messages - before[0], counters.system_calls - before[1]) == (1, 2)
    assert counters.dumps == 0
