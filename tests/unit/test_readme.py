"""What README and pages say is true: their commands, outputs, flags, values of the chart, exit codes and links."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from ipvsproxy import cli
from ipvsproxy.config.command_line import EXIT_CODE_MEANINGS, Status, Top, parse_command_line
from ipvsproxy.config.flags import FLAGS
from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.resolver import SystemResolver
from ipvsproxy.status.arguments import parse as parse_as_ipvsadm
from ipvsproxy.status.help_text import HELP
from ipvsproxy.status.option_words import Refused
from ipvsproxy.status.own_options import make_parser as view_parser
from ipvsproxy.status.own_options import parse as parse_view
from ipvsproxy.status.own_words import is_own
from ipvsproxy.top.options import make_parser as top_parser
from tests.documented import PAGES, documented
from tests.tables.screens import SCREENS, page_with

ROOT = Path(__file__).parents[2]
EMPTY_FILE = b"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
VALUES = yaml.safe_load((ROOT / "charts/ipvsproxy/values.yaml").read_text())
SOURCE = "".join(path.read_text() for path in sorted((ROOT / "ipvsproxy").rglob("*.py")))
OF_OTHERS = {"KUBE-EXTERNAL-SERVICES", "KUBE-FIREWALL"}  # kube-proxy's in its iptables mode, the kubelet's
IPVSADM = set(re.findall(r"--[a-z-]+", HELP))
README = (ROOT / "README.md").read_text()
PLAN = documented("README.md", "Try it", pattern=r"\S*/ipvsproxy plan .*")
(WRITE,) = documented("docs/configuration.md", "The file", in_block=True)


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_its_first_block_is_the_two_commands_to_see_it_work_and_to_test_it():
    first = re.search(r"```sh\n(.*?)```", README, re.DOTALL)
    assert first is not None
    assert [line.split("#")[0].strip() for line in first[1].splitlines()] == ["make demo", "make test"]


def test_ci_runs_the_test_command_that_it_shows():
    assert re.search(r"\bmake test\b(?!-)", (ROOT / ".ci" / "run").read_text())


@pytest.mark.parametrize("page", [pytest.param(page, id=page) for page in PAGES])
def test_every_make_target_that_a_page_names_exists(page):
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert named <= targets()


@pytest.mark.parametrize("page", [pytest.param(page, id=page) for page in PAGES])
def test_every_flag_that_a_page_names_exists(page):
    text = re.sub(r"--x\b|--flag\b|--log-…", "", (ROOT / page).read_text())
    ours = set(re.findall(r"`(?:ipvsproxy )?(--[a-z][a-z-]+)", text))
    others = {
        name for make in (top_parser, view_parser) for action in make()._actions for name in action.option_strings
    }
    assert ours <= {flag.name for flag in FLAGS} | others | IPVSADM


def anchors(page: Path) -> set[str]:
    """What a link into the page may name: its headings, in small letters, with hyphens, without other marks."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [pytest.param(page, id=page) for page in PAGES])
