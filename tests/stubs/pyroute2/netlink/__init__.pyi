# What ipvsproxy uses of pyroute2 0.9.7.
from typing import Any

class nlmsg(dict[str, Any]):
    data: bytearray
    def encode(self) -> None: ...
