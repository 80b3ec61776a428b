"""What `kernel/api.py` promises of Ipvs, on the fake and on the real kernel."""

from __future__ import annotations

import contextlib
import errno
import itertools
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from pyroute2 import IPRoute

from ipvsproxy.kernel import modules
from ipvsproxy.kernel.api import Ipvs
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.kernel.gnlpy_compat import IpvsCmdAttrList, IpvsDestAttrList, IpvsMessage, IpvsServiceAttrList
from ipvsproxy.kernel.ipvs import NetlinkIpvs
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import PackedAddr, family_of, format_addr
from ipvsproxy.model.enums import Family, ForwardingMethod, Protocol, VirtualServerFlags
from ipvsproxy.model.kernel_objects import Kind, Operation, RealServer, Verb, VirtualServer, VirtualServerKey
from ipvsproxy.model.observed import ObservedVirtualServer, Statistics, SurveyedServer
from tests.builders import addr, blob, vs_key

RR = VirtualServer("rr")
PERSISTENT = VirtualServer("rr", VirtualServerFlags.PERSISTENT, 10800)
WEB = vs_key("10.96.0.20", 80)

KEYS = [
    pytest.param(vs_key(address, 80, protocol), server, id=f"{protocol.name} {family}")
    for protocol in Protocol
    for address, server, family in (("10.96.0.20", "10.244.1.5", "IPv4"), ("fd00::20", "fd00:1::5", "IPv6"))
]


@pytest.fixture
def ipvs(pick: Callable, fake_kernel: FakeKernel) -> Ipvs:
    return pick(fake_kernel.kernel.ipvs, NetlinkIpvs)


def virtual(verb: Verb, key: VirtualServerKey = WEB, settings: VirtualServer = RR) -> Operation:
    return Operation(verb, Kind.VIRTUAL_SERVER, key, settings)


def real(verb: Verb, server: str = "10.244.1.5", weight: int = 1, key: VirtualServerKey = WEB) -> Operation:
    return Operation(verb, Kind.REAL_SERVER, key, blob((server, 8080, weight)))


def read(ipvs: Ipvs) -> tuple[dict, dict]:
    state = ipvs.read()
    return state[Kind.VIRTUAL_SERVER], state[Kind.REAL_SERVER]


def test_nothing_there_reads_and_dumps_as_empty(ipvs):
    assert read(ipvs) == ({}, {})
    assert ipvs.dump().virtual_servers == ()


def test_the_dump_tells_version_and_connection_table_size(ipvs):
    ipvs.apply([virtual(Verb.ADD)])  # Linux 7.2 makes a network namespace's table with its first virtual server
    table = ipvs.dump()
    assert table.version >= 0x010200
    assert table.conn_tab_size >= 256


def test_k53_virtual_servers_alone_are_listed_with_what_they_have_counted(ipvs):
    ipvs.apply([virtual(Verb.ADD), real(Verb.ADD), virtual(Verb.ADD, vs_key("fd00::20", 80))])
    listed = ipvs.virtual_servers(with_statistics=True)
    assert {format_addr(server.address) for server in listed} == {"10.96.0.20", "fd00::20"}
    assert {server.real_servers for server in listed} == {()}
    assert {server.statistics for server in listed} == {Statistics()}


def test_no_operations_have_no_answers(ipvs):
    assert ipvs.apply([]) == []


@pytest.mark.parametrize("key, server", KEYS)
def test_what_was_added_reads_back(ipvs, key, server):
    assert ipvs.apply([virtual(Verb.ADD, key, PERSISTENT), real(Verb.ADD, server, 3, key)]) == [0, 0]
    assert read(ipvs) == ({key: PERSISTENT}, {key: blob((server, 8080, 3))})


@pytest.mark.parametrize("key, server", KEYS)
def test_what_was_added_can_be_deleted(ipvs, key, server):
    ipvs.apply([virtual(Verb.ADD, key), real(Verb.ADD, server, 1, key)])
    assert ipvs.apply([real(Verb.DELETE, server, 1, key), virtual(Verb.DELETE, key)]) == [0, 0]
    assert read(ipvs) == ({}, {})


def test_a_virtual_server_without_real_servers_reads_with_an_empty_blob(ipvs):
    ipvs.apply([virtual(Verb.ADD)])
    assert read(ipvs) == ({WEB: RR}, {WEB: b""})


