"""Standard output, for commands that print: a reader that went away is not an error, a full disk is."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable

from ipvsproxy.errors import IpvsproxyError, describe_errno


def print_lines(lines: Iterable[str]) -> None:
    """Print lines as they come. Raises BrokenPipeError, and IpvsproxyError where they cannot be written."""
    if sys.stdout is None:  # the program was started with descriptor 1 closed
        raise IpvsproxyError("cannot write to standard output", "it is closed")
    try:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise IpvsproxyError("cannot write to standard output", describe_errno(error.errno or 0)) from error


def discard_stdout() -> None:
    """Let what is still buffered go nowhere: the interpreter writes it at exit, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def pass_bytes_on() -> None:
    """From here on what came in as bytes that are no text goes out as these bytes (PEP 383), on stderr too."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")
