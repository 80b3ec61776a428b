"""What an operator should know of a configuration that works: what was ignored, overridden, or has no effect here.

Source of which settings act in ipvs mode: kubernetes v1.37.2 pkg/proxy/ipvs; the table is docs/configuration.md's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from ipvsproxy.config.document import Document
from ipvsproxy.config.flags import CONFIG, FLAGS, PROXY_MODE, Group
from ipvsproxy.config.types import KubeProxyConfiguration, Remark
from ipvsproxy.config.validate_process import GATES_WITH_EFFECT

FIELDS_WITHOUT_EFFECT = (
    *(flag.field for flag in FLAGS if flag.group is Group.WITHOUT_EFFECT),
    "clientConnection.acceptContentTypes",
    "nftables",
    "winkernel",
    "windowsRunAsService",
    "portRange",
)


def about_file(path: str, unknown: tuple[str, ...], duplicate: tuple[str, ...]) -> tuple[Remark, ...]:
    """That it has fields which strict decoding refuses."""
    if not unknown and not duplicate:
        return ()
    keys = {"file": path, "unknown": unknown, "duplicate": duplicate, "effect": "unknown ones ignored, last one counts"}
    return (Remark("config_file_not_strict", keys, is_warning=True),)


def about_flags(ignored: Collection[str]) -> tuple[Remark, ...]:
    """That they are given beside a file and do not count."""
    keys = {"flags": tuple(sorted(ignored)), "reason": f"{CONFIG.name} is given", "hint": "Write them into the file"}
    return (Remark("flags_ignored", keys, is_warning=True),) if ignored else ()


def about_mode(path: str, in_file: str, given: str) -> tuple[Remark, ...]:
    """That the flag holds against the file."""
    keys = {"file": path, "mode_in_file": in_file, "mode": given, "reason": f"{PROXY_MODE.name} is given"}
    return (Remark("mode_in_file_overridden", keys),) if in_file and given and in_file != given else ()


def about_settings(document: Document, given: Mapping[str, Any]) -> tuple[Remark, ...]:
    """That they mean nothing here: flags that are given, fields that are not the default."""
    flags = [flag.name for flag in FLAGS if flag.group is Group.WITHOUT_EFFECT and flag.name in given]
    gates = {
        name for source in (document.get("featureGates", {}), dict(given.get("--feature-gates", ()))) for name in source
    }
    settings = (*flags, *_fields(document), *(f"featureGates.{name}" for name in sorted(gates - GATES_WITH_EFFECT)))
    keys = {"settings": settings, "hint": "docs/configuration.md says why"}
    return (Remark("settings_without_effect", keys),) if settings else ()


def _fields(document: Document) -> Iterator[str]:
    defaults: Document = msgspec.json.decode(msgspec.json.encode(KubeProxyConfiguration()))
    for field in FIELDS_WITHOUT_EFFECT:
        given, default = _at(document, field), _at(defaults, field)
        if isinstance(given, dict):
            yield from (f"{field}.{key}" for key, value in given.items() if value != default.get(key, value))
        elif given is not None and given != default:
            yield field


def _at(document: Document, field: str) -> Any:  # noqa: ANN401  # values of any form
    value: Any = document
    for key in field.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
