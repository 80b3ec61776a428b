"""One netlink socket: headers, batches with matched answers, whole dumps. IPVS, rtnetlink and ipset all use it.

    +------------+----------+-----------+--------------+-------------+----------------------+
    | length (4) | type (2) | flags (2) | sequence (4) | port id (4) | body, padded to 4    |
    +------------+----------+-----------+--------------+-------------+----------------------+

What the kernel does with a batch, and why this class is as it is (measured, Linux 6.12):
- messages of one `send` run in order inside the call, and one that fails does not stop the rest. Without NLM_F_ACK a
  message answers only when it fails. So each gets a sequence number, only the last asks for an acknowledgement, and
  when that is in, every one that has not answered has succeeded;
- one malformed message makes the kernel drop the rest without any answer, hence the time-out on receiving;
- a full receive queue (ENOBUFS) loses answers, not messages: the caller must read again, not send again. After that,
  as after any other failure of the socket itself, it is closed, so that no late answer meets a later question.

A socket belongs to one thread, and to the network namespace that this thread is in when it first uses it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import msgspec

from ipvsproxy.errors import DumpInterrupted, KernelError

# include/uapi/linux/netlink.h
NETLINK_ROUTE: Final = 0
NETLINK_NETFILTER: Final = 12
NETLINK_GENERIC: Final = 16
NLM_F_REQUEST: Final = 0x001
NLM_F_ACK: Final = 0x004
NLM_F_DUMP_INTR: Final = 0x010
NLM_F_DUMP: Final = 0x300
NLM_F_EXCL: Final = 0x200
NLM_F_CREATE: Final = 0x400
NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3
NLA_F_NESTED: Final = 0x8000
HEADER: Final = struct.Struct("=IHHII")
_END_OF_DUMP = frozenset({NLMSG_ERROR, NLMSG_DONE})

_SOL_NETLINK = 270
_NETLINK_CAP_ACK = 10
_NETLINK_GET_STRICT_CHK = 12
_SO_RCVBUFFORCE = 33  # include/uapi/asm-generic/socket.h

_RECEIVE_TIMEOUT_S = 5
_RECEIVE_QUEUE_BYTES = 8 << 20
_RECEIVE_BYTES = 128 << 10  # four times what the kernel puts into one piece of a dump
_BATCH_MESSAGES = 200  # as many answers fit the default receive queue (250 do not); more would gain no speed
_BATCH_BYTES = 192 << 10  # the default send queue takes 208 KiB
_DUMP_ATTEMPTS = 5

_ERROR_CODE = struct.Struct("=i")
ATTRIBUTE: Final = struct.Struct("=HH")
_ATTRIBUTE_NUMBER = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_SEQUENCE = 0xFFFFFFFF

Picked = TypeVar("Picked")


class SocketLike(Protocol):
    """What is used of a socket."""

    def send(self, data: bytearray, /) -> int:
        """Hand over one or more messages."""

    def recv_into(self, buffer: bytearray, /) -> int:
        """Fill the buffer with what is next; raises BlockingIOError after the time-out."""

    def close(self) -> None:
        """Give it back."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A message that answers the one sent at `position`."""

    message_type: int
    flags: int
    position: int
    body: bytes

    @property
    def error_number(self) -> int:
        """What NLMSG_ERROR and NLMSG_DONE say, positive; 0 for success. Raises OSError where they say nothing."""
        return error_number(self.body)


@dataclass(slots=True)
class Counters:
    """What a socket has cost so far."""

    messages: int = 0
    system_calls: int = 0
    dumps: int = 0