def test_every_link_leads_to_a_file_and_a_heading(page):
    lost = []
    for link in re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text()):
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", [pytest.param(page, id=page) for page in PAGES])
def test_every_file_of_ours_that_a_page_names_exists(page):
    named = re.findall(r"`((?:tests|ipvsproxy|charts)/[\w./-]+)`", (ROOT / page).read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", [pytest.param(page, id=page) for page in PAGES])
def test_every_value_of_the_chart_that_a_page_names_exists(page):
    top = "|".join(VALUES)
    named = re.findall(rf"`((?:{top})(?:\.[a-zA-Z]+)+)[`=]", (ROOT / page).read_text())
    others = {"config.conf", "apiServer.watches"}  # a key of ConfigMaps, a field of /readyz
    assert [path for path in named if path not in others and not has_value(path)] == []


def has_value(path: str) -> bool:
    found: object = VALUES
    for key in path.split("."):
        if not isinstance(found, dict) or key not in found:
            return False
        found = found[key]
    return True


@pytest.mark.parametrize("page", ["docs/troubleshoot.md", "docs/supported.md", "docs/events.md"])
def test_every_log_line_and_metric_that_a_page_names_is_in_the_code(page):
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", (ROOT / page).read_text()))
    assert named
    assert {name for name in named if name not in SOURCE} == set()


@pytest.mark.parametrize(
    "page", ["docs/troubleshoot.md", "docs/security.md", "docs/migrate.md", "docs/data-path.md", "docs/operate.md"]
)
def test_every_event_alert_and_chain_that_a_page_names_is_there(page):
    text = (ROOT / page).read_text()
    alerts = (ROOT / "charts/ipvsproxy/files/alerts.yaml").read_text()
    assert [name for name in re.findall(r"alert `(\w+)`", text) if f"alert: {name}\n" not in alerts] == []
    assert [name for name in re.findall(r"Event `(\w+)`", text) if name not in SOURCE] == []
    chains = set(re.findall(r"\bKUBE-[A-Z-]+[A-Z]\b(?!-)", text)) - OF_OTHERS
    assert {name for name in chains if name not in SOURCE} == set()


def test_every_page_is_listed_in_the_readme():
    assert {page for page in PAGES if page.startswith("docs/")} <= set(re.findall(r"\]\(([^)]+)\)", README))


def commands_of(page: str) -> list[str]:
    """What follows the name of our program, in blocks and in inline code."""
    text = (ROOT / page).read_text()
    lines = [
        line
        for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for line in block.split("\n")
    ]
    code = [*lines, *re.findall(r"(?<!`)`([^`\n]+)`", text)]
    found = [re.match(r"(?:[$#] )?(?:\S*/|.* -- )?ipvsproxy (\S.*)", line) for line in code]
    return [match[1].split(" | ")[0].split("  #")[0] for match in found if match]


def parse(command: str) -> None:
    """Read a command, after the program's name, as the program does. Raises ConfigError, Refused, SystemExit."""
    words = shlex.split(command)
    asked = parse_command_line(words, lambda _: EMPTY_FILE)
    if isinstance(asked, Top):
        top_parser().parse_args(asked.arguments)
    elif isinstance(asked, Status) and is_own(asked.arguments):
        parse_view(asked.arguments)
    elif isinstance(asked, Status):
        parse_as_ipvsadm(asked.arguments, SystemResolver())


@pytest.mark.parametrize(
    "page, command",
    [
        pytest.param(page, command, id=f"{page} {command}")
        for page in PAGES
        for command in dict.fromkeys(commands_of(page))
        if not re.search(r"[…\[]|\b[A-Z]{4,}\b", command) and command not in {"explain", "plan"}
    ],
)
def test_every_command_that_a_page_names_is_one_of_the_program(page, command):  # noqa: ARG001  # the page is its name
    parse(command)


@pytest.mark.parametrize(
    "command", ["dif", "explain", "--proxy-mod=ipvs", "status --name", "status -L --stat", "top -x"]
)
def test_a_command_that_the_program_does_not_have_would_be_found(command):
    with pytest.raises((IpvsproxyError, Refused, SystemExit)):
        parse(command)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("command", PLAN)
def test_the_plan_that_it_shows_is_what_the_program_prints(command, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert cli.run(shlex.split(command.text)[1:], cli.Programs()) == 0
    assert f"```console\n$ {command.text}\n{capsys.readouterr().out}```\n" in README


@pytest.mark.usefixtures("quiet")
def test_the_configuration_in_force_is_written_as_the_page_says(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("config.conf").write_bytes(EMPTY_FILE + b"mode: iptables\nclusterCIDR: 10.244.0.0/16\n")
    assert cli.run(shlex.split(WRITE.text)[1:], cli.Programs()) == 0
    written = yaml.safe_load(Path("in-force.yaml").read_text())
    assert (written["mode"], written["clusterCIDR"]) == ("ipvs", "10.244.0.0/16")


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("command", SCREENS)
def test_a_screen_is_what_the_command_shows(command):
    """`make golden-update` writes it."""
    assert page_with(README, command, SCREENS[command]()) == README


def test_a_page_without_a_place_for_a_screen_is_an_error():
    with pytest.raises(ValueError, match="0 places"):
        page_with("# No place\n", "ipvsproxy top", "")


def test_its_exit_codes_are_the_programs():
    rows = dict(re.findall(r"^\| ([0-9]+) \| (.*) \|$", README, re.MULTILINE))
    assert rows == {str(int(code)): meaning for code, meaning in EXIT_CODE_MEANINGS.items()}
