from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.cluster.events import Changed, Listed, ObjectRef, Rejected, Removed
from ipvsproxy.kube.told import Told
from ipvsproxy.kube.wire import Absent, Arrival, Bookmark, Present, Unreadable
from ipvsproxy.model.api_objects import Service
from ipvsproxy.model.notes import Note


def ref(name: str) -> ObjectRef:
    return ObjectRef("Service", "default", name)


def present(name: str, version: object) -> Present:
    return Present(ref(name), str(version), Service())


def absent(name: str, version: object) -> Absent:
    return Absent(ref(name), str(version))


def listed(*arrivals: Arrival, version: object = 10) -> Told:
    """A memory after a complete list."""
    told = Told("Service")
    told.begin_list()
    for arrival in arrivals:
        told.take(arrival)
    told.end_list(str(version))
    return told


def news(told: Told, *arrivals: Arrival) -> list[str]:
    """What is told on."""
    words = []
    for arrival in arrivals:
        match told.take(arrival):
            case Changed(ref=found):
                words.append(f"+{found.name}")
            case Removed(ref=found):
                words.append(f"-{found.name}")
            case Rejected():
                words.append("!")
            case None:
                words.append("")
    return words


def test_first_list_tells_everything_and_that_it_is_all():
    told = Told("Service")
    told.begin_list()
    assert news(told, present("a", 1), present("b", 2)) == ["+a", "+b"]
    assert told.end_list("10") == [Listed("Service")]
    assert told.resume_at == "10"


def test_a_complete_list_without_what_must_be_there_says_so_and_one_with_it_does_not():
    note = Note("Service a", "is not there")
    told = Told("Service", note)
    told.begin_list()
    assert told.end_list("10") == [Rejected((note,)), Listed("Service")]
    told.begin_list()
    told.take(present("a", 11))
    assert told.end_list("12") == [Listed("Service")]


def test_nothing_can_be_resumed_before_the_first_list_is_complete():
    told = Told("Service")
    told.begin_list()
    told.take(present("a", 1))
    assert told.resume_at is None
    assert told.is_listing


def test_next_list_tells_what_differs_and_what_is_gone():
    told = listed(present("a", 1), present("b", 2), present("c", 3))
    told.begin_list()
    assert news(told, present("b", 2), present("c", 7)) == ["", "+c"]
    assert told.end_list("20") == [Removed(ref("a")), Listed("Service")]
    assert len(told) == 2


def test_list_that_was_given_up_leaves_no_trace_in_the_next_one():
    told = listed(present("a", 1), present("b", 2))
    told.begin_list()
    told.take(present("a", 1))
    told.begin_list()
    assert news(told, present("b", 2)) == [""]
    assert told.end_list("20") == [Removed(ref("a")), Listed("Service")]


def test_older_version_in_a_list_is_news():
    told = listed(present("a", 8))
    told.begin_list()
    assert news(told, present("a", 3)) == ["+a"]
    told.end_list("4")
    assert news(told, present("a", 5)) == ["+a"]


def test_deletion_while_the_list_streams_counts():
    told = listed(present("a", 1))
    told.begin_list()
    assert news(told, present("a", 1), absent("a", 12), present("a", 1)) == ["", "-a", ""]
    assert told.end_list("13") == [Listed("Service")]


def test_object_that_is_made_again_while_the_list_streams_is_there():
    told = listed(present("a", 1))
    told.begin_list()
    assert news(told, present("a", 1), absent("a", 12), present("a", 13)) == ["", "-a", "+a"]
    assert told.end_list("14") == [Listed("Service")]
    assert len(told) == 1


def test_change_while_the_list_streams_is_not_set_back():
    told = Told("Service")
    told.begin_list()
    assert news(told, present("a", 12), present("a", 3), present("a", 14)) == ["+a", "", "+a"]


