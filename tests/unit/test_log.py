from __future__ import annotations

import io
import json
import logging
import os
import re
import select
import threading
import time

import pytest
import structlog

from ipvsproxy import log
from ipvsproxy.config.types import LogFormat
from ipvsproxy.model.addr import parse_cidr

RFC_3339_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Slow(io.StringIO):
    """Takes a line in two pieces and lets other threads run between them."""

    def write(self, text):
        super().write(text[:9])
        time.sleep(0.0005)
        return super().write(text[9:])


class Broken(io.StringIO):
    def write(self, _text):
        raise BrokenPipeError


def logged(write, *, log_format=LogFormat.AUTO, verbosity=0, stream=None):
    stream = stream or io.StringIO()
    log.configure(log_format, verbosity, stream)
    write(structlog.get_logger())
    return stream.getvalue()


def test_a_line_elsewhere_than_on_a_terminal_is_json():
    line = logged(lambda it: it.info("sync_finished", services=412, mode="ipvs"))
    event = json.loads(line)
    assert RFC_3339_UTC.fullmatch(event.pop("timestamp"))
    assert event == {"level": "info", "event": "sync_finished", "services": 412, "mode": "ipvs"}
    assert list(json.loads(line))[:3] == ["timestamp", "level", "event"]


def test_a_line_on_a_terminal_is_for_people():
    line = logged(lambda it: it.warning("sync_refused", service="default/web"), stream=Terminal())
    plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
    assert re.search(r"\[warning +\] sync_refused +service=default/web\n", plain)


def test_json_can_be_asked_for_on_a_terminal():
    assert json.loads(logged(lambda it: it.info("started"), log_format=LogFormat.JSON, stream=Terminal()))


def test_text_elsewhere_than_on_a_terminal_is_one_line_of_keys_and_values():
    line = logged(lambda it: it.info("sync_finished", services=412, mode="a b"), log_format=LogFormat.TEXT)
    assert re.fullmatch(r'timestamp=\S+Z level=info event=sync_finished services=412 mode="a b"\n', line)


@pytest.mark.parametrize(
    "verbosity,lines",
    [
        pytest.param(0, ["shown"], id="0 logs info"),
        pytest.param(1, ["shown"], id="1 logs info"),
        pytest.param(2, ["hidden", "shown"], id="2 logs debug too"),
        pytest.param(9, ["hidden", "shown"], id="more is no error"),
    ],
)
def test_the_level_follows_the_verbosity(verbosity, lines):
    def write(it):
        it.debug("hidden")
        it.info("shown")

    text = logged(write, verbosity=verbosity)
    assert [json.loads(line)["event"] for line in text.splitlines()] == lines


def test_a_value_that_json_does_not_know_is_written_as_its_text():
    assert json.loads(logged(lambda it: it.info("x", cidr=parse_cidr("10.0.0.0/8"))))["cidr"] == "10.0.0.0/8"


@pytest.mark.parametrize("log_format", [LogFormat.JSON, LogFormat.TEXT])
def test_an_exception_stays_within_its_line(log_format):
    text = logged(lambda it: it.error("thread_died", exc_info=ValueError("why")), log_format=log_format)
    assert text.count("\n") == 1
    assert "ValueError: why" in text


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"unknown": tuple(f"field{number}" for number in range(600))}, id="many items"),
        pytest.param({"message": "x" * 100_000}, id="a long text"),
        pytest.param({"message": "\N{GRINNING FACE}\n" * 4000}, id="a text that takes more bytes than it has letters"),
        pytest.param({"items": ["x" * 100_000]}, id="one long item"),
        pytest.param({"map": {str(number): number for number in range(2000)}}, id="a long map"),
        pytest.param({f"key{number}": "x" * 90 for number in range(40)}, id="many keys"),
        pytest.param({f"key{number}": "x" for number in range(1000)}, id="more keys than fit"),
        pytest.param({"message": "\udcff" * 9000}, id="text that is no UTF-8"),
    ],
)
@pytest.mark.parametrize("log_format", [LogFormat.JSON, LogFormat.TEXT])
def test_a_long_line_is_shortened_and_stays_what_it_is(log_format, keys):
    line = logged(lambda it: it.warning("config_file_not_strict", file="c.yaml", **keys), log_format=log_format)
    assert len(line.encode()) <= select.PIPE_BUF
    assert line.count("\n") == 1
    assert "config_file_not_strict" in line
    if log_format is LogFormat.JSON:
        assert json.loads(line)["level"] == "warning"


def test_of_a_long_list_the_first_items_and_the_number_of_the_others_are_told():
    unknown = json.loads(logged(lambda it: it.info("x", unknown=[f"field{number}" for number in range(600)])))[
        "unknown"
    ]
    assert unknown[0] == "field0"
    assert unknown[-1] == f"… and {600 - len(unknown) + 1} more"
    assert len(unknown) > 100


def test_of_a_long_traceback_both_ends_are_told():
    def write(it):
        try:
            deep(400)
        except ValueError:
            it.exception("thread_died", thread="sync")

    def deep(depth):
        return shallow(depth) if depth else int("why")

    def shallow(depth):
        return deep(depth - 1)

    event = json.loads(logged(write))
    assert event["thread"] == "sync"
    assert event["exception"].startswith("Traceback")
    assert event["exception"].endswith("'why'")


def test_a_broken_log_does_not_stop_the_program():
    logged(lambda it: it.info("started"), stream=Broken())


def test_lines_of_two_threads_do_not_mix():
    def write(it):
        threads = [threading.Thread(target=lambda: [it.info("x") for _ in range(20)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len([json.loads(line) for line in logged(write, stream=Slow()).splitlines()]) == 60


def test_what_a_library_logs_has_the_same_form():
    stream = io.StringIO()
    log.configure(LogFormat.JSON, 0, stream)
    failure = (OSError, OSError("gone"), None)
    log.LibraryHandler().emit(logging.LogRecord("urllib3", logging.WARNING, "", 1, "retry %d", (2,), failure))
    event = json.loads(stream.getvalue())
    assert (event["level"], event["event"]) == ("warning", "library_message")
    assert (event["logger"], event["message"]) == ("urllib3", "retry 2")
    assert "OSError: gone" in event["exception"]


def test_a_reader_that_does_not_read_stops_nobody():
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading, "rb") as reader:
        log.configure(LogFormat.JSON, 0, stream)
        for number in range(2000):
            structlog.get_logger().info("line", number=number, padding="x" * 100)
        first = reader.read1(100)
    assert first.startswith(b'{"timestamp"')


def test_a_closed_standard_error_is_no_reason_to_stop():
    log.configure(LogFormat.AUTO, 0, None)
    structlog.get_logger().info("line")
