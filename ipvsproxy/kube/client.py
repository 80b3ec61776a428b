"""The way to the API server: configuration, credentials and TLS by the `kubernetes` package, bytes by its transport.

With kubeconfig.py the only importer of `kubernetes`, and of no more of it than this needs: its typed APIs would cost a
second and 20 MB, and decode 20 times slower than we do. Every connection reads kubeconfig, token, certificates and CA
from their files again, so that all of them may be replaced under a running daemon; the library's own renewal, which
covers some of them, is switched off. Nothing here logs, and no exception text of the library is passed on where it may
quote a kubeconfig.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import urllib3
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.client.rest import should_bypass_proxies
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.incluster_config import InClusterConfigLoader
from urllib3.connection import HTTPConnection

from ipvsproxy import __version__
from ipvsproxy.errors import ConfigError, describe_errno
from ipvsproxy.kube.exec_plugin import PLUGIN_S
from ipvsproxy.kube.kubeconfig import PrivateFiles, load_kubeconfig
from ipvsproxy.kube.recovery import Cause, Interruption, parse_retry_after
from ipvsproxy.kube.resources import MAX_OBJECT_BYTES

_PIECE_BYTES = 65536
_CONNECT_S = 10.0
_DEAD_PEER_S = 30
_SERVER = "the address of the API server"
_POD_FILES = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the configuration is. Without `kubeconfig` and `master` it is the pod's own ServiceAccount."""

    kubeconfig: str = ""
    master: str = ""
    """A URL that holds against the one in the kubeconfig."""
    pod_files: Path = _POD_FILES
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)


class ApiServer:
    """The API server that a configuration names. Used by several threads."""

    def __init__(
        self,
        access: Access,
        *,
        connect_s: float = _CONNECT_S,
        dead_peer_s: int = _DEAD_PEER_S,
        plugin_s: float = PLUGIN_S,
    ) -> None:
        """`dead_peer_s`, 2 at least: a peer that acknowledges nothing for as long, in seconds, is dead.

        Raises ConfigError where the configuration cannot be used as it is now. An exec plugin is not run for that:
        whoever starts us would wait for it, and no signal would be heard.
        """
        self._access = access
        self._connect_s = connect_s
        self._socket_options = _socket_options(dead_peer_s)
        self._plugin_s = plugin_s
        with PrivateFiles() as files:
            load_configuration(access, files, None)

    @contextmanager
    def connect(self) -> Iterator[ApiSession]:
        """A session with the credentials of now; its connections end with the block. Raises Interruption."""
        with PrivateFiles() as files:
            client = self._client(files)
            try:
                yield ApiSession(client, self._connect_s)
            finally:
                client.close()  # type: ignore[no-untyped-call]

    def _client(self, files: PrivateFiles) -> ApiClient:
        try:
            configuration = load_configuration(self._access, files, self._plugin_s)
        except ConfigError as error:
            raise Interruption(Cause.UNCONFIGURED, str(error)) from error
        configuration.socket_options = self._socket_options
        client = ApiClient(configuration)
        client.user_agent = f"ipvsproxy/{__version__}"
        return client


def _socket_options(dead_peer_s: int) -> list[tuple[int, int, int]]:
    """A dead peer of an idle watch shows by unanswered probes; with a user time-out, they end when that is over."""
    probe_s = dead_peer_s // 2
    return [
        *HTTPConnection.default_socket_options,
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_s),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, dead_peer_s * 1000),
    ]


def load_configuration(access: Access, files: PrivateFiles, plugin_s: float | None) -> Configuration:
    """The library's configuration from the files as they are now. Raises ConfigError, without quoting any file.

    `files` is where it may put some, `plugin_s` as in kubeconfig.py.
    """
    try:
        return _load(access, files, plugin_s)
    except ConfigError:
        raise
    except Exception as error:
        # The library trusts these files, which anybody may be writing just now: no slip of it may end the daemon.
        reason = f"its configuration cannot be used: {type(error).__name__}"
        raise ConfigError(_SERVER, reason, "Correct --kubeconfig, --master and the proxy") from error


