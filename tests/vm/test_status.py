"""`ipvsproxy status` beside the real ipvsadm, with the proxy stopped and foreign virtual servers present."""

from __future__ import annotations

import pytest

from tests.lab.hosts import Namespace
from tests.vm.nodes import program

FOREIGN = """\
-A -t 10.96.0.20:80 -s rr
-a -t 10.96.0.20:80 -r 10.244.1.5:8080 -m -w 1
-a -t 10.96.0.20:80 -r 10.244.2.5:8080 -m -w 0
-A -u 10.96.0.10:53 -s rr
-A -t [2001:db8:96::20]:80 -s mh -b mh-port
-a -t [2001:db8:96::20]:80 -r [2001:db8:244:1::5]:8080 -m -w 1
-A -t 203.0.113.99:443 -s wlc -p 300
-a -t 203.0.113.99:443 -r 198.51.100.9:443 -i -w 3
-a -t 203.0.113.99:443 -r 198.51.100.10:443 -g -w 65535
-A -f 1 -s lc
-a -f 1 -r 198.51.100.9:0 -g -w 1
"""


@pytest.fixture
def host(empty_host: Namespace) -> Namespace:
    """With virtual servers of all kinds, none made by us."""
    empty_host.run("ipvsadm", "-R", given=FOREIGN)
    return empty_host


@pytest.mark.parametrize("form", [pytest.param(("-L", "-n"), id="list"), pytest.param(("-S", "-n"), id="save")])
def test_status_prints_what_ipvsadm_prints_to_the_byte(host, form):
    assert program(host, "status", *form) == (0, host.run("ipvsadm", *form))


def test_what_status_saves_ipvsadm_restores(host):
    _, saved = program(host, "status", "-S", "-n")
    with Namespace("other") as other:
        other.run("ipvsadm", "-R", given=saved)
        assert other.run("ipvsadm", "-S", "-n") == host.run("ipvsadm", "-S", "-n")


def test_an_empty_kernel_is_listed_as_ipvsadm_lists_it(empty_host):
    assert program(empty_host, "status") == (0, empty_host.run("ipvsadm", "-L", "-n"))
