"""`ipvsproxy plan`: the same input gives the same bytes, bad input costs only itself, nothing outside is touched."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import yaml

from ipvsproxy import dry_run
from ipvsproxy.config.command_line import Plan, parse_command_line
from ipvsproxy.config.types import PlanFormat
from ipvsproxy.errors import ConfigError
from ipvsproxy.status import wanted
from tests.golden.cases import CASES
from tests.nobody import as_nobody

FLAGS = ("--hostname-override=n1", "--cluster-cidr=10.244.0.0/16")

GOOD_SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  clusterIP: 10.96.0.20
  ports: [{name: http, port: 80, protocol: TCP}]
"""
GOOD = f"""{GOOD_SERVICE}---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: default, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
endpoints: [{{addresses: [10.244.1.5], nodeName: n1}}]
ports: [{{name: http, port: 8080, protocol: TCP}}]
"""


def parsed(folder: Path, *flags: str, plan_format: PlanFormat = PlanFormat.JSON) -> Plan:
    command = parse_command_line(["plan", "-o", plan_format, "--manifests", str(folder), *FLAGS, *flags])
    assert isinstance(command, Plan)
    return command


def plan(folder: Path, *flags: str) -> tuple[dict[str, list[str]], list[str]]:
    """Every format's lines, and the notes."""
    command = parsed(folder, *flags)
    state, notes = dry_run.plan(command.config, command.options)
    return {name: list(text(state)) for name, text in wanted.FORMATS.items()}, [str(note) for note in notes]


def folder_of(path: Path, **files: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / f"{name}.yaml").write_text(text)
    return path


