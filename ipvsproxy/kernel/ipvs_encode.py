"""IPVS messages to send, as templates cut from gnlpy's bytes; the netlink words are "service" and "dest".

The attributes are those that kube-proxy sends (moby/ipvs 1.1.0): an address has 4 or 16 bytes, and a real server's
family is left out, because the kernel then takes its virtual server's. Source: include/uapi/linux/ip_vs.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import cast

from ipvsproxy.kernel.gnlpy_compat import (
    CtrlAttrList,
    CtrlMessage,
    IpvsCmdAttrList,
    IpvsDestAttrList,
    IpvsMessage,
    IpvsServiceAttrList,
)
from ipvsproxy.kernel.template import Field, Template
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import PackedAddr, family_of
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, Operation, Verb, VirtualServer, VirtualServerKey
from ipvsproxy.model.observed import ServiceName

_NETMASK = {Family.IPV4: 0xFFFFFFFF, Family.IPV6: 128}  # persistence counts each client address for itself
_ALL_FLAGS = 0xFFFFFFFF  # the flags attribute is a value and a mask of the bits to set

_SERVICE_COMMAND = {Verb.ADD: "new_service", Verb.EDIT: "set_service", Verb.DELETE: "del_service"}
_DEST_COMMAND = {Verb.ADD: "new_dest", Verb.EDIT: "set_dest", Verb.DELETE: "del_dest"}

_SAME_TARGET = attrgetter("kind", "verb", "key")

_PROTOCOL = Field("H", 0xC1C2)
_PORT = Field("2s", b"\xb1\xb2")  # ports are in network order, all other numbers in the machine's
_FLAGS = Field("I", 0xD1D2D3D4)
_TIMEOUT = Field("I", 0xE1E2E3E4)
_DEST_PORT = Field("2s", b"\x51\x52")
_METHOD = Field("I", 0xF1F2F3F4)
_WEIGHT = Field("i", 0x61626364)


def encode(operations: Iterable[Operation]) -> list[bytes]:
    """The bodies of the messages that carry these out, one each, in order.

    Real servers of one virtual server come together, so what names it is packed once for all of them.
    """
    bodies: list[bytes] = []
    for (kind, verb, key), run in groupby(operations, key=_SAME_TARGET):
        if kind is Kind.REAL_SERVER:
            bodies += _encode_real_servers(verb, key, run)
        else:
            bodies += [_encode_virtual_server(verb, key, operation) for operation in run]
    return bodies


def encode_dest_dump(family: Family, protocol: int, address: PackedAddr, port: int, fwmark: int) -> bytes:
    """The request for all real servers of one virtual server."""
    return _ask_about("get_dest", ServiceName(family, protocol, address, port, fwmark))


def encode_service_request(name: ServiceName) -> bytes:
    """The request for one virtual server."""
    return _ask_about("get_service", name)


def _ask_about(command: str, name: ServiceName) -> bytes:
    if not name.fwmark:
        return _identify(command, name.protocol, name.address, name.port)
    return _pack(command, service=IpvsServiceAttrList(af=name.family, fwmark=name.fwmark))


def encode_timeouts(tcp_s: int, tcp_fin_s: int, udp_s: int) -> bytes:
    """The command that sets the connection time-outs; the kernel reads 0 as "leave it"."""
    return _pack("set_config", timeout_tcp=tcp_s, timeout_tcp_fin=tcp_fin_s, timeout_udp=udp_s)


CONFIG_REQUEST = bytes(IpvsMessage.pack(IpvsMessage("get_config")))
INFO_REQUEST = bytes(IpvsMessage.pack(IpvsMessage("get_info")))
DAEMON_DUMP = bytes(IpvsMessage.pack(IpvsMessage("get_daemon")))
SERVICE_DUMP = bytes(IpvsMessage.pack(IpvsMessage("get_service")))
FAMILY_REQUEST = bytes(CtrlMessage.pack(CtrlMessage("getfamily", CtrlAttrList(family_name="IPVS"))))


def _encode_virtual_server(verb: Verb, key: VirtualServerKey, operation: Operation) -> bytes:
    if verb is Verb.DELETE:
        return _identify("del_service", key.protocol, key.address, key.port)
    settings = cast("VirtualServer", operation.settings)
    template = _service_template(verb, family_of(key.address), settings.scheduler)
    port = key.port.to_bytes(2)
    return template.pack(key.protocol, key.address, port, settings.flags, settings.persistence_s)


def _encode_real_servers(verb: Verb, key: VirtualServerKey, operations: Iterable[Operation]) -> Iterator[bytes]:
    service, dest = _dest_templates(verb, family_of(key.address))
    head = service.pack(key.protocol, key.address, key.port.to_bytes(2))
    for operation in operations:
        address, port, weight, method = real_servers.wire_fields(cast("bytes", operation.settings))
        yield head + (dest.pack(address, port) if verb is Verb.DELETE else dest.pack(address, port, method, weight))


def _identify(command: str, protocol: int, address: PackedAddr, port: int) -> bytes:
    return _identity_template(command, family_of(address)).pack(protocol, address, port.to_bytes(2))


def _pack(command: str, **attributes: object) -> bytes:
    return bytes(IpvsMessage.pack(IpvsMessage(command, IpvsCmdAttrList(**attributes))))


def _address_field(family: Family, first: int) -> Field:
    """Consecutive bytes from `first` as the sentinel of an address."""
    size = family.host_prefix_len // 8
    return Field(f"{size}s", bytes(range(first, first + size)))


def _identity(family: Family) -> tuple[dict[str, object], list[Field]]:
    """The attributes that name a virtual server, with sentinels, and these sentinels."""
    address = _address_field(family, 0x80)
    attributes: dict[str, object] = {
        "af": family,
        "protocol": _PROTOCOL.sentinel,
        "addr": address.sentinel,
        "port": int.from_bytes(_PORT.encoded),
    }
    return attributes, [_PROTOCOL, address, _PORT]


@cache
def _identity_template(command: str, family: Family) -> Template:
    attributes, fields = _identity(family)
    return Template(_pack(command, service=IpvsServiceAttrList(**attributes)), fields)


@cache
def _service_template(verb: Verb, family: Family, scheduler: str) -> Template:
    attributes, fields = _identity(family)
    service = IpvsServiceAttrList(
        **attributes,
        sched_name=scheduler,
        flags=_FLAGS.encoded + struct.pack("=I", _ALL_FLAGS),
        timeout=_TIMEOUT.sentinel,
        netmask=_NETMASK[family],
    )
    return Template(_pack(_SERVICE_COMMAND[verb], service=service), [*fields, _FLAGS, _TIMEOUT])


@cache
def _dest_templates(verb: Verb, family: Family) -> tuple[Template, Template]:
    """The message in two parts: up to the real server's address, which names the virtual server; the rest."""
    attributes, identity = _identity(family)
    address = _address_field(family, 0x30)
    dest = IpvsDestAttrList(addr=address.sentinel, port=int.from_bytes(_DEST_PORT.encoded))
    fields = [address, _DEST_PORT]
    if verb is not Verb.DELETE:
        dest = IpvsDestAttrList(
            addr=address.sentinel,
            port=int.from_bytes(_DEST_PORT.encoded),
            fwd_method=_METHOD.sentinel,
            weight=_WEIGHT.sentinel,
            u_thresh=0,
            l_thresh=0,
        )
        fields += [_METHOD, _WEIGHT]
    encoded = _pack(_DEST_COMMAND[verb], service=IpvsServiceAttrList(**attributes), dest=dest)
    at = encoded.index(address.encoded)
    return Template(encoded[:at], identity), Template(encoded[at:], fields)
