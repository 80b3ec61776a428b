"""Kubeconfigs to try, and what comes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ipvsproxy.kube.client import Access, ApiServer
from tests.kube.scripted_server import Answer, ScriptedServer, body

SECRET = "sEcReT-tOkEn"  # noqa: S105 - looked for in texts
OK: Answer = body({})


def kubeconfig(folder: Path, url: str, user: dict[str, Any], **cluster: object) -> Access:
    """A kubeconfig with one context."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return Access(kubeconfig=str(path))


def ask(server: ApiServer) -> int:
    """One request over a connection of its own; the status."""
    with server.connect() as session, session.get("/api/v1/services", {}, 5) as response:
        response.read()
        return response.status


def sent(server: ScriptedServer) -> list[str | None]:
    """The Authorization header of each request."""
    return [request.headers.get("Authorization") or request.headers.get("authorization") for request in server.requests]
