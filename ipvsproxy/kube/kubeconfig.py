"""A kubeconfig → what the `kubernetes` package makes of it, but for the two things that no daemon can leave to it.

It runs exec plugins without a limit (exec_plugin.py), and it writes each certificate that stands in the kubeconfig, or
comes from a plugin, to a temporary file that stays as long as the process: with those that are renewed, a new one each
time. So both are put in place before it looks: it finds tokens and paths, and the files go when the connection goes.
"""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec
import yaml
from kubernetes.client.configuration import Configuration
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.kube_config import load_kube_config_from_dict

from ipvsproxy.errors import ConfigError, describe_errno
from ipvsproxy.kube.exec_plugin import ExecPlugin, ask_plugin

_Part: TypeAlias = dict[str, Any]
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_OTHER_CREDENTIALS = ("auth-provider", "token", "tokenFile")  # the library prefers them to a plugin
_UNUSABLE = (ConfigException, msgspec.ValidationError, ValueError, TypeError, LookupError, AttributeError)


class PrivateFiles:
    """Files that only we can read, for the length of a block; their folder is made when the first one is put there."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def put(self, name: str, content: bytes) -> str:
        """Write a file; its path."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="ipvsproxy-")
        path = Path(self._folder.name, name)
        path.write_bytes(content)
        return str(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def load_kubeconfig(configuration: Configuration, path: str, files: PrivateFiles, plugin_s: float | None) -> None:
    """Put what the current context says into `configuration`. Raises ConfigError, without quoting the file.

    `plugin_s`: for how many seconds an exec plugin may run; None: it is checked but not run, and gives no credentials.
    """
    what = f"--kubeconfig {path}"
    try:
        text = Path(path).expanduser().read_bytes()
        cluster, user = _current(yaml.safe_load(text))
        folder = Path(path).expanduser().absolute().parent
        _run_plugin(user, cluster, folder, plugin_s)
        for part in (cluster, user):
            _give_files(part, folder, files)
        load_kube_config_from_dict(_document(cluster, user), client_configuration=configuration, persist_config=False)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ConfigError(
            what, describe_errno(error.errno or 0), "Name a kubeconfig whose files can be read"
        ) from error
    except yaml.MarkedYAMLError as error:
        line = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(what, f"is no YAML{line}", "Correct the file") from None
    except (*_UNUSABLE, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(what, f"cannot be used: {_reason(error)}", "Correct the file") from None


def _current(document: object) -> tuple[_Part, _Part]:
    """Cluster and user of the current context."""
    if not isinstance(document, dict):
        raise ConfigException("it is no mapping")
    context = _named(document, "contexts", document.get("current-context"), "context")
    user = context.get("user")
    cluster = _named(document, "clusters", context.get("cluster"), "cluster")
    return cluster, _named(document, "users", user, "user") if user else {}


def _named(document: Mapping[str, Any], items: str, name: object, part: str) -> _Part:
    found = [item[part] for item in document.get(items) or () if item["name"] == name]
    if len(found) != 1 or not isinstance(found[0], dict):
        raise ConfigException(f"it must have exactly one of its {items} by the name that the current context gives")
    return found[0]


def _document(cluster: _Part, user: _Part) -> _Part:
    return {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }


def _run_plugin(user: _Part, cluster: _Part, folder: Path, plugin_s: float | None) -> None:
    """Put the credentials that the user's exec plugin gives in its place."""
    if "exec" not in user or any(user.get(name) for name in _OTHER_CREDENTIALS):
        return
    plugin = msgspec.convert(user.pop("exec"), ExecPlugin)
    if plugin_s is None:
        return
    given = ask_plugin(plugin, cluster, folder, plugin_s)
    if given.token:
        user["token"] = given.token
    if given.client_certificate_data and given.client_key_data:
        user["client-certificate-data"] = base64.b64encode(given.client_certificate_data.encode()).decode()
        user["client-key-data"] = base64.b64encode(given.client_key_data.encode()).decode()


def _give_files(part: _Part, folder: Path, files: PrivateFiles) -> None:
    """Write what stands in the kubeconfig itself to files, and make all paths absolute."""
    for name in _PATHS:
        data = part.pop(f"{name}-data", None)
        if data:
            try:
                part[name] = files.put(name, base64.b64decode(data))
            except binascii.Error:
                raise ConfigException(f"{name}-data is no base64") from None
        elif part.get(name):
            part[name] = str(folder / part[name])


def _reason(error: BaseException) -> str:
    """What is missing, without the part of the file that the library quotes: that may be a token."""
    text = str(error) if isinstance(error, ConfigException) else type(error).__name__
    return text.partition("{")[0].strip().rstrip("./")
