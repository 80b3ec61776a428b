"""Every error number that the real edges answer (tests/contract shows them) has a meaning for its operation."""

from __future__ import annotations

import errno
from itertools import product

import pytest

from ipvsproxy.model.kernel_objects import Kind, Operation, RuleTable, SetEntry, Verb
from ipvsproxy.sync.outcomes import _MEANINGS, Outcome, hint, judge
from tests.builders import addr, vs_key

BUSY = 4100  # IPSET_ERR_BUSY, include/uapi/linux/netfilter/ipset/ip_set.h

DONE, REFUSED, UNKNOWN = Outcome.DONE, Outcome.REFUSED, Outcome.UNKNOWN
EDIT, AGAIN = Outcome.EDIT_INSTEAD, Outcome.ADD_INSTEAD

TABLE = [
    (Kind.VIRTUAL_SERVER, Verb.ADD, errno.EEXIST, EDIT, "it is there"),
    (Kind.VIRTUAL_SERVER, Verb.ADD, errno.ENOENT, REFUSED, "the scheduler is not in the kernel"),
    (Kind.VIRTUAL_SERVER, Verb.EDIT, errno.ENOENT, REFUSED, "the scheduler is not in the kernel"),
    (Kind.VIRTUAL_SERVER, Verb.EDIT, errno.ESRCH, AGAIN, "it is gone"),
    (Kind.VIRTUAL_SERVER, Verb.DELETE, errno.ESRCH, DONE, "it is gone"),
    (Kind.VIRTUAL_SERVER, Verb.DELETE, errno.ENOENT, DONE, "there is no IPVS"),
    (Kind.REAL_SERVER, Verb.ADD, errno.EEXIST, EDIT, "it is there"),
    (Kind.REAL_SERVER, Verb.EDIT, errno.ENOENT, AGAIN, "it is gone"),
    (Kind.REAL_SERVER, Verb.DELETE, errno.ENOENT, DONE, "it is gone"),
    (Kind.REAL_SERVER, Verb.ADD, errno.ESRCH, UNKNOWN, "its virtual server is gone"),
    (Kind.REAL_SERVER, Verb.EDIT, errno.ESRCH, UNKNOWN, "its virtual server is gone"),
    (Kind.REAL_SERVER, Verb.DELETE, errno.ESRCH, UNKNOWN, "its virtual server is gone"),
    (Kind.LINK, Verb.ADD, errno.EEXIST, DONE, "it is there"),
    (Kind.LINK, Verb.DELETE, errno.ENODEV, DONE, "it is gone"),
    (Kind.ADDRESS, Verb.ADD, errno.EEXIST, DONE, "it is bound"),
    (Kind.ADDRESS, Verb.ADD, errno.ENODEV, UNKNOWN, "the link is gone"),
    (Kind.ADDRESS, Verb.ADD, errno.EACCES, REFUSED, "the link has no IPv6"),
    (Kind.ADDRESS, Verb.DELETE, errno.EADDRNOTAVAIL, DONE, "it is not bound"),
    (Kind.ADDRESS, Verb.DELETE, errno.ENODEV, DONE, "the link is gone"),
    (Kind.SET, Verb.ADD, errno.EEXIST, REFUSED, "a set of another type has the name"),
    (Kind.SET, Verb.DELETE, errno.ENOENT, DONE, "it is gone"),
    (Kind.SET, Verb.DELETE, BUSY, REFUSED, "a rule names it"),
    (Kind.SUPPORT_ENTRY, Verb.ADD, errno.ENOENT, UNKNOWN, "the set is gone"),
    (Kind.GUARD_ENTRY, Verb.ADD, errno.ENOENT, UNKNOWN, "the set is gone"),
    (Kind.ACCEPT_ENTRY, Verb.ADD, errno.ENOENT, UNKNOWN, "the set is gone"),
    (Kind.BOUND_ENTRY, Verb.ADD, errno.ENOENT, UNKNOWN, "the set is gone"),
    (Kind.SUPPORT_ENTRY, Verb.DELETE, errno.ENOENT, DONE, "the set is gone"),
    (Kind.GUARD_ENTRY, Verb.DELETE, errno.ENOENT, DONE, "the set is gone"),
    (Kind.ACCEPT_ENTRY, Verb.DELETE, errno.ENOENT, DONE, "the set is gone"),
    (Kind.BOUND_ENTRY, Verb.DELETE, errno.ENOENT, DONE, "the set is gone"),
    (Kind.RULES, Verb.ADD, errno.ENOENT, REFUSED, "a set or a match is missing"),
    (Kind.RULES, Verb.EDIT, errno.EAGAIN, REFUSED, "the lock is held"),
    (Kind.RULES, Verb.DELETE, errno.EMLINK, REFUSED, "a foreign rule jumps to a chain of ours"),
    (Kind.SYSCTL, Verb.EDIT, errno.EROFS, REFUSED, "proc is read-only"),
    (Kind.SYSCTL, Verb.ADD, errno.ENOENT, REFUSED, "there is no such setting"),
]