def open_netlink(protocol: int, groups: int = 0) -> socket.socket:
    """A netlink socket in this thread's network namespace, subscribed to `groups` (a mask). Raises OSError."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _RECEIVE_TIMEOUT_S, 0))
        _enlarge_receive_queue(opened)
        for option in (_NETLINK_CAP_ACK, _NETLINK_GET_STRICT_CHK):
            _set_if_known(opened, option)
        opened.bind((0, groups))
    except OSError:
        opened.close()
        raise
    return opened


def _enlarge_receive_queue(opened: socket.socket) -> None:
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_QUEUE_BYTES)
    except PermissionError:  # without CAP_NET_ADMIN: net.core.rmem_max is the limit then, which batches stay below
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_QUEUE_BYTES)


def _set_if_known(opened: socket.socket, option: int) -> None:
    """Both options save work and nothing depends on them: kernels before 4.3 and 4.20 do not have them."""
    try:
        opened.setsockopt(_SOL_NETLINK, option, 1)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise


class NetlinkSocket:
    """A socket of one netlink protocol that opens when used, and again after it broke. `name` is for error messages."""

    def __init__(self, protocol: int, name: str, open_socket: Callable[[int], SocketLike] = open_netlink) -> None:
        self.counters = Counters()
        self._protocol = protocol
        self._name = name
        self._open_socket = open_socket
        self._socket: SocketLike | None = None
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._sequence = 0

    def send_batch(self, message_type: int, bodies: Sequence[bytes], flags: int = 0) -> list[int]:
        """Send messages of one type in order; one positive error number each, 0 for success.

        ENOBUFS, ETIMEDOUT and EBADMSG mean that the answer is unknown: read again. Numbers from 4096 up are the
        subsystem's own.
        """
        errors: list[int] = []
        for batch in _batches(bodies):
            errors += self._send_one_batch(message_type, batch, flags)
        return errors

    def request(self, message_type: int, body: bytes) -> bytes:
        """The body of the one message that answers. Raises KernelError."""
        try:
            answer = next(self._ask(message_type, [body], 0))
            number = answer.error_number if answer.message_type == NLMSG_ERROR else None
        except OSError as error:
            raise self._give_up(error) from error
        if number is not None:
            raise self._refused(number)
        return answer.body

    def dump(self, message_type: int, body: bytes) -> list[bytes]:
        """The bodies of all messages of a dump, never a part of them. Raises DumpInterrupted, KernelError."""
        return self.select(message_type, body, _whole_body)

    def select(
        self,
        message_type: int,
        body: bytes,
        pick: Callable[[bytes, int, int], Picked | None],
        pick_run: Callable[[bytes, int], list[Picked] | None] | None = None,
    ) -> list[Picked]:
        """What `pick` makes of the messages of a dump, None left out. Raises DumpInterrupted, KernelError.

        It gets a piece of the dump, and where in it a body begins and ends: of tables that are large and of which
        little is wanted, nothing else need be copied or kept. `pick_run` gets a whole piece and its first message's
        length, and may make as much of it at once if all messages have the same header; None where it cannot.
        """
        for _ in range(_DUMP_ATTEMPTS):
            try:
                picked = self._select_once(message_type, body, pick, pick_run)
            except OSError as error:
                raise self._give_up(error) from error
            if picked is not None:
                return picked
        why = f"it changed while it was read, {_DUMP_ATTEMPTS} times"
        raise DumpInterrupted(f"cannot read {self._name}", errno.EINTR, "Find out what keeps changing it", why)

    def close(self) -> None:
        """Close the socket; the next use opens another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send_one_batch(self, message_type: int, bodies: Sequence[bytes], flags: int) -> list[int]:
        last = len(bodies) - 1
        errors: dict[int, int] = {}
        unanswered = 0
        try:
            answers = self._ask(message_type, bodies, flags, flags_of_last=NLM_F_ACK)
            while last not in errors:
                answer = next(answers)
                errors[answer.position] = answer.error_number
        except OSError as error:
            unanswered = self._give_up(error).number
        return [errors.get(position, unanswered) for position in range(len(bodies))]

    def _select_once(
        self,
        message_type: int,
        body: bytes,
        pick: Callable[[bytes, int, int], Picked | None],
        pick_run: Callable[[bytes, int], list[Picked] | None] | None,
    ) -> list[Picked] | None:
        """All that was picked, or None where the kernel says that it does not fit together."""
        self.counters.dumps += 1
        opened, sequence = self._send(message_type, [body], NLM_F_DUMP)
        picked: list[Picked] = []
        all_flags = 0
        while True:
            piece = self._receive(opened)
            if pick_run and len(piece) > HEADER.size:
                length, found_type, flags, its_sequence, _ = HEADER.unpack_from(piece)
                is_ours = its_sequence == sequence and found_type not in _END_OF_DUMP
                run = pick_run(piece, length) if is_ours else None
                if run is not None:
                    all_flags |= flags
                    picked += run
                    continue
            for found_type, flags, its_sequence, start, end in message_spans(piece):
                if its_sequence != sequence:
                    continue
                all_flags |= flags
                if found_type in _END_OF_DUMP:
                    return picked if self._is_whole(all_flags, piece[start:end]) else None
                item = pick(piece, start, end)
                if item is not None:
                    picked.append(item)

    def _is_whole(self, flags: int, last_body: bytes) -> bool:
        """Whether a dump that has ended so is one; raises KernelError where there is none."""
        number = error_number(last_body)
        if flags & NLM_F_DUMP_INTR or number == errno.EINTR:
            return False
        if number:
            raise self._refused(number)
        return True

    def _ask(self, message_type: int, bodies: Sequence[bytes], flags: int, flags_of_last: int = 0) -> Iterator[Answer]:
        """Send the messages in one go, then yield what answers them, for as long as it is asked for. Raises OSError."""
        opened, first = self._send(message_type, bodies, flags, flags_of_last)
        return self._answers(opened, first, len(bodies))

    def _send(
        self, message_type: int, bodies: Sequence[bytes], flags: int, flags_of_last: int = 0
    ) -> tuple[SocketLike, int]:
        """Send the messages in one go; the socket, and the sequence number of the first. Raises OSError."""
        first = (self._sequence + 1) & _SEQUENCE
        all_flags = [flags | NLM_F_REQUEST] * len(bodies)
        all_flags[-1] |= flags_of_last
        packed = bytearray()
        for sequence, (body, its_flags) in enumerate(zip(bodies, all_flags, strict=True), first):
            packed += HEADER.pack(HEADER.size + len(body), message_type, its_flags, sequence & _SEQUENCE, 0)
            packed += body
        self._sequence = (self._sequence + len(bodies)) & _SEQUENCE
        self._socket = self._socket or self._open_socket(self._protocol)
        self.counters.messages += len(bodies)
        self.counters.system_calls += 1
        self._socket.send(packed)
        return self._socket, first

    def _answers(self, opened: SocketLike, first: int, count: int) -> Iterator[Answer]:
        while True:
            for message_type, flags, sequence, body in split_messages(self._receive(opened)):
                position = (sequence - first) & _SEQUENCE
                if position < count:
                    yield Answer(message_type, flags, position, body)

    def _receive(self, opened: SocketLike) -> bytes:
        self.counters.system_calls += 1
        size = opened.recv_into(self._buffer)
        return bytes(memoryview(self._buffer)[:size])

    def _refused(self, number: int) -> KernelError:
        return KernelError(f"cannot read {self._name}", number)

    def _give_up(self, error: OSError) -> KernelError:
        """Close the socket, on which late answers may still come in, and say why."""
        self.close()
        number = errno.ETIMEDOUT if isinstance(error, BlockingIOError) else error.errno or errno.EIO
        return self._refused(number)


