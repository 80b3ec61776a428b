"""What counts as a request, and the bytes of an answer."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from ipvsproxy.serve.http_messages import MAX_HEAD_BYTES, Answer, Request, read_request, refusal, render

NOON = 1796040000.0  # 2026-11-30 12:00:00 UTC


def headed(*, total: int) -> bytes:
    """A whole request of this many bytes."""
    begin, end = b"GET / HTTP/1.1\r\nX: ", b"\r\n\r\n"
    return begin + b"x" * (total - len(begin) - len(end)) + end


@pytest.mark.parametrize(
    "received,request_read",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", Request("GET", 1), id="without a header, Host neither"),
        pytest.param(b"GET /healthz?x=1 HTTP/1.1\r\nHost: n1\r\n\r\n", Request("GET", 1), id="any path"),
        pytest.param(b"HEAD * HTTP/1.0\r\n\r\n", Request("HEAD", 0), id="HTTP/1.0, HEAD"),
        pytest.param(
            b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc", Request("POST", 1), id="a body is not waited for"
        ),
        pytest.param(b"M-SEARCH / HTTP/1.1\r\n\r\n", Request("M-SEARCH", 1), id="any method"),
        pytest.param(b"GET / HTTP/1.9\r\n\r\n", Request("GET", 1), id="a later HTTP/1 is answered as HTTP/1.1"),
        pytest.param(b"\r\nGET / HTTP/1.1\r\n\r\n", Request("GET", 1), id="an empty line before it"),
        pytest.param(b"GET / HTTP/1.1\nHost: n1\n\n", Request("GET", 1), id="bare line feeds"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", Request("GET", 1), id="a second one behind it"),
        pytest.param(headed(total=MAX_HEAD_BYTES), Request("GET", 1), id="the longest head"),
    ],
)
def test_a_request_is(received, request_read):
    found = read_request(received)
    assert isinstance(found, Request)
    assert (found.method, found.minor_version) == (request_read.method, request_read.minor_version)


def test_a_request_tells_its_path_its_query_and_its_headers():
    received = b"GET /healthz?verbose&exclude=ping HTTP/1.1\r\nHost: n1\r\nACCEPT: text/plain\r\n\r\nbody"
    found = read_request(received)
    assert isinstance(found, Request)
    assert (found.path, found.query) == ("/healthz", {"verbose": "", "exclude": "ping"})
    assert (found.header("Accept"), found.header("host"), found.header("Cookie")) == ("text/plain", "n1", "")


@pytest.mark.parametrize(
    "target,path,query",
    [
        pytest.param("http://n1:10256/healthz?verbose", "/healthz", {"verbose": ""}, id="the absolute form"),
        pytest.param("HTTP://n1", "/", {}, id="the absolute form without a path"),
        pytest.param("http://n1?a=1", "/", {"a": "1"}, id="the absolute form with a query alone"),
        pytest.param("/%68ealth%7a", "/healthz", {}, id="letters in percent signs"),
        pytest.param("/a%2Fb%3Fc?d", "/a/b?c", {"d": ""}, id="signs in percent signs"),
        pytest.param("/%ff%zz", "/\ufffd%zz", {}, id="percent signs that stand for nothing"),
        pytest.param("*", "*", {}, id="the whole server"),
    ],
)
def test_a_path_is_what_it_means_however_it_is_written(target, path, query):
    request = Request("GET", target=target)
    assert (request.path, request.query) == (path, query)


def test_what_is_no_header_harms_nobody():
    found = read_request(b"GET / HTTP/1.1\r\n\xff: \xfe\r\nno colon\r\nAccept: a\xff\r\n\r\n")
    assert isinstance(found, Request)
    assert isinstance(found.header("Accept"), str)


@pytest.mark.parametrize(
    "whole",
    [b"\r\nGET /some/path HTTP/1.1\r\nHost: n1:32100\r\n\r\n", b"GET / HTTP/1.0\n\n"],
    ids=["lines that end in CR LF", "lines that end in LF"],
)
def test_every_beginning_of_a_request_waits_for_more(whole):
    assert [read_request(whole[:length]) for length in range(len(whole))] == [None] * len(whole)
    assert read_request(whole)


@pytest.mark.parametrize(
    "received,status",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400, id="TLS"),
        pytest.param(b"\0" * 50, 400, id="zeros"),
        pytest.param(b"hello there\r\n", 400, id="a line of words"),
        pytest.param(b"GET\r\n", 400, id="a method alone"),
        pytest.param(b"GET / \r\n\r\n", 400, id="HTTP/0.9"),
        pytest.param(b"GET /a b HTTP/1.1\r\n\r\n", 400, id="a blank in the target"),
        pytest.param(b"GET / HTTP/11\r\n\r\n", 400, id="a version without a dot"),
        pytest.param(b"\r\n\r\n\r\n", 400, id="nothing but empty lines"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, id="HTTP/2"),
        pytest.param(headed(total=MAX_HEAD_BYTES + 1), 431, id="a whole head that is too long"),
        pytest.param(headed(total=MAX_HEAD_BYTES + 9)[:-4], 431, id="headers without an end"),
        pytest.param(b"GET /" + b"x" * MAX_HEAD_BYTES, 431, id="a first line without an end"),
    ],
)
def test_no_request_is(received, status):
    assert read_request(received) == HTTPStatus(status)


def test_an_answer_is_these_bytes():
    answer = Answer(HTTPStatus.OK, b"{}", {"Content-Type": "application/json", "X-Of-Ours": "7"})
    assert render(answer, Request("GET", 1), NOON) == (
        b"HTTP/1.1 200 OK\r\n"
        b"Content-Type: application/json\r\n"
        b"X-Of-Ours: 7\r\n"
        b"Date: Mon, 30 Nov 2026 12:00:00 GMT\r\n"
        b"Content-Length: 2\r\n"
        b"Connection: close\r\n"
        b"\r\n"
        b"{}"
    )


def test_http_1_0_is_answered_as_such():
    assert render(refusal(HTTPStatus.BAD_REQUEST), Request("GET", 0), NOON).startswith(b"HTTP/1.0 400 Bad Request\r\n")


def test_head_hears_the_length_of_what_it_does_not_get():
    answer = Answer(HTTPStatus.OK, b"four")
    whole, head = (render(answer, Request(method), NOON) for method in ("GET", "HEAD"))
    assert (whole, b"Content-Length: 4" in head) == (head + b"four", True)


def test_a_refusal_says_in_words_what_it_is():
    assert refusal(HTTPStatus.BAD_REQUEST).body == b"400 Bad Request"
