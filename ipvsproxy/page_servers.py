"""The two servers of pages, put together: what each page reads of the running daemon.

    health     0.0.0.0:10256     /healthz /livez /readyz
    metrics    127.0.0.1:10249   /metrics /metrics/slis /healthz /proxyMode /configz /flagz /statusz

What is served at the second tells much of the cluster and of this node, so it is loopback's unless somebody asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from ipvsproxy.clock import Clock
from ipvsproxy.config.types import Listener, ProxyConfig
from ipvsproxy.metrics import CONTENT_TYPE, Metrics, ServiceLevel, State
from ipvsproxy.model.vitals import Heard, Moment
from ipvsproxy.serve.health_pages import health_pages
from ipvsproxy.serve.page_server import Page, PageServer, Site
from ipvsproxy.serve.status_pages import configz, flagz, metrics_page, ping_pages, proxy_mode, statusz
from ipvsproxy.sync.runner import Runner

Hear = Callable[[Moment], Mapping[str, Heard]]

_HEALTH: Final = ("healthz", "FailedToStartProxierHealthcheck", "failed to start proxy healthz")
_METRICS: Final = ("metrics", "FailedToStartMetricServer", "starting metrics server failed")


def page_servers(
    config: ProxyConfig, node_name: str, runner: Runner, clock: Clock, hear: Hear
) -> Iterator[tuple[str, PageServer]]:
    """The servers that `config` asks for, by name. `hear`: what each watch of the API server is heard of at a moment.

    From here on `runner` reports to the metrics.
    """

    def now() -> Moment:
        return Moment(clock.monotonic(), time.time())

    def state() -> State:
        at = now()
        return State(
            figures=runner.figures,
            asked=runner.asked,
            audits=runner.audited,
            vitals=runner.vitals,
            heard=hear(at),
            now=at,
        )

    metrics = Metrics(state, runner.vitals.families)
    runner.report = metrics.take
    health = health_pages(lambda: runner.vitals, lambda: hear(now()), now, metrics.count_answer)
    for (name, event, failure), listener, pages in (
        (_HEALTH, config.healthz, health),
        (_METRICS, config.metrics, _metrics_pages(config, metrics)),
    ):
        if listener is not None:
            site = _site(name, listener, pages, event, failure)
            yield name, PageServer(site, clock, node_name, must_listen=config.bind_address_hard_fail)


def _site(name: str, listener: Listener, pages: Mapping[str, Page], event: str, failure: str) -> Site:
    return Site(name=name, address=listener.address, port=listener.port, pages=pages, event=event, failure=failure)


def _metrics_pages(config: ProxyConfig, metrics: Metrics) -> dict[str, Page]:
    levels = ServiceLevel()
    pages: dict[str, Page] = {
        "/metrics": metrics_page(metrics.render, CONTENT_TYPE),
        "/metrics/slis": metrics_page(levels.render, CONTENT_TYPE, levels.reset),
        **ping_pages(levels.count),
        "/proxyMode": proxy_mode(config.mode),
        "/configz": configz(msgspec.to_builtins(config.written)),
        "/flagz": flagz(config.flag_values),
    }
    return {**pages, "/statusz": statusz(time.time(), time.time, pages)}
