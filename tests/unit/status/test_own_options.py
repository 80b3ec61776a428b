"""What the options of our own mean, and which words are ours."""

from __future__ import annotations

import pytest

from ipvsproxy.errors import ConfigError
from ipvsproxy.model.addr import Cidr, parse_cidr
from ipvsproxy.status.own_options import View, ViewOptions, make_parser, parse
from ipvsproxy.status.own_words import is_own
from ipvsproxy.status.select import Frontend, Selection, WantedService
from tests.builders import addr


def parsed(*words: str) -> ViewOptions:
    options = parse(words)
    assert isinstance(options, ViewOptions)
    return options


@pytest.mark.parametrize(
    "words",
    ["-o json", "-ojson", "--output yaml", "--output=wide", "-Ln --names", "--watch", "--watch=5", "-N shop", "-Nshop",
     "--service shop/web", "--address=10.0.0.1", "--draining", "--empty", "--not-ours", "--manifests DIR", "-L -o xml",
     "--from-cluster", "--kubeconfig=FILE", "--stats --names", "--from FILE --names"],
)  # fmt: skip
def test_ours_are(words):
    assert is_own(words.split())


@pytest.mark.parametrize(
    "words",
    ["", "-L -n", "-Ln --stats", "-lc", "-L --rate -t 10.0.0.1:80", "-S -n", "-A -t 10.0.0.1:80 -s rr -o",
     "-A -t 10.0.0.1:80 -o -s rr", "--from FILE -L -n", "--nosort", "--numeric", "-E -u 1.1.1.1:1 --ops", "-h"],
)  # fmt: skip
def test_ipvsadms_are(words):
    assert not is_own(words.split())


def test_nothing_asked_for_is_a_table_of_everything_once():
    options = parsed("-Ln")
    assert (options.view, options.every_s, options.with_names) == (View.TABLE, None, False)
    assert options.selection == Selection()


@pytest.mark.parametrize("words,every_s", [("--watch", 2.0), ("--watch 5", 5.0), ("--watch=0.5", 0.5)])
def test_watch_takes_seconds_or_none(words, every_s):
    assert parsed(*words.split()).every_s == every_s


@pytest.mark.parametrize(
    "words",
    ["--names", "-N shop", "--service shop/web", "--not-ours", "--manifests DIR", "--from-cluster", "--kubeconfig F"],
)
def test_names_are_read_where_they_are_needed(words):
    assert parsed(*words.split()).with_names


@pytest.mark.parametrize("words", ["-o json", "--draining", "--empty", "--address 10.0.0.1", "--watch"])
def test_names_are_not_read_where_they_are_not(words):
    assert not parsed(*words.split()).with_names


@pytest.mark.parametrize(
    "words,service",
    [
        ("--service shop/web", WantedService("shop", "web")),
        ("--service shop/web:http", WantedService("shop", "web", "http")),
        ("--service web:80 -N shop", WantedService("shop", "web", "80")),
    ],
)
def test_a_service_is_named_as_everywhere(words, service):
    assert parsed(*words.split()).selection.service == service


@pytest.mark.parametrize(
    "words,frontend",
    [
        ("-t 10.0.0.1:80", Frontend(6, addr("10.0.0.1"), 80)),
        ("-u [fd00::1]:53", Frontend(17, addr("fd00::1"), 53)),
        ("--sctp-service 10.0.0.1:9", Frontend(132, addr("10.0.0.1"), 9)),
        ("-f 7", Frontend(0, b"", 0, 7)),
    ],
)
def test_one_virtual_server_is_named_as_for_ipvsadm(words, frontend):
    assert parsed("-Ln", *words.split()).selection.frontend == frontend


def test_what_changes_nothing_in_ipvsadm_changes_nothing_here():
    assert parsed("-LnX", "--sort", "--names") == parsed("--names")


def test_an_address_is_a_network_of_one():
    found = parsed("--address", "10.0.0.1", "--address", "fd00::/8").selection.networks
    assert found == (Cidr(addr("10.0.0.1"), 32), parse_cidr("fd00::/8"))


@pytest.mark.parametrize(
    "words,said",
    [
        pytest.param("-o xml", "invalid choice: 'xml' (choose from", id="a format that there is not"),
        pytest.param("--watch=0", "no number of seconds above 0", id="no time at all"),
        pytest.param("--watch=nan", "no number of seconds above 0", id="no number"),
        pytest.param("--from=", "it needs the name of a file", id="no file, which a script's unset variable may leave"),
        pytest.param("--service=", "is not NAMESPACE/NAME[:PORT]", id="no Service, likewise"),
        pytest.param("--service /web", "is not NAMESPACE/NAME[:PORT]", id="a Service of no namespace"),
        pytest.param("-t 10.0.0.1:80 -u 10.0.0.1:53 -o json", "not allowed with argument", id="two virtual servers"),
        pytest.param("--service web", "is not NAMESPACE/NAME[:PORT]", id="a Service without its namespace"),
        pytest.param("--service a/b/c", "is not NAMESPACE/NAME[:PORT]", id="too many parts"),
        pytest.param("--address web", "is neither an IP address nor a CIDR", id="no address"),
        pytest.param("--names -t web:80", "is not ADDRESS:PORT", id="a name where an address must be"),
        pytest.param("--names -t 10.0.0.1:99999", "is not ADDRESS:PORT", id="no port"),
        pytest.param("--names -f 0", "is no firewall mark", id="no mark"),
        pytest.param("--names --manifests D --from-cluster", "from one place alone", id="two sources"),
        pytest.param("--names -S", "unrecognized arguments: -S", id="what only ipvsadm has"),
        pytest.param("--names --nam", "unrecognized arguments: --nam", id="an abbreviation"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(words, said):
    with pytest.raises(ConfigError) as refused:
        parse(words.split())
    assert said in str(refused.value)


def test_the_help_names_every_option():
    text = parse(["--names", "--help"])
    assert isinstance(text, str)
    for action in make_parser()._actions:
        assert all(option in text for option in action.option_strings)
        assert action.help


def test_every_option_of_ours_is_known_as_such_and_none_of_ipvsadms():
    theirs = {"--list", "--numeric", "--exact", "--sort", "--stats", "--rate", "--tcp-service", "--udp-service",
              "--sctp-service", "--fwmark-service", "--from", "--help"}  # fmt: skip
    for action in make_parser()._actions:
        for option in action.option_strings:
            if option.startswith("--"):
                assert is_own([option, "value"]) is (option not in theirs)
