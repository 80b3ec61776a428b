"""Our ipsets and their entries, over nfnetlink.

Entries of one set and one verb travel together in one message (measured: 1.6 µs an entry against 16 one by one):

    nfgenmsg | PROTOCOL | SETNAME | LINENO | ADT { DATA { IP, PORT, PROTO, CIDR2, IP2 }, DATA { … }, … }

The kernel stops such a message at the first entry that it refuses. Both verbs are idempotent without NLM_F_EXCL, so
the entries of a refused message are sent once more, each in a message of its own: then every entry has its own
answer, and no line number in an echoed request has to be found. Only the outer LINENO is sent, which the kernel
demands beside ADT.

A set that another version or program has made is used as it is, comments and size included, if it has our type. One of
another type is replaced where no rule holds it; a full one gives way to a larger copy (K46). Such a copy is in no table
of ours: where a killed run has left one, it goes with the set or before the next copy.
Source: include/uapi/linux/netfilter/ipset/ip_set.h, net/netfilter/ipset/ip_set_core.c.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

import structlog
from msgspec.structs import replace

from ipvsproxy.errors import KernelError, NotInKernel, Unsupported, describe_errno
from ipvsproxy.kernel.complaints import Complaints
from ipvsproxy.kernel.ipset_codec import (
    ADD,
    CREATE,
    DEL,
    DESTROY,
    FAMILY,
    HEADER,
    LIST,
    MAX_ELEMENTS,
    REVISION,
    REVISION_MIN,
    REVISIONS,
    START,
    SWAP,
    TYPE,
    TYPE_NAME,
    Message,
    decode_max_elements,
    decode_set,
    encode_create,
    messages_of,
    named,
    two_named,
)
from ipvsproxy.kernel.netlink import (
    NETLINK_NETFILTER,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NetlinkSocket,
    attribute,
    read_attributes,
)
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, Operation, SetEntry, SetSpec, State, Verb

log = structlog.get_logger()

IPSET_ERR_PROTOCOL: Final = 4097  # a field that the set's type needs is missing; so no such entry can be in it
IPSET_ERR_HASH_FULL: Final = 4352
_COPY_NAME_BYTES = 27  # of 31, so that "-TMP" fits behind
_MOST_ELEMENTS = 0xFFFFFFFF  # of 32 bits

# Success, no such set, no permission, and an answer that was lost say nothing about single entries.
_SAME_FOR_ALL: Final = frozenset({0, errno.ENOENT, errno.EPERM, errno.ENOBUFS, errno.ETIMEDOUT, errno.EBADMSG})


class NetlinkIPSets:
    """Meets `kernel.api.IPSets`. `entry_kinds` names our sets and says of which kind their entries are."""

    kinds = frozenset({Kind.SET, Kind.SUPPORT_ENTRY, Kind.GUARD_ENTRY, Kind.ACCEPT_ENTRY, Kind.BOUND_ENTRY})

    def __init__(self, entry_kinds: Mapping[str, Kind], netlink: NetlinkSocket | None = None) -> None:
        self._entry_kinds = dict(entry_kinds)
        self.netlink = netlink or NetlinkSocket(NETLINK_NETFILTER, "the ipsets")
        self._revisions: dict[tuple[str, Family | None], int] = {}
        self._stuck: dict[str, int] = {}  # full sets that could not grow in this batch, and why
        self._sizes: dict[str, int] = {}  # those that could
        self._complaints = Complaints("set_not_grown")

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """Carry them out in order; one error number each. Creating a set that is there with our type succeeds."""
        self._stuck.clear()
        self._sizes.clear()
        results = [0] * len(operations)
        numbered = enumerate(operations)
        for is_entry, run in groupby(numbered, key=lambda item: isinstance(item[1].key, SetEntry)):
            if is_entry:
                self._send(messages_of(run), results)
                continue
            for position, operation in run:
                results[position] = self._apply_to_set(operation)
        return results

    def read(self) -> State:
        """Those of our sets that exist, as they are, with the entries that have our form. Raises KernelError."""
        state: State = {kind: {} for kind in self.kinds}
        for name, kind in self._entry_kinds.items():
            messages = self._list(name)
            if messages:
                spec, entries = decode_set(name, messages)
                state[Kind.SET][name] = spec
                state[kind].update(dict.fromkeys(entries, True))
        return state

    def fingerprint(self) -> bytes:
        """One value for all our sets as listed, undecoded. Raises KernelError."""
        listed = b"".join(message for name in self._entry_kinds for message in self._list(name))
        return hashlib.blake2b(listed, digest_size=16).digest()

    def close(self) -> None:
        """Close the socket; the next call opens another one, in the network namespace it runs in then."""
        self.netlink.close()

    def _apply_to_set(self, operation: Operation) -> int:
        name, spec = str(operation.key), operation.settings
        if operation.verb is Verb.DELETE:
            return self._destroy(_copy_of(name), name)
        assert isinstance(spec, SetSpec)  # noqa: S101 - SET operations have no other settings
        number = self._create(name, spec)
        if operation.verb is not Verb.EDIT or number not in {0, errno.EEXIST}:
            return number
        try:
            return self._replace_set(name, spec)
        except KernelError as error:
            return error.number or errno.EIO

    def _create(self, name: str, spec: SetSpec, max_elements: int = MAX_ELEMENTS) -> int:
        try:
            body = encode_create(name, spec, self._revision(spec), max_elements)
        except KernelError as error:
            return error.number or errno.EIO
        return self.netlink.send_batch(CREATE, [body], NLM_F_CREATE)[0]

    def _destroy(self, *names: str) -> int:
        """The last one's number."""
        # With NLM_F_EXCL all kernels say ENOENT where there is no such set; newer ones succeed without it.
        return self.netlink.send_batch(DESTROY, [named(name) for name in names], NLM_F_EXCL)[-1]

    def _replace_set(self, name: str, spec: SetSpec) -> int:
        """Put a set of our type into the place of one of another (K46). Its number where a rule holds the old one.

        Raises KernelError where it cannot be told what is there.
        """
        listed = self._list(name)
        if listed and decode_set(name, listed)[0] == spec:
            return 0
        number = self._destroy(name)
        if number in {0, errno.ENOENT}:
            log.warning("set_replaced", set=name, type=spec.type_name)
            return self._create(name, spec)
        return number

    def _make_room(self, name: str) -> int:
        """Let a full set grow; what its entries are to be answered where it cannot.

        Tried once in a batch where it fails, for a copy costs as much as the set is large.
        """
        if name not in self._stuck:
            try:
                number = self._grow(name)
            except KernelError as error:
                number = error.number or errno.EIO
            if not number:
                self._complaints.settle(name)
                return 0
            self._complaints.tell(name, describe_errno(number), set=name, errno=number)
            self._stuck[name] = number
        number = self._stuck[name]
        return number if number in _SAME_FOR_ALL else IPSET_ERR_HASH_FULL

    def _grow(self, name: str) -> int:
        """Make room in a full set: a larger copy takes its place by an atomic swap, so rules match all the while.

        Raises KernelError where it cannot be listed.
        """
        listed = self._list(name)
        if not listed:
            return errno.ENOENT
        spec, entries = decode_set(name, listed)
        size = min(max(MAX_ELEMENTS, 2 * decode_max_elements(listed)), _MOST_ELEMENTS)
        if spec.type_name not in REVISIONS or size <= self._sizes.get(name, 0):
            return IPSET_ERR_HASH_FULL  # its entries could not be copied; it was not its size
        copy = _copy_of(name)
        self._destroy(copy)  # of an attempt that was cut short
        number = self._create(copy, spec, size) or self._fill(copy, entries)
        if not number:
            number = self.netlink.send_batch(SWAP, [two_named(copy, name)])[0]
        self._destroy(copy)
        if not number:
            self._sizes[name] = size
            # kube-proxy cannot take over a set of another size before a clean-up: its create refuses it.
            log.warning("set_grown", set=name, max_elements=size, fits_kube_proxy=size == MAX_ELEMENTS)
        return number

    def _fill(self, name: str, entries: Iterable[SetEntry]) -> int:
        kind = Kind.SUPPORT_ENTRY  # entries of every kind are sent alike
        additions = (Operation(Verb.ADD, kind, replace(entry, set_name=name)) for entry in entries)
        numbers = self.netlink.send_batch(ADD, [message.body for message in messages_of(enumerate(additions))])
        return next((number for number in numbers if number), 0)

    def _revision(self, spec: SetSpec) -> int:
        """The revision to create with: ours, moved into what this kernel supports. KernelError: no such type."""
        known = self._revisions.get((spec.type_name, spec.family))
        if known is not None:
            return known
        asked = attribute(TYPE_NAME, spec.type_name.encode() + b"\0") + attribute(FAMILY, bytes([spec.family or 0]))
        found = read_attributes(self.netlink.request(TYPE, START + asked), len(HEADER))
        if not found.get(REVISION):
            raise KernelError(
                f"cannot create sets of {spec.type_name}", errno.EBADMSG, why="the kernel names no revision"
            )
        highest = found[REVISION][0]
        lowest = (found.get(REVISION_MIN) or found[REVISION])[0]
        revision = max(lowest, min(highest, REVISIONS.get(spec.type_name, highest)))
        self._revisions[spec.type_name, spec.family] = revision
        return revision

    def _send(self, messages: Iterable[Message], results: list[int]) -> None:
        for command, run in groupby(messages, key=lambda message: message.command):
            batch = list(run)
            roomy: set[str] = set()  # grown since this batch was sent: the other messages of the set have room too
            numbers = self.netlink.send_batch(command, [message.body for message in batch])
            for message, number in zip(batch, numbers, strict=True):
                is_full = number == IPSET_ERR_HASH_FULL
                answer = self._make_room(message.set_name) if is_full and message.set_name not in roomy else number
                if is_full and (message.set_name in roomy or not answer):
                    roomy.add(message.set_name)
                    self._send([message], results)
                elif answer in _SAME_FOR_ALL or len(message.entries) == 1:
                    for position in message.positions:
                        results[position] = 0 if command == DEL and answer == IPSET_ERR_PROTOCOL else answer
                else:
                    self._send(message.one_by_one(), results)

    def _list(self, name: str) -> list[bytes]:
        try:
            return self.netlink.dump(LIST, named(name))
        except KernelError as error:
            if error.number == errno.ENOENT:
                return []
            raise _explain(error) from error


def _explain(error: KernelError) -> KernelError:
    """The same error with what to do about it, where the reason is the machine and not the moment.

    EINVAL is nfnetlink's answer for a subsystem that it neither has nor can load (net/netfilter/nfnetlink.c).
    """
    if error.number == errno.EINVAL:
        why = "this kernel has no ipsets, or may not load them (EINVAL)"
        return NotInKernel(error.what, error.number, "Load the module ip_set on the node (modprobe ip_set)", why)
    if error.number in {errno.EPERM, errno.EACCES}:
        return Unsupported(error.what, error.number, "Run as root, or with the capability NET_ADMIN")
    return error


def _copy_of(name: str) -> str:
    """The name under which a larger copy of a set is made."""
    return name[:_COPY_NAME_BYTES] + "-TMP"
