"""Credentials from a kubeconfig's exec plugin: another program, which may hang, fail or say nonsense.

The `kubernetes` package waits for it without end, and where it fails sends requests without credentials. Here it has
some seconds, then it is killed with all that it has started; and a failure is an error. What it writes to stderr is
neither shown nor quoted: it was given secrets. Source: KEP-541, client.authentication.k8s.io/v1.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ipvsproxy.errors import ConfigError, describe_errno

PLUGIN_S = 20.0
_CLUSTER_FIELDS = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority-data",
    "proxy-url",
    "disable-compression",
)
_EXTENSION = "client.authentication.k8s.io/exec"


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str


class ExecPlugin(msgspec.Struct, frozen=True, rename="camel"):
    """The `exec` part of a kubeconfig's user, as far as it matters to a program that nobody sits before."""

    command: str
    api_version: str
    args: tuple[str, ...] | None = None
    env: tuple[_Variable, ...] | None = None
    provide_cluster_info: bool = False


class Credentials(msgspec.Struct, frozen=True, rename="camel"):
    """What a plugin gives: a token, a client certificate with its key (PEM), or both."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    status: Credentials


def ask_plugin(plugin: ExecPlugin, cluster: Mapping[str, object], folder: Path, limit_s: float) -> Credentials:
    """Run the plugin in the kubeconfig's `folder` for `limit_s` seconds at most. Raises ConfigError."""
    what = f"the exec plugin {plugin.command}"
    hint = "Run it by hand to see why"
    try:
        given = msgspec.json.decode(_output(plugin, cluster, folder, limit_s), type=_ExecCredential)
    except subprocess.TimeoutExpired:
        raise ConfigError(what, f"said nothing within {limit_s:g} s and was killed", hint) from None
    except subprocess.CalledProcessError as error:
        raise ConfigError(what, f"ended with status {error.returncode}", hint) from None
    except OSError as error:
        raise ConfigError(what, describe_errno(error.errno or 0), "Name a program that can be run") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ConfigError(what, "gave no ExecCredential with a status", hint) from None
    if given.api_version != plugin.api_version:
        raise ConfigError(what, f"answered in another apiVersion than {plugin.api_version}", "Correct the kubeconfig")
    found = given.status
    if not found.token and not (found.client_certificate_data and found.client_key_data):
        raise ConfigError(what, "gave neither a token nor a client certificate with its key", hint)
    return found


def _output(plugin: ExecPlugin, cluster: Mapping[str, object], folder: Path, limit_s: float) -> bytes:
    """What it writes to stdout. Raises OSError, TimeoutExpired, CalledProcessError."""
    arguments = [plugin.command, *(plugin.args or ())]
    with subprocess.Popen(  # noqa: S603 - the kubeconfig names it, and whoever wrote that may
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=_environment(plugin, cluster),
        start_new_session=True,  # so that what it starts can be killed along: it holds stdout open
    ) as process:
        try:
            written, _ = process.communicate(timeout=limit_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, plugin.command)
    return written


def _environment(plugin: ExecPlugin, cluster: Mapping[str, object]) -> dict[str, str]:
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = {field: cluster[field] for field in _CLUSTER_FIELDS if field in cluster} | _config(cluster)
    request = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    own = {variable.name: variable.value for variable in plugin.env or ()}
    return {**os.environ, **own, "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}


def _config(cluster: Mapping[str, object]) -> dict[str, object]:
    """What the kubeconfig says to plugins about this cluster."""
    extensions = cluster.get("extensions")
    for item in extensions if isinstance(extensions, list) else ():
        if isinstance(item, dict) and item.get("name") == _EXTENSION:
            return {"config": item.get("extension")}
    return {}
