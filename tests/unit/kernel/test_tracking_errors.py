"""What connection tracking could not track, as /proc tells it."""

from __future__ import annotations

import pytest

from ipvsproxy.kernel.tracking_errors import read_tracking_errors
from ipvsproxy.model.flows import TrackingErrors

TITLES = (
    "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error\n"
)
CPU = "00000abc  00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 {} {} {} 00000000\n"


def test_the_cpus_are_summed_and_numbers_are_hexadecimal(tmp_path):
    path = tmp_path / "nf_conntrack"
    path.write_text(
        TITLES + CPU.format("0000000a", "00000001", "00000002") + CPU.format("00000010", "00000000", "00000004")
    )
    assert read_tracking_errors(path) == TrackingErrors(26, 7)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("entries found\n00000001 00000002\n", id="without these columns"),
        pytest.param(TITLES + "00000001\n", id="a line that is cut"),
        pytest.param(TITLES + CPU.format("x", "0", "0"), id="no number"),
    ],
)
def test_what_is_not_understood_is_not_known(text, tmp_path):
    path = tmp_path / "nf_conntrack"
    path.write_text(text)
    assert read_tracking_errors(path) is None


def test_a_kernel_without_the_file_does_not_tell(tmp_path):
    assert read_tracking_errors(tmp_path / "nothing") is None
