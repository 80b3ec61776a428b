"""Configuration, credentials and TLS: what is sent, what is read again, what is refused, and that no secret is told."""

from __future__ import annotations

import base64
import contextlib
import errno
import gc
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import ReadTimeoutError

from ipvsproxy import __version__
from ipvsproxy.errors import ConfigError
from ipvsproxy.kube.client import Access, ApiServer, _translated
from ipvsproxy.kube.recovery import Cause, Interruption
from tests.kube.access import OK, SECRET, ask, kubeconfig, sent
from tests.kube.scripted_server import HOLD, RESET, Answer, body, broken, serving, stream, unfinished_chunk
from tests.lab.certificates import Identity, issue, make_authority, server_context


def pod(folder: Path, url: str, ca: Identity) -> Access:
    """What a pod finds."""
    (folder / "token").write_text(f"{SECRET}\n")
    (folder / "ca.crt").write_bytes(ca.certificate.read_bytes())
    host, _, port = url.removeprefix("https://").partition(":")
    return Access(pod_files=folder, environ={"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port})


def test_request_bears_our_name_and_asks_for_json():
    with serving([OK]) as server:
        assert ask(ApiServer(Access(master=server.url))) == 200
        headers = server.requests[0].headers
    assert headers["User-Agent"] == f"ipvsproxy/{__version__}"
    assert headers["Accept"] == "application/json"


def test_query_arrives_as_given():
    query = {"labelSelector": "!a.b/c", "fieldSelector": "spec.clusterIP!=None", "continue": "x+/= &%"}
    with serving([OK]) as server, ApiServer(Access(master=server.url)).connect() as session:
        with session.get("/api/v1/services", query, 5):
            pass
        assert server.requests[0].query == query


def test_pages_share_one_connection():
    with serving([OK, OK]) as server, ApiServer(Access(master=server.url)).connect() as session:
        ports = set()
        for _ in range(2):
            with session.get("/", {}, 5) as response:
                ports.add(response._raw._connection.sock.getsockname())
                response.read()
    assert len(ports) == 1


@pytest.mark.parametrize("answer", [body("x" * 20), stream(b"x" * 10, b"y" * 12, HOLD)])
def test_answer_that_is_too_long_is_not_read_to_its_end(answer: Answer):
    with (
        serving([answer]) as server,
        ApiServer(Access(master=server.url)).connect() as session,
        session.get("/", {}, 5) as response,
        pytest.raises(Interruption, match="of more than 21 bytes"),
    ):
        response.read(21)


def test_pieces_of_a_chunk_are_read_as_they_come():
    with (
        serving([unfinished_chunk(1_000_000, b"begun")]) as server,
        ApiServer(Access(master=server.url)).connect() as session,
        session.get("/", {}, 5) as response,
    ):
        assert next(response.chunks()) == b"begun"


def test_master_holds_against_the_kubeconfig(tmp_path: Path):
    with serving([OK]) as server:
        access = kubeconfig(tmp_path, "https://192.0.2.1:6443", {"token": SECRET})
        assert ask(ApiServer(Access(kubeconfig=access.kubeconfig, master=server.url))) == 200
        assert sent(server) == [f"Bearer {SECRET}"]


def test_proxy_without_a_scheme_is_an_http_proxy(monkeypatch: pytest.MonkeyPatch):
    """As curl and Go have it."""
    with serving([OK]) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removeprefix("http://"))
        monkeypatch.setenv("no_proxy", "")
        assert ask(ApiServer(Access(master="http://192.0.2.1:6443"))) == 200


@pytest.mark.parametrize(
    "proxy, reason",
    [
        pytest.param(f"socks5://u:{SECRET}@127.0.0.1:1080", "is no HTTP proxy", id="SOCKS"),
        pytest.param(f"ftp://u:{SECRET}@127.0.0.1", "is no HTTP proxy", id="a scheme of no proxy"),
        pytest.param(f"http://u:{SECRET}@[::1", "is no URL", id="half an address"),
        pytest.param("http://", "is no URL", id="no host"),
        pytest.param("127.0.0.1:99999", "is no URL", id="no port"),
    ],
)
def test_proxy_that_cannot_be_used_is_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch, proxy: str, reason: str):
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(ConfigError, match=f"^the proxy for the API server: {reason}") as refused:
        ApiServer(Access(master="https://192.0.2.1:6443"))
    assert SECRET not in str(refused.value)


