"""A netlink socket whose kernel is a function of the test."""

from __future__ import annotations

import errno
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ipvsproxy.kernel.netlink import HEADER, NLM_F_ACK, NLMSG_DONE, NLMSG_ERROR, split_messages


class Sent(NamedTuple):
    """One message as the kernel sees it."""

    message_type: int
    flags: int
    sequence: int
    body: bytes


Respond = Callable[[list[Sent]], Iterable[bytes | OSError]]


class ScriptedSocket:
    """`respond` turns what one send holds into what the following receives give: bytes, or an error to raise."""

    def __init__(self, respond: Respond) -> None:
        self.sends: list[list[Sent]] = []
        self.closed = False
        self._respond = respond
        self._queue: deque[bytes | OSError] = deque()

    def send(self, data: bytearray) -> int:
        assert not self.closed
        self.sends.append([Sent(*message) for message in split_messages(bytes(data))])
        self._queue.extend(self._respond(self.sends[-1]))
        return len(data)

    def recv_into(self, buffer: bytearray) -> int:
        """What is queued; nothing more means that the receive time-out passes."""
        item = self._queue.popleft() if self._queue else BlockingIOError(errno.EAGAIN, "time-out")
        if isinstance(item, OSError):
            raise item
        buffer[: len(item)] = item
        return len(item)

    def close(self) -> None:
        self.closed = True


def message(message_type: int, sequence: int, body: bytes, flags: int = 0) -> bytes:
    """A message of the kernel's, padded."""
    packed = HEADER.pack(HEADER.size + len(body), message_type, flags, sequence, 0) + body
    return packed + bytes(-len(packed) % 4)


def error(sent: Sent, number: int) -> bytes:
    """The kernel's answer by number, with the request's header (NETLINK_CAP_ACK); 0 acknowledges."""
    header = HEADER.pack(HEADER.size + len(sent.body), sent.message_type, sent.flags, sent.sequence, 0)
    return message(NLMSG_ERROR, sent.sequence, _code(number) + header)


def _code(number: int) -> bytes:
    return (-number).to_bytes(4, sys.byteorder, signed=True)


def done(sent: Sent, flags: int = 0, number: int = 0) -> bytes:
    """The end of a dump."""
    return message(NLMSG_DONE, sent.sequence, _code(number), flags)


def obey(batch: list[Sent]) -> list[bytes]:
    """A kernel that does all it is told."""
    return [error(sent, 0) for sent in batch if sent.flags & NLM_F_ACK]


def broken(number: int) -> OSError:
    """What a system call raises."""
    return OSError(number, os.strerror(number))
