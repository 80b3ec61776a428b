"""What `kernel/api.py` promises of Rules, on the fake and on both flavours of real tables, there against the tools."""

from __future__ import annotations

import errno
import fcntl
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec
import pytest
import structlog

from ipvsproxy.kernel.api import Rules
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.kernel.ipsets import NetlinkIPSets
from ipvsproxy.kernel.iptables import LegacyRules
from ipvsproxy.kernel.iptables_nft import NftRules
from ipvsproxy.model.addr import parse_cidr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, Match, Operation, Option, Rule, RuleLayer, RuleTable, SetSpec, Verb
from ipvsproxy.model.names import set_name
from ipvsproxy.modes.ipvs.rules import LocalTraffic, RuleOptions, rule_objects
from ipvsproxy.modes.ipvs.sets import BITMAP_PORT, ENTRY_KIND_BY_NAME, SETS
from ipvsproxy.plan.rule_text import canonical_layer, layer_text

OF_TWO_WORDS = {"--match-set", "--tcp-flags"}
POD_NETWORKS = tuple(filter(None, (parse_cidr("10.244.0.0/16"), parse_cidr("fd00:10:244::/56"))))
VARIANTS = {
    "local traffic told by network": RuleOptions(local=LocalTraffic(cidrs=POD_NETWORKS)),
    "local traffic told by bridge": RuleOptions(local=LocalTraffic(interface="cbr0")),
    "local traffic told by interface prefix": RuleOptions(local=LocalTraffic(interface="veth+")),
    "masquerade all, another mark bit": RuleOptions(masquerade_all=True, masquerade_bit=31),
    "nothing told": RuleOptions(),
}
PROGRAM = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}


def layers(options: RuleOptions = VARIANTS["local traffic told by network"]) -> dict[RuleTable, RuleLayer]:
    objects = rule_objects(frozenset(Family), options)
    return {
        key: layer for (_, key), layer in objects.items() if isinstance(key, RuleTable) and isinstance(layer, RuleLayer)
    }


