"""Names as the files of tests/data/ipvsadm give them, read without the system's resolver.

So the tests of what is done with names need neither root nor a name table in /etc.
"""

from __future__ import annotations

import socket
from pathlib import Path

from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Protocol


class FileResolver:
    """Meets ipvsproxy/status/endpoints.py's Resolver with a `hosts` and a `services` file."""

    def __init__(self, folder: Path) -> None:
        hosts = [line.split() for line in (folder / "hosts").read_text().splitlines()]
        services = [line.split() for line in (folder / "services").read_text().splitlines()]
        self._names = {self._packed(address): names[0] for address, *names in reversed(hosts)}
        self._addresses = {
            name: self._packed(address) for address, *names in reversed(hosts) if ":" not in address for name in names
        }
        self._services = {(int(port), word): name for name, port, word in map(self._service, services)}
        self._ports = {
            (name, word): int(port)
            for line in services
            for port, word in [line[1].split("/")]
            for name in (line[0], *line[2:])
        }

    def host_name(self, address: PackedAddr) -> str | None:
        return self._names.get(address)

    def host_address(self, name: str) -> PackedAddr | None:
        return self._addresses.get(name)

    def service_name(self, port: int, protocol: Protocol) -> str | None:
        return self._services.get((port, protocol.word))

    def service_port(self, name: str, protocol: Protocol) -> int | None:
        return self._ports.get((name, protocol.word))

    @staticmethod
    def _packed(text: str) -> PackedAddr:
        return PackedAddr(socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text))

    @staticmethod
    def _service(line: list[str]) -> tuple[str, str, str]:
        port, word = line[1].split("/")
        return line[0], port, word
