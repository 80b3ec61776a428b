"""What the metrics server tells besides: which mode, configuration, flags and version run here.

The texts of /flagz and /statusz are upstream's with one of the separators that it picks at random; who wants to parse
them asks for JSON or YAML by `Accept: application/json;v=v1beta1;g=config.k8s.io;as=Flagz`.
Source: kubernetes v1.37.2 cmd/kube-proxy/app/server.go serveMetrics;
apiserver v0.37.2 pkg/server/{healthz,flagz,statusz}.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from operator import itemgetter
from typing import Final

import yaml

from ipvsproxy import __version__
from ipvsproxy.serve.http_messages import Answer, Request
from ipvsproxy.serve.page_server import Page

_COMPONENT: Final = "kube-proxy"
_GROUP: Final = "config.k8s.io"
_VERSIONS: Final = ("v1beta1", "v1alpha1")
_WARNING: Final = (
    "Warning: This endpoint is not meant to be machine parseable, "
    "has no formatting compatibility guarantees and is for debugging purposes only."
)
_QVALUE: Final = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?", re.ASCII)
_NO_SNIFF: Final = {"X-Content-Type-Options": "nosniff"}
_PLAIN: Final = {"Content-Type": "text/plain; charset=utf-8"}
_JSON: Final = {"Content-Type": "application/json"}


def ping_pages(count: Callable[[], None]) -> dict[str, Page]:
    """/healthz of the metrics server: says that the server answers, and nothing of the proxy. `count` hears of each."""

    def healthz(request: Request) -> Answer:
        count()
        is_verbose = "verbose" in request.query
        body = b"[+]ping ok\nhealthz check passed\n" if is_verbose else b"ok"
        return Answer(HTTPStatus.OK, body, _PLAIN | _NO_SNIFF)

    return {"/healthz": healthz, "/healthz/ping": lambda _: Answer(HTTPStatus.OK, b"ok", _PLAIN)}


def metrics_page(render: Callable[[], bytes], content_type: str, reset: Callable[[], None] | None = None) -> Page:
    """/metrics and the like, as `render` writes them; `reset`: what DELETE does, where it may."""

    def page(request: Request) -> Answer:
        if reset is not None and request.method == "DELETE":
            reset()
            return Answer(HTTPStatus.OK, b"metrics reset\n", _PLAIN)
        return Answer(HTTPStatus.OK, render(), {"Content-Type": content_type})

    return page


def proxy_mode(mode: str) -> Page:
    """/proxyMode: the mode in force, without a line end."""
    return lambda _: Answer(HTTPStatus.OK, mode.encode(), _PLAIN | _NO_SNIFF)


def configz(document: Mapping[str, object]) -> Page:
    """/configz: the configuration in force, as a KubeProxyConfiguration."""
    whole = {"kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", **document}
    body = json.dumps({"kubeproxy.config.k8s.io": whole}, separators=(",", ":")).encode()
    return lambda _: Answer(HTTPStatus.OK, body, _JSON | _NO_SNIFF)


def flagz(flags: Mapping[str, str]) -> Page:
    """/flagz: every flag with its value."""
    flags = {name: flags[name].encode(errors="backslashreplace").decode() for name in sorted(flags)}  # argv is bytes
    lines = "".join(f"{name}={value}\n" for name, value in flags.items())
    text = f"\n{_COMPONENT} flagz\n{_WARNING}\n{lines}"
    return lambda request: _negotiated(request, "Flagz", text, {"flags": flags})


def statusz(started_at: float, now: Callable[[], float], paths: Iterable[str]) -> Page:
    """/statusz: what runs here, and since when (Unix seconds)."""
    folders = sorted({"/" + path.split("/")[1] for path in paths})
    started, python = datetime.fromtimestamp(started_at, UTC), platform.python_version()

    def page(request: Request) -> Answer:
        up_s = max(0, int(now() - started_at))
        facts = {
            "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "uptimeSeconds": up_s,
            "goVersion": f"python{python}",  # differs: a key that readers expect, and what runs here
            "binaryVersion": __version__,
            "paths": folders,
        }
        return _negotiated(request, "Statusz", _statusz_text(started, up_s, python, folders), facts)

    return page


def _statusz_text(started: datetime, up_s: int, python: str, folders: Iterable[str]) -> str:
    return (
        f"\n{_COMPONENT} statusz\n{_WARNING}\n\n"
        f"Started: {started:%a %b} {started.day:2} {started:%H:%M:%S UTC %Y}\n"
        f"Up: {up_s // 3600} hr {up_s // 60 % 60:02} min {up_s % 60:02} sec\n"
        f"Python version: {python}\n"
        f"Binary version: {__version__}\n\n"
        f"Paths: {' '.join(folders)}\n"
    )


def _negotiated(request: Request, kind: str, text: str, facts: Mapping[str, object]) -> Answer:
    """Text, or JSON or YAML where `Accept` names the kind in a version that there is; else 406."""
    for media_type, wanted in _accepted(request.header("Accept").strip() or "text/plain"):
        if "as" not in wanted and media_type in {"text/plain", "text/*", "*/*"}:
            return Answer(HTTPStatus.OK, text.encode(), _PLAIN)
        encode = _ENCODERS.get(media_type)
        if encode and wanted.get("v") in _VERSIONS and (wanted.get("g"), wanted.get("as")) == (_GROUP, kind):
            head = {"kind": kind, "apiVersion": f"{_GROUP}/{wanted['v']}", "metadata": {"name": _COMPONENT}}
            return Answer(HTTPStatus.OK, encode({**head, **facts}), {"Content-Type": media_type})
    hint = f"only text/plain, and JSON or YAML as {kind} of {_GROUP}/{_VERSIONS[0]}, can be had\n"
    return Answer(HTTPStatus.NOT_ACCEPTABLE, hint.encode(), _PLAIN)


def _accepted(header: str) -> list[tuple[str, dict[str, str]]]:
    """Media types with their parameters, what is liked most first, without what is not wanted. RFC 9110 §12.5.1."""
    clauses = []
    for clause in header.split(","):
        media_type, *parameters = (part.strip() for part in clause.split(";"))
        wanted = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        clauses.append((_weight(wanted.pop("q", "1")), media_type, wanted))
    clauses.sort(key=itemgetter(0), reverse=True)
    return [(media_type, wanted) for weight, media_type, wanted in clauses if weight > 0]


def _weight(text: str) -> float:
    return float(text) if _QVALUE.fullmatch(text) else 1.0  # as Go's libraries take it


def _as_json(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _as_yaml(document: Mapping[str, object]) -> bytes:
    return yaml.safe_dump(dict(document), sort_keys=False).encode()


_ENCODERS: Final[dict[str, Callable[[Mapping[str, object]], bytes]]] = {
    "application/json": _as_json,
    "application/yaml": _as_yaml,
}
