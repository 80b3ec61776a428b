"""Exec plugins and certificates in a kubeconfig: nothing hangs, fails unsaid or stays behind."""

from __future__ import annotations

import base64
import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from ipvsproxy.kube.client import Access, ApiServer
from ipvsproxy.kube.recovery import Cause, Interruption
from tests.kube.access import OK, SECRET, ask, kubeconfig, sent
from tests.kube.following import LIMIT_S, eventually
from tests.kube.scripted_server import serving
from tests.lab.certificates import Identity, issue, server_context

V1 = "client.authentication.k8s.io/v1"
TELL = """print('{"apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "t"}}')"""


def credential(**status: str) -> str:
    return json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status})


def with_plugin(folder: Path, url: str, program: str, **plugin: object) -> Access:
    """A kubeconfig whose plugin is this Python program; `runs` gets a line each time."""
    path = folder / "plugin"
    head = (
        f"import os, sys, time\nwith open({str(folder / 'runs')!r}, 'a') as runs:\n    print(os.getpid(), file=runs)\n"
    )
    path.write_text(f"#!{sys.executable} -SE\n{head}{program}\n")
    path.chmod(0o700)
    user = {"exec": {"apiVersion": V1, "command": "./plugin", "interactiveMode": "Never", **plugin}}
    return kubeconfig(folder, url, user)


def runs(folder: Path) -> list[int]:
    path = folder / "runs"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_plugin_gives_the_token_of_each_connection(tmp_path: Path):
    numbered = credential(token="of-@").replace("@", "' + str(len(open('runs').readlines())) + '")  # noqa: S106 - made up
    with serving([OK, OK]) as server:
        api = ApiServer(with_plugin(tmp_path, server.url, f"print('{numbered}')"))
        ask(api)
        ask(api)
        assert sent(server) == ["Bearer of-1", "Bearer of-2"]


def test_plugin_is_told_what_the_kubeconfig_says(tmp_path: Path):
    program = "open('told', 'w').write(sys.argv[1] + os.environ['A'] + os.environ['KUBERNETES_EXEC_INFO'])\n"
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    with serving([OK]) as server:
        access = with_plugin(tmp_path, server.url, program + TELL, args=["one"], env=[{"name": "A", "value": "two"}])
        text = Path(access.kubeconfig).read_text()
        Path(access.kubeconfig).write_text(
            text.replace("command:", "provideClusterInfo: true\n      command:").replace(
                "cluster:\n", f"cluster:\n    extensions: [{json.dumps(extension)}]\n", 1
            )
        )
        ask(ApiServer(access))
        told = (tmp_path / "told").read_text()
        cluster = {"server": server.url, "config": {"audience": "x"}}
    assert told.startswith("onetwo")
    assert json.loads(told.removeprefix("onetwo")) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": cluster},
    }


def test_plugin_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path):
    """A child holds its stdout open, so that waiting for its end alone would not do."""
    program = "pid = os.fork()\nif pid == 0:\n    open('child', 'w').write(str(os.getpid()))\ntime.sleep(600)"
    api = ApiServer(with_plugin(tmp_path, "http://127.0.0.1:9", program), plugin_s=1.0)
    with pytest.raises(Interruption, match=r"the exec plugin \./plugin: said nothing within 1 s") as failed:
        ask(api)
    assert failed.value.cause is Cause.UNCONFIGURED
    for pid in (*runs(tmp_path), int((tmp_path / "child").read_text())):
        eventually(lambda pid=pid: is_dead(pid))  # type: ignore[misc]


