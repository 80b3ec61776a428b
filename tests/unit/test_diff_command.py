"""`ipvsproxy diff`: what it prints and answers."""

from __future__ import annotations

import json

import msgspec
import pytest

from ipvsproxy import cli, diff_command
from ipvsproxy.config.command_line import Diff, ExitCode, Show, help_text, parse_command_line
from ipvsproxy.config.flags import Commands
from ipvsproxy.errors import ConfigError, KernelError
from ipvsproxy.inspect import document
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.enums import Family
from ipvsproxy.model.json_schema import schema_text
from ipvsproxy.model.kernel_objects import Kind, VirtualServer
from ipvsproxy.this_node import Surroundings, look
from tests.builders import addr, blob, flow, vs_key

pytestmark = pytest.mark.usefixtures("quiet")
OBJECTS = """\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  clusterIP: 10.96.0.20
  ports: [{name: http, port: 80, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.244.1.5], nodeName: n1}]
ports: [{name: http, port: 8080, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]
"""
KEY = vs_key("10.96.0.20", 80)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "objects.yaml").write_text(OBJECTS)
    return tmp_path


def parsed(folder, *flags):
    command = parse_command_line(["diff", "--manifests", str(folder), "--hostname-override=n1", *flags])
    assert isinstance(command, Diff)
    return command


def here(fake: FakeKernel) -> Surroundings:
    return Surroundings(fake.kernel, frozenset({addr("192.0.2.11")}))


def diff(fake: FakeKernel, folder, *flags) -> int:
    command = parsed(folder, *flags)
    return diff_command.run(command.config, command.options, lambda _: here(fake), output=command.format)


def brought_about(folder, *flags) -> FakeKernel:
    """A kernel to which everything was done that diff prints for an empty one."""
    fake, command = FakeKernel(), parsed(folder, *flags)
    for operation in look(command.config, command.options, here(fake)).first_sync.operations:
        assert fake.kernel.apply([operation]) == [0]
    return fake


def test_a_kernel_that_is_as_planned_prints_nothing_and_answers_0(folder, capsys):
    assert diff(brought_about(folder), folder) == ExitCode.OK
    assert capsys.readouterr() == ("", "")


def test_each_difference_is_a_line_and_the_answer_is_1(folder, capsys):
    fake = brought_about(folder)
    fake.state[Kind.REAL_SERVER][KEY] = blob(("10.244.9.9", 8080))
    fake.flows.append(flow("10.244.1.9:4000", "10.96.0.20:53", "10.244.7.7:53"))
    assert diff(fake, folder) == ExitCode.DIFFERENT
    assert capsys.readouterr().out.splitlines() == [
        "add real server 10.244.1.5:8080 of 10.96.0.20:80/TCP: weight 1  # default/web",
        "edit real server 10.244.9.9:8080 of 10.96.0.20:80/TCP: weight 1 → weight 0  # default/web",
        "delete real server 10.244.9.9:8080 of 10.96.0.20:80/TCP  # default/web",
        "delete UDP flow 10.244.1.9:4000 → 10.96.0.20:53 (10.244.7.7:53)",
    ]


def test_programs_read_the_same_as_one_document(folder, capsys):
    fake = brought_about(folder)
    fake.state[Kind.REAL_SERVER][KEY] = blob(("10.244.9.9", 8080))
    fake.state[Kind.VIRTUAL_SERVER][vs_key("192.0.2.99", 80)] = VirtualServer("wlc")
    fake.flows.append(flow("10.244.1.9:4000", "10.96.0.20:53", "10.244.7.7:53"))
    assert diff(fake, folder, "-o", "json") == ExitCode.DIFFERENT
    out, err = capsys.readouterr()
    web = {"kind": "real server", "object": "10.96.0.20:80/TCP", "services": ["default/web"]}
    old = web | {"realServer": "10.244.9.9:8080"}
    assert (json.loads(out), err) == (
        {
            "apiVersion": "ipvsproxy.io/v1",
            "kind": "IpvsDiff",
            "operations": [
                web | {"verb": "add", "realServer": "10.244.1.5:8080", "after": "weight 1"},
                old | {"verb": "edit", "before": "weight 1", "after": "weight 0"},
                old | {"verb": "delete", "before": "weight 0"},
            ],
            "udpFlows": [{"client": "10.244.1.9:4000", "destination": "10.96.0.20:53", "server": "10.244.7.7:53"}],
            "leftAlone": {"draining": 0, "foreign": 1},
        },
        "",
    )