LACKING_IN_SOME = {"twos"}
"""Schedulers that not every kernel is built with: Debian 11's and 12's have no such module."""


@pytest.mark.parametrize(
    "scheduler", ["rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos"]
)
def test_every_scheduler_of_the_kernel_is_taken_and_read_back(ipvs, scheduler, kernel_kind):
    is_lacking = False
    if kernel_kind == "real":  # see preparation.load_modules: the last test's namespace is just ending
        is_lacking = modules.load([f"ip_vs_{scheduler}"]) != [] and scheduler in LACKING_IN_SOME
    settings = VirtualServer(scheduler)
    assert ipvs.apply([virtual(Verb.ADD, settings=settings)]) == [errno.ENOENT if is_lacking else 0]
    assert read(ipvs)[0] == ({} if is_lacking else {WEB: settings})


@pytest.mark.parametrize(
    "operation, there, number",
    [
        pytest.param(virtual(Verb.ADD), [virtual(Verb.ADD)], errno.EEXIST, id="adding an equal virtual server"),
        pytest.param(
            virtual(Verb.ADD, settings=PERSISTENT), [virtual(Verb.ADD)], errno.EEXIST, id="adding a different one"
        ),
        pytest.param(
            virtual(Verb.ADD, settings=VirtualServer("no")), [], errno.ENOENT, id="adding an unknown scheduler"
        ),
        pytest.param(
            virtual(Verb.EDIT, settings=VirtualServer("no")), [virtual(Verb.ADD)], errno.ENOENT, id="editing to one"
        ),
        pytest.param(virtual(Verb.EDIT), [], errno.ESRCH, id="editing an absent virtual server"),
        pytest.param(virtual(Verb.DELETE), [], errno.ESRCH, id="deleting an absent virtual server"),
        pytest.param(real(Verb.ADD), [], errno.ESRCH, id="adding a real server to an absent virtual server"),
        pytest.param(real(Verb.EDIT), [], errno.ESRCH, id="editing a real server of an absent virtual server"),
        pytest.param(real(Verb.DELETE), [], errno.ESRCH, id="deleting a real server of an absent virtual server"),
        pytest.param(
            real(Verb.ADD), [virtual(Verb.ADD), real(Verb.ADD)], errno.EEXIST, id="adding an equal real server"
        ),
        pytest.param(
            real(Verb.ADD, weight=5), [virtual(Verb.ADD), real(Verb.ADD)], errno.EEXIST, id="adding one of other weight"
        ),
        pytest.param(real(Verb.EDIT), [virtual(Verb.ADD)], errno.ENOENT, id="editing an absent real server"),
        pytest.param(real(Verb.DELETE), [virtual(Verb.ADD)], errno.ENOENT, id="deleting an absent real server"),
    ],
)
def test_a_refusal_has_its_number_and_changes_nothing(ipvs, operation, there, number):
    ipvs.apply(there)
    before = read(ipvs)
    assert ipvs.apply([operation]) == [number]
    assert read(ipvs) == before


@pytest.mark.parametrize(
    "before, after",
    [
        pytest.param(RR, VirtualServer("wrr"), id="scheduler"),
        pytest.param(RR, PERSISTENT, id="persistence on"),
        pytest.param(PERSISTENT, RR, id="persistence off"),
        pytest.param(VirtualServer("mh"), VirtualServer("mh", VirtualServerFlags.SCHEDULER_2), id="scheduler flag"),
        pytest.param(RR, RR, id="nothing"),
    ],
)
def test_editing_a_virtual_server_changes_it_and_keeps_its_real_servers(ipvs, before, after):
    ipvs.apply([virtual(Verb.ADD, settings=before), real(Verb.ADD)])
    assert ipvs.apply([virtual(Verb.EDIT, settings=after)]) == [0]
    assert read(ipvs) == ({WEB: after}, {WEB: blob(("10.244.1.5", 8080))})


@pytest.mark.parametrize("weight", [0, 1, 65535])
def test_editing_a_real_server_sets_its_weight(ipvs, weight):
    ipvs.apply([virtual(Verb.ADD), real(Verb.ADD, weight=7), real(Verb.ADD, "10.244.2.5")])
    assert ipvs.apply([real(Verb.EDIT, weight=weight)]) == [0]
    assert read(ipvs)[1] == {WEB: blob(("10.244.1.5", 8080, weight), ("10.244.2.5", 8080))}


