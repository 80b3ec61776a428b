"""This process: started anew in place, what it hands over then, and the signals that it must not lose meanwhile."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Final, NoReturn

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_SIGNALS: Final = (*STOP_SIGNALS, signal.SIGHUP)
_FIRST_OTHER = 3  # after standard input, output and error
_HANDED_OVER = "IPVSPROXY_HANDED_OVER"  # process:file, so that no other process takes it for its own


def hold_signals() -> None:
    """Let SIGTERM, SIGINT and SIGHUP wait from here on, for this thread and across `restart`, until `accept_signals`.

    Left alone they would end the process before it has handlers again; the first process of a container, for which
    the kernel has no default action, would not even hear of a SIGTERM.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def hold_reload() -> None:
    """As `hold_signals`, for SIGHUP alone: whoever sends it before there is a handler asks for what is going on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def accept_signals() -> None:
    """Let through what was held, now that there are handlers."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def restart(handed_over: bytes) -> NoReturn:
    """Run the same command line in this process, with nothing left of what it held but standard input, output, error.

    The new run gets `handed_over` by `take_over`, in a file in memory: an environment is too small for it.
    Signals that arrive meanwhile are held for the new run.
    """
    hold_signals()
    sys.stdout.flush()
    kept = os.memfd_create("ipvsproxy", 0)
    with os.fdopen(kept, "wb", closefd=False) as file:
        file.write(handed_over)
    os.environ[_HANDED_OVER] = f"{os.getpid()}:{kept}"
    os.closerange(_FIRST_OTHER, kept)  # libraries in C open without O_CLOEXEC
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  # our own command line


def take_over() -> bytes | None:
    """What the run of this process before this one has handed over, once; None where there was none."""
    place = os.environ.pop(_HANDED_OVER, "")
    with suppress(ValueError):
        process, number = map(int, place.split(":"))
        if process == os.getpid():
            with os.fdopen(number, "rb") as file:
                file.seek(0)
                return file.read()
    return None
