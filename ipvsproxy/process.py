"""This process: started anew in place, and the signals that it must not lose meanwhile."""

from __future__ import annotations

import os
import signal
import sys
from typing import Final, NoReturn

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_SIGNALS: Final = (*STOP_SIGNALS, signal.SIGHUP)
_FIRST_OTHER = 3  # after standard input, output and error


def hold_signals() -> None:
    """Let SIGTERM, SIGINT and SIGHUP wait from here on, for this thread and across `restart`, until `accept_signals`.

    Left alone they would end the process before it has handlers again; the first process of a container, for which
    the kernel has no default action, would not even hear of a SIGTERM.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def accept_signals() -> None:
    """Let through what was held, now that there are handlers."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def restart() -> NoReturn:
    """Run the same command line in this process, with nothing left of what it held but standard input, output, error.

    Signals that arrive meanwhile are held for the new run.
    """
    hold_signals()
    sys.stdout.flush()
    os.closerange(_FIRST_OTHER, os.sysconf("SC_OPEN_MAX"))  # libraries in C open without O_CLOEXEC
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  # our own command line