def test_the_forwarding_method_is_part_of_a_real_server(ipvs):
    record = real_servers.pack(RealServer(addr("10.244.1.5"), 80, 1, ForwardingMethod.ROUTE))
    assert ipvs.apply([virtual(Verb.ADD), Operation(Verb.ADD, Kind.REAL_SERVER, WEB, record)]) == [0, 0]
    assert read(ipvs)[1] == {WEB: record}


def test_deleting_a_real_server_looks_at_address_and_port_only(ipvs):
    ipvs.apply([virtual(Verb.ADD), real(Verb.ADD, weight=7)])
    assert ipvs.apply([real(Verb.DELETE, weight=1)]) == [0]


def test_deleting_a_virtual_server_takes_its_real_servers_along(ipvs):
    ipvs.apply([virtual(Verb.ADD), real(Verb.ADD)])
    assert ipvs.apply([virtual(Verb.DELETE), virtual(Verb.ADD)]) == [0, 0]
    assert read(ipvs) == ({WEB: RR}, {WEB: b""})


def test_the_same_address_and_port_of_another_protocol_is_another_virtual_server(ipvs):
    keys = [vs_key("10.96.0.10", 53, protocol) for protocol in Protocol]
    assert ipvs.apply([virtual(Verb.ADD, key) for key in keys]) == [0, 0, 0]
    assert ipvs.apply([virtual(Verb.DELETE, keys[0])]) == [0]
    assert set(read(ipvs)[0]) == set(keys[1:])


def test_a_refused_operation_in_a_batch_loses_only_itself(ipvs):
    other = vs_key("10.96.0.21", 80)
    batch = [virtual(Verb.ADD), virtual(Verb.ADD, other, VirtualServer("no")), real(Verb.ADD), virtual(Verb.ADD)]
    assert ipvs.apply(batch) == [0, errno.ENOENT, 0, errno.EEXIST]
    assert read(ipvs) == ({WEB: RR}, {WEB: blob(("10.244.1.5", 8080))})


@pytest.mark.parametrize("count", [200, 201, 1500])
def test_large_batches_are_answered_one_by_one(ipvs, count):
    """More than one netlink send takes: every seventh operation is refused, and only these."""
    servers = [real_servers.pack(RealServer(PackedAddr(b"\x0a\xf4" + n.to_bytes(2)), 8080)) for n in range(count)]
    absent = vs_key("10.96.0.99", 1)
    batch = [Operation(Verb.ADD, Kind.REAL_SERVER, absent if n % 7 == 0 else WEB, s) for n, s in enumerate(servers)]
    assert ipvs.apply([virtual(Verb.ADD)]) == [0]
    assert ipvs.apply(batch) == [errno.ESRCH if n % 7 == 0 else 0 for n in range(count)]
    assert read(ipvs)[1] == {WEB: real_servers.join(s for n, s in enumerate(servers) if n % 7)}


def test_the_dump_has_all_that_read_has_whatever_the_order(ipvs):
    keys = [vs_key(a, p, q) for a, p, q in itertools.product(("10.96.0.20", "fd00::20"), (53, 80), Protocol)]
    ipvs.apply([virtual(Verb.ADD, key) for key in keys])
    ipvs.apply([real(Verb.ADD, server) for server in ("10.244.1.5", "10.244.2.5")])
    found = {VirtualServerKey(Protocol(s.protocol), s.address, s.port): s for s in ipvs.dump().virtual_servers}
    assert set(found) == set(keys)
    assert {(s.address, s.port, s.weight) for s in found[WEB].real_servers} == {
        (addr("10.244.1.5"), 8080, 1),
        (addr("10.244.2.5"), 8080, 1),
    }


@pytest.mark.parametrize(
    "address, netmask",
    [
        pytest.param("10.96.0.20", b"\xff\xff\xff\xff", id="IPv4"),
        pytest.param("fd00::20", (128).to_bytes(4, sys.byteorder), id="IPv6"),
    ],
)
def test_the_dump_shows_a_virtual_server_as_kube_proxy_would_have_made_it(ipvs, address, netmask):
    ipvs.apply([virtual(Verb.ADD, vs_key(address, 80), PERSISTENT)])
    (found,) = ipvs.dump().virtual_servers
    assert (found.fwmark, found.scheduler, found.timeout_s, found.netmask, found.pe_name) == (
        0,
        "rr",
        10800,
        netmask,
        "",
    )
    assert found.flags == VirtualServerFlags.PERSISTENT | VirtualServerFlags.HASHED