def service(name: str, **spec: object) -> str:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    whole = {"clusterIP": "10.96.0.99", "ports": ports, **spec}
    return json.dumps({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": whole})


def run_program(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ipvsproxy", "plan", *map(str, words), *FLAGS],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environment},
    )  # fmt: skip


# The same input gives the same bytes


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_the_order_of_files_and_of_objects_in_them_changes_nothing(case, tmp_path):
    documents = (case.folder / "given.yaml").read_text().split("\n---\n")
    random.shuffle(documents)
    for index in range(0, len(documents), 2):
        (tmp_path / f"{index}.yaml").write_text("\n---\n".join(documents[index : index + 2]))
    assert plan(tmp_path, *case.flags)[0] == plan(case.folder, *case.flags)[0]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_a_json_list_as_kubectl_writes_it_means_the_same_as_yaml_documents(case, tmp_path):
    items = list(yaml.safe_load_all((case.folder / "given.yaml").read_text()))
    whole = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items}
    (tmp_path / "all.json").write_text(json.dumps(whole, indent=4))
    assert plan(tmp_path, *case.flags)[0] == plan(case.folder, *case.flags)[0]


def test_the_seed_of_hashes_changes_nothing():
    folder = next(case.folder for case in CASES if case.name == "dual-stack")
    texts = {run_program("-o", "json", "--manifests", folder, PYTHONHASHSEED=seed).stdout for seed in ("0", "1", "77")}
    assert len(texts) == 1
    assert "2001:db8:96::20" in texts.pop()


def test_json_says_what_the_other_formats_say(tmp_path):
    folder = folder_of(tmp_path, good=GOOD, bad=service("bad", clusterIP="10.96.0.999"))
    lines, notes = plan(folder)
    command = parsed(folder)
    state, noted = dry_run.plan(command.config, command.options)
    document = json.loads("\n".join(wanted.json_text(state, noted)))
    (server,) = document["virtualServers"]
    assert (server["address"], server["port"], server["protocol"]) == ("10.96.0.20", 80, "TCP")
    assert server["realServers"] == [{"address": "10.244.1.5", "port": 8080, "weight": 1}]
    assert document["addresses"] == lines["addresses"]
    assert [f"{key} = {value}" for key, value in document["sysctls"].items()] == lines["sysctl"]
    assert document["sets"]["KUBE-CLUSTER-IP"] == {"type": "hash:ip,port", "members": ["10.96.0.20,tcp:80"]}
    rules = [rule for table in ("filter", "mangle", "nat") for rule in document["rules"]["IPv4"][table]]
    assert rules == [line for line in lines["iptables"] if line.startswith("-A")]
    assert document["notes"] == notes


# Bad input costs only itself

BIG = service("big", externalName="x" * 2_000_000)

ONE_NOTE = [
    pytest.param(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n",
        "is not a kind that is read",
        id="an unknown kind",
    ),
    pytest.param("apiVersion: v1\nmetadata: {name: web}\n", "apiVersion or kind is missing", id="no kind"),
    pytest.param("apiVersion: v1\nkind: Service\nmetadata: {}\n", "metadata.name", id="no name"),
    pytest.param("apiVersion: v1\nkind: Service\nmetadata: {name: bad}\n", "spec is missing", id="no spec"),
    pytest.param("- 1\n- 2\n", "not a mapping", id="no object at all"),
    pytest.param(service("bad", ports="eighty"), "spec.ports: expected array", id="text in the place of a list"),
    pytest.param(
        service("bad", ports=[{"port": "80"}]), "spec.ports[0].port: expected int", id="text in the place of a number"
    ),
    pytest.param(service("bad", clusterIP=10), "spec.clusterIP: expected str", id="a number in the place of text"),
    pytest.param(
        service("bad", clusterIP="10.96.0.999"), '"10.96.0.999" is not an IP address', id="an address that is none"
    ),
    pytest.param(service("bad", clusterIP="127.0.0.1"), "no Service may own it", id="a loopback address"),
    pytest.param(service("bad", clusterIP="fe80::1"), "no Service may own it", id="a link-local address"),
    pytest.param(service("bad", clusterIP="224.0.0.1"), "no Service may own it", id="a multicast address"),
    pytest.param(BIG, "bytes are more than", id="an object of two megabytes"),
    pytest.param("a: &a [x, x]\nb: [*a, *nowhere]\n", ".yaml:2: ", id="an alias of nothing, with its line"),
    pytest.param("apiVersion: v1\nkind: Service\n  spec: {\n", ".yaml:3: ", id="broken YAML, with its line"),
    pytest.param("kind: Service\nkind: Node\napiVersion: v1\nmetadata: {name: x}\n", "stands twice", id="a key twice"),
    pytest.param("\x00\x01\x02", "bad.yaml:1: ", id="no text"),
    pytest.param(GOOD_SERVICE, "is already declared", id="an object that another file has declared"),
]


@pytest.mark.parametrize("text,reason", ONE_NOTE)
def test_a_bad_object_beside_good_ones_is_one_note_and_changes_nothing_else(text, reason, tmp_path):
    good, _ = plan(folder_of(tmp_path / "good", a=GOOD))
    both, notes = plan(folder_of(tmp_path / "both", a=GOOD, bad=text))
    assert both == good
    (note,) = notes
    assert reason in note


def test_many_bad_objects_are_as_many_notes(tmp_path):
    texts = {f"bad{index}": param.values[0] for index, param in enumerate(ONE_NOTE)}
    good, _ = plan(folder_of(tmp_path / "good", a=GOOD))
    both, notes = plan(folder_of(tmp_path / "both", a=GOOD, **texts))
    assert both == good
    assert len(notes) == len(ONE_NOTE)


HTTP = {"name": "http", "port": 80, "protocol": "TCP"}


@pytest.mark.parametrize(
    "bad,corrected,reason",
    [
        pytest.param(
            {"ports": [HTTP, {"name": "again", "port": 80}]},
            {"ports": [HTTP]},
            "repeats the number",
            id="a port number twice",
        ),
        pytest.param(
            {"ports": [HTTP, {"name": "http", "port": 81}]},
            {"ports": [HTTP]},
            "repeats the number or name",
            id="a port name twice",
        ),
        pytest.param(
            {"ports": [HTTP, {"name": "big", "port": 70000}]},
            {"ports": [HTTP]},
            "70000 is not in 1..65535",
            id="a port number out of range",
        ),
        pytest.param(
            {"ports": [HTTP, {"name": "q", "port": 81, "protocol": "QUIC"}]},
            {"ports": [HTTP]},
            '"QUIC" is not',
            id="an unknown protocol",
        ),
        pytest.param(
            {"sessionAffinity": "Sticky"}, {"sessionAffinity": "None"}, '"Sticky" is not', id="an unknown affinity"
        ),
        pytest.param({"ports": []}, {"ports": []}, "spec.ports is missing", id="no ports: nothing is left to serve"),
    ],
)
def test_a_bad_field_loses_only_itself(bad, corrected, reason, tmp_path):
    without, _ = plan(folder_of(tmp_path / "corrected", a=GOOD, b=service("b", **corrected)))
    with_it, notes = plan(folder_of(tmp_path / "bad", a=GOOD, b=service("b", **bad)))
    assert with_it == without
    (note,) = notes
    assert reason in note
    assert note.startswith("Service default/b: ")


def test_two_ports_of_a_service_that_make_one_virtual_server_are_one_note(tmp_path):
    ports = [{**HTTP, "nodePort": 30080}, {"name": "main", "port": 30080}]
    folder = folder_of(tmp_path, a=service("web", type="NodePort", ports=ports, externalIPs=["192.0.2.11"]))
    lines, (note,) = plan(folder, "--node-addresses=192.0.2.11")
    assert '192.0.2.11:30080/TCP of port "main" (30080/TCP) is served for port "http" (80/TCP)' in note
    assert len([line for line in lines["ipvsadm"] if "192.0.2.11:30080" in line]) == 1


def test_k32_an_address_of_the_node_that_is_not_among_those_of_its_interfaces_is_left_out_as_the_daemon_does(tmp_path):
    addresses = [{"type": "InternalIP", "address": "192.0.2.11"}, {"type": "ExternalIP", "address": "203.0.113.10"}]
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"addresses": addresses}}
    web = service("web", ports=[HTTP], externalIPs=["203.0.113.10"])
    lines, (note,) = plan(folder_of(tmp_path, a=json.dumps(node), b=web), "--node-addresses=192.0.2.11")
    assert "203.0.113.10 is an address of this Node that none of its interfaces has" in note
    assert not any("203.0.113.10" in line for printed in lines.values() for line in printed)


NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n"
ADDRESSED = f"{NODE}status: {{addresses: [{{type: InternalIP, address: 192.0.2.11}}]}}\n"
NODE_PORT = service("b", type="NodePort", ports=[{**HTTP, "nodePort": 30080}])
RANGED = json.dumps(
    {
        **json.loads(service("b", type="LoadBalancer", ports=[HTTP], loadBalancerSourceRanges=["198.51.100.0/24"])),
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.10"}]}},
    }
)
HINTED = f"{GOOD.replace('nodeName: n1', 'nodeName: n1, hints: {forZones: [{name: zone-a}]}')}"
NODE_CIDR = "--detect-local-mode=NodeCIDR"


@pytest.mark.parametrize(
    "text,flags,reason",
    [
        pytest.param(NODE_PORT, (), "its addresses are not known, so node ports are left out", id="a node port"),
        pytest.param(
            f"{NODE}---\n{NODE_PORT}", (), "its addresses are not known, so node ports", id="the Node has no address"
        ),
        pytest.param(RANGED, (), "its addresses are not known, so source ranges", id="source ranges"),
        pytest.param(GOOD, (NODE_CIDR,), "its pod networks are not known, so no pod counts as local", id="NodeCIDR"),
        pytest.param(HINTED, (), "its zone is not known, so topology hints", id="topology hints"),
        pytest.param(HINTED, ("--node-addresses=192.0.2.11",), "its zone is not", id="hints, with addresses by flag"),
    ],
)
def test_what_depends_on_a_node_that_is_not_known_is_one_note(text, flags, reason, tmp_path):
    _, (note,) = plan(folder_of(tmp_path, a=text), *flags)
    assert note.startswith("Node n1: ")
    assert reason in note
    assert "--node-addresses" in note
    assert "--hostname-override" in note


@pytest.mark.parametrize(
    "text,flags",
    [
        pytest.param(GOOD, (), id="nothing depends on it"),
        pytest.param(NODE_PORT, ("--node-addresses=192.0.2.11",), id="its addresses are given"),
        pytest.param(f"{ADDRESSED}---\n{NODE_PORT}", (), id="it is among the manifests"),
        pytest.param(f"{ADDRESSED}---\n{RANGED}", (), id="and has a Service with source ranges"),
        pytest.param(f"{NODE}---\n{HINTED}", (), id="it is known and in no zone"),
        pytest.param(
            f"{ADDRESSED}spec: {{podCIDRs: [10.244.1.0/24]}}\n---\n{GOOD}", (NODE_CIDR,), id="its networks too"
        ),
    ],
)
def test_there_is_no_note_about_the_node_where(text, flags, tmp_path):
    assert plan(folder_of(tmp_path, a=text), *flags)[1] == []


def test_node_ports_that_are_left_out_make_the_plan_incomplete(tmp_path):
    done = run_program("-o", "ipvsadm", "--manifests", folder_of(tmp_path, a=NODE_PORT))
    assert done.returncode == 2
    assert done.stderr.startswith("Node n1: its addresses are not known")


def test_a_loop_of_symbolic_links_is_one_note(tmp_path):
    folder = folder_of(tmp_path / "loop", a=GOOD)
    (folder / "b.yaml").symlink_to("c.yaml")
    (folder / "c.yaml").symlink_to("b.yaml")
    lines, notes = plan(folder)
    assert lines["addresses"] == ["10.96.0.20/32"]
    assert len(notes) == 2  # one for each name
    assert all("ELOOP" in note for note in notes)


def test_a_named_pipe_is_one_note_and_does_not_hang(tmp_path):
    folder = folder_of(tmp_path / "pipe", a=GOOD)
    os.mkfifo(folder / "b.yaml")
    lines, (note,) = plan(folder)
    assert lines["addresses"] == ["10.96.0.20/32"]
    assert "not a regular file" in note


