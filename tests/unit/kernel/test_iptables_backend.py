"""Which flavour is used, given where the kubelet's chains are. The contract tests of this name look for real."""

from __future__ import annotations

import errno
import socket

import pytest

from ipvsproxy.config.types import IptablesBackend
from ipvsproxy.errors import Unsupported
from ipvsproxy.kernel.iptables_backend import choose_rules, decide

AUTO, LEGACY, NFT = IptablesBackend.AUTO, IptablesBackend.LEGACY, IptablesBackend.NFT
CHAIN = "chain KUBE-IPTABLES-HINT is among the IPv4 mangle rules"
BROKEN = Unsupported("cannot look", errno.ENOENT, why="programs are missing")


def scripted(nft, legacy, asked=None):
    """A look at a host: for each flavour the place of the kubelet's chain, nothing, or an error."""

    def hint(backend):
        if asked is not None:
            asked.append(backend)
        found = nft if backend is NFT else legacy
        if isinstance(found, Unsupported):
            raise found
        return found

    return hint


@pytest.mark.parametrize(
    "nft,legacy,backend,reason",
    [
        pytest.param(CHAIN, "", NFT, CHAIN, id="the kubelet is in nft"),
        pytest.param("", CHAIN, LEGACY, CHAIN, id="the kubelet is in the legacy tables"),
        pytest.param(CHAIN, CHAIN, NFT, CHAIN, id="the kubelet is in both"),
        pytest.param("", "", NFT, "no chain of the kubelet's", id="there is no kubelet"),
        pytest.param(BROKEN, "", LEGACY, "nft is not usable: cannot look: programs", id="nft does not work"),
        pytest.param(BROKEN, CHAIN, LEGACY, CHAIN, id="nft does not work and the kubelet is in the legacy tables"),
        pytest.param("", BROKEN, NFT, "legacy is not usable: cannot look", id="the legacy tables cannot be read"),
    ],
)
def test_the_host_decides_where_the_configuration_does_not(nft, legacy, backend, reason):
    chosen, told = decide(AUTO, scripted(nft, legacy))
    assert chosen is backend
    assert reason in told


def test_where_neither_flavour_works_both_reasons_are_told():
    with pytest.raises(Unsupported, match=r"nft is not usable: .*; legacy is not usable: ") as caught:
        decide(AUTO, scripted(BROKEN, BROKEN))
    assert caught.value.number == errno.ENOENT


@pytest.mark.parametrize("setting", [LEGACY, NFT])
def test_the_configuration_decides_without_a_look_at_the_host(setting):
    asked: list[IptablesBackend] = []
    assert decide(setting, scripted(CHAIN, CHAIN, asked)) == (setting, "the configuration says so")
    assert asked == []


def test_the_legacy_library_is_not_loaded_where_the_kubelet_is_in_nft():
    asked: list[IptablesBackend] = []
    decide(AUTO, scripted(CHAIN, "", asked))
    assert asked == [NFT]


@pytest.mark.parametrize("setting", [AUTO, LEGACY, NFT])
def test_without_raw_sockets_neither_flavour_is_chosen_and_the_capability_is_named(setting, monkeypatch):
    def refuse(*_words: int) -> socket.socket:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(Unsupported, match=r"cannot open a raw socket.*EPERM.*NET_RAW"):
        choose_rules(setting, {})
