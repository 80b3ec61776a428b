"""IPVS over generic netlink: virtual servers and real servers.

gnlpy's message tables describe the format; its client, which needs 40 µs and an acknowledgement a message, is not used.

    operations → ipvs_encode (templates cut from its bytes) → NetlinkSocket.send_batch → one error number each
    NetlinkSocket.dump → ipvs_decode → IpvsTable → State

IPVS has no upsert. Adding what is there answers EEXIST; changing or deleting what is not answers ESRCH where the
virtual server is missing, ENOENT where the real server is. For a virtual server ENOENT means: no such scheduler.
Every message answers ENOENT after the module ip_vs was reloaded, for its family then has another number.

What others may have made and ours cannot be is left out of `read`, and of `survey` alike so that both agree: protocols
that no Service has, and tunnels into the other address family, whose records would not fit into the blob.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from ipvsproxy.errors import KernelError, NotInKernel, Unsupported
from ipvsproxy.kernel import ipvs_decode, ipvs_encode, ipvs_proc, ipvs_statistics, modules
from ipvsproxy.kernel.netlink import NETLINK_GENERIC, NetlinkSocket
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import family_of
from ipvsproxy.model.enums import Family, Protocol, VirtualServerFlags
from ipvsproxy.model.kernel_objects import (
    Key,
    Kind,
    Operation,
    Settings,
    State,
    VirtualServer,
    VirtualServerKey,
)
from ipvsproxy.model.observed import (
    IpvsTable,
    ObservedRealServer,
    ObservedVirtualServer,
    ServiceName,
    SurveyedServer,
    SyncDaemon,
)

_CONTROLLER = 16  # GENL_ID_CTRL, include/uapi/linux/genetlink.h
_PROTOCOLS = frozenset(Protocol)
_Found = TypeVar("_Found")


class NetlinkIpvs:
    """The IPVS of the network namespace in which it is first used. Meets kernel/api.py's `Ipvs`; for one thread."""

    kinds = frozenset({Kind.VIRTUAL_SERVER, Kind.REAL_SERVER})

    def __init__(
        self, netlink: NetlinkSocket | None = None, load: Callable[[Sequence[str]], list[str]] = modules.load
    ) -> None:
        self.netlink = netlink or NetlinkSocket(NETLINK_GENERIC, "IPVS")
        self._load = load
        self._family_id: int | None = None

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """One message an operation, in order; one error number each. ENOENT for all where the kernel has no IPVS."""
        return self._send(ipvs_encode.encode(operations))

    def set_timeouts(self, tcp_s: int, tcp_fin_s: int, udp_s: int) -> int:
        """Set connection time-outs in seconds; 0 leaves the kernel's value. Returns the error number."""
        (number,) = self._send([ipvs_encode.encode_timeouts(tcp_s, tcp_fin_s, udp_s)])
        return number

    def timeouts(self) -> tuple[int, int, int]:
        """The connection time-outs in force, in seconds: TCP, TCP after a FIN, UDP. Raises KernelError."""
        return self._ask(
            lambda family_id: ipvs_decode.decode_timeouts(self.netlink.request(family_id, ipvs_encode.CONFIG_REQUEST))
        )

    def dump(self) -> IpvsTable:
        """Everything, in kernel order. Raises KernelError.

        Not a snapshot: IPVS does not tell when its table changed meanwhile, and entries may then be missing.
        """
        return self._ask(self._dump)

    def _dump(self, family_id: int) -> IpvsTable:
        version, conn_tab_size = self._info(family_id)
        services = [self._with_real_servers(family_id, service) for service in self._services(family_id)]
        return IpvsTable(version, conn_tab_size, tuple(services))

    def info(self) -> tuple[int, int]:
        """The version word (0x010201) and the size of the connection table. Raises KernelError."""
        return self._ask(self._info)

    def virtual_servers(self, *, with_statistics: bool = False) -> list[ObservedVirtualServer]:
        """All of them, in kernel order, without their real servers. Raises KernelError."""
        return self._ask(partial(self._services, with_statistics=with_statistics))

    def find(self, name: ServiceName, *, with_statistics: bool = False) -> ObservedVirtualServer | None:
        """One virtual server without its real servers, None where there is none. Raises KernelError."""
        request = ipvs_encode.encode_service_request(name)
        try:
            body = self._ask(lambda family_id: self.netlink.request(family_id, request))
        except KernelError as error:
            if error.number == errno.ESRCH:
                return None
            raise
        return _service(body, with_statistics=with_statistics)

    def real_servers(self, server: ObservedVirtualServer, *, with_statistics: bool = False) -> list[ObservedRealServer]:
        """Those of one virtual server in kernel order, none of one that is gone meanwhile. Raises KernelError."""
        request = ipvs_encode.encode_dest_dump(
            server.family, server.protocol, server.address, server.port, server.fwmark
        )
        one, several = _WITH_STATISTICS if with_statistics else _WITHOUT_STATISTICS
        one, several = partial(one, server.family), partial(several, server.family)
        return self._ask(lambda family_id: self.netlink.select(family_id, request, one, several))

    def sync_daemons(self) -> list[SyncDaemon]:
        """Those that run, master first. Raises KernelError."""
        bodies = self._ask(lambda family_id: self.netlink.dump(family_id, ipvs_encode.DAEMON_DUMP))
        return [ipvs_decode.decode_daemon(body) for body in bodies]

    def _info(self, family_id: int) -> tuple[int, int]:
        return ipvs_decode.decode_info(self.netlink.request(family_id, ipvs_encode.INFO_REQUEST))

    def _services(self, family_id: int, *, with_statistics: bool = False) -> list[ObservedVirtualServer]:
        bodies = self.netlink.dump(family_id, ipvs_encode.SERVICE_DUMP)
        return [_service(body, with_statistics=with_statistics) for body in bodies]

    def read(self) -> State:
        """Virtual servers and their real servers, without firewall-mark services. Raises KernelError."""
        return self._ask(self._read)

    def _read(self, family_id: int) -> State:
        virtual: dict[Key, Settings] = {}
        real: dict[Key, Settings] = {}
        for body in self.netlink.dump(family_id, ipvs_encode.SERVICE_DUMP):
            service = ipvs_decode.decode_service(body)
            if service.fwmark or service.protocol not in _PROTOCOLS:
                continue
            key = VirtualServerKey(Protocol(service.protocol), service.address, service.port)
            flags = VirtualServerFlags(service.flags & ~VirtualServerFlags.HASHED)
            virtual[key] = VirtualServer(service.scheduler, flags, service.timeout_s)
            records = (ipvs_decode.decode_record(dest, service.family) for dest in self._dump_dests(family_id, service))
            real[key] = real_servers.join(record for record in records if record is not None)
        return {Kind.VIRTUAL_SERVER: virtual, Kind.REAL_SERVER: real}

    def fingerprint(self) -> bytes:
        """The survey as one value. Raises KernelError."""
        return repr(self.survey()).encode()

    def survey(self) -> dict[VirtualServerKey, SurveyedServer]:
        """The same in short, from /proc/net/ip_vs. Raises KernelError."""
        return ipvs_proc.survey()

    def connections(self, keys: Iterable[VirtualServerKey]) -> dict[VirtualServerKey, Mapping[bytes, int]]:
        """Active and inactive connections of each real server, one dump a virtual server. Raises KernelError.

        The kernel has no question about a single real server; a dump for a virtual server that is gone is empty.
        """
        asked = tuple(keys)
        return self._ask(lambda family_id: {key: self._connections(family_id, key) for key in asked})

    def _connections(self, family_id: int, key: VirtualServerKey) -> dict[bytes, int]:
        family = family_of(key.address)
        request = ipvs_encode.encode_dest_dump(family, key.protocol, key.address, key.port, fwmark=0)
        found = (ipvs_decode.decode_connections(body, family) for body in self.netlink.dump(family_id, request))
        return dict(real_server for real_server in found if real_server is not None)

    def close(self) -> None:
        """Close the socket; the next use opens another one."""
        self.netlink.close()

    def _with_real_servers(self, family_id: int, service: ObservedVirtualServer) -> ObservedVirtualServer:
        bodies = self._dump_dests(family_id, service)
        return msgspec.structs.replace(
            service, real_servers=tuple(ipvs_decode.decode_dest(body, service.family) for body in bodies)
        )

    def _dump_dests(self, family_id: int, service: ObservedVirtualServer) -> list[bytes]:
        request = ipvs_encode.encode_dest_dump(
            service.family, service.protocol, service.address, service.port, service.fwmark
        )
        return self.netlink.dump(family_id, request)

    def _send(self, bodies: Sequence[bytes]) -> list[int]:
        """One error number each; where the family cannot be asked for, the number of that."""
        try:
            numbers = self.netlink.send_batch(self._resolve(), bodies)
            if set(numbers) == {errno.ENOENT} and self._has_moved():
                numbers = self.netlink.send_batch(self._resolve(), bodies)
        except KernelError as error:
            return [error.number or errno.EIO] * len(bodies)
        return numbers

    def _ask(self, question: Callable[[int], _Found]) -> _Found:
        """What the family answers, asked once more where it has got another number. Raises KernelError."""
        family_id = self._resolve()
        try:
            return question(family_id)
        except KernelError as error:
            if error.number != errno.ENOENT or not self._has_moved():
                raise _explain(error) from error
        return question(self._resolve())

    def _has_moved(self) -> bool:
        """Whether the family has another number than we thought, which is found out anew. Raises KernelError."""
        before, self._family_id = self._family_id, None
        return self._resolve() != before

    def _resolve(self) -> int:
        """The number that the kernel has given to the family "IPVS"."""
        if self._family_id is None:
            try:
                self._family_id = self._number()
            except KernelError as error:
                raise _explain(error) from error
        return self._family_id

    def _number(self) -> int:
        """The same from the kernel, which loads ip_vs when it is asked; before Linux 5.16 modprobe has to."""
        try:
            return self._ask_for_number()
        except KernelError as error:
            if error.number != errno.ENOENT or self._load(("ip_vs",)):
                raise
        return self._ask_for_number()

    def _ask_for_number(self) -> int:
        return ipvs_decode.decode_family_id(self.netlink.request(_CONTROLLER, ipvs_encode.FAMILY_REQUEST))