def test_proxy_of_a_kubeconfig_that_is_bad_later_is_a_trouble_to_wait_out(tmp_path: Path):
    api = ApiServer(kubeconfig(tmp_path, "http://127.0.0.1:9", {}))
    kubeconfig(tmp_path, "http://127.0.0.1:9", {}, **{"proxy-url": "socks5://127.0.0.1:1080"})
    with pytest.raises(Interruption, match="no usable configuration: the proxy for the API server"):
        ask(api)


def test_proxy_that_is_not_for_the_api_server_may_be_anything(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1080")
    monkeypatch.setenv("no_proxy", "127.0.0.0/8")
    with serving([OK]) as server:
        assert ask(ApiServer(Access(master=server.url))) == 200


def test_token_file_of_a_kubeconfig_is_read_again_for_each_connection(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("first\n")
    with serving([OK, OK]) as server:
        api = ApiServer(kubeconfig(tmp_path, server.url, {"tokenFile": "token"}))
        ask(api)
        token.write_text("second\n")
        ask(api)
        assert sent(server) == ["Bearer first", "Bearer second"]


def test_kubeconfig_itself_is_read_again_for_each_connection(tmp_path: Path):
    with serving([OK]) as first, serving([OK]) as second:
        api = ApiServer(kubeconfig(tmp_path, first.url, {"token": "first"}))
        ask(api)
        kubeconfig(tmp_path, second.url, {"token": "second"})
        ask(api)
        assert (sent(first), sent(second)) == (["Bearer first"], ["Bearer second"])


def test_basic_authentication_of_a_kubeconfig_is_sent(tmp_path: Path):
    with serving([OK]) as server:
        ask(ApiServer(kubeconfig(tmp_path, server.url, {"username": "u", "password": "p"})))
        assert sent(server) == ["Basic " + base64.b64encode(b"u:p").decode()]


def test_pod_uses_its_service_account_and_a_renewed_token(tmp_path: Path, ca: Identity, server_identity: Identity):
    with serving([OK, OK], server_context(server_identity)) as server:
        api = ApiServer(pod(tmp_path, server.url, ca))
        assert ask(api) == 200
        (tmp_path / "token").write_text("renewed\n")
        assert ask(api) == 200
        assert sent(server) == [f"bearer {SECRET}", "bearer renewed"]


def test_replaced_authority_is_in_force_from_the_next_connection_on(
    tmp_path: Path, ca: Identity, server_identity: Identity
):
    other = make_authority(tmp_path, "other")
    with serving([OK, OK], server_context(server_identity)) as server:
        api = ApiServer(pod(tmp_path, server.url, other))
        with pytest.raises(Interruption, match="unreachable: its certificate is not accepted") as refused:
            ask(api)
        assert refused.value.cause is Cause.UNREACHABLE
        (tmp_path / "ca.crt").write_bytes(ca.certificate.read_bytes())
        assert ask(api) == 200


@pytest.mark.parametrize("inline", [pytest.param(False, id="as files"), pytest.param(True, id="in the kubeconfig")])
def test_client_certificate_is_presented(tmp_path: Path, ca: Identity, server_identity: Identity, *, inline: bool):
    client = issue(ca, tmp_path, "client")
    files = {"client-certificate": client.certificate, "client-key": client.key}
    user = {name: str(path) for name, path in files.items()}
    authority: dict[str, object] = {"certificate-authority": str(ca.certificate)}
    if inline:
        user = {f"{name}-data": base64.b64encode(path.read_bytes()).decode() for name, path in files.items()}
        authority = {"certificate-authority-data": base64.b64encode(ca.certificate.read_bytes()).decode()}
    with serving([OK], server_context(server_identity, clients=ca)) as server:
        assert ask(ApiServer(kubeconfig(tmp_path, server.url, user, **authority))) == 200


def test_certificate_is_not_checked_where_the_kubeconfig_says_so(tmp_path: Path, server_identity: Identity):
    with serving([OK], server_context(server_identity)) as server:
        access = kubeconfig(tmp_path, server.url, {"token": SECRET}, **{"insecure-skip-tls-verify": True})
        with pytest.warns(match="Unverified HTTPS request"):
            assert ask(ApiServer(access)) == 200


def test_dead_peer_is_given_up_after_thirty_seconds():
    wanted = {
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): 30_000,
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 15,
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 15,
    }
    with (
        serving([stream(HOLD)]) as server,
        ApiServer(Access(master=server.url)).connect() as session,
        session.get("/", {}, 5) as response,
    ):
        connection = response._raw._connection.sock
        assert {option: connection.getsockopt(*option) for option in wanted} == wanted


@pytest.mark.parametrize(
    "root, said",
    [
        pytest.param(
            TimeoutError(errno.ETIMEDOUT, "Connection timed out"), "cut: ETIMEDOUT", id="the kernel gave the peer up"
        ),
        pytest.param(TimeoutError("timed out"), "silent: nothing came", id="we gave it up"),
    ],
)
def test_dead_peer_and_a_silent_one_are_told_apart(root: TimeoutError, said: str):
    """The transport calls both a time-out. A peer that really dies is in test_dead_peer.py."""
    with pytest.raises(Interruption, match=f"^{said}"), _translated():
        raise ReadTimeoutError(HTTPConnectionPool("192.0.2.1"), "/", "Read timed out.") from root


def test_reason_of_a_failed_connection_is_the_same_each_time():
    reasons = set()
    for _ in range(2):
        with pytest.raises(Interruption) as failed:
            ask(ApiServer(Access(master="http://127.0.0.1:9")))
        reasons.add(str(failed.value))
    assert reasons == {"unreachable: ECONNREFUSED (Connection refused)"}


def test_transport_does_not_try_again_by_itself():
    with serving([broken(RESET), OK]) as server:
        with pytest.raises(Interruption, match="cut"):
            ask(ApiServer(Access(master=server.url)))
        assert len(server.requests) == 1


def test_kubeconfig_that_is_gone_later_is_a_trouble_to_wait_out(tmp_path: Path):
    api = ApiServer(kubeconfig(tmp_path, "http://127.0.0.1:9", {}))
    (tmp_path / "kubeconfig").unlink()
    with pytest.raises(Interruption, match=r"no usable configuration: .*ENOENT"):
        ask(api)


BROKEN = {
    "no YAML": f"clusters: [\n  token: {SECRET}\n - x: }}",
    "no mapping": SECRET,
    "no context": f"users: [{{name: u, user: {{token: {SECRET}}}}}]\n",
    "no such context": f"current-context: x\ncontexts: []\nclusters: []\nusers: [{{name: {SECRET}}}]\n",
    "no user in the user": f"""
current-context: x
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://h"}}}}]
users: [{{name: u, token: {SECRET}}}]
""",
    "two users of one name": f"""
current-context: x
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://h"}}}}]
users: [{{name: u, user: {{token: {SECRET}}}}}, {{name: u, user: {{token: {SECRET}}}}}]
""",
    "a certificate that is no base64": f"""
current-context: x
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "https://h", certificate-authority-data: {SECRET}}}}}]
users: [{{name: u, user: {{token: {SECRET}}}}}]
""",
    "an exec plugin without a command": f"""
current-context: x
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://h"}}}}]
users: [{{name: u, user: {{exec: {{token: {SECRET}}}}}}}]
""",
    "no cluster": f"""
current-context: x
contexts: [{{name: x, context: {{user: u}}}}]
clusters: []
users: [{{name: u, user: {{token: {SECRET}}}}}]
""",
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in BROKEN.items()])
def test_no_text_quotes_a_secret_of_a_broken_kubeconfig(tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]):
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    said = ""
    with capture_logs() as logs:
        try:
            ApiServer(Access(kubeconfig=str(path)))
        except ConfigError as error:
            said = str(error)
    assert SECRET not in said + str(logs) + "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "access, problem",
    [
        pytest.param(Access(kubeconfig="/nowhere/file"), "--kubeconfig /nowhere/file: ENOENT", id="no file"),
        pytest.param(Access(environ={}), "Service host/port is not set", id="not in a pod"),
        pytest.param(Access(master="127.0.0.1:6443"), "--master: is not a URL", id="master without a scheme"),
        pytest.param(Access(master="ftp://127.0.0.1"), "--master: is not a URL", id="master with another scheme"),
        pytest.param(Access(master="https://127.0.0.1:99999"), "--master: is not a URL", id="master with no port"),
        pytest.param(Access(master="http://[::1"), "--master: is not a URL", id="master with half an address"),
    ],
)
def test_configuration_that_cannot_be_used_is_an_error_at_the_start(access: Access, problem: str):
    with pytest.raises(ConfigError, match=problem):
        ApiServer(access)


