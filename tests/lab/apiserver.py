"""A real control plane on loopback: etcd and kube-apiserver, no controllers, gone with the process that started it.

    python tests/lab/apiserver.py              start one, print its kubeconfig, run until Ctrl-C

Objects are made with kubectl. What controllers would make (EndpointSlices of a selector, Nodes, ServiceAccounts) tests
make by hand. The certificate is good for 10.0.2.2 too, which is this machine's loopback in a VM of tests/lab.
"""

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, before anything is installed

from tests.lab import programs
from tests.lab.certificates import issue, make_authority
from tests.lab.machine import LabError

HOST = "127.0.0.1"
HOST_FROM_VM = "10.0.2.2"
READY_S = 120.0
ADMIN_TOKEN = "admin-token-of-the-lab"  # noqa: S105  # for a server that ends with the test
CLUSTER_NETWORKS = "10.96.0.0/16,fd00:10:96::/112"


class ControlPlane:
    """A running API server. Made by `running`; `stop_server` and `start_server` are a restart, its storage stays."""

    def __init__(self, folder: Path, found: programs.Programs) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self._programs = found
        self._ports = dict(zip(("server", "etcd", "peer"), free_ports(3), strict=True))
        self._storage: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._authority = make_authority(folder, "authority")
        self._identity = issue(self._authority, folder, "server", (HOST, HOST_FROM_VM))
        _make_signing_key(folder)
        (folder / "tokens.csv").write_text(f"{ADMIN_TOKEN},admin,uid1,system:masters\n")
        self.write_kubeconfig(self.kubeconfig, {"token": ADMIN_TOKEN})

    @property
    def server(self) -> str:
        """host:port on this machine."""
        return f"{HOST}:{self.port}"

    @property
    def port(self) -> int:
        """Of the server, wherever this machine is seen from."""
        return self._ports["server"]

    @property
    def authority(self) -> Path:
        """The certificate that vouches for the server's."""
        return self._authority.certificate

    def write_kubeconfig(self, path: Path, user: Mapping[str, str], host: str = HOST) -> Path:
        """A kubeconfig of this user (its section as kubectl writes it); `host`: this machine as the reader sees it."""
        cluster = {
            "server": f"https://{host}:{self.port}",
            "certificate-authority-data": base64.b64encode(self._authority.certificate.read_bytes()).decode(),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "lab", "user": dict(user)}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        }
        path.write_text(json.dumps(document))
        return path

    def kubectl(self, *arguments: str, objects: Sequence[Mapping[str, Any]] = ()) -> str:
        """Run kubectl as administrator, `objects` on its stdin; its stdout. Raises LabError with what it says."""
        command = [str(self._programs.kubectl), f"--cache-dir={self.folder / 'cache'}", *arguments]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        environment = {"KUBECONFIG": str(self.kubeconfig), "HOME": str(self.folder), "PATH": os.defpath}
        done = subprocess.run(command, input=text, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Make the objects so."""
        self.kubectl("apply", "--filename=-", objects=objects)

    def put_status(self, item: Mapping[str, Any]) -> None:
        """Make the status of an object so, if the item has one: its lists as they are, not merged."""
        if "status" in item:
            patch = ["--subresource=status", "--type=merge", "--patch", json.dumps({"status": item["status"]})]
            self.kubectl("patch", item["kind"], item["metadata"]["name"], *patch)

    def start_storage(self) -> None:
        """Start etcd."""
        url, peer = (f"http://{HOST}:{self._ports[name]}" for name in ("etcd", "peer"))
        options = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": url,
            "advertise-client-urls": url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        self._storage = self.start_program(self._programs.etcd, options, "--unsafe-no-fsync")

    def start_server(self, **options: str) -> None:
        """Start kube-apiserver and wait until it is ready; further flags with `_` for `-`. Raises LabError."""
        ports, folder = self._ports, self.folder
        given = {
            "etcd-servers": f"http://{HOST}:{ports['etcd']}",
            "bind-address": HOST,
            "secure-port": ports["server"],
            "advertise-address": HOST,
            "endpoint-reconciler-type": "none",  # others refuse a loopback address
            "tls-cert-file": self._identity.certificate,
            "tls-private-key-file": self._identity.key,
            "client-ca-file": self._authority.certificate,
            "service-cluster-ip-range": CLUSTER_NETWORKS,
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": folder / "signing.pub",
            "service-account-signing-key-file": folder / "signing.key",
            "authorization-mode": "RBAC",
            "token-auth-file": folder / "tokens.csv",
            "shutdown-watch-termination-grace-period": "1s",  # else open watches hold up its end for a minute
            "disable-admission-plugins": "ServiceAccount",  # Pods without a controller that makes accounts
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        self._server = self.start_program(self._programs.kube_apiserver, given)
        self._wait_until_ready()

    def stop_server(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End kube-apiserver; by SIGKILL no watch is told."""
        end(self._server, number)

    def compact_storage(self) -> None:
        """Make etcd forget all but the newest versions, over its HTTP gateway: only between two runs of the server."""
        revision = int(self._ask_storage("/v3/kv/range", {"key": "AA=="})["header"]["revision"])
        self._ask_storage("/v3/kv/compaction", {"revision": str(revision), "physical": True})

    def _ask_storage(self, path: str, question: Mapping[str, object]) -> Any:
        connection = http.client.HTTPConnection(HOST, self._ports["etcd"], timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(question))
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise LabError(f"etcd refuses {path}: {answer.read().decode(errors='replace')}")
            return json.load(answer)

    def stop(self) -> None:
        """End both, the server first: without its storage it would wait for long."""
        end(self._server, signal.SIGKILL)
        end(self._storage, signal.SIGKILL)

    def start_program(self, program: Path, options: Mapping[str, object], *switches: str) -> subprocess.Popen[bytes]:
        """Start a program that ends with us, its output in a log of its name in `folder`."""
        flags = [f"--{name}={value}" for name, value in options.items()]
        command = ["setpriv", "--pdeathsig", "KILL", str(program), *flags, *switches]
        with self._log(program.name).open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder)

    def _log(self, program: str) -> Path:
        return self.folder / f"{program}.log"

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            ended = self._server is None or self._server.poll() is not None
            if ended or time.monotonic() > deadline:
                last = self._log("kube-apiserver").read_text(errors="replace")[-2000:]
                raise LabError(f"kube-apiserver {'ended' if ended else 'does not become ready'}:\n{last}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        context = ssl.create_default_context(cafile=str(self._authority.certificate))
        connection = http.client.HTTPSConnection(HOST, self._ports["server"], timeout=5, context=context)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
            return connection.getresponse().status == http.client.OK
        return False


@contextlib.contextmanager
def running(folder: Path, **options: str) -> Iterator[ControlPlane]:
    """A control plane for the length of a block, its files in `folder`. Raises LabError."""
    plane = ControlPlane(folder, programs.find())
    try:
        plane.start_storage()
        plane.start_server(**options)
        yield plane
    finally:
        plane.stop()


def end(process: subprocess.Popen[bytes] | None, number: signal.Signals) -> None:
    """End a program, and wait until it has."""
    if process is None:
        return
    process.send_signal(number)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nobody has; all are held until the last one is known, so they differ."""
    with contextlib.ExitStack() as stack:
        return [stack.enter_context(socket.create_server((HOST, 0))).getsockname()[1] for _ in range(count)]


def _make_signing_key(folder: Path) -> None:
    key, public = folder / "signing.key", folder / "signing.pub"
    for command in (
        ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", str(key)],
        ["pkey", "-in", str(key), "-pubout", "-out", str(public)],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)


def main() -> int:
    """Run one until interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        programs.make()
        with tempfile.TemporaryDirectory(prefix="ipvsproxy-api.") as folder, running(Path(folder)) as plane:
            print(plane.kubeconfig, flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except LabError as error:
        print(f"apiserver: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
