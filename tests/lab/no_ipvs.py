"""A kernel without IPVS, as one program sees it: its questions to IPVS fail as they would there, all else works.

A seccomp filter answers socket(AF_NETLINK, …, NETLINK_GENERIC) with EPROTONOSUPPORT, getsockopt(…, IP_VS_SO_GET_INFO)
with ENOPROTOOPT. Source: include/uapi/linux/{seccomp,filter,ip_vs}.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import subprocess
from collections.abc import Sequence

_SOCKET, _GETSOCKOPT = {"x86_64": (41, 55), "aarch64": (198, 209)}.get(platform.machine(), (0, 0))
_AF_NETLINK, _NETLINK_GENERIC, _GET_INFO = 16, 16, 64 + 1024 + 64 + 1
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000
_NUMBER, _FIRST, _THIRD = 0, 16, 32  # of struct seccomp_data: the system call, and the low words of its arguments

# code, how many to skip if equal and if not, number
_PROGRAM = (
    (_LOAD, 0, 0, _NUMBER),
    (_EQUAL, 0, 4, _SOCKET),
    (_LOAD, 0, 0, _FIRST),
    (_EQUAL, 0, 6, _AF_NETLINK),
    (_LOAD, 0, 0, _THIRD),
    (_EQUAL, 3, 4, _NETLINK_GENERIC),
    (_EQUAL, 0, 3, _GETSOCKOPT),
    (_LOAD, 0, 0, _THIRD),
    (_EQUAL, 2, 1, _GET_INFO),
    (_RETURN, 0, 0, _FAIL | errno.EPROTONOSUPPORT),
    (_RETURN, 0, 0, _ALLOW),
    (_RETURN, 0, 0, _FAIL | errno.ENOPROTOOPT),
)


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """What a program says there. Raises OSError where the kernel takes no filters."""
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in _PROGRAM))
    program = struct.pack("@HP", len(_PROGRAM), ctypes.addressof(instructions))

    def filter_calls() -> None:
        for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, program, 0, 0)):
            if libc.prctl(*arguments):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    return subprocess.run(
        command,
        preexec_fn=filter_calls,  # two system calls, nothing that could wait for a lock
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