def _service(body: bytes, *, with_statistics: bool) -> ObservedVirtualServer:
    if not with_statistics:
        return ipvs_decode.decode_service(body)
    return ipvs_decode.decode_service(body, ipvs_statistics.OF_SERVICES.read(body))


def _real_server(family: Family, piece: bytes, start: int, end: int) -> ObservedRealServer:
    return ipvs_decode.decode_dest(piece[start:end], family)


def _real_server_with_statistics(family: Family, piece: bytes, start: int, end: int) -> ObservedRealServer:
    body = piece[start:end]
    return ipvs_decode.decode_dest(body, family, ipvs_statistics.OF_DESTS.read(body))


def _real_servers(family: Family, piece: bytes, length: int) -> list[ObservedRealServer] | None:
    return ipvs_decode.decode_dest_run(piece, length, family)


def _real_servers_with_statistics(family: Family, piece: bytes, length: int) -> list[ObservedRealServer] | None:
    statistics = ipvs_statistics.OF_DESTS.read_run(piece, length)
    return None if statistics is None else ipvs_decode.decode_dest_run(piece, length, family, statistics)


_WITHOUT_STATISTICS = _real_server, _real_servers
_WITH_STATISTICS = _real_server_with_statistics, _real_servers_with_statistics


def _explain(error: KernelError) -> KernelError:
    """The same error with what to do about it, where the reason is the machine and not the moment."""
    if error.number == errno.ENOENT:
        why = "this kernel has no IPVS, or may not load it (ENOENT)"
        return NotInKernel(error.what, error.number, "Load the module ip_vs on the node (modprobe ip_vs)", why)
    if error.number in {errno.EPERM, errno.EACCES}:
        return Unsupported(error.what, error.number, "Run as root, or with the capability NET_ADMIN")
    return error