def _load(access: Access, files: PrivateFiles, plugin_s: float | None) -> Configuration:
    configuration = Configuration()
    if access.kubeconfig:
        load_kubeconfig(configuration, access.kubeconfig, files, plugin_s)
    elif not access.master:
        _load_pod_configuration(configuration, access)
    if access.master:
        _check_url(access.master, "--master", {"http", "https"})
        configuration.host = access.master.rstrip("/")
    _check_url(configuration.host, _SERVER, {"http", "https", None})
    _set_proxy(configuration)
    _set_credentials(configuration)
    configuration.retries = False
    configuration.connection_pool_maxsize = 1
    return configuration


def _load_pod_configuration(configuration: Configuration, access: Access) -> None:
    loader = InClusterConfigLoader(  # type: ignore[no-untyped-call]
        token_filename=str(access.pod_files / "token"),
        cert_filename=str(access.pod_files / "ca.crt"),
        try_refresh_token=False,
        environ=access.environ,
    )
    hint = "In a pod, let its ServiceAccount's token be mounted; elsewhere give --kubeconfig"
    try:
        loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    except ConfigException as error:
        raise ConfigError("the pod's own access to the API", str(error).rstrip("."), hint) from error
    except OSError as error:
        raise ConfigError("the pod's own access to the API", _os_reason(error), hint) from error
    except UnicodeDecodeError:
        raise ConfigError("the pod's own access to the API", "its token is no text", hint) from None


def _check_url(url: str, what: str, schemes: Collection[str | None]) -> None:
    hint = "Write https://HOST:PORT"
    try:
        parsed = urllib3.util.parse_url(url)
    except urllib3.exceptions.LocationParseError:
        raise ConfigError(what, "is not a URL", hint) from None
    if parsed.scheme not in schemes or not parsed.host:
        raise ConfigError(what, "is not a URL", hint)


def _set_proxy(configuration: Configuration) -> None:
    """Take a proxy without a scheme as curl and Go do; refuse what the transport cannot use, where it would have to."""
    proxy = configuration.proxy
    if not proxy or should_bypass_proxies(configuration.host, configuration.no_proxy or ""):
        configuration.proxy = None
        return
    configuration.proxy = proxy if "://" in proxy else f"http://{proxy}"
    what, hint = "the proxy for the API server", "Write http://HOST:PORT into HTTPS_PROXY, or its address into NO_PROXY"
    try:
        parsed = urllib3.util.parse_url(configuration.proxy)
    except urllib3.exceptions.LocationParseError:
        raise ConfigError(what, "is no URL", hint) from None  # it may hold a password
    if parsed.scheme not in {"http", "https"}:
        raise ConfigError(what, "is no HTTP proxy", hint)
    if not parsed.host:
        raise ConfigError(what, "is no URL", hint)


def _set_credentials(configuration: Configuration) -> None:
    """Keep the token without the newline that its file ends in, which no header may hold, and without renewal."""
    configuration.refresh_api_key_hook = None
    token = configuration.api_key.get("BearerToken", "").strip()
    if token:
        configuration.api_key["BearerToken"] = token
    if not (token.isascii() and token.isprintable()):
        raise ConfigError("the token", "holds characters that no header may hold", "Replace it")