@pytest.mark.parametrize(
    "text, reason",
    [
        pytest.param(b"[" * 5000, "cannot be used: RecursionError", id="nested without end"),
        pytest.param(b"\xff\xfe\0", "cannot be used", id="no text"),
        pytest.param(b"a: &a [*a]", "cannot be used", id="a loop"),
        pytest.param(b"current-context: 2001-99-99", "cannot be used: ValueError", id="a date that is none"),
    ],
)
def test_kubeconfig_that_turns_into_anything_is_a_trouble_to_wait_out(tmp_path: Path, text: bytes, reason: str):
    access = kubeconfig(tmp_path, "http://127.0.0.1:9", {})
    api = ApiServer(access)
    Path(access.kubeconfig).write_bytes(text)
    with pytest.raises(Interruption, match=f"no usable configuration: --kubeconfig .*: {reason}"):
        ask(api)


@pytest.mark.parametrize("where", ["proxy-url", "server", "tls-server-name", "certificate-authority"])
def test_part_of_a_kubeconfig_that_is_no_text_never_ends_in_a_traceback(tmp_path: Path, where: str):
    with contextlib.suppress(ConfigError, Interruption):
        ask(ApiServer(kubeconfig(tmp_path, "https://127.0.0.1:9", {}, **{where: 5})))