def test_repeated_event_is_old_news():
    told = listed(present("a", 1))
    assert news(told, present("a", 11), present("a", 11), present("a", 1)) == ["+a", "", ""]


def test_repeated_event_does_not_bring_a_deleted_object_back():
    told = listed(present("a", 1))
    assert news(told, present("b", 11), absent("b", 12), present("b", 11), absent("b", 12)) == ["+b", "-b", "", ""]


def test_repeated_deletion_does_not_remove_what_was_made_again():
    told = listed(present("a", 1))
    assert news(told, absent("a", 11), present("a", 12), absent("a", 11)) == ["-a", "+a", ""]


def test_event_from_before_the_list_is_old_news():
    told = listed(present("a", 1), version=10)
    assert news(told, present("x", 9), absent("a", 10)) == ["", ""]


def test_event_of_another_object_may_come_late():
    told = listed()
    assert news(told, present("a", 15), present("b", 14)) == ["+a", "+b"]
    assert told.resume_at == "15"


def test_event_from_before_a_bookmark_is_old_news():
    told = listed()
    told.bookmark(Bookmark("30", ends_list=False))
    assert news(told, present("a", 29), present("a", 31)) == ["", "+a"]


def test_bookmark_that_comes_late_changes_nothing():
    told = listed()
    told.bookmark(Bookmark("30", ends_list=False))
    told.bookmark(Bookmark("20", ends_list=False))
    assert told.resume_at == "30"


def test_deletion_of_what_was_never_told_is_no_news():
    assert news(listed(), absent("a", 11)) == [""]


def test_deletions_are_remembered_no_longer_than_to_the_next_bookmark():
    told = listed(*(present(f"s{number}", 1) for number in range(100)))
    for number in range(100):
        told.take(absent(f"s{number}", 11 + number))
    told.bookmark(Bookmark("200", ends_list=False))
    assert (len(told), len(told._gone)) == (0, 0)


def test_object_that_cannot_be_read_counts_as_there():
    told = listed(present("a", 1))
    told.begin_list()
    assert news(told, Unreadable(ref("a"), "5", "bad port"), Unreadable(ref("a"), "5", "bad port")) == ["!", ""]
    assert told.end_list("20") == [Listed("Service")]


def test_versions_that_are_no_numbers_are_compared_for_equality_only():
    told = listed(present("a", "x1"), version="x9")
    assert news(told, present("a", "x1"), present("a", "x0"), present("b", "x9")) == ["", "+a", ""]
    assert told.resume_at == "x0"


def test_version_of_more_digits_than_a_number_may_have_is_compared_for_equality_only():
    told = listed(present("a", 7), version="1" * 5000)
    assert news(told, present("a", "9" * 5000), present("a", "9" * 5000), absent("a", "8" * 5000)) == ["+a", "", "-a"]


def test_event_without_a_version_is_always_news():
    assert news(listed(present("a", "")), present("a", ""), present("a", "")) == ["+a", "+a"]


def test_expired_place_is_forgotten_but_not_what_was_told():
    told = listed(present("a", 1))
    told.expire()
    assert (told.resume_at, len(told)) == (None, 1)


HISTORY = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12)


@given(HISTORY, st.data())
def test_any_history_told_with_repeats_ends_where_the_history_ends(
    history: list[tuple[str, bool]], data: st.DataObject
):
    """Any earlier events may come again after each one, as when a connection goes on from an older place."""
    events = [absent(name, at) if gone else present(name, at) for at, (name, gone) in enumerate(history, 11)]
    told = listed()
    state: set[str] = set()
    for end in range(1, len(events) + 1):
        repeats = data.draw(st.lists(st.sampled_from(events[:end]), max_size=3))
        for arrival in [events[end - 1], *repeats]:
            match told.take(arrival):
                case Changed(ref=found):
                    state.add(found.name)
                case Removed(ref=found):
                    state.remove(found.name)
    last = dict(history)
    assert state == {name for name, gone in last.items() if not gone}
