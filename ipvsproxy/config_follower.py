"""Following the configuration: has what the command line means changed, and can it be used?

A ConfigMap's volume swaps a symbolic link beside the file, editors write it anew or rename over it; kernel/inotify.py
hears all of these (upstream ends on a rewrite and misses the ConfigMap's swap). Whether anything has changed is decided
by what the file means, not by events. A file that cannot be used is told once, and the configuration in force goes on.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto

import msgspec
import structlog

from ipvsproxy.config.types import KubeProxyConfiguration, ProxyConfig
from ipvsproxy.errors import ConfigError

log = structlog.get_logger()


class _Ask(Enum):
    """What the follower is asked to do."""

    LOOK = auto()
    RELOAD = auto()
    STOP = auto()


class ConfigFollower:
    """Calls `restart` once, when the command line means something else than `config` by now, or at a `reload`.

    It is called with what the command line means now.
    """

    def __init__(
        self, config: ProxyConfig, reread: Callable[[], ProxyConfig], restart: Callable[[ProxyConfig], None]
    ) -> None:
        self._config = config
        self._reread = reread
        self._restart = restart
        self._asked: queue.SimpleQueue[_Ask] = queue.SimpleQueue()
        self._refused = ""
        self._asked.put(_Ask.LOOK)  # the file may have changed since it was read

    def look(self) -> None:
        """The file may have changed; from any thread."""
        self._asked.put(_Ask.LOOK)

    def reload(self) -> None:
        """Restart even if nothing has changed, if the configuration can be used; from any thread or signal handler."""
        self._asked.put(_Ask.RELOAD)

    def stop(self) -> None:
        """Make `run` return; from any thread."""
        self._asked.put(_Ask.STOP)

    def run(self) -> None:
        """Follow until stopped."""
        while (asked := self._asked.get()) is not _Ask.STOP:
            if config := self._next(asked):
                self._restart(config)
                return

    def _next(self, asked: _Ask) -> ProxyConfig | None:
        """What to restart for; None: go on."""
        try:
            config = self._reread()
        except ConfigError as error:
            self._refuse(str(error), again=asked is _Ask.RELOAD)
            return None
        self._refused = ""
        changed = changed_fields(self._config, config)
        if not changed and asked is not _Ask.RELOAD:
            return None
        reason = "SIGHUP" if asked is _Ask.RELOAD else "the configuration has changed"
        log.info("restarting", reason=reason, changed=changed, kernel_state="left in place")
        return config

    def _refuse(self, reason: str, *, again: bool) -> None:
        if reason != self._refused or again:
            log.error("configuration_refused", reason=reason, effect="the one in force goes on")
        self._refused = reason


def changed_fields(old: ProxyConfig, new: ProxyConfig) -> tuple[str, ...]:
    """Names of the fields that differ, as in the file; none where both mean the same, however it is written."""
    if _meaning(old) == _meaning(new):
        return ()
    before, after = (_leaves(msgspec.to_builtins(config.written), "") for config in (old, new))
    return tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))


def _meaning(config: ProxyConfig) -> ProxyConfig:
    """Without what is only shown or said of it."""
    return replace(config, written=KubeProxyConfiguration(), remarks=())


def _leaves(document: dict[str, object], path: str) -> dict[str, object]:
    leaves: dict[str, object] = {}
    for key, value in document.items():
        leaves |= _leaves(value, f"{path}{key}.") if isinstance(value, dict) else {path + key: value}
    return leaves
