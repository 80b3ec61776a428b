"""Makes what the chart says of its values: `make golden-update` calls it.

values.yaml is written by hand, but for its section `config`, which is the program's configuration as the types have it,
so that no field can be missing. The schema, which refuses misspelt keys, and the table in the README are made of it.
The chart's version is the package's.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run by path

from ipvsproxy import __version__  # noqa: E402  # needs the line above
from ipvsproxy.config.flags import FLAGS  # noqa: E402
from ipvsproxy.config.remarks import FIELDS_WITHOUT_EFFECT  # noqa: E402
from ipvsproxy.config.schema import json_schema  # noqa: E402
from ipvsproxy.config.types import KubeProxyConfiguration  # noqa: E402

CHART = ROOT / "charts/ipvsproxy"
VALUES, SCHEMA, README, ABOUT = (
    CHART / name for name in ("values.yaml", "values.schema.json", "README.md", "Chart.yaml")
)

CHART_DEFAULTS: dict[str, tuple[Any, str]] = {
    "mode": ("ipvs", ""),
    "hostnameOverride": ("", "Has no effect: each Pod is told the name of its Node."),
    "ipvsproxy.procSysNet": ("/proc/sys/net", "Has no effect: the daemon is told where the host's is mounted."),
    "oomScoreAdj": (-997, "The kubelet's own value for a node-critical Pod; a lower one needs SYS_RESOURCE."),
}
"""Where the chart's default or description is another one than the program's."""

_CONFIG = re.compile(r"(?<=# config: written by `make golden-update`\n).*?(?=# end of config\n)", re.DOTALL)
_VERSIONS = re.compile(r"^(version:|appVersion:) .*$", re.MULTILINE)
_TABLE = re.compile(
    r"(?<=<!-- values: written by `make golden-update` -->\n\n).*?(?=\n\n<!-- end of values -->)", re.DOTALL
)
_HELP = {flag.field: flag.help for flag in FLAGS if flag.field}
_TEXTS = {
    "clientConnection": "The way to the API server; without a kubeconfig it is the Pod's ServiceAccount.",
    "logging": "Log lines go to standard error.",
    "iptables": "Masquerading; the periods are another mode's.",
    "ipvs": "What is set in the kernel. Time-outs of 0 leave the kernel's.",
    "detectLocal": "How traffic of local pods is told.",
    "conntrack": "Limits and time-outs of connection tracking, set by the init container.",
    "ipvsproxy": "What kube-proxy does not have: docs/configuration.md.",
}
_NO_EFFECT = "Accepted, without an effect here."

# What may hold anything of its type; everything else has just the keys of values.yaml.
_OPEN: dict[str, dict[str, Any]] = {
    "maxUnavailable": {"type": ["integer", "string"], "minimum": 1, "pattern": "^[1-9][0-9]*%$"},
    "image.repository": {"type": "string", "minLength": 1},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "apiServer.port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "existingConfigMap.key": {"type": "string", "minLength": 1},
    "existingConfigMap.mountPath": {"type": "string", "pattern": "^/"},
    "terminationGracePeriodSeconds": {"type": "integer", "minimum": 1},
    **{name: {"type": "array", "items": {"type": "string"}} for name in ("extraArgs",)},
    **{
        name: {"type": "array", "items": {"type": "object"}}
        for name in ("imagePullSecrets", "extraEnv", "extraVolumes", "extraVolumeMounts", "tolerations")
    },
    **{
        name: {"type": "object", "additionalProperties": {"type": "string"}}
        for name in (
            "serviceAccount.annotations", "nodeSelector", "podAnnotations", "podLabels", "podMonitor.labels",
            "prometheusRule.labels", "dashboards.labels", "dashboards.annotations",
        )
    },
    "affinity": {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: {"type": "object"} for name in ("nodeAffinity", "podAffinity", "podAntiAffinity")},
    },
    **{
        name: {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                part: {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
                for part in ("requests", "limits")
            },
        }
        for name in ("resources", "initResources")
    },
    **{
        name: {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                field: {"type": "integer", "minimum": 1}
                for field in ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold")
            },
        }
        for name in ("startupProbe", "livenessProbe", "readinessProbe")
    },
}  # fmt: skip


def config_lines() -> Iterator[str]:
    """The section `config` of values.yaml: every field with its default and what it means."""
    yield "config:"
    document = msgspec.json.decode(msgspec.json.encode(KubeProxyConfiguration()), type=dict[str, Any])
    yield from _fields(document, "", "  ")


def _fields(document: dict[str, Any], above: str, indent: str) -> Iterator[str]:
    for key, default in document.items():
        path = above + key
        value, told = CHART_DEFAULTS.get(path, (default, ""))
        if text := told or description(path):
            yield f"{indent}# -- {text}"
        if value and isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _fields(value, f"{path}.", indent + "  ")
        else:
            yield f"{indent}{key}: {json.dumps(value)}"


def description(path: str) -> str:
    """What a field of the configuration means, in one line; empty where the line of its section says it."""
    if is_without_effect(path):
        return _NO_EFFECT if path in FIELDS_WITHOUT_EFFECT else ""
    return _HELP.get(path, _TEXTS.get(path, ""))


def is_without_effect(path: str) -> bool:
    """Whether a field of the configuration, or its section, means nothing here."""
    return any(path == field or path.startswith(f"{field}.") for field in FIELDS_WITHOUT_EFFECT)


def values_with_config(text: str) -> str:
    """values.yaml with that section in its place."""
    return _put(_CONFIG, text, "\n".join(config_lines()) + "\n")


def schema(values: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of the values, draft 7, which every Helm knows."""
    root = _schema_of(values, "")
    config = json_schema()
    definitions = config.pop("$defs")
    fields = {key: field for key, field in config["properties"].items() if key not in {"apiVersion", "kind"}}
    root["properties"]["config"] = {"type": "object", "additionalProperties": False, "properties": fields}
    root["properties"]["global"] = {"type": "object"}  # a parent chart's
    text = json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **root, "definitions": definitions})
    return json.loads(text.replace("#/$defs/", "#/definitions/"))


