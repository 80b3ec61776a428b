from collections.abc import Sequence
from ctypes import Structure

class IPTCError(Exception): ...
class in_addr(Structure): ...

class ipt_ip(Structure):
    """Also stands for ip6t_ip6, whose fields have the same names."""

    src: in_addr
    smsk: in_addr
    dst: in_addr
    dmsk: in_addr
    iniface: bytes
    iniface_mask: bytes
    outiface_mask: bytes
    proto: int
    flags: int
    invflags: int

class ipt_entry(Structure):
    target_offset: int
    next_offset: int

class iptc:
    @staticmethod
    def iptc_delete_num_entry(chain: bytes, rulenum: int, handle: object) -> int: ...
    @staticmethod
    def iptc_first_chain(handle: object) -> bytes | None: ...
    @staticmethod
    def iptc_next_chain(handle: object) -> bytes | None: ...
    @staticmethod
    def iptc_builtin(chain: bytes, handle: object) -> int: ...

def _get_errno_loc() -> Sequence[int]: ...