def test_a_foreign_firewall_mark_service_is_dumped_but_not_read(ipvs, fake_kernel, kernel_kind):
    ipvs.apply([virtual(Verb.ADD)])
    if kernel_kind == "fake":
        mark = ObservedVirtualServer(Family.IPV4, 0, addr("0.0.0.0"), 0, 7, "rr", 2, 0, b"\xff\xff\xff\xff")
        fake_kernel.foreign_services.append(mark)
    else:
        _add_firewall_mark(ipvs, 7)
    assert sorted(service.fwmark for service in ipvs.dump().virtual_servers) == [0, 7]
    assert read(ipvs) == ({WEB: RR}, {WEB: b""})


def _add_firewall_mark(ipvs: NetlinkIpvs, mark: int) -> None:
    full = {"sched_name": "rr", "flags": bytes(4) + b"\xff" * 4, "timeout": 0, "netmask": 0xFFFFFFFF}
    service = IpvsServiceAttrList(af=Family.IPV4, fwmark=mark, **full)
    body = bytes(IpvsMessage.pack(IpvsMessage("new_service", IpvsCmdAttrList(service=service))))
    assert ipvs.netlink.send_batch(ipvs._resolve(), [body]) == [0]


def test_k07_a_time_out_of_0_leaves_the_kernels_value(ipvs, fake_kernel, kernel_kind):
    def timeouts() -> tuple[int, ...]:
        if kernel_kind == "fake":
            return tuple(fake_kernel.timeouts)
        shown = subprocess.run(["ipvsadm", "-L", "--timeout"], capture_output=True, text=True, check=True).stdout
        return tuple(map(int, re.findall(r"[0-9]+", shown)))

    assert ipvs.set_timeouts(5, 3, 4) == 0
    assert timeouts() == (5, 3, 4)
    assert ipvs.set_timeouts(0, 0, 0) == 0
    assert timeouts() == (5, 3, 4)
    assert ipvs.set_timeouts(0, 7, 0) == 0
    assert timeouts() == (5, 7, 4)


def test_k07_the_time_outs_in_force_are_read(ipvs):
    assert ipvs.set_timeouts(5, 3, 4) == 0
    assert ipvs.timeouts() == (5, 3, 4)


# Connections


@pytest.fixture
def connect(ipvs: Ipvs, fake_kernel: FakeKernel, kernel_kind: str) -> Iterator[Callable[[VirtualServerKey, str], None]]:
    """Opens a TCP connection to a virtual server that has this real server only; nobody needs to answer it."""
    with contextlib.ExitStack() as stack:

        def open_one(key: VirtualServerKey, server: str) -> None:
            ipvs.apply([virtual(Verb.ADD, key), real(Verb.ADD, server, 1, key)])
            if kernel_kind == "fake":
                fake_kernel.connections[key, real_servers.identity(blob((server, 8080)))] = 1
                return
            family, vip = family_of(key.address), format_addr(key.address)
            with IPRoute() as ip:
                for address in (vip, server):
                    ip.addr(
                        "add", index=ip.link_lookup(ifname="lo")[0], address=address, prefixlen=family.host_prefix_len
                    )
            opened = stack.enter_context(socket.socket(socket.AddressFamily(family), socket.SOCK_STREAM))
            opened.settimeout(0)
            with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
                opened.connect((vip, key.port))

        yield open_one


@pytest.mark.parametrize(
    "key, server",
    [
        pytest.param(WEB, "10.244.1.5", id="IPv4"),
        pytest.param(vs_key("fd00::20", 80), "fd00:1::5", id="IPv6"),
    ],
)
def test_a_connection_counts_for_its_real_server_and_no_other(ipvs, connect, key, server):
    connect(key, server)
    other = server[:-1] + "6"
    ipvs.apply([real(Verb.ADD, other, 1, key)])
    found = {real_servers.identity(blob((ip, 8080))): count for ip, count in ((server, 1), (other, 0))}
    assert ipvs.connections([key]) == {key: found}


def test_a_connection_is_still_counted_when_its_real_server_has_weight_0(ipvs, connect):
    connect(WEB, "10.244.1.5")
    assert ipvs.apply([real(Verb.EDIT, weight=0)]) == [0]
    assert list(ipvs.connections([WEB])[WEB].values()) == [1]


