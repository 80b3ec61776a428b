"""What `ipvsadm -S` wrote, read again."""

from __future__ import annotations

import json

import pytest

from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.model.enums import VirtualServerFlags
from ipvsproxy.status.endpoints import by_name, numeric
from ipvsproxy.status.rules import save
from ipvsproxy.status.rules_file import read_rules
from ipvsproxy.status.source import TableSource
from tests.unit.status.fixture_cases import DATA, NAMES

_STATES = sorted(path.name.split(".")[0] for path in DATA.glob("*.save-n.out"))


@pytest.mark.parametrize("name", _STATES)
def test_what_was_saved_reads_as_what_saves_the_same(name):
    """But for the order: of addresses far apart it hangs on the order before, which the file has changed."""
    saved = (DATA / f"{name}.save-n.out").read_text().splitlines()
    assert sorted(save(TableSource(read_rules("\n".join(saved), NAMES)), numeric)) == sorted(saved)


def test_rules_with_names_read_as_the_numbers_they_stand_for():
    named = (DATA / "kube-basic.save.out").read_text()
    table = read_rules(named, NAMES)
    assert "".join(f"{line}\n" for line in save(TableSource(table), by_name(NAMES))) == named
    assert read_rules((DATA / "kube-basic.save-n.out").read_text(), NAMES) == table


def test_all_states_that_list_are_read():
    assert len(_STATES) == 14
    assert all(json.loads((DATA / f"{name}.state.json").read_text()) for name in _STATES)


def test_comments_empty_lines_and_the_word_ipvsadm_do_not_count():
    text = "# from n1\n\nipvsadm\nipvsadm -A -u 10.96.0.10:53 -s rr\n  \n"
    (server,) = read_rules(text, NAMES).virtual_servers
    assert (server.port, server.scheduler) == (53, "rr")


def test_what_a_rule_leaves_out_is_what_ipvsadm_would_set():
    (server,) = read_rules("-A -t 10.96.0.10:53 -p\n-a -t 10.96.0.10:53 -r 10.0.0.1:53\n", NAMES).virtual_servers
    assert (server.scheduler, server.timeout_s, server.flags) == ("wlc", 300, 3)
    (real_server,) = server.real_servers
    assert (real_server.weight, real_server.conn_flags) == (1, 3)


def test_a_mark_that_was_written_as_a_negative_number_is_the_mark_it_was():
    (server,) = read_rules("-A -f -1 -6 -s rr\n", NAMES).virtual_servers
    assert server.fwmark == 0xFFFF_FFFF
    assert len(server.address) == 16


def test_numbers_that_were_written_with_a_sign_are_what_the_kernel_told():
    text = "-A -t [::1]:80 -s rr -p 60 -M -1\n-a -t [::1]:80 -r [::2]:80 -m -w -2\n"
    (server,) = read_rules(text, NAMES).virtual_servers
    assert (server.netmask, server.real_servers[0].weight) == (b"\xff" * 4, -2)


def test_flags_without_a_name_are_the_third_bit():
    (server,) = read_rules("-A -t 10.96.0.10:53 -s sh -b \n", NAMES).virtual_servers
    assert server.flags & VirtualServerFlags.SCHEDULER_3


@pytest.mark.parametrize(
    "text,why",
    [
        pytest.param("-A -s rr", "line 1: it names no virtual server", id="no virtual server"),
        pytest.param("\n-a -t 10.0.0.1:80 -r 10.0.0.2:80", "line 2: no line above adds", id="a server of none"),
        pytest.param("-A -t 10.0.0.1:99999", "line 1: '10.0.0.1:99999' is no address and port", id="no address"),
        pytest.param("-A -t 10.0.0.1:80 --bogus", "line 1: --bogus: unknown option", id="no option"),
        pytest.param("-A -t 10.0.0.1:80 -p x", "line 1: 'x' is no persistent", id="no number"),
        pytest.param("-A -t 10.0.0.1:80 -p \uff15", "line 1: '\uff15' is no persistent", id="a digit of others"),
        pytest.param("-A -t [::1]:80 -p -M 4294967296", "line 1: '4294967296' is no netmask", id="more than 32 bits"),
        pytest.param("-A -f 0", "line 1: 0 is no firewall mark", id="no mark"),
        pytest.param("-A -t 10.0.0.1:80 -s \x1b[31m", "line 1: '\\x1b[31m' is no scheduler", id="a terminal's command"),
        pytest.param("-A -t 10.0.0.1:80 -b zzz", "line 1: invalid scheduler flag", id="no flag"),
        pytest.param("-A -t 10.0.0.1:80 rr", "line 1: unexpected argument 'rr'", id="a word too many"),
        pytest.param("-A -t 10.0.0.1:80 -t 10.0.0.2:80", "line 1: multiple 'service-address'", id="one too many"),
        pytest.param(
            "-A -t 10.0.0.1:80\n-a -t 10.0.0.1:80 -r 10.0.0.2:80 -i --tun-type vxlan", "line 2: illegal tunnel type",
            id="no tunnel",
        ),
        pytest.param("-C -t 10.0.0.1:80", "line 1: a rule begins with -A or -a", id="no rule"),
        pytest.param("{}", "line 1: unexpected argument '{}'", id="something else"),
    ],
)  # fmt: skip
def test_what_is_no_rule_is_told_with_its_line(text, why):
    with pytest.raises(IpvsproxyError) as refused:
        read_rules(text, NAMES)
    assert f"cannot understand {why}" in str(refused.value)


def test_of_a_long_word_the_error_shows_the_beginning():
    with pytest.raises(IpvsproxyError) as found:
        read_rules("x" * 100_000, NAMES)
    assert 100 < len(str(found.value)) < 400
