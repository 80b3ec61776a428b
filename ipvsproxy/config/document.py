"""The document as fields and plain values, before it is typed: what makes it up, and what is as good as not given.

Source: kubernetes v1.37.2 pkg/proxy/apis/config/v1alpha1/defaults.go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from ipvsproxy.config.durations import parse_duration
from ipvsproxy.config.listen import with_port
from ipvsproxy.config.types import KubeProxyConfiguration, VModuleItem
from ipvsproxy.errors import ConfigError
from ipvsproxy.model.addr import family_of, parse_addr
from ipvsproxy.model.enums import Family

HEALTHZ_PORT = 10256
METRICS_PORT = 10249

Document: TypeAlias = dict[str, Any]  # fields as in the file, nulls left out

_DEFAULTS: Final = KubeProxyConfiguration()
_ITEMS: Final = {"logging.vmodule": VModuleItem()}  # what the lists of sections hold


def decode(name: str, document: Document) -> KubeProxyConfiguration:
    """The typed form of a document. Raises ConfigError."""
    try:
        return msgspec.convert(document, KubeProxyConfiguration)
    except msgspec.ValidationError as error:
        raise undecodable(name, str(error)) from error


def put(document: Document, field: str, value: object) -> None:
    """Set a field ("ipvs.syncPeriod") of a document."""
    *sections, key = field.split(".")
    for section in sections:
        document = document.setdefault(section, {})
    document[key] = value


def without_nulls(value: Any) -> Any:  # noqa: ANN401  # values of any form
    """A null in a mapping means that nothing is said; kubeadm writes many."""
    if isinstance(value, dict):
        return {str(key): without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def not_finite(value: Any, path: str = "") -> Iterator[str]:  # noqa: ANN401  # values of any form
    """What is wrong with each number that YAML and Python's JSON can say and real JSON cannot; a NaN is never equal."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from not_finite(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from not_finite(item, f"{path}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{path}: {value}: must be a finite number"


def unknown_fields(document: Document, defaults: msgspec.Struct = _DEFAULTS, path: str = "") -> Iterator[str]:
    """Paths of the fields that no release has, as far as this one knows."""
    known = dict(zip(defaults.__struct_encode_fields__, defaults.__struct_fields__, strict=True))
    for key, value in document.items():
        if key not in known:
            if path or key not in {"apiVersion", "kind"}:
                yield path + key
        elif isinstance(value, dict) and isinstance(section := getattr(defaults, known[key]), msgspec.Struct):
            yield from unknown_fields(value, section, f"{path}{key}.")
        elif isinstance(value, list) and path + key in _ITEMS:
            for index, item in enumerate(value):
                if isinstance(item, dict):
                    yield from unknown_fields(item, _ITEMS[path + key], f"{path}{key}[{index}].")


def apply_defaults(document: Document) -> None:
    """Take out what is as good as not given, and fill in what depends on other fields."""
    for field, is_zero in _ZERO_IS_DEFAULT.items():
        *sections, key = field.split(".")
        section: Any = document
        for name in sections:
            section = section.get(name, {}) if isinstance(section, dict) else {}
        if isinstance(section, dict) and key in section and is_zero(section[key]):
            section.pop(key, None)
    bound = document.get("bindAddress", _DEFAULTS.bind_address)
    address = parse_addr(bound) if isinstance(bound, str) else None
    is_ipv4 = address is not None and family_of(address) is Family.IPV4
    for field, any_v4, any_v6, port in (
        ("healthzBindAddress", "0.0.0.0", "::", HEALTHZ_PORT),  # noqa: S104  # upstream's default
        ("metricsBindAddress", "127.0.0.1", "::1", METRICS_PORT),
    ):
        text = document.get(field, any_v4 if is_ipv4 else any_v6)
        document[field] = with_port(text, port) if isinstance(text, str) else text


def _is_blank(value: object) -> bool:
    return value == ""


def _is_0(value: object) -> bool:
    return value == 0 and not isinstance(value, bool)


def _is_no_time(value: object) -> bool:
    return isinstance(value, str) and parse_duration(value) == 0


_ZERO_IS_DEFAULT: Final[Mapping[str, Callable[[object], bool]]] = {
    "bindAddress": _is_blank,
    "healthzBindAddress": _is_blank,
    "metricsBindAddress": _is_blank,
    "clientConnection.contentType": _is_blank,
    "clientConnection.qps": _is_0,
    "clientConnection.burst": _is_0,
    "logging.flushFrequency": lambda value: _is_0(value) or _is_no_time(value),
    "iptables.syncPeriod": _is_no_time,
    "iptables.minSyncPeriod": _is_no_time,
    "nftables.syncPeriod": _is_no_time,
    "nftables.minSyncPeriod": _is_no_time,
    "ipvs.syncPeriod": _is_no_time,
    "configSyncPeriod": _is_no_time,
}  # a zero of another kind is no value of the field, and refused


def undecodable(name: str, why: str, hint: str = "") -> ConfigError:
    """The error of a file that cannot be used at all, in upstream's words."""
    return ConfigError(f"failed to decode: {name}", why, hint)