KEYS = {
    Kind.SYSCTL: "net.ipv4.ip_forward",
    Kind.SET: "KUBE-CLUSTER-IP",
    Kind.RULES: RuleTable("nat", 2),  # type: ignore[arg-type]
    Kind.LINK: "kube-ipvs0",
    Kind.ADDRESS: addr("10.96.0.20"),
    Kind.VIRTUAL_SERVER: vs_key("10.96.0.20", 80),
    Kind.REAL_SERVER: vs_key("10.96.0.20", 80),
}


def operation(kind: Kind, verb: Verb) -> Operation:
    return Operation(verb, kind, KEYS.get(kind, SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.20"), 6, 80)))


@pytest.mark.parametrize(
    "kind,verb,number,outcome",
    [pytest.param(*row[:4], id=f"{row[1]} {row[0]}: {row[4]}") for row in TABLE],
)
def test_k15_an_answer_means(kind, verb, number, outcome):
    assert judge(operation(kind, verb), number) is outcome


def test_every_meaning_that_the_program_knows_stands_in_this_table():
    assert set(_MEANINGS) <= {row[:3] for row in TABLE}


EVERY = [pytest.param(kind, verb, id=f"{verb} {kind}") for kind, verb in product(Kind, Verb)]


@pytest.mark.parametrize("kind,verb", EVERY)
def test_zero_is_success(kind, verb):
    assert judge(operation(kind, verb), 0) is DONE


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(errno.ENOBUFS, id="ENOBUFS"),
        pytest.param(errno.ETIMEDOUT, id="ETIMEDOUT"),
        pytest.param(errno.EBADMSG, id="an answer that does not fit"),
    ],
)
@pytest.mark.parametrize("kind,verb", EVERY)
def test_a_lost_answer_says_nothing(kind, verb, number):
    assert judge(operation(kind, verb), number) is UNKNOWN


@pytest.mark.parametrize("kind,verb", EVERY)
def test_what_nobody_expects_is_a_refusal(kind, verb):
    assert judge(operation(kind, verb), errno.EPERM) is REFUSED
    assert judge(operation(kind, verb), errno.EIO) is REFUSED


@pytest.mark.parametrize(
    "kind,verb,number,words",
    [
        pytest.param(Kind.VIRTUAL_SERVER, Verb.ADD, errno.ENOENT, "--ipvs-scheduler to rr", id="no such scheduler"),
        pytest.param(Kind.VIRTUAL_SERVER, Verb.ADD, errno.EPERM, "NET_ADMIN", id="no permission"),
        pytest.param(Kind.ADDRESS, Verb.ADD, errno.EACCES, "disable_ipv6", id="the link has no IPv6"),
        pytest.param(Kind.RULES, Verb.EDIT, errno.EAGAIN, "xtables lock", id="the lock is held"),
        pytest.param(Kind.SET, Verb.ADD, errno.EEXIST, "another type", id="another set of the name"),
        pytest.param(Kind.SYSCTL, Verb.EDIT, errno.EROFS, "read-only", id="a read-only tree"),
    ],
)
def test_a_refusal_says_what_to_do(kind, verb, number, words):
    assert words in hint(operation(kind, verb), number)