def _batches(bodies: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Slices that the kernel takes, and can answer, in one go."""
    start = size = 0
    for end, body in enumerate(bodies):
        size += HEADER.size + len(body)
        if end > start and (end - start == _BATCH_MESSAGES or size > _BATCH_BYTES):
            yield bodies[start:end]
            start, size = end, HEADER.size + len(body)
    if start < len(bodies):
        yield bodies[start:]


def error_number(body: bytes) -> int:
    """The number that an NLMSG_ERROR or NLMSG_DONE begins with, positive. Raises OSError where it is too short."""
    if len(body) < _ERROR_CODE.size:
        raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
    (code,) = _ERROR_CODE.unpack_from(body)
    return -int(code)


def split_messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Type, flags, sequence number and body of each message received. Raises OSError where the last is cut off."""
    for message_type, flags, sequence, start, end in message_spans(data):
        yield message_type, flags, sequence, data[start:end]


def message_spans(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """The same, but where each body starts and ends."""
    offset, size = 0, len(data)
    while offset < size:
        if size - offset < HEADER.size:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        length, message_type, flags, sequence, _ = HEADER.unpack_from(data, offset)
        if not HEADER.size <= length <= size - offset:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        yield message_type, flags, sequence, offset + HEADER.size, offset + length
        offset += _aligned(length)


def _whole_body(data: bytes, start: int, end: int) -> bytes:
    return data[start:end]


def attribute(number: int, value: bytes) -> bytes:
    """One attribute, padded."""
    length = ATTRIBUTE.size + len(value)
    return ATTRIBUTE.pack(length, number) + value + bytes(-length % 4)


def attributes(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of the value of each attribute between two offsets. Ends at one that is cut off."""
    while end - start >= ATTRIBUTE.size:
        length, number = ATTRIBUTE.unpack_from(data, start)
        if not ATTRIBUTE.size <= length <= end - start:
            return
        yield number & _ATTRIBUTE_NUMBER, start + ATTRIBUTE.size, start + length
        start += _aligned(length)


def read_attributes(data: bytes, start: int) -> dict[int, bytes]:
    """The attributes from an offset on, by number."""
    return {number: data[begin:end] for number, begin, end in attributes(data, start, len(data))}


def _aligned(length: int) -> int:
    return (length + 3) & ~3
