from collections.abc import Callable, Sequence
from ctypes import Structure
from typing import Protocol

class _User(Protocol):
    name: bytes
    revision: int

class _MatchHead(Protocol):
    match_size: int
    user: _User

class _TargetHead(Protocol):
    target_size: int
    user: _User

class xt_entry_match(Structure):
    u: _MatchHead

class xt_entry_target(Structure):
    u: _TargetHead

class xt_option_entry(Structure):
    name: bytes | None

class Extension(Protocol):
    revision: int
    size: int

class xtables:
    _option_lookup: Callable[..., xt_option_entry | None]
    def __init__(self, proto: int) -> None: ...
    def find_match(self, name: str) -> Sequence[Extension] | None: ...
    def find_target(self, name: str) -> Sequence[Extension] | None: ...

def xt_align(sz: int) -> int: ...