class ApiSession:
    """Requests with one set of credentials, one after the other over one kept connection."""

    def __init__(self, client: ApiClient, connect_s: float) -> None:
        self._client = client
        self._connect_s = connect_s

    @property
    def server(self) -> str:
        """Scheme, host and port."""
        url = urllib3.util.parse_url(self._client.configuration.host)
        return f"{url.scheme}://{url.netloc}"

    @contextmanager
    def get(self, path: str, query: Mapping[str, str], silence_s: float) -> Iterator[ApiResponse]:
        """Send a request; reads wait at most `silence_s` seconds each. Raises Interruption."""
        with self._send("GET", path, silence_s, query=query) as response:
            yield response

    @contextmanager
    def post(self, path: str, body: Mapping[str, object], silence_s: float) -> Iterator[ApiResponse]:
        """Send an object as JSON; reads wait at most `silence_s` seconds each. Raises Interruption."""
        with self._send("POST", path, silence_s, body=body) as response:
            yield response

    @contextmanager
    def _send(
        self,
        method: str,
        path: str,
        silence_s: float,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> Iterator[ApiResponse]:
        headers = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if body is not None else {})
        with _translated():
            request = self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            raw = self._client.call_api(*request, _request_timeout=(self._connect_s, silence_s)).response
        try:
            yield ApiResponse(raw)
        finally:
            raw.close()


class ApiResponse:
    """An answer whose body is still to be read."""

    def __init__(self, raw: urllib3.BaseHTTPResponse) -> None:
        self._raw = raw
        self.status = raw.status
        self.retry_after_s = parse_retry_after(raw.headers.get("Retry-After"))

    def chunks(self) -> Iterator[bytes]:
        """The body as it comes, whatever chunks the server makes of it. Raises Interruption."""
        with _translated():
            while piece := self._raw.read1(_PIECE_BYTES):
                yield piece

    def read(self, most: int = MAX_OBJECT_BYTES) -> bytes:
        """The whole body, of `most` bytes at the most. Raises Interruption."""
        body = bytearray()
        with _translated():
            for piece in self._raw.stream(_PIECE_BYTES):
                body += piece
                if len(body) > most:
                    raise Interruption(Cause.MALFORMED, f"an answer of more than {most} bytes")
        return bytes(body)

    def shut_down(self) -> None:
        """Make a read that waits in another thread end."""
        try:
            self._raw.shutdown()
        except (OSError, ValueError, RuntimeError):
            return  # over already: closed, or its last byte read


@contextmanager
def _translated() -> Iterator[None]:
    """Turn the transport's exceptions into an Interruption whose text is the same for the same trouble."""
    try:
        yield
    except Interruption:
        raise
    except urllib3.exceptions.ReadTimeoutError as error:
        raise _read_timed_out(error) from error
    except (ApiException, urllib3.exceptions.SSLError) as error:
        raise Interruption(Cause.UNREACHABLE, _tls_reason(error)) from error
    except (urllib3.exceptions.TimeoutError, urllib3.exceptions.ProxyError) as error:
        raise Interruption(Cause.UNREACHABLE, _root_reason(error)) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Interruption(Cause.CUT, _root_reason(error)) from error
    except Exception as error:  # what a server says must end no thread, whatever the transport makes of it
        raise Interruption(Cause.MALFORMED, type(error).__name__) from error


def _read_timed_out(error: BaseException) -> Interruption:
    """urllib3 takes two for one: our own time-out, which has no errno, and the kernel's word that the peer is dead.

    Over TLS, an older Python loses the errno and tells of an end in the middle instead (CPython's issue 115627).
    """
    root = _root(error)
    if isinstance(root, OSError) and root.errno == errno.ETIMEDOUT:
        return Interruption(Cause.CUT, _os_reason(root))
    return Interruption(Cause.SILENT, "nothing came for longer than bookmarks take")


def _tls_reason(error: BaseException) -> str:
    root = _root(error)
    if isinstance(root, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {root.verify_message}"
    return f"TLS: {root.reason}" if isinstance(root, ssl.SSLError) and root.reason else "TLS failed"


def _root_reason(error: BaseException) -> str:
    root = _root(error)
    return _os_reason(root) if isinstance(root, OSError) else "closed in the middle of an answer"


def _root(error: BaseException) -> BaseException:
    """The first cause: urllib3's own texts name objects by their address in memory, never twice the same."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _os_reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"its name is not known ({error.strerror})"
    if error.errno:
        return describe_errno(error.errno)
    return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
