"""/proc/net/ip_vs, from text as Linux 6.12 prints it."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.ipvs_proc import survey
from ipvsproxy.model.enums import ForwardingMethod, Protocol
from ipvsproxy.model.kernel_objects import RealServer
from ipvsproxy.model.observed import SurveyedServer
from ipvsproxy.model.real_servers import join, pack
from tests.builders import addr, blob, vs_key

TITLE = """\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
"""
TABLE = """\
UDP  0A60000A:0035 mh  persistent 15000 FFFFFFFF
  -> 0AF40102:0035      Masq    0      0          0
TCP  [fd00:0000:0000:0000:0000:0000:0000:0001]:0050 rr persistent 25000 80000000
  -> [fd00:0000:0000:0000:0000:0000:0000:0002]:1F90      Masq    3      0          0
TCP  0A600001:01BB rr
  -> 0AF40202:192B      Masq    1      17         4
  -> 0AF40102:192B      Masq    1      0          0
SCTP 0A600001:01BB lc  ops
FWM  00000007 rr
  -> 0AF40102:0035      Route   1      0          0
TCP  0A600014:0050 rr
  -> 0AF40102:0050      Tunnel  70000  0          0
"""


@pytest.fixture
def proc(tmp_path):
    def write(text: str):
        (tmp_path / "ip_vs").write_text(text)
        return tmp_path / "ip_vs"

    return write


def server(scheduler: str, servers: bytes, *, is_persistent: bool = False) -> SurveyedServer:
    return SurveyedServer(scheduler, is_persistent, servers)


def test_every_virtual_server_is_told_with_its_real_servers_but_firewall_marks(proc):
    tunnel = join([pack(RealServer(addr("10.244.1.2"), 80, 70000, ForwardingMethod.TUNNEL))])
    assert survey(proc(TITLE + TABLE)) == {
        vs_key("10.96.0.10", 53, Protocol.UDP): server("mh", blob(("10.244.1.2", 53, 0)), is_persistent=True),
        vs_key("fd00::1", 80): server("rr", blob(("fd00::2", 8080, 3)), is_persistent=True),
        vs_key("10.96.0.1", 443): server("rr", blob(("10.244.1.2", 6443), ("10.244.2.2", 6443))),
        vs_key("10.96.0.1", 443, Protocol.SCTP): server("lc", b""),
        vs_key("10.96.0.20", 80): server("rr", tunnel),
    }


@pytest.mark.parametrize("weight", [0, 65535, 65536, 9999999, 10000000, 2147483647])
def test_a_weight_of_any_width_is_read_and_cut_as_in_a_record(proc, weight):
    found = survey(
        proc(f"{TITLE}TCP  0A600014:0050 rr\n  -> 0AF40102:0050      Masq    {weight:<6} 12345678901 0         \n")
    )
    assert found == {vs_key("10.96.0.20", 80): server("rr", blob(("10.244.1.2", 80, weight)))}


def test_an_empty_table_has_only_its_titles(proc):
    assert survey(proc(TITLE)) == {}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("TCP  0A60:0050 rr\n", id="a short address"),
        pytest.param("TCP  0A600014:0050 rr\n  -> 0AF40102:0050      Magic   1      0          0\n", id="a new method"),
        pytest.param("TCP\n", id="half a line"),
        pytest.param("\n", id="an empty line"),
    ],
)
def test_what_is_not_understood_is_an_error_and_no_half_table(proc, text):
    with pytest.raises(KernelError, match="cannot understand") as caught:
        survey(proc(TITLE + text))
    assert caught.value.number == errno.EBADMSG


def test_a_missing_file_is_an_error_with_its_number(tmp_path):
    with pytest.raises(KernelError) as caught:
        survey(tmp_path / "nowhere")
    assert caught.value.number == errno.ENOENT


FOREIGN = """\
IP_50 0A600001:01BB rr
  -> 0AF40202:192B      Odd     -1     17         4
TCP  0A600014:0050 rr
  -> 0AF40102:0050      Masq    1      0          0
  -> [fd00:0000:0000:0000:0000:0000:0000:0002]:0050      Tunnel  1      0          0
TCP  [fd00:0000:0000:0000:0000:0000:0000:0001]:0050 rr
  -> 0AF40102:0050      Tunnel  1      0          0
  -> [fd00:0000:0000:0000:0000:0000:0000:0002]:1F90      Masq    1      0          0
"""


def test_what_a_read_leaves_out_is_left_out_here_too(proc):
    """Other protocols, and tunnels into the other family: else each audit would see a difference that no read has."""
    assert survey(proc(TITLE + FOREIGN)) == {
        vs_key("10.96.0.20", 80): server("rr", blob(("10.244.1.2", 80))),
        vs_key("fd00::1", 80): server("rr", blob(("fd00::2", 8080))),
    }


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_of_the_file_raise_anything_but_a_kernel_error(tmp_path, data):
    text = bytearray((TITLE + TABLE + FOREIGN).encode())
    places = st.dictionaries(st.integers(0, len(text) - 1), st.sampled_from(b"\xe9\n :-[]9Z"), max_size=9)
    for at, value in data.draw(places).items():
        text[at] = value
    path = tmp_path / "ip_vs"
    path.write_bytes(text[: data.draw(st.integers(0, len(text)))])
    with suppress(KernelError):
        survey(path)
