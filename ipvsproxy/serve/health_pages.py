"""/healthz, /livez and /readyz: three questions, each with its own answer.

    /healthz  load balancers: may traffic be sent to this node?     served as asked for, and the node is to stay
    /livez    the kubelet: would starting anew help?                nothing waits too long, or it is being worked on
    /readyz   the DaemonSet's roll-out, and whoever looks after it  served as asked for, and the API server is heard

Losing the API server shows in /readyz alone: what was told last is still served, and with one common cause every node
would fail its load balancers' checks at once. differs: kube-proxy has no /readyz.
Source: kubernetes v1.37.2 pkg/proxy/healthcheck/proxy_health.go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus

from ipvsproxy.model.vitals import Heard, Moment, Vitals
from ipvsproxy.serve.http_messages import Answer, Request
from ipvsproxy.serve.page_server import Page

_NEVER = "0001-01-01T00:00:00Z"  # Go's zero time
_HEADERS = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}


def health_pages(
    vitals: Callable[[], Vitals],
    heard: Callable[[], Mapping[str, Heard]],
    now: Callable[[], Moment],
    count: Callable[[str, int], None],
) -> dict[str, Page]:
    """The pages by path. `heard`: each watch by kind, none without an API server; `count`: hears path and status."""

    def page(path: str, answer: Callable[[], Answer]) -> Page:
        def counted(_: Request) -> Answer:
            found = answer()
            count(path, found.status)
            return found

        return counted

    return {
        "/healthz": page("/healthz", lambda: healthz(vitals(), now())),
        "/livez": page("/livez", lambda: livez(vitals(), now())),
        "/readyz": page("/readyz", lambda: readyz(vitals(), heard(), now())),
    }


def healthz(vitals: Vitals, now: Moment) -> Answer:
    """To the byte kube-proxy's body."""
    status = {family.label: vitals.is_healthy(family, now.monotonic) for family in vitals.families}
    is_healthy = all(status.values())
    return _answer(
        vitals,
        now,
        is_healthy and vitals.node_is_eligible,
        {"nodeEligible": vitals.node_is_eligible, "healthy": is_healthy},
        status,
    )


def livez(vitals: Vitals, now: Moment) -> Answer:
    """To the byte kube-proxy's body."""
    status = {family.label: vitals.is_alive(family, now.monotonic) for family in vitals.families}
    is_alive = all(status.values())
    return _answer(vitals, now, is_alive, {"healthy": is_alive}, status)


def readyz(vitals: Vitals, heard: Mapping[str, Heard], now: Moment) -> Answer:
    """The same keys, and what is heard of the API server where there is one."""
    status = {family.label: vitals.is_healthy(family, now.monotonic) for family in vitals.families}
    is_healthy, is_reachable = all(status.values()), all(watch.is_connected for watch in heard.values())
    watches = {
        kind: {"connected": watch.is_connected, "lastHeard": _time(watch.at)} for kind, watch in sorted(heard.items())
    }
    is_ready = is_healthy and is_reachable
    own = {"ready": is_ready, "healthy": is_healthy}
    return _answer(
        vitals,
        now,
        is_ready,
        {**own, "apiServer": {"reachable": is_reachable, "watches": watches}} if heard else own,
        status,
    )


def _answer(vitals: Vitals, now: Moment, ok: bool, own: Mapping[str, object], status: Mapping[str, bool]) -> Answer:  # noqa: FBT001
    """The answer in kube-proxy's order of keys; `lastUpdated` is now where all is well, as it has always been."""
    updated = {family.label: family_vitals.updated_at for family, family_vitals in vitals.families.items()}
    newest = max((at for at in updated.values() if at is not None), default=None)
    body = {
        "lastUpdated": _time(now.unix if ok else newest),
        "currentTime": _time(now.unix),
        **own,
        "status": {
            label: {"lastUpdated": _time(updated[label]), "healthy": is_fine} for label, is_fine in status.items()
        },
    }
    code = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(code, json.dumps(body, separators=(",", ":")).encode(), _HEADERS)


def _time(unix_s: float | None) -> str:
    """RFC 3339 with a fraction, as Go writes it in UTC."""
    return _NEVER if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
