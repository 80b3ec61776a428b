"""Notes: one line each, one for each object."""

from __future__ import annotations

from ipvsproxy.model.notes import Note, gather, one_line


def test_a_note_says_what_why_and_what_to_do():
    assert str(Note("Service default/web", "no ports", "Add one")) == "Service default/web: no ports. Add one"
    assert str(Note("Service default/web", "no ports")) == "Service default/web: no ports"


def test_all_reasons_of_one_object_make_one_note_cut_after_three():
    assert gather("x", []) == ()
    assert gather("x", ["a", "b"]) == (Note("x", "a; b"),)
    assert gather("x", list("abcde"), "h") == (Note("x", "a; b; c; and 2 more", "h"),)


def test_text_from_a_manifest_cannot_break_a_log_line():
    assert one_line("a\nb\x1b[31m\udcff") == "a?b?[31m?"
    assert len(one_line("x" * 10_000)) < 400
    assert gather("a\nb", ["c\nd"]) == (Note("a?b", "c?d"),)