def test_a_file_without_permission_is_one_note():
    with tempfile.TemporaryDirectory() as name:
        folder = folder_of(Path(name), a=GOOD, b=service("b"))
        folder.chmod(0o755)
        (folder / "b.yaml").chmod(0)
        with as_nobody():
            lines, (note,) = plan(folder)
    assert lines["addresses"] == ["10.96.0.20/32"]
    assert "EACCES" in note
    assert "permission" in note


def test_an_empty_folder_is_the_fixed_layer_and_one_note(tmp_path):
    lines, (note,) = plan(tmp_path)
    assert (lines["ipvsadm"], lines["addresses"]) == ([], [])
    assert lines["iptables"][0] == "*filter"
    assert "holds no manifests" in note


@pytest.mark.parametrize(
    "make,reason",
    [
        pytest.param(lambda _path: None, "ENOENT", id="that is not there"),
        pytest.param(lambda path: path.write_text(GOOD), "ENOTDIR", id="that is a file"),
        pytest.param(lambda path: path.symlink_to(path), "ELOOP", id="that is a loop of links"),
    ],
)
def test_a_folder_is_refused(make, reason, tmp_path):
    make(tmp_path / "folder")
    with pytest.raises(ConfigError, match=f"--manifests .*{reason}"):
        plan(tmp_path / "folder")


# From outside


@pytest.mark.parametrize("plan_format", [pytest.param(name, id=name) for name in wanted.FORMATS])
def test_the_program_prints_what_the_planner_says(plan_format, tmp_path, capsys):
    folder = folder_of(tmp_path / "good", a=GOOD)
    command = parsed(folder, plan_format=PlanFormat(plan_format))
    assert dry_run.run(command.config, command.options) is True
    printed = capsys.readouterr()
    assert (printed.out.splitlines(), printed.err) == (plan(folder)[0][plan_format], "")


def test_exit_code_0_says_that_everything_was_used(tmp_path):
    done = run_program("-o", "ipvsadm", "--manifests", folder_of(tmp_path / "good", a=GOOD))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "-A -t 10.96.0.20:80 -s rr\n-a -t 10.96.0.20:80 -r 10.244.1.5:8080 -m -w 1\n"


def test_exit_code_2_says_that_something_was_left_out_and_stderr_what(tmp_path):
    folder = folder_of(tmp_path / "both", a=GOOD, bad=service("bad", clusterIP="nowhere"))
    done = run_program("-o", "addresses", "--manifests", folder)
    assert (done.returncode, done.stdout) == (2, "10.96.0.20/32\n")
    assert done.stderr == (
        'Service default/bad: spec.clusterIP: "nowhere" is not an IP address. '
        "Correct the Service; what is not named here is in force\n"
    )


@pytest.mark.parametrize(
    "words,message",
    [
        pytest.param(
            ["-o", "ipvsadm", "--manifests", "no-such-folder"],
            "Error: --manifests no-such-folder: ",
            id="no such folder",
        ),
        pytest.param(["--manifests", "."], "Error: --output: not given", id="no format"),
        pytest.param(["-o", "ipvsadm"], "Error: --manifests or --from-cluster: ", id="no source"),
        pytest.param(
            ["-o", "yaml", "--manifests", "."], 'Error: --output: invalid value "yaml"', id="an unknown format"
        ),
        pytest.param(
            ["-o", "json", "--manifests", ".", "--node-addresses=192.0.2"],
            "Error: --node-addresses: ",
            id="bad node addresses",
        ),
    ],
)
def test_exit_code_1_says_that_nothing_could_be_planned(words, message):
    done = run_program(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(message)


def test_neither_kernel_nor_network_nor_another_program_is_asked(tmp_path):
    folder = folder_of(tmp_path / "good", a=GOOD)
    program = f"""
        import sys

        outside = []

        def watch(event, arguments):
            if event.startswith(("socket.", "subprocess.", "os.exec", "os.posix_spawn", "os.fork", "os.system")):
                outside.append(event)
            if event == "open" and str(arguments[0]).startswith(("/proc/", "/sys/", "/run/", "/dev/")):
                outside.append(arguments[0])

        sys.addaudithook(watch)
        from ipvsproxy import cli

        code = cli.run(["plan", "-o", "ipvsadm", "--manifests", {str(folder)!r}, *{FLAGS!r}], cli.Programs())
        edges = {{"pyroute2", "gnlpy", "iptc", "kubernetes"}} & set(sys.modules)
        print(code, outside, sorted(edges))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout.splitlines()[-1:], done.stderr) == (["0 [] []"], "")
