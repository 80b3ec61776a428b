"""What `kernel/api.py` promises of Addresses, on the fake and on the real kernel."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.addresses import (
    ADDRESS_HEADER,
    IFA_F_NODAD,
    IFA_F_NOPREFIXROUTE,
    LINK_HEADER,
    RTM_GETADDR,
    RTM_NEWLINK,
    NetlinkAddresses,
    find_link,
)
from ipvsproxy.kernel.api import Addresses
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.kernel.netlink import read_attributes
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.kernel_objects import Kind, Operation, Verb
from ipvsproxy.model.names import DUMMY_DEVICE
from tests.builders import addr

LINK = Operation(Verb.ADD, Kind.LINK, DUMMY_DEVICE, "dummy")
NO_LINK = Operation(Verb.DELETE, Kind.LINK, DUMMY_DEVICE, "dummy")
IFF_UP = 1  # include/uapi/linux/if.h
IFA_F_PERMANENT = 0x80  # include/uapi/linux/if_addr.h
IFA_FLAGS = 8
VIPS = [pytest.param("10.96.0.20", id="IPv4"), pytest.param("fd00::20", id="IPv6")]


@pytest.fixture
def addresses(pick: Callable, fake_kernel: FakeKernel) -> Addresses:
    return pick(fake_kernel.kernel.addresses, NetlinkAddresses)


@pytest.fixture
def linked(addresses: Addresses) -> Addresses:
    """With kube-ipvs0 there."""
    assert addresses.apply([LINK]) == [0]
    return addresses


def bind(*texts: str, verb: Verb = Verb.ADD) -> list[Operation]:
    return [Operation(verb, Kind.ADDRESS, addr(text)) for text in texts]


def unbind(*texts: str) -> list[Operation]:
    return bind(*texts, verb=Verb.DELETE)


def read(addresses: Addresses) -> tuple[dict, set]:
    state = addresses.read()
    return state[Kind.LINK], set(state[Kind.ADDRESS])


def test_nothing_there_reads_as_empty(addresses):
    assert read(addresses) == ({}, set())


def test_no_operations_have_no_answers(addresses):
    assert addresses.apply([]) == []


def test_the_link_is_made_once(addresses):
    assert addresses.apply([LINK]) == [0]
    assert addresses.apply([LINK]) == [errno.EEXIST]
    assert read(addresses) == ({DUMMY_DEVICE: "dummy"}, set())


def test_the_link_goes_with_its_addresses(linked):
    linked.apply(bind("10.96.0.20", "fd00::20"))
    assert linked.apply([NO_LINK]) == [0]
    assert read(linked) == ({}, set())
    assert linked.apply([LINK]) == [0]
    assert read(linked) == ({DUMMY_DEVICE: "dummy"}, set())


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(NO_LINK, id="deleting the link"),
        *(pytest.param(*bind(*vip.values), id=f"adding an address, {vip.id}") for vip in VIPS),
        *(pytest.param(*unbind(*vip.values), id=f"deleting an address, {vip.id}") for vip in VIPS),
    ],
)
def test_what_needs_the_link_answers_enodev_without_it(addresses, operation):
    assert addresses.apply([operation]) == [errno.ENODEV]


@pytest.mark.parametrize("vip", VIPS)
def test_an_added_address_reads_back_and_can_be_deleted(linked, vip):
    assert linked.apply(bind(vip)) == [0]
    assert read(linked) == ({DUMMY_DEVICE: "dummy"}, {addr(vip)})
    assert linked.apply(unbind(vip)) == [0]
    assert read(linked) == ({DUMMY_DEVICE: "dummy"}, set())


@pytest.mark.parametrize("vip", VIPS)
def test_adding_an_address_that_is_there_answers_eexist(linked, vip):
    linked.apply(bind(vip))
    assert linked.apply(bind(vip)) == [errno.EEXIST]
    assert read(linked)[1] == {addr(vip)}


@pytest.mark.parametrize("vip", VIPS)
def test_deleting_an_address_that_is_not_there_answers_eaddrnotavail(linked, vip):
    assert linked.apply(unbind(vip)) == [errno.EADDRNOTAVAIL]


def test_a_refused_operation_in_a_batch_loses_only_itself(linked):
    batch = bind("10.96.0.20", "10.96.0.20", "fd00::20") + unbind("fd00::21", "10.96.0.20") + bind("10.96.0.22")
    assert linked.apply(batch) == [0, errno.EEXIST, 0, errno.EADDRNOTAVAIL, 0, 0]
    assert read(linked)[1] == {addr("fd00::20"), addr("10.96.0.22")}


@pytest.mark.parametrize("count", [200, 201, 1100])
def test_large_batches_are_answered_one_by_one(linked, count):
    """More than one netlink send takes."""
    vips = [PackedAddr(b"\x0a\x60" + n.to_bytes(2)) for n in range(count)]
    batch = [Operation(Verb.ADD, Kind.ADDRESS, vips[0 if n % 7 == 6 else n]) for n in range(count)]
    assert linked.apply(batch) == [errno.EEXIST if n % 7 == 6 else 0 for n in range(count)]
    assert read(linked)[1] == {vip for n, vip in enumerate(vips) if n % 7 != 6}


def test_addresses_of_both_families_go_into_one_batch(linked):
    assert linked.apply(bind("fd00::20", "10.96.0.20", "fd00::21", "10.96.0.21")) == [0, 0, 0, 0]
    assert read(linked)[1] == {addr(a) for a in ("fd00::20", "10.96.0.20", "fd00::21", "10.96.0.21")}


# What only a real kernel has: links of other kinds, and links that go up and down.


@pytest.fixture
def real_addresses(
    addresses: Addresses,
    real_kernel: None,  # noqa: ARG001  # the fake has one link that never changes its state
) -> NetlinkAddresses:
    assert isinstance(addresses, NetlinkAddresses)
    return addresses


def set_up(addresses: NetlinkAddresses, *, up: bool) -> None:
    link = find_link(addresses.netlink, DUMMY_DEVICE)
    assert link is not None
    body = LINK_HEADER.pack(socket.AF_UNSPEC, 0, link.index, IFF_UP if up else 0, IFF_UP)
    assert addresses.netlink.send_batch(RTM_NEWLINK, [body]) == [0]


def test_the_link_is_made_down(real_addresses):
    real_addresses.apply([LINK])
    link = find_link(real_addresses.netlink, DUMMY_DEVICE)
    assert link is not None
    assert not link.flags & IFF_UP


def test_a_link_that_goes_up_keeps_its_addresses_and_its_own_is_not_read(real_addresses):
    real_addresses.apply([LINK, *bind("10.96.0.20", "fd00::20")])
    set_up(real_addresses, up=True)
    assert read(real_addresses)[1] == {addr("10.96.0.20"), addr("fd00::20")}


def test_a_link_that_goes_down_again_has_lost_its_ipv6_addresses_and_takes_them_back(real_addresses):
    """K42: whoever takes kube-ipvs0 up and down makes the kernel remove every IPv6 address of it."""
    real_addresses.apply([LINK, *bind("10.96.0.20", "fd00::20")])
    set_up(real_addresses, up=True)
    set_up(real_addresses, up=False)
    assert read(real_addresses)[1] == {addr("10.96.0.20")}
    assert real_addresses.apply(bind("10.96.0.20", "fd00::20")) == [errno.EEXIST, 0]
    assert read(real_addresses)[1] == {addr("10.96.0.20"), addr("fd00::20")}


def test_ipv6_addresses_serve_at_once_and_bring_no_route(real_addresses):
    """Neither tentative nor with a prefix route: NODAD and NOPREFIXROUTE, and permanent as all that is set by hand."""
    real_addresses.apply([LINK, *bind("fd00::20")])
    (body,) = real_addresses.netlink.dump(
        RTM_GETADDR, ADDRESS_HEADER.pack(socket.AF_INET6, 0, 0, 0, socket.if_nametoindex(DUMMY_DEVICE))
    )
    flags = int.from_bytes(read_attributes(body, ADDRESS_HEADER.size)[IFA_FLAGS], sys.byteorder)
    assert flags == IFA_F_NODAD | IFA_F_NOPREFIXROUTE | IFA_F_PERMANENT


def test_ipv6_switched_off_refuses_ipv6_addresses_only(real_addresses):
    """K55: a host without one family."""
    Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
    assert real_addresses.apply([LINK, *bind("fd00::20", "10.96.0.20")]) == [0, errno.EACCES, 0]
    assert read(real_addresses)[1] == {addr("10.96.0.20")}


def test_an_address_with_neighbours_in_its_prefix_is_not_ours(real_addresses):
    real_addresses.apply([LINK, *bind("10.96.0.20")])
    with IPRoute() as ip:
        ip.addr("add", index=socket.if_nametoindex(DUMMY_DEVICE), address="192.0.2.1", prefixlen=24)
    assert read(real_addresses)[1] == {addr("10.96.0.20")}


def test_a_foreign_link_of_our_name_is_refused_and_left_alone(real_addresses):
    """K42: nothing destroyed, and a sentence that says what is in the way."""
    with IPRoute() as ip:
        ip.link("add", ifname=DUMMY_DEVICE, kind="veth", peer="other")
    with pytest.raises(KernelError, match="no dummy link but veth"):
        real_addresses.read()
    batch = [LINK, *bind("10.96.0.20"), *unbind("10.96.0.20"), NO_LINK]
    assert real_addresses.apply(batch) == [errno.EEXIST, errno.ENODEV, errno.ENODEV, errno.ENODEV]
    assert find_link(real_addresses.netlink, DUMMY_DEVICE) is not None