def test_server_of_a_kubeconfig_that_is_no_url_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="the address of the API server: is not a URL"):
        ApiServer(kubeconfig(tmp_path, "https://127.0.0.1:99999", {}))


@pytest.mark.parametrize(
    "name, content",
    [
        pytest.param("token", b"\xff\xfe", id="a token that is no text"),
        pytest.param("token", b"", id="an empty token"),
        pytest.param("ca.crt", b"", id="an empty authority"),
    ],
)
def test_pod_files_that_turn_into_anything_are_a_trouble_to_wait_out(
    tmp_path: Path, ca: Identity, name: str, content: bytes
):
    api = ApiServer(pod(tmp_path, "https://127.0.0.1:9", ca))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Interruption, match="no usable configuration: the pod's own access to the API: "):
        ask(api)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_redirection_to_what_is_no_url_is_not_understood():
    """urllib3 leaves that connection to the garbage collector."""
    with serving([body({}, 302, Location="http://[::1")]) as server:
        with pytest.raises(Interruption) as failed:
            ask(ApiServer(Access(master=server.url)))
        assert failed.value.cause is Cause.MALFORMED
        del failed
        gc.collect()


def test_certificate_file_that_is_missing_is_named(tmp_path: Path):
    access = kubeconfig(tmp_path, "https://127.0.0.1:9", {}, **{"certificate-authority": "/nowhere/ca.crt"})
    with pytest.raises(ConfigError, match=r"File does not exist: /nowhere/ca\.crt"):
        ApiServer(access)


def test_token_that_no_header_may_hold_is_refused_without_being_told(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"^the token: holds characters") as refused:
        ApiServer(kubeconfig(tmp_path, "http://127.0.0.1:9", {"token": f"{SECRET}\nX-Header: y"}))
    assert SECRET not in str(refused.value)


def test_server_is_told_without_what_a_url_may_hold_beside_it():
    with ApiServer(Access(master=f"https://user:{SECRET}@127.0.0.1:6443/path")).connect() as session:
        assert session.server == "https://127.0.0.1:6443"


def test_import_leaves_the_typed_apis_out():
    """They cost a second and 20 MB. A process of its own, since tests may have imported anything."""
    program = """
import sys
import ipvsproxy.kube.watch, ipvsproxy.kube.client
print(*sorted(name for name in sys.modules if name.startswith(("kubernetes.client.api.", "kubernetes.client.models."))))
print(*sorted({"aiohttp", "kubernetes.aio"} & sys.modules.keys()))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == []
