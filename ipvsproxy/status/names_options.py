"""The options that say where names come from, of `status` and of `top`."""

from __future__ import annotations

import argparse
from typing import Any, Final, NamedTuple, Protocol

from ipvsproxy.errors import ConfigError


class NamesFrom(NamedTuple):
    """A source of names; nothing: the running daemon. `cluster` with an empty `kubeconfig`: by the pod's own access."""

    manifests: str = ""
    cluster: bool = False
    kubeconfig: str = ""

    @property
    def is_named(self) -> bool:
        """Whether somebody has said where to ask."""
        return bool(self.manifests or self.cluster)


DAEMON: Final = NamesFrom()


class _TakesOptions(Protocol):
    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:  # noqa: ANN401  # argparse's own
        """As argparse's parsers and groups have it."""


def add_names_options(group: _TakesOptions) -> None:
    """Add them to a parser, or to a group of its options."""
    group.add_argument("--manifests", default="", metavar="DIR", help="names from a folder")
    group.add_argument("--from-cluster", action="store_true", help="names from the API server")
    group.add_argument("--kubeconfig", default="", metavar="FILE", help="the same, by this kubeconfig")


def names_from(given: Any) -> NamesFrom:  # noqa: ANN401  # argparse's namespace
    """What they say. Raises ConfigError for more than one place."""
    cluster = given.from_cluster or bool(given.kubeconfig)
    if given.manifests and cluster:
        raise ConfigError("--manifests and --from-cluster or --kubeconfig", "names can come from one place alone")
    return NamesFrom(given.manifests, cluster, given.kubeconfig)