def is_dead(pid: int) -> bool:
    """Whether it has gone, or waits for a parent that does not look."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_plugin_is_not_run_by_the_start(tmp_path: Path):
    """The main thread would wait for it, and hear no signal meanwhile."""
    ApiServer(with_plugin(tmp_path, "http://127.0.0.1:9", "time.sleep(600)"))
    assert runs(tmp_path) == []


def test_plugin_that_hangs_for_one_connection_holds_up_no_other(tmp_path: Path):
    waits = "if len(open('runs').readlines()) == 1:\n    while not os.path.exists('gate'):\n        time.sleep(0.01)\n"
    with serving([OK, OK]) as server:
        api = ApiServer(with_plugin(tmp_path, server.url, waits + TELL))
        first = threading.Thread(target=ask, args=(api,))
        first.start()
        try:
            eventually(lambda: len(runs(tmp_path)) == 1)
            assert ask(api) == 200
            assert first.is_alive()
        finally:
            (tmp_path / "gate").touch()
            first.join(LIMIT_S)


@pytest.mark.parametrize(
    "program, reason",
    [
        pytest.param(f"sys.exit('{SECRET}')", "ended with status 1", id="it fails"),
        pytest.param("os.kill(os.getpid(), 9)", "ended with status -9", id="it is killed"),
        pytest.param(f"print('{SECRET}')", "gave no ExecCredential with a status", id="no JSON"),
        pytest.param("sys.stdout.buffer.write(b'\"\\xff')", "gave no ExecCredential", id="no UTF-8"),
        pytest.param("print('[' * 100000)", "gave no ExecCredential", id="nested without end"),
        pytest.param("print('{}')", "gave no ExecCredential with a status", id="no credential"),
        pytest.param(f"print('''{credential()}''')", "gave neither a token", id="an empty credential"),
        pytest.param(
            f"print('''{credential(clientCertificateData=SECRET)}''')",
            "gave neither a token",
            id="no key to a certificate",
        ),
        pytest.param(
            f"print('''{credential(token=SECRET)}'''.replace('/v1', '/v2'))",
            "answered in another apiVersion",
            id="a version",
        ),
    ],
)
def test_plugin_that_fails_is_a_trouble_to_wait_out_and_no_request_goes_without_credentials(
    tmp_path: Path, program: str, reason: str, capfd: pytest.CaptureFixture[str]
):
    with serving([OK]) as server:
        api = ApiServer(with_plugin(tmp_path, server.url, program))
        with pytest.raises(
            Interruption, match=rf"no usable configuration: the exec plugin \./plugin: {reason}"
        ) as failed:
            ask(api)
        assert server.requests == []
    assert SECRET not in str(failed.value)
    assert capfd.readouterr() == ("", "")


def test_plugin_that_is_not_there_is_named(tmp_path: Path):
    access = with_plugin(tmp_path, "http://127.0.0.1:9", "")
    (tmp_path / "plugin").unlink()
    with pytest.raises(Interruption, match=r"the exec plugin \./plugin: ENOENT"):
        ask(ApiServer(access))


def inline(identity: Identity, names: tuple[str, str]) -> dict[str, Any]:
    parts = (identity.certificate, identity.key)
    return {name: base64.b64encode(path.read_bytes()).decode() for name, path in zip(names, parts, strict=True)}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files come."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_certificates_that_a_plugin_gives_are_presented_and_leave_no_files(
    tmp_path: Path,
    temporary: Path,
    ca: Identity,
    server_identity: Identity,
):
    with serving([OK, OK], server_context(server_identity, clients=ca)) as server:
        given = tmp_path / "given"
        access = with_plugin(tmp_path, server.url, "print(open('given').read())")
        text = Path(access.kubeconfig).read_text()
        Path(access.kubeconfig).write_text(
            text.replace("cluster:\n", f"cluster:\n    certificate-authority: {ca.certificate}\n", 1)
        )
        api = ApiServer(access)
        for name in ("first", "second"):
            client = issue(ca, tmp_path, name)
            given.write_text(
                credential(clientCertificateData=client.certificate.read_text(), clientKeyData=client.key.read_text())
            )
            assert ask(api) == 200
    assert list(temporary.iterdir()) == []


def test_certificates_in_a_kubeconfig_leave_no_files(
    tmp_path: Path,
    temporary: Path,
    ca: Identity,
    server_identity: Identity,
):
    with serving([OK], server_context(server_identity, clients=ca)) as server:
        user = inline(issue(ca, tmp_path, "client"), ("client-certificate-data", "client-key-data"))
        authority = {"certificate-authority-data": base64.b64encode(ca.certificate.read_bytes()).decode()}
        api = ApiServer(kubeconfig(tmp_path, server.url, user, **authority))
        with api.connect() as session, session.get("/", {}, 5) as response:
            assert response.status == 200
            (folder,) = temporary.iterdir()
            assert folder.stat().st_mode & 0o077 == 0
    assert list(temporary.iterdir()) == []
