"""`ipvsproxy diff`: what a start of the daemon would change in this kernel now, as operations; nothing is changed.

It answers as diff(1) does: 0 where there is nothing to change, 1 where there is; trouble, 2, is the caller's to tell.
What drains by right is no difference. Beside a daemon that is at work a difference may be one that it is about to
carry out: one that stays is one that it does not see or cannot put right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from ipvsproxy.config.command_line import ExitCode
from ipvsproxy.config.types import DiffFormat, LookOptions, ProxyConfig
from ipvsproxy.first_sync import FirstSync
from ipvsproxy.inspect import document
from ipvsproxy.inspect.operations import changes, operation_lines
from ipvsproxy.model.flows import format_packed
from ipvsproxy.stdout import print_lines
from ipvsproxy.this_node import Surroundings, look, real_surroundings


def run(
    config: ProxyConfig,
    options: LookOptions,
    find_surroundings: Callable[[ProxyConfig], Surroundings] = real_surroundings,
    *,
    output: DiffFormat = DiffFormat.TEXT,
) -> int:
    """Print the operations on stdout; the exit code. Raises IpvsproxyError.

    What is left alone is told on stderr, and in JSON with the rest.
    """
    first_sync = look(config, options, find_surroundings(config)).first_sync
    if output is DiffFormat.JSON:
        print_lines([difference_document(first_sync)])
    else:
        print_lines(difference_lines(first_sync))
        for line in _left_alone(first_sync):
            sys.stderr.write(f"{line}\n")
    return ExitCode.DIFFERENT if first_sync.is_needed else ExitCode.OK


def difference_lines(first_sync: FirstSync) -> Iterator[str]:
    """Each change as a line; rules with those of them that go and come."""
    yield from operation_lines(first_sync.operations, first_sync.observed, first_sync.desired.holders)
    for flow in first_sync.flows:
        yield f"delete UDP flow {flow}"


def difference_document(first_sync: FirstSync) -> str:
    """The same as JSON."""
    return document.json_text(
        tuple(changes(first_sync.operations, first_sync.observed, first_sync.desired.holders)),
        tuple(
            document.Flow(*map(format_packed, (flow.client, flow.destination, flow.server)))
            for flow in first_sync.flows
        ),
        document.LeftAlone(first_sync.draining, first_sync.foreign),
    )


def _left_alone(first_sync: FirstSync) -> Iterator[str]:
    if first_sync.draining:
        yield f"Left alone: {first_sync.draining} virtual server(s) with connections that drain"
    if first_sync.foreign:
        yield f"Left alone: {first_sync.foreign} virtual server(s) that are not ours"