def test_no_difference_is_a_document_too(folder, capsys):
    assert diff(brought_about(folder), folder, "--output=json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["operations"] == []


def test_the_document_of_an_empty_kernel_is_as_its_schema_says(folder, capsys):
    assert diff(FakeKernel(), folder, "-o", "json") == ExitCode.DIFFERENT
    written = capsys.readouterr().out
    read = msgspec.json.decode(written, type=document.Document)
    assert json.loads(msgspec.json.encode(read)) == json.loads(written)
    assert {each["kind"] for each in json.loads(written)["operations"]} == set(Kind) - {Kind.GUARD_ENTRY}


def test_the_schema_in_the_package_is_what_the_types_say():
    assert document.PATH.read_text() == schema_text(document.Document)


@pytest.mark.parametrize("output", ["xml", "ipvsadm", ""])
def test_there_is_no_other_form(folder, output):
    with pytest.raises(ConfigError, match="must be one of text, json"):
        parsed(folder, f"--output={output}")


def test_a_flow_alone_is_a_difference(folder):
    fake = brought_about(folder)
    fake.flows.append(flow("10.244.1.9:4000", "10.96.0.20:53", "10.244.7.7:53"))
    assert diff(fake, folder) == ExitCode.DIFFERENT


def test_what_drains_and_what_is_not_ours_is_told_beside_the_answer_0(folder, capsys):
    fake = brought_about(folder)
    fake.state[Kind.REAL_SERVER][KEY] = blob(("10.244.1.5", 8080), ("10.244.1.6", 8080, 0))
    fake.connections[KEY, blob(("10.244.1.6", 8080))[:-3]] = 2
    fake.state[Kind.VIRTUAL_SERVER][vs_key("192.0.2.99", 80)] = VirtualServer("wlc")
    assert diff(fake, folder) == ExitCode.OK
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == (
        "",
        [
            "Left alone: 1 virtual server(s) with connections that drain",
            "Left alone: 1 virtual server(s) that are not ours",
        ],
    )


def test_the_configuration_is_the_proxys(folder, capsys):
    fake = brought_about(folder)
    assert diff(fake, folder, "--ipvs-scheduler=lc") == ExitCode.DIFFERENT
    assert "edit virtual server 10.96.0.20:80/TCP: rr → lc  # default/web" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "flags,code", [([], ExitCode.DIFFERENT), (["--ipvs-exclude-cidrs=203.0.113.0/24"], ExitCode.OK)]
)
def test_k48_what_is_in_an_excluded_network_is_no_difference(folder, flags, code):
    fake = brought_about(folder)
    fake.state[Kind.ADDRESS][addr("203.0.113.9")] = True
    fake.state[Kind.VIRTUAL_SERVER][vs_key("203.0.113.9", 80)] = VirtualServer("rr")
    fake.state[Kind.REAL_SERVER][vs_key("203.0.113.9", 80)] = b""
    assert diff(fake, folder, *flags) == code


def test_only_families_that_this_node_has_and_that_are_asked_for_are_compared(folder):
    command, fake = parsed(folder, "--ip-families=IPv4"), FakeKernel()
    first_sync = look(command.config, command.options, here(fake)).first_sync
    tables = {key.family for key in (op.key for op in first_sync.operations if op.kind is Kind.RULES)}
    assert tables == {Family.IPV4}


def test_without_a_folder_the_api_server_is_asked():
    command = parse_command_line(["diff", "--kubeconfig=admin.conf"])
    assert isinstance(command, Diff)
    assert command.options.from_cluster


def test_two_sources_are_refused():
    with pytest.raises(ConfigError, match="only one of them"):
        parse_command_line(["diff", "--manifests=objects", "--kubeconfig=admin.conf"])


def test_it_has_a_help_of_its_own():
    assert parse_command_line(["diff", "--help"]) == Show(help_text(Commands.DIFF))


@pytest.mark.parametrize(
    "words,error",
    [
        pytest.param(["diff", "--nonsense"], None, id="a flag that there is not"),
        pytest.param(["diff", "--manifests=/nowhere"], KernelError("cannot read", 1), id="a kernel that refuses"),
    ],
)
def test_trouble_answers_2_and_never_1_which_is_an_answer(words, error, capsys):
    def fail(*_):
        raise error

    assert cli.run(words, cli.Programs(diff=fail)) == ExitCode.TROUBLE
    assert capsys.readouterr().err.startswith("Error: ")