def _schema_of(value: Any, path: str) -> dict[str, Any]:  # values of any form
    if path in _OPEN:
        return _OPEN[path]
    if isinstance(value, dict):
        inner = {key: _schema_of(item, f"{path}.{key}".lstrip(".")) for key, item in value.items() if key != "config"}
        return {"type": "object", "additionalProperties": False, "properties": inner}
    return {"type": {bool: "boolean", int: "integer", str: "string"}[type(value)]}


def rows(text: str) -> Iterator[tuple[str, Any, str]]:
    """(path, default, meaning) of every value, in the order of the file; a mapping that takes any keys is one row."""
    yield from _rows(yaml.compose(text), text.splitlines(), "")


def _rows(node: yaml.MappingNode, lines: list[str], above: str) -> Iterator[tuple[str, Any, str]]:
    for key, value in node.value:
        path = above + key.value
        told = _comment_above(lines, key.start_mark.line)
        if isinstance(value, yaml.MappingNode) and value.value and path not in _OPEN:
            yield from _rows(value, lines, f"{path}.")
        else:
            yield path, yaml.safe_load(yaml.serialize(value)), told


def _comment_above(lines: list[str], line: int) -> str:
    words: list[str] = []
    while line and (found := lines[line - 1].strip()).startswith("#"):
        line -= 1
        words.insert(0, found.removeprefix("#").strip())
        if words[0].startswith("-- "):
            return " ".join(words).removeprefix("-- ")
    return ""


def table(text: str) -> list[str]:
    """The README's table."""
    return ["| Value | Default | Meaning |", "|---|---|---|", *(_row(*row) for row in rows(text))]


def _row(path: str, default: Any, told: str) -> str:  # values of any form
    text = default if isinstance(default, str) else json.dumps(default)
    shown = f" `{text}` " if default not in ("", [], {}) else " "
    return f"| `{path}` |{shown}| {told or _NO_EFFECT} |"


def files() -> dict[Path, str]:
    """Every file with its text."""
    values = values_with_config(VALUES.read_text())
    made = schema(yaml.safe_load(values))
    page = _put(_TABLE, README.read_text(), "\n".join(table(values)))
    versions = _VERSIONS.sub(rf"\1 {__version__}", ABOUT.read_text())
    return {VALUES: values, SCHEMA: json.dumps(made, indent=2) + "\n", README: page, ABOUT: versions}


def _put(place: re.Pattern[str], text: str, written: str) -> str:
    result, places = place.subn(lambda _: written, text)
    if places != 1:
        raise ValueError(f"{places} places for what is made, not 1")
    return result


def main() -> None:
    """Write all files."""
    for path, text in files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