LAYERS = layers()
# One table of each kind and family where all four would only cost time: processes are slow in an emulated machine.
TWO_TABLES = [
    pytest.param(key, id=str(key)) for key in (RuleTable("nat", Family.IPV4), RuleTable("filter", Family.IPV6))
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """On the real kernel everything is asked of both flavours."""
    if "flavour" in metafunc.fixturenames:
        flavours = ["fake"] if metafunc.config.getoption("--kernel") == "fake" else ["legacy", "nft"]
        metafunc.parametrize("flavour", flavours)


@dataclass(frozen=True)
class Tools:
    """The flavour's own programs, in this thread's network namespace."""

    flavour: str

    def run(self, key: RuleTable, *words: str) -> None:
        self.call(key.family, "", "-t", key.table, *words)

    def call(self, family: Family, verb: str, *words: str, given: str = "") -> str:
        program = f"{PROGRAM[family]}-{self.flavour}{verb}"
        return subprocess.run([program, *words], check=True, capture_output=True, text=True, input=given).stdout

    def restore(self, key: RuleTable, layer: RuleLayer) -> None:
        self.call(key.family, "-restore", "--noflush", given=layer_text(key.table, layer))

    def saved(self, key: RuleTable, *options: str) -> list[str]:
        """What the flavour shows, without comments."""
        text = self.call(key.family, "-save", "-t", key.table, *options)
        return [line for line in text.splitlines() if not line.startswith("#")]

    def saved_layer(self, key: RuleTable) -> str:
        """The same without the built-in chains' policies."""
        return "".join(f"{line}\n" for line in self.saved(key) if not re.match(r":[A-Z]+ [A-Z]", line))


@pytest.fixture
def tools(flavour: str) -> Tools:
    return Tools(flavour)


@pytest.fixture
def lock_path(tmp_path: Path) -> Path:
    return tmp_path / "xtables.lock"


@pytest.fixture
def rules(pick: Callable, fake_kernel: FakeKernel, new_rules: Callable[..., Rules]) -> Rules:
    """With all our sets there, which rules need."""
    ipsets = pick(fake_kernel.kernel.ipsets, lambda: NetlinkIPSets(ENTRY_KIND_BY_NAME))
    made = [
        Operation(Verb.ADD, Kind.SET, set_name(row.base, family), SetSpec(row.type_name, None if bitmap else family))
        for row, family in product(SETS, Family)
        for bitmap in [row.type_name == BITMAP_PORT]
    ]
    assert not any(ipsets.apply(made))
    return pick(fake_kernel.kernel.rules, new_rules)


@pytest.fixture
def new_rules(flavour: str, lock_path: Path) -> Callable[..., Rules]:
    """Makes the edge to the real tables of this flavour, as a new process would have it."""

    def new(wanted: dict[RuleTable, RuleLayer] = LAYERS) -> Rules:
        chains = {key: layer.chains for key, layer in wanted.items()}
        return NftRules(chains) if flavour == "nft" else LegacyRules(chains, lock_path=lock_path)

    return new


@pytest.fixture
def real(rules: Rules, real_kernel: None) -> Rules:  # noqa: ARG001  # the fake has no tables beside ours
    return rules


@pytest.fixture
def written(real: Rules) -> Rules:
    """With our layers in the tables."""
    assert real.apply(write(LAYERS)) == [0] * len(LAYERS)
    return real


def write(wanted: dict[RuleTable, RuleLayer], verb: Verb = Verb.ADD) -> list[Operation]:
    return [Operation(verb, Kind.RULES, key, layer) for key, layer in wanted.items()]


def read(rules: Rules) -> dict:
    return rules.read()[Kind.RULES]


def test_nothing_there_reads_as_empty(rules):
    assert read(rules) == {}


def test_both_families_work(rules):
    assert rules.families == frozenset(Family)


@pytest.mark.parametrize("options", [pytest.param(options, id=name) for name, options in VARIANTS.items()])
def test_a_written_layer_reads_back_equal(rules, options):
    wanted = layers(options)
    assert rules.apply(write(wanted)) == [0] * len(wanted)
    assert read(rules) == wanted


def test_a_layer_is_replaced_by_another(rules):
    rules.apply(write(LAYERS))
    other = layers(VARIANTS["nothing told"])
    assert rules.apply(write(other, Verb.EDIT)) == [0] * len(other)
    assert read(rules) == other


def test_a_deleted_layer_is_gone_and_deleting_it_again_succeeds(rules):
    rules.apply(write(LAYERS))
    assert rules.apply(write(LAYERS, Verb.DELETE)) == [0] * len(LAYERS)
    assert read(rules) == {}
    assert rules.apply(write(LAYERS, Verb.DELETE)) == [0] * len(LAYERS)


# What only the real kernel has: its tools, and rules of others.


@pytest.mark.parametrize("options", [pytest.param(options, id=name) for name, options in VARIANTS.items()])
def test_iptables_save_shows_the_layer_as_we_print_it(real, tools, options):
    wanted = layers(options)
    real.apply(write(wanted))
    for key, layer in wanted.items():
        assert tools.saved_layer(key) == layer_text(key.table, layer)


@pytest.mark.usefixtures("written")
def test_another_process_reads_what_we_wrote_in_canonical_form(new_rules):
    assert read(new_rules()) == {key: canonical_layer(layer) for key, layer in LAYERS.items()}


def test_a_layer_that_the_tool_restored_reads_as_ours(real, tools):
    for key, layer in LAYERS.items():
        tools.restore(key, layer)
    assert read(real) == {key: canonical_layer(layer) for key, layer in LAYERS.items()}


@pytest.mark.parametrize("key", TWO_TABLES)
def test_what_is_there_is_not_written_again(written, tools, flavour, key):
    """A commit zeroes the counters of our rules, so marks put there show whether one happened.

    ip6tables-nft 1.8.9 sets no counters (`-c` is lost); but nf_tables numbers its transactions.
    """
    chain = LAYERS[key].rules[0].chain
    tools.run(key, "-R", chain, "1", *_words(LAYERS[key].rules[0]), "-c", "7", "700")
    before = tools.saved(key, "-c"), written.fingerprint()
    assert flavour == "nft" or any("[7:700]" in line for line in before[0])
    assert written.apply(write(LAYERS)) == [0] * len(LAYERS)
    assert (tools.saved(key, "-c"), written.fingerprint()) == before


def _words(rule: Rule) -> list[str]:
    """The rule as arguments of iptables, from the target on back: enough for rules without quotes."""
    words = ["-s", rule.source] if rule.source else []
    for match in rule.matches:
        words += ["-m", match.name]
        for option in match.options:
            words += [option.name, *(option.value.split() if option.name in OF_TWO_WORDS else [option.value])]
    return [*words, "-j", rule.target]


def _knock(family: Family) -> None:
    """One packet to TCP port 80 of this namespace: counts also where the tool sets no counters."""
    with socket.socket(socket.AddressFamily(family)) as client, pytest.raises(ConnectionRefusedError):
        client.connect(("::1" if family is Family.IPV6 else "127.0.0.1", 80))


@pytest.mark.parametrize("key", TWO_TABLES)
def test_foreign_rules_and_chains_keep_their_text_place_and_counters(real, tools, key):
    hook = LAYERS[key].jumps[0].chain
    tools.run(key, "-N", "FOREIGN")
    tools.run(key, "-A", "FOREIGN", "-m", "comment", "--comment", 'it\'s "theirs"', "-j", "RETURN", "-c", "3", "300")
    tools.run(key, "-A", hook, "-p", "tcp", "-m", "tcp", "--dport", "80", "-j", "FOREIGN", "-c", "5", "500")
    if key.table == "filter":
        _knock(key.family)
    before = tools.saved(key, "-c")
    assert any(re.match(r"\[[1-9].*-A FOREIGN ", line) for line in before)
    real.apply(write(LAYERS))
    real.apply(write(layers(VARIANTS["nothing told"])))
    foreign = [line for line in tools.saved(key, "-c") if "FOREIGN" in line]
    assert foreign == [line for line in before if "FOREIGN" in line]
    real.apply(write(LAYERS, Verb.DELETE))
    after = tools.saved(key, "-c")
    assert [_without_policy_counters(line) for line in after] == [_without_policy_counters(line) for line in before]


def _without_policy_counters(line: str) -> str:
    """python-iptables zeroes those of a built-in chain whose rules it changes."""
    return re.sub(r"^(:.*) \[.*\]$", r"\1", line)


@pytest.mark.parametrize("key", TWO_TABLES)
def test_a_jump_below_a_foreign_rule_reads_as_different_and_is_moved_up(written, tools, key):
    hook = LAYERS[key].jumps[0].chain
    tools.run(key, "-I", hook, "-p", "udp", "-j", "ACCEPT")
    assert read(written)[key] != LAYERS[key]
    assert written.apply(write(LAYERS, Verb.EDIT)) == [0] * len(LAYERS)
    assert read(written) == LAYERS
    ours = [jump for jump in LAYERS[key].jumps if jump.chain == hook]
    hook_lines = [line for line in tools.saved(key) if line.startswith(f"-A {hook} ")]
    assert hook_lines.index(f"-A {hook} -p udp -j ACCEPT") == len(ours)


@pytest.mark.parametrize("family", Family)
def test_no_packet_finds_a_gap_while_a_layer_is_replaced(real, family):
    """What is refused before and after is refused in between; here TCP to a port that somebody listens on."""
    new = Match("conntrack", (Option("--ctstate", "NEW"),))  # else the reset is rejected too
    reset = Rule("KUBE-NODE-PORT", "REJECT", (new,), (Option("--reject-with", "tcp-reset"),), protocol="tcp")
    layer = RuleLayer(("KUBE-NODE-PORT",), (Rule("INPUT", "KUBE-NODE-PORT"),), (reset,))
    longer = msgspec.structs.replace(layer, rules=(Rule("KUBE-NODE-PORT", "RETURN", protocol="sctp"), reset))
    key = RuleTable("filter", family)
    assert real.apply(write({key: layer})) == [0]
    replaced = threading.Event()
    with socket.create_server(("", 8080), family=socket.AddressFamily(family)), ThreadPoolExecutor(1) as others:
        tries = others.submit(_connects_until, replaced, family)
        answers = [real.apply(write({key: one}, Verb.EDIT)) for one in (longer, layer) * 15]
        replaced.set()
    assert answers == [[0]] * 30
    assert tries.result() == {errno.ECONNREFUSED}


def _connects_until(end: threading.Event, family: Family) -> set[int]:
    answers = set()
    while not end.is_set():
        with socket.socket(socket.AddressFamily(family)) as client:
            client.settimeout(5)
            answers.add(client.connect_ex(("::1" if family is Family.IPV6 else "127.0.0.1", 8080)))
    return answers


CHANGES = {
    "a jump is doubled": lambda tools, key, layer: tools.run(
        key, "-A", layer.jumps[0].chain, "-j", layer.jumps[0].target
    ),
    "a jump is missing": lambda tools, key, layer: tools.run(key, "-D", layer.jumps[0].chain, "1"),
    "a chain is flushed": lambda tools, key, layer: tools.run(key, "-F", layer.rules[0].chain),
    "a rule is missing": lambda tools, key, layer: tools.run(key, "-D", layer.rules[0].chain, "1"),
    "a rule is added": lambda tools, key, layer: tools.run(key, "-A", layer.rules[0].chain, "-j", "ACCEPT"),
    "a rule with a destination is added": lambda tools, key, layer: tools.run(
        key, "-A", layer.rules[0].chain, "-d", "::1" if key.family is Family.IPV6 else "127.0.0.1", "-j", "ACCEPT"
    ),
    "a rule on an outgoing interface is added": lambda tools, key, layer: tools.run(
        key, "-A", layer.rules[0].chain, "-o", "eth0", "-j", "ACCEPT"
    ),
    "a rule with a match we never use is added": lambda tools, key, layer: tools.run(
        key,
        "-A",
        layer.rules[0].chain,
        "-m",
        "statistic",
        "--mode",
        "nth",
        "--every",
        "2",
        "--packet",
        "0",
        "-j",
        "ACCEPT",
    ),
    "a rule with a target we never use is added": lambda tools, key, layer: tools.run(
        key, "-A", layer.rules[0].chain, "-j", "LOG", "--log-prefix", "x"
    ),
    "a goto is added": lambda tools, key, layer: (
        tools.run(key, "-N", "FOREIGN"),
        tools.run(key, "-A", layer.rules[0].chain, "-g", "FOREIGN"),
    ),
    "the table is flushed": lambda tools, key, _: tools.run(key, "-F"),
}


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("key", TWO_TABLES)
def test_a_change_by_others_reads_as_different_and_is_put_right(new_rules, tools, key):
    wanted = {key: LAYERS[key]}
    rules = new_rules(wanted)
    for name, change in CHANGES.items():
        assert rules.apply(write(wanted)) == [0], name
        assert read(rules) == wanted, name
        change(tools, key, LAYERS[key])
        observed = read(rules)
        assert observed.keys() == wanted.keys(), name
        assert observed != wanted, name


@pytest.mark.parametrize("key", TWO_TABLES)
def test_a_change_of_foreign_rules_makes_another_fingerprint(written, tools, key):
    before = written.fingerprint()
    assert written.fingerprint() == before
    tools.run(key, "-A", LAYERS[key].jumps[0].chain, "-p", "udp", "-j", "ACCEPT")
    assert written.fingerprint() != before


def test_rules_of_kube_proxy_are_replaced_by_ours(real, tools):
    """Its chains have our names: a takeover."""
    nat = RuleTable("nat", Family.IPV4)
    tools.run(nat, "-N", "KUBE-SERVICES")
    tools.run(nat, "-A", "KUBE-SERVICES", "-d", "10.96.0.1", "-p", "tcp", "-m", "tcp", "--dport", "443", "-j", "RETURN")
    tools.run(
        nat, "-A", "PREROUTING", "-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES"
    )
    assert set(read(real)) == {nat}
    real.apply(write(LAYERS))
    assert read(real) == LAYERS


def test_a_chain_of_ours_that_the_layer_no_longer_has_is_removed(written, tools):
    key = RuleTable("filter", Family.IPV4)
    smaller = RuleLayer(("KUBE-FORWARD",), (), (Rule("KUBE-FORWARD", "RETURN"),))
    assert written.apply(write({key: smaller}, Verb.EDIT)) == [0]
    assert tools.saved_layer(key) == layer_text("filter", smaller)


def test_a_chain_that_a_foreign_rule_leads_to_stays_empty_and_is_reported(written, tools):
    key = RuleTable("nat", Family.IPV4)
    tools.run(key, "-N", "FOREIGN")
    tools.run(key, "-A", "FOREIGN", "-j", "KUBE-MARK-MASQ")
    assert written.apply(write({key: LAYERS[key]}, Verb.DELETE)) == [errno.EMLINK]
    assert (
        tools.saved_layer(key)
        == "*nat\n:FOREIGN - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n-A FOREIGN -j KUBE-MARK-MASQ\nCOMMIT\n"
    )


BROKEN = {
    "a set that is not there": (
        Match("set", (Option("--match-set", "KUBE-NO-SUCH-SET dst"),)),
        errno.ENOENT,
        "KUBE-NO-SUCH-SET",
    ),
    "an extension that nobody has": (Match("nosuchmatch", ()), errno.ENOENT, "nosuchmatch"),
    "an option that the extension does not have": (
        Match("mark", (Option("--colour", "red"),)),
        errno.EINVAL,
        "--colour",
    ),
}


@pytest.mark.parametrize("match,number,named", [pytest.param(*row, id=name) for name, row in BROKEN.items()])
@pytest.mark.parametrize("key", TWO_TABLES)
def test_a_layer_that_cannot_be_built_changes_nothing_and_loses_only_itself(written, key, match, number, named):
    layer = LAYERS[key]
    broken = msgspec.structs.replace(layer, rules=(*layer.rules, Rule(layer.chains[0], "RETURN", (match,))))
    with structlog.testing.capture_logs() as logs:
        answers = written.apply(write({**LAYERS, key: broken}, Verb.EDIT))
    assert answers == [number if other == key else 0 for other in LAYERS]
    assert [named in entry["reason"] for entry in logs if entry["event"] == "rules_refused"] == [True]
    assert read(written) == LAYERS


@pytest.fixture
def held_lock(lock_path: Path) -> Iterator[None]:
    with lock_path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.usefixtures("held_lock", "real")
def test_a_held_lock_answers_eagain_at_once_and_nothing_changes_where_the_flavour_has_one(new_rules, flavour):
    """nf_tables needs none: each transaction is checked against the tables as they are then."""
    rules = new_rules()
    expected = ([errno.EAGAIN] * len(LAYERS), {}) if flavour == "legacy" else ([0] * len(LAYERS), LAYERS)
    assert (rules.apply(write(LAYERS)), read(rules)) == expected


def test_a_host_without_ipv6_has_ipv4_rules_only(real):
    """K55."""
    Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
    assert real.families == {Family.IPV4}


@pytest.mark.usefixtures("written")
def test_rules_stay_in_the_network_namespace_of_their_thread(flavour):
    done = subprocess.run(["unshare", "-n", f"iptables-{flavour}-save"], check=True, capture_output=True, text=True)
    assert "KUBE" not in done.stdout
