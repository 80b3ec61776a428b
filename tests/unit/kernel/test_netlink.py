"""One netlink socket against a scripted kernel: who answers what, and what happens when nobody does."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.errors import DumpInterrupted, KernelError
from ipvsproxy.kernel.netlink import (
    HEADER,
    NETLINK_ROUTE,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    NetlinkSocket,
    attributes,
    read_attributes,
)
from tests.unit.kernel.scripted_socket import Respond, ScriptedSocket, Sent, broken, done, error, message, obey

TYPE = 77
BODY = b"four" * 5


class Opened:
    """A NetlinkSocket and the scripted sockets that it has opened; each takes the next script, the last one stays."""

    def __init__(self, *scripts: Respond) -> None:
        self.scripts = list(scripts)
        self.sockets: list[ScriptedSocket] = []
        self.netlink = NetlinkSocket(NETLINK_ROUTE, "the test", self._open)

    def _open(self, protocol: int) -> ScriptedSocket:
        assert protocol == NETLINK_ROUTE
        self.sockets.append(ScriptedSocket(self.scripts[min(len(self.sockets), len(self.scripts) - 1)]))
        return self.sockets[-1]

    @property
    def sends(self) -> list[list[Sent]]:
        return [send for opened in self.sockets for send in opened.sends]


def refuse(*numbers: int) -> Respond:
    """A kernel that answers these numbers, in order; 0 says nothing unless asked to."""

    def respond(batch: list[Sent]) -> list[bytes]:
        pairs = zip(batch, numbers, strict=True)
        return [error(sent, number) for sent, number in pairs if number or sent.flags & NLM_F_ACK]

    return respond


# Batches


def test_each_message_has_its_own_sequence_number_and_only_the_last_asks_for_an_acknowledgement():
    opened = Opened(obey)
    assert opened.netlink.send_batch(TYPE, [BODY, b"", BODY], NLM_F_CREATE) == [0, 0, 0]
    (batch,) = opened.sends
    flags = NLM_F_REQUEST | NLM_F_CREATE
    assert batch == [Sent(TYPE, flags, 1, BODY), Sent(TYPE, flags, 2, b""), Sent(TYPE, flags | NLM_F_ACK, 3, BODY)]


def test_no_messages_send_nothing():
    opened = Opened(obey)
    assert opened.netlink.send_batch(TYPE, []) == []
    assert opened.sockets == []


def test_a_message_that_fails_in_the_middle_is_the_only_one_blamed():
    numbers = [0, errno.EEXIST, 0, errno.ENOENT, 0]
    assert Opened(refuse(*numbers)).netlink.send_batch(TYPE, [BODY] * 5) == numbers


def test_error_numbers_of_a_subsystem_pass_through():
    assert Opened(refuse(4103, 0)).netlink.send_batch(TYPE, [BODY] * 2) == [4103, 0]


@pytest.mark.parametrize(
    "count, sends",
    [
        pytest.param(200, [200], id="200 messages in one send"),
        pytest.param(201, [200, 1], id="201 in two"),
        pytest.param(1001, [200] * 5 + [1], id="1001 in six"),
    ],
)
def test_a_send_carries_at_most_200_messages(count, sends):
    opened = Opened(obey)
    assert opened.netlink.send_batch(TYPE, [BODY] * count) == [0] * count
    assert [len(send) for send in opened.sends] == sends


def test_a_send_carries_at_most_192_kib():
    opened = Opened(obey)
    assert opened.netlink.send_batch(TYPE, [bytes(64 << 10)] * 5) == [0] * 5
    assert [len(send) for send in opened.sends] == [2, 2, 1]


def test_a_message_beyond_that_goes_alone():
    opened = Opened(obey)
    assert opened.netlink.send_batch(TYPE, [bytes(200 << 10), BODY]) == [0, 0]
    assert [len(send) for send in opened.sends] == [1, 1]


@given(
    st.lists(st.sampled_from([0, 0, errno.EEXIST, errno.ESRCH, 4103]), min_size=1, max_size=450),
    st.randoms(),
    st.data(),
)
def test_errors_find_their_messages_whatever_the_order_and_grouping_of_the_answers(numbers, random, data):
    def respond(batch: list[Sent]) -> list[bytes]:
        mine = [numbers[sent.body[0] + 256 * sent.body[1]] for sent in batch]
        *answers, last = refuse(*mine)(batch)
        random.shuffle(answers)
        answers.append(last)
        cut = data.draw(st.integers(0, len(answers)))
        return [piece for piece in (b"".join(answers[:cut]), b"".join(answers[cut:])) if piece]

    bodies = [n.to_bytes(2, "little") + b"\0\0" for n in range(len(numbers))]
    assert Opened(respond).netlink.send_batch(TYPE, bodies) == numbers


# Answers that do not come


def lose_last(batch: list[Sent]) -> list[bytes]:
    """A kernel that meets a malformed message behind the second: it answers for those before it, and no more."""
    return [error(batch[1], errno.EEXIST)]


def test_a_batch_that_the_kernel_cuts_short_times_out_for_all_that_have_not_answered():
    numbers = Opened(lose_last).netlink.send_batch(TYPE, [BODY] * 4)
    assert numbers == [errno.ETIMEDOUT, errno.EEXIST, errno.ETIMEDOUT, errno.ETIMEDOUT]


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.EINTR, errno.EBADF])
def test_a_socket_that_breaks_leaves_its_errno_with_all_that_have_not_answered(number):
    opened = Opened(lambda batch: [error(batch[0], errno.EEXIST), broken(number)])
    assert opened.netlink.send_batch(TYPE, [BODY] * 3) == [errno.EEXIST, number, number]


def test_later_sends_of_the_same_batch_go_on_with_a_new_socket():
    opened = Opened(lambda _: [broken(errno.ENOBUFS)], obey)
    assert opened.netlink.send_batch(TYPE, [BODY] * 201) == [errno.ENOBUFS] * 200 + [0]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(lose_last, id="time-out"),
        pytest.param(lambda _: [broken(errno.ENOBUFS)], id="answers lost"),
        pytest.param(lambda _: [broken(errno.EBADF)], id="closed by somebody"),
        pytest.param(lambda batch: [error(batch[0], errno.EEXIST)[:-1]], id="answer cut off"),
        pytest.param(lambda batch: [numberless(NLMSG_ERROR, batch[0])], id="answer without a number"),
    ],
)
def test_k15_a_broken_socket_is_closed_and_the_next_use_opens_another(script):
    opened = Opened(script, obey)
    assert opened.netlink.send_batch(TYPE, [BODY] * 3)[2] != 0
    assert opened.sockets[0].closed
    assert opened.netlink.send_batch(TYPE, [BODY] * 2) == [0, 0]
    assert len(opened.sockets) == 2


def numberless(message_type: int, sent: Sent) -> bytes:
    """An answer too short to hold an error number."""
    return message(message_type, sent.sequence, b"\0\0")


@pytest.mark.parametrize("message_type", [NLMSG_ERROR, NLMSG_DONE])
def test_an_answer_without_a_number_says_nothing_about_a_dump_or_a_request(message_type):
    opened = Opened(lambda batch: [message(5, batch[0].sequence, b"half"), numberless(message_type, batch[0])])
    with pytest.raises(KernelError, match="cannot read the test: EBADMSG"):
        opened.netlink.dump(TYPE, BODY)
    opened = Opened(lambda batch: [numberless(NLMSG_ERROR, batch[0])])
    with pytest.raises(KernelError, match="cannot read the test: EBADMSG"):
        opened.netlink.request(TYPE, BODY)


def test_an_answer_to_something_else_is_not_taken_for_ours():
    stranger = Sent(TYPE, 0, 99, BODY)
    opened = Opened(lambda batch: [error(stranger, errno.EEXIST) + error(batch[-1], 0)])
    assert opened.netlink.send_batch(TYPE, [BODY] * 2) == [0, 0]


def test_sequence_numbers_wrap_around_in_the_middle_of_a_batch():
    opened = Opened(refuse(0, errno.EEXIST, errno.ESRCH, 0))
    opened.netlink._sequence = 0xFFFFFFFD
    assert opened.netlink.send_batch(TYPE, [BODY] * 4) == [0, errno.EEXIST, errno.ESRCH, 0]
    assert [sent.sequence for sent in opened.sends[0]] == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1]


def test_a_protocol_that_the_kernel_does_not_have_answers_for_every_message():
    def no_such_protocol(_: int) -> ScriptedSocket:
        raise broken(errno.EPROTONOSUPPORT)

    netlink = NetlinkSocket(NETLINK_ROUTE, "the test", no_such_protocol)
    assert netlink.send_batch(TYPE, [BODY] * 2) == [errno.EPROTONOSUPPORT] * 2


# Requests and dumps


def test_a_request_gives_the_body_of_its_answer():
    assert Opened(lambda batch: [message(5, batch[0].sequence, b"answer")]).netlink.request(TYPE, BODY) == b"answer"


def test_a_refused_request_raises_its_number():
    with pytest.raises(KernelError, match=r"cannot read the test: ENODEV") as refused:
        Opened(refuse(errno.ENODEV)).netlink.request(TYPE, BODY)
    assert refused.value.number == errno.ENODEV


def test_a_request_without_an_answer_times_out():
    with pytest.raises(KernelError) as lost:
        Opened(lambda _: []).netlink.request(TYPE, BODY)
    assert lost.value.number == errno.ETIMEDOUT


def dump(batch: list[Sent], *bodies: bytes, flags: int = 0) -> list[bytes]:
    """A dump in two receives, the end in one of its own."""
    assert batch[0].flags == NLM_F_REQUEST | NLM_F_DUMP
    parts = [message(5, batch[0].sequence, body, flags) for body in bodies]
    return [b"".join(parts[:2]), b"".join(parts[2:]) + done(batch[0])]


def test_a_dump_gives_all_bodies_in_order():
    opened = Opened(lambda batch: dump(batch, b"aa", b"bbbb", b"c"))
    assert opened.netlink.dump(TYPE, BODY) == [b"aa", b"bbbb", b"c"]


def test_a_selection_from_a_dump_keeps_what_was_picked_and_skips_answers_to_something_else():
    def respond(batch: list[Sent]) -> list[bytes]:
        first, *rest = dump(batch, b"aa", b"bbbb", b"c")
        return [message(5, 99, b"late") + first, *rest]

    opened = Opened(respond)
    picked = opened.netlink.select(TYPE, BODY, lambda data, *span: None if len(data[slice(*span)]) == 4 else span)
    assert [end - start for start, end in picked] == [2, 1]
    assert (opened.netlink.counters.dumps, opened.netlink.counters.messages) == (1, 1)


def read_singly(data: bytes, start: int, end: int) -> str:
    return f"one {data[start:end].decode()}"


def read_at_once(piece: bytes, length: int) -> list[str] | None:
    """All of a piece, if its messages are alike."""
    parts = [piece[at : at + length] for at in range(0, len(piece), length)]
    is_alike = len({part[: HEADER.size] for part in parts}) == 1
    return [f"run {part[HEADER.size :].decode()}" for part in parts] if is_alike else None


def test_a_piece_whose_messages_are_alike_is_picked_at_once_and_any_other_singly():
    opened = Opened(lambda batch: dump(batch, b"aaaa", b"bbbb", b"cccc"))
    assert opened.netlink.select(TYPE, BODY, read_singly, read_at_once) == ["run aaaa", "run bbbb", "one cccc"]


def test_what_answers_something_else_is_not_picked_at_once():
    def respond(batch: list[Sent]) -> list[bytes]:
        return [message(5, 99, b"late") * 2, *dump(batch, b"aaaa", b"bbbb")]

    assert Opened(respond).netlink.select(TYPE, BODY, read_singly, read_at_once) == ["run aaaa", "run bbbb"]


def test_nothing_of_an_interrupted_dump_is_kept_that_was_picked_at_once():
    flags = iter([NLM_F_DUMP_INTR, 0])
    opened = Opened(lambda batch: dump(batch, b"aaaa", b"bbbb", flags=next(flags)))
    assert opened.netlink.select(TYPE, BODY, read_singly, read_at_once) == ["run aaaa", "run bbbb"]
    assert opened.netlink.counters.dumps == 2


def test_an_empty_dump_is_empty():
    assert Opened(lambda batch: [done(batch[0])]).netlink.dump(TYPE, BODY) == []


@pytest.mark.parametrize(
    "interrupted",
    [
        pytest.param(lambda b: dump(b, b"old!", flags=NLM_F_DUMP_INTR), id="flag on an entry"),
        pytest.param(
            lambda b: [message(5, b[0].sequence, b"old!") + done(b[0], NLM_F_DUMP_INTR)], id="flag at the end"
        ),
        pytest.param(
            lambda b: [message(5, b[0].sequence, b"old!") + done(b[0], 0, errno.EINTR)], id="EINTR at the end"
        ),
    ],
)
def test_an_interrupted_dump_is_repeated_and_nothing_of_it_is_kept(interrupted):
    replies = iter([interrupted, interrupted, lambda batch: dump(batch, b"new!")])

    def respond(batch: list[Sent]) -> list[bytes]:
        return next(replies)(batch)

    opened = Opened(respond)
    assert opened.netlink.dump(TYPE, BODY) == [b"new!"]
    assert opened.netlink.counters.dumps == 3


def test_a_dump_that_is_always_interrupted_raises_and_gives_nothing():
    opened = Opened(lambda batch: dump(batch, b"old!", flags=NLM_F_DUMP_INTR))
    with pytest.raises(DumpInterrupted, match="it changed while it was read, 5 times"):
        opened.netlink.dump(TYPE, BODY)
    assert not opened.sockets[0].closed


@pytest.mark.parametrize(
    "end, number",
    [
        pytest.param(lambda sent: error(sent, errno.EPERM), errno.EPERM, id="error message"),
        pytest.param(lambda sent: done(sent, 0, errno.ENOMEM), errno.ENOMEM, id="error at the end"),
        pytest.param(lambda _: broken(errno.ENOBUFS), errno.ENOBUFS, id="answers lost"),
        pytest.param(lambda _: broken(errno.EAGAIN), errno.ETIMEDOUT, id="time-out"),
    ],
)
def test_a_dump_that_fails_half_way_raises_and_gives_nothing(end, number):
    opened = Opened(lambda batch: [message(5, batch[0].sequence, b"half"), end(batch[0])])
    with pytest.raises(KernelError) as failed:
        opened.netlink.dump(TYPE, BODY)
    assert failed.value.number == number


# Cost


def test_a_batch_costs_one_send_and_one_receive():
    opened = Opened(obey)
    opened.netlink.send_batch(TYPE, [BODY] * 200)
    assert (opened.netlink.counters.messages, opened.netlink.counters.system_calls) == (200, 2)


# Attributes


def test_attributes_are_found_by_number_without_their_flag_bits():
    data = b"skip" + b"\x05\x00\x01\x00a\0\0\0" + b"\x08\x00\x02\x80bcde" + b"\x06\x00\x03\x40fg\0\0"
    assert read_attributes(data, 4) == {1: b"a", 2: b"bcde", 3: b"fg"}


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(b"\x08\x00\x02\x00bc", id="longer than what is left"),
        pytest.param(b"\x00\x00\x02\x00", id="shorter than its header"),
        pytest.param(b"\x08\x00", id="half a header"),
    ],
)
def test_an_attribute_that_is_cut_off_ends_the_walk(cut):
    data = b"\x06\x00\x01\x00aa\0\0" + cut
    assert list(attributes(data, 0, len(data))) == [(1, 4, 6)]
