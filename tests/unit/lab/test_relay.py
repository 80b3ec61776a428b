import pytest

from tests.lab.relay import Relay

MARK = b"\x1emark"


def relayed(*chunks: bytes) -> tuple[bytes, int | None]:
    written: list[bytes] = []
    relay = Relay(MARK, written.append)
    for chunk in chunks:
        relay.feed(chunk)
    relay.close()
    return b"".join(written), relay.exit_code


@pytest.mark.parametrize(
    "chunks,output,exit_code",
    [
        pytest.param((b"hello\r\n",), b"hello\n", None, id="no mark, no exit code"),
        pytest.param((b"..", b"\x1emark 0\r\npower off"), b"..", 0, id="what follows the mark is nobody's output"),
        pytest.param((b"no newline\x1emark 7\n",), b"no newline", 7, id="the mark may follow unended output"),
        pytest.param((b"a\x1em", b"ar", b"k 12", b"4\n"), b"a", 124, id="mark and exit code come in pieces"),
        pytest.param((b"a\x1ema", b"p\n"), b"a\x1emap\n", None, id="what only looked like the mark is passed on"),
        pytest.param((b"a\x1emark 1",), b"a", None, id="an exit code cut short is none"),
        pytest.param((b"a\x1ema",), b"a\x1ema", None, id="the end passes on what was held back"),
    ],
)
def test_output_ends_at_the_mark(chunks, output, exit_code):
    assert relayed(*chunks) == (output, exit_code)


def test_progress_without_newline_is_passed_on_at_once():
    written: list[bytes] = []

    Relay(MARK, written.append).feed(b"...")

    assert written == [b"..."]
