"""This process: started anew in place."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

_FIRST_OTHER = 3  # after standard input, output and error


def restart() -> NoReturn:
    """Run the same command line in this process, with nothing left of what it held but standard input, output, error.

    A SIGHUP that arrives meanwhile waits until the new run unblocks it (`accept_reload_signal`), since its default is
    to end the process; a SIGTERM ends it, which is what it asks for.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    sys.stdout.flush()
    os.closerange(_FIRST_OTHER, os.sysconf("SC_OPEN_MAX"))  # libraries in C open without O_CLOEXEC
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  # our own command line


def accept_reload_signal() -> None:
    """Let a SIGHUP that came while the process restarted through, now that it has a handler."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
