"""IPVS over generic netlink: virtual servers and real servers.

gnlpy's message tables describe the format; its client, which needs 40 µs and an acknowledgement a message, is not used.

    operations → ipvs_encode (templates cut from its bytes) → NetlinkSocket.send_batch → one error number each
    NetlinkSocket.dump → ipvs_decode → IpvsTable → State

IPVS has no upsert. Adding what is there answers EEXIST; changing or deleting what is not answers ESRCH where the
virtual server is missing, ENOENT where the real server is. For a virtual server ENOENT means: no such scheduler.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

import msgspec

from ipvsproxy.errors import KernelError, Unsupported
from ipvsproxy.kernel import ipvs_decode, ipvs_encode, ipvs_proc
from ipvsproxy.kernel.netlink import NETLINK_GENERIC, NetlinkSocket
from ipvsproxy.model import real_servers
from ipvsproxy.model.enums import ForwardingMethod, Protocol, VirtualServerFlags
from ipvsproxy.model.kernel_objects import (
    Key,
    Kind,
    Operation,
    RealServer,
    Settings,
    State,
    VirtualServer,
    VirtualServerKey,
)
from ipvsproxy.model.observed import IpvsTable, ObservedVirtualServer, SurveyedServer

_CONTROLLER = 16  # GENL_ID_CTRL, include/uapi/linux/genetlink.h
_METHODS = 3  # IP_VS_CONN_F_FWD_MASK without BYPASS, which no real server has


class NetlinkIpvs:
    """The IPVS of the network namespace in which it is first used. Meets kernel/api.py's `Ipvs`; for one thread."""

    kinds = frozenset({Kind.VIRTUAL_SERVER, Kind.REAL_SERVER})

    def __init__(self, netlink: NetlinkSocket | None = None) -> None:
        self.netlink = netlink or NetlinkSocket(NETLINK_GENERIC, "IPVS")
        self._family_id: int | None = None

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """One message an operation, in order. Raises Unsupported where the kernel has no IPVS."""
        return self.netlink.send_batch(self._resolve(), [ipvs_encode.encode(operation) for operation in operations])

    def set_timeouts(self, tcp_s: int, tcp_fin_s: int, udp_s: int) -> int:
        """Set connection time-outs in seconds; 0 leaves the kernel's value. Returns the error number."""
        (number,) = self.netlink.send_batch(self._resolve(), [ipvs_encode.encode_timeouts(tcp_s, tcp_fin_s, udp_s)])
        return number

    def dump(self) -> IpvsTable:
        """Everything, in kernel order. Raises KernelError.

        Not a snapshot: IPVS does not tell when its table changed meanwhile, and entries may then be missing.
        """
        family_id = self._resolve()
        try:
            version, conn_tab_size = ipvs_decode.decode_info(self.netlink.request(family_id, ipvs_encode.INFO_REQUEST))
        except KernelError as error:
            raise _explain(error) from error
        bodies = self.netlink.dump(family_id, ipvs_encode.SERVICE_DUMP)
        services = [self._with_real_servers(family_id, ipvs_decode.decode_service(body)) for body in bodies]
        return IpvsTable(version, conn_tab_size, tuple(services))

    def read(self) -> State:
        """Virtual servers and their real servers, without firewall-mark services. Raises KernelError."""
        virtual: dict[Key, Settings] = {}
        real: dict[Key, Settings] = {}
        for service in self.dump().virtual_servers:
            if service.fwmark:
                continue
            key = VirtualServerKey(Protocol(service.protocol), service.address, service.port)
            flags = VirtualServerFlags(service.flags & ~VirtualServerFlags.HASHED)
            virtual[key] = VirtualServer(service.scheduler, flags, service.timeout_s)
            real[key] = _join_real_servers(service)
        return {Kind.VIRTUAL_SERVER: virtual, Kind.REAL_SERVER: real}

    def fingerprint(self) -> bytes:
        """The survey as one value. Raises KernelError."""
        return repr(self.survey()).encode()

    def survey(self) -> dict[VirtualServerKey, SurveyedServer]:
        """The same in short, from /proc/net/ip_vs. Raises KernelError."""
        return ipvs_proc.survey()

    def close(self) -> None:
        """Close the socket; the next use opens another one."""
        self.netlink.close()

    def _with_real_servers(self, family_id: int, service: ObservedVirtualServer) -> ObservedVirtualServer:
        request = ipvs_encode.encode_dest_dump(
            service.family, service.protocol, service.address, service.port, service.fwmark
        )
        dests = tuple(ipvs_decode.decode_dest(body, service.family) for body in self.netlink.dump(family_id, request))
        return msgspec.structs.replace(service, real_servers=dests)

    def _resolve(self) -> int:
        """The number that the kernel has given to the family "IPVS"; asking for it makes the kernel load ip_vs."""
        if self._family_id is None:
            try:
                answer = self.netlink.request(_CONTROLLER, ipvs_encode.FAMILY_REQUEST)
            except KernelError as error:
                raise _explain(error) from error
            self._family_id = ipvs_decode.decode_family_id(answer)
        return self._family_id


def _explain(error: KernelError) -> KernelError:
    """The same error with what to do about it, where the reason is the machine and not the moment."""
    if error.number == errno.ENOENT:
        why = "this kernel has no IPVS, or may not load it (ENOENT)"
        return Unsupported(error.what, error.number, "Load the module ip_vs on the node (modprobe ip_vs)", why)
    if error.number in {errno.EPERM, errno.EACCES}:
        return Unsupported(error.what, error.number, "Run as root, or with the capability NET_ADMIN")
    return error


def _join_real_servers(service: ObservedVirtualServer) -> bytes:
    """The blob of a virtual server's real servers; those of the other family (foreign tunnels) have no place in it."""
    return real_servers.join(
        real_servers.pack(
            RealServer(server.address, server.port, server.weight, ForwardingMethod(server.conn_flags & _METHODS))
        )
        for server in service.real_servers
        if len(server.address) == len(service.address)
    )
