"""Which of flags and file counts: the file, but for a few flags that hold against it.

Upstream ignores almost every flag beside --config, in silence; here the ones that are ignored are named in the log.
differs: --proxy-mode=ipvs holds against the file's mode, because kubeadm's file says iptables where nobody chose; and
so do our own flags, which no file of kube-proxy's can have meant.

A blank address says nothing, beside a file or not: manifests are full of empty variables.

Source: kubernetes v1.37.2 cmd/kube-proxy/app/options.go Complete, pkg/util/flag IPVar.Set and IPPortVar.Set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec

from ipvsproxy.config.document import HEALTHZ_PORT, METRICS_PORT, Document, decode, put
from ipvsproxy.config.flags import CONFIG, FLAG_OF_FIELD, FLAGS, PROXY_MODE, FlagValue
from ipvsproxy.config.flags import HEALTHZ_PORT as HEALTHZ_PORT_FLAG
from ipvsproxy.config.flags import METRICS_PORT as METRICS_PORT_FLAG
from ipvsproxy.config.listen import with_port
from ipvsproxy.config.remarks import about_file, about_flags, about_mode, about_settings
from ipvsproxy.config.types import ProxyConfig, ProxyMode, Remark
from ipvsproxy.config.validate import validate
from ipvsproxy.errors import ConfigError

Given: TypeAlias = Mapping[str, Any]  # flags by name, each with what its row's parse made of the words
ReadFile: TypeAlias = Callable[[str], bytes]

_BY_NAME = {flag.name: flag for flag in FLAGS}
_PORTS = {HEALTHZ_PORT_FLAG.name, METRICS_PORT_FLAG.name}
_ADDRESSES = {FLAG_OF_FIELD[field] for field in ("bindAddress", "healthzBindAddress", "metricsBindAddress")}


def no_files(path: str) -> bytes:
    """Stands for a reader where there is none. Raises ConfigError."""
    raise ConfigError(CONFIG.name, f"{path} cannot be read here")


def read_config(given: Given, read_file: ReadFile = no_files) -> ProxyConfig:
    """The configuration that flags, file and defaults make together. Raises ConfigError."""
    path = given.get(CONFIG.name, "")
    given = {name: value for name, value in given.items() if value != "" or name not in _ADDRESSES}
    text = read_file(path) if path else b""
    sources = _file_and_flags(path, text, given) if path else _flags_alone(given)
    for field, name in FLAG_OF_FIELD.items():
        if name in sources.flags:
            put(sources.document, field, _as_written(field, sources.flags[name]))
    _complete_ports(sources.document, sources.flags)
    config = validate(decode(path, sources.document), sources.spellings)
    if sources.flags.get(METRICS_PORT_FLAG.name) == 0:
        config = _without_metrics(config)
    return replace(config, config_file=path, config_text=text, remarks=sources.remarks)


def _without_metrics(config: ProxyConfig) -> ProxyConfig:
    """differs: upstream refuses the blank address that it, too, makes of --metrics-port=0."""
    return replace(config, metrics=None, written=msgspec.structs.replace(config.written, metrics_bind_address=""))


@dataclass(frozen=True, slots=True)
class _Sources:
    """What the document is made of: fields of a file, and the flags that count; how each field was written."""

    document: Document
    flags: Given
    spellings: Mapping[str, str]
    remarks: tuple[Remark, ...]


def _flags_alone(given: Given) -> _Sources:
    return _Sources({}, given, FLAG_OF_FIELD, about_settings({}, given))


def _file_and_flags(path: str, data: bytes, given: Given) -> _Sources:
    from ipvsproxy.config.load import load  # noqa: PLC0415  # PyYAML, which flags alone do without

    loaded = load(path, data)
    ignored = {name: value for name, value in given.items() if _is_ignored(name, value)}
    flags = {name: value for name, value in given.items() if name not in ignored}
    remarks = (
        *about_file(path, loaded.unknown, loaded.duplicate),
        *about_flags({name for name, value in ignored.items() if value != ""}),
        *about_mode(path, loaded.document.get("mode", ""), flags.get(PROXY_MODE.name, "")),
        *about_settings(loaded.document, flags),
    )
    spellings = {field: name if name in flags else f"{field} in {path}" for field, name in FLAG_OF_FIELD.items()}
    if PROXY_MODE.name not in flags:
        spellings["mode"] += f"; give {PROXY_MODE.name}={ProxyMode.IPVS} to start with this file as it is"
    return _Sources(loaded.document, flags, spellings, remarks)


def _is_ignored(name: str, value: FlagValue) -> bool:
    """Whether a file makes this flag void. A blank one says nothing: manifests are full of empty variables."""
    flag = _BY_NAME[name]
    if not flag.field and name not in _PORTS:
        return False
    return not flag.holds_against_file or value == ""


def _complete_ports(document: Document, flags: Given) -> None:
    """What the deprecated port flags say: the port of an address without one; of health, 0: not served.

    Beside a file these flags are ignored, and its addresses have their ports.
    """
    for field, flag, default in (
        ("healthzBindAddress", HEALTHZ_PORT_FLAG, HEALTHZ_PORT),
        ("metricsBindAddress", METRICS_PORT_FLAG, METRICS_PORT),
    ):
        if field in document:
            document[field] = with_port(document[field], flags.get(flag.name) or default)
    if flags.get(HEALTHZ_PORT_FLAG.name) == 0:
        document["healthzBindAddress"] = ""


def _as_written(field: str, value: Any) -> FlagValue:  # noqa: ANN401  # what the flag's own parse gave
    match field:
        case "featureGates":
            return dict(value)
        case "logging.vmodule":
            return [{"filePattern": pattern, "verbosity": level} for pattern, level in value]
        case _:
            return value