def test_each_virtual_server_that_is_asked_for_has_an_answer_and_no_other(ipvs):
    other, absent = vs_key("10.96.0.21", 80), vs_key("10.96.0.99", 80)
    ipvs.apply([virtual(Verb.ADD), real(Verb.ADD), virtual(Verb.ADD, other), real(Verb.ADD, key=other)])
    assert ipvs.connections([WEB, absent]) == {WEB: {real_servers.identity(blob(("10.244.1.5", 8080))): 0}, absent: {}}
    assert ipvs.connections([]) == {}


# What only the real kernel takes, from others


@pytest.fixture
def others(ipvs: Ipvs, real_kernel: None) -> Callable[..., None]:  # noqa: ARG001  # the fake holds our kinds only
    """Adds a service, and real servers of any family, as another program does."""
    assert isinstance(ipvs, NetlinkIpvs)

    def add(address: str, protocol: int, *servers: tuple[str, int]) -> None:
        family = Family.IPV4 if "." in address else Family.IPV6
        service = {"af": family, "protocol": protocol, "addr": addr(address), "port": 80}
        full = {"sched_name": "rr", "flags": bytes(4) + b"\xff" * 4, "timeout": 0, "netmask": _FULL_MASK[family]}
        _send(ipvs, "new_service", service=IpvsServiceAttrList(**service, **full))
        for server, method in servers:
            dest = IpvsDestAttrList(
                addr_family=Family.IPV4 if "." in server else Family.IPV6,
                addr=addr(server).ljust(16, b"\0"),
                port=80,
                fwd_method=method,
                weight=1,
                u_thresh=0,
                l_thresh=0,
            )
            _send(ipvs, "new_dest", service=IpvsServiceAttrList(**service), dest=dest)

    return add


_FULL_MASK = {Family.IPV4: 0xFFFFFFFF, Family.IPV6: 128}


def _send(ipvs: NetlinkIpvs, command: str, **attributes: object) -> None:
    body = bytes(IpvsMessage.pack(IpvsMessage(command, IpvsCmdAttrList(**attributes))))
    assert ipvs.netlink.send_batch(ipvs._resolve(), [body]) == [0]


def test_a_virtual_server_of_another_protocol_is_dumped_but_neither_read_nor_surveyed(ipvs, others):
    """The netlink interface of IPVS takes any protocol."""
    others("10.96.0.50", 50, ("10.244.1.5", ForwardingMethod.MASQ))
    ipvs.apply([virtual(Verb.ADD)])
    assert read(ipvs) == ({WEB: RR}, {WEB: b""})
    assert set(ipvs.survey()) == {WEB}
    assert ipvs.fingerprint()
    assert {server.protocol: len(server.real_servers) for server in ipvs.dump().virtual_servers} == {6: 0, 50: 1}


@pytest.mark.parametrize(
    "address,own,other",
    [
        pytest.param("10.96.0.51", "10.244.1.5", "fd00:1::5", id="IPv6 behind IPv4"),
        pytest.param("fd00::51", "fd00:1::5", "10.244.1.5", id="IPv4 behind IPv6"),
    ],
)
def test_a_tunnel_into_the_other_family_is_dumped_but_neither_read_nor_surveyed(ipvs, others, address, own, other):
    """Else each audit would find a difference, read in full and find nothing."""
    others(address, Protocol.TCP, (own, ForwardingMethod.MASQ), (other, ForwardingMethod.TUNNEL))
    key = vs_key(address, 80)
    assert read(ipvs) == ({key: RR}, {key: blob((own, 80))})
    assert ipvs.survey() == {key: SurveyedServer("rr", is_persistent=False, servers=blob((own, 80)))}
    (server,) = ipvs.dump().virtual_servers
    assert {found.address for found in server.real_servers} == {addr(own), addr(other)}


def test_a_survey_tells_what_a_read_tells(ipvs):
    ipvs.apply([virtual(Verb.ADD, settings=PERSISTENT), real(Verb.ADD, weight=7), real(Verb.ADD, "10.244.2.5")])
    servers = blob(("10.244.1.5", 8080, 7), ("10.244.2.5", 8080))
    assert ipvs.survey() == {WEB: SurveyedServer("rr", is_persistent=True, servers=servers)}
    assert read(ipvs)[1] == {WEB: servers}
