"""What the pages say to type on a node, typed on one: with the daemon at work, and the Service that they speak of.

Words that stand for the reader's own are filled in: a folder, a file, flags that tell where the cluster is known from.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from ipvsproxy import cli
from ipvsproxy.config.command_line import ExitCode
from tests.documented import Command, documented
from tests.explained import NODE, SHOP
from tests.lab.hosts import Namespace
from tests.lab.proxies import fork
from tests.vm.nodes import FLAGS, ProxyNode, bound, proxy_node, small_cluster, virtual_servers

PROGRAM = r"(\.venv/bin/)?ipvsproxy "
CLEAN_UP = shlex.split(documented(pattern="ipvsproxy --cleanup")[0].text)[1:]
NFT = documented("docs/migrate.md", program="nft")
FOREIGN = "203.0.113.99:443"
WEB, SLICE = SHOP
OBJECTS = [NODE, WEB | {"spec": WEB["spec"] | {"healthCheckNodePort": 31080}}, SLICE]


def typed(pattern: str, page: str = "", **which: str) -> pytest.MarkDecorator:
    """For each such command of the pages, once."""
    found = {command.text: command for command in documented(page, pattern=pattern, **which)}
    return pytest.mark.parametrize("command", [pytest.param(command, id=text) for text, command in found.items()])


def listed(items: Sequence[object]) -> str:
    """A file of manifests."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyNode]:
    """A node where nothing of former Services lingers serves shop/web, and somebody else has a virtual server there."""
    folder = tmp_path_factory.mktemp("shop")
    with small_cluster() as hosts, proxy_node(hosts, folder, "--ipvs-drain-timeout=0") as node:
        node.proxy.mark()
        node.manifests.write("shop.json", listed(OBJECTS))
        node.proxy.wait_for_services()
        node.host.run("ipvsadm", "-A", "-t", FOREIGN, "-s", "wlc")
        yield node


def words(command: Command, folder: Path, file: Path | None = None) -> list[str]:
    """What to start the program with; the folder is the cluster's."""
    flags = shlex.join(["--manifests", str(folder), *FLAGS])
    given = {"NAMESPACE/NAME": "shop/web", "FORMAT": "ipvsadm", "[flags]": flags, "DIR": str(folder)}
    given |= {"[--from FILE]": f"--from {file}", "[arguments]": "-L -n", "[--once]": "--once", "…": ""}
    found = shlex.split(command.filled(given))[1:]
    if found in (["explain"], ["plan"]):
        found += {"explain": ["shop/web"], "plan": ["-o", "ipvsadm"]}[found[0]]
    if found[0] in {"diff", "explain", "plan"} and "--manifests" not in found:
        found += shlex.split(flags)
    return found


def said(host: Namespace, *argv: str, on_terminal: bool = False) -> tuple[int, str]:
    """Exit code of the program, in a child of this process that starts warm, and what it prints.

    On a terminal it is left by a `q` once it has shown its keys.
    """
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    with host.inside():
        if (child := os.fork()) == 0:
            _become_program(theirs, argv, on_terminal=on_terminal)
    os.close(theirs)
    text = ""
    with contextlib.suppress(OSError):  # a terminal whose other side is closed
        while found := os.read(ours, 65536):
            text += found.decode(errors="replace")
            if on_terminal and "quits" in text:
                os.write(ours, b"q")
    os.close(ours)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def _become_program(out: int, argv: Sequence[str], *, on_terminal: bool) -> NoReturn:
    code = 99
    try:
        if on_terminal:
            os.login_tty(out)
            os.environ |= {"TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
            sys.stdin = os.fdopen(0)
        else:
            os.dup2(out, 1)
        sys.stdout = os.fdopen(1, "w")
        code = cli.run(argv, cli.Programs())
        sys.stdout.flush()
    finally:
        os._exit(code)


@typed(PROGRAM + r"(status|diff|explain|plan(?!.*nginx-demo))(?!.*jq).*")
def test_a_look_finds_all_as_planned(shop: ProxyNode, tmp_path: Path, command: Command):
    saved = tmp_path / "saved"
    saved.write_text(said(shop.host, "status", "-o", "json")[1])
    code, text = said(shop.host, *words(command, shop.manifests.folder, saved))
    assert code == ExitCode.OK, text
    assert "diff" in command.text or "--draining" in command.text or text


@typed(PROGRAM + r"(--version|--help)")
def test_the_program_tells_about_itself(empty_host: Namespace, tmp_path: Path, command: Command):
    code, text = said(empty_host, *words(command, tmp_path))
    assert code == ExitCode.OK
    assert "ipvsproxy" in text


@typed(r"ipvsproxy status .*\| jq .*", "docs/status.md")
def test_what_is_not_ours_is_found_by_a_program(shop: ProxyNode, command: Command):
    assert piped(shop, command, shop.manifests.folder) == (ExitCode.OK, f"{FOREIGN}\n")


@typed(r"ipvsproxy diff .*\| jq .*", "docs/status.md")
def test_what_a_start_would_edit_is_found_by_a_program(shop: ProxyNode, tmp_path: Path, command: Command):
    other = WEB | {"spec": WEB["spec"] | {"sessionAffinity": "ClientIP"}}
    (tmp_path / "shop.json").write_text(listed([NODE, other, SLICE]))
    code, text = piped(shop, command, tmp_path)
    assert code == ExitCode.DIFFERENT
    assert "edit 10.96.0.20:80/TCP" in text.splitlines()


def piped(node: ProxyNode, command: Command, folder: Path) -> tuple[int, str]:
    """Exit code of the program, and what the shell's next one makes of its output."""
    first, _, rest = command.filled({"DIR": str(folder)}).partition(" | ")
    code, text = said(node.host, *words(command._replace(text=first), folder))
    return code, node.host.run("sh", "-c", rest, given=text)


@typed(r"ipvsproxy top.*")
def test_top_shows_the_service(shop: ProxyNode, command: Command):
    """On a terminal it is left by a key."""
    found = words(command, shop.manifests.folder)
    code, text = said(shop.host, *found, on_terminal="--once" not in found)
    assert code == ExitCode.OK, text
    assert "shop/web:http" in text


@typed(rf"ipvsproxy \[flags\]|{PROGRAM}.*--manifests=DIR --hostname-override=n1")
def test_it_serves_and_is_cleaned_up(empty_host: Namespace, tmp_path: Path, command: Command):
    folder = tmp_path / "objects"
    folder.mkdir()
    (folder / "shop.json").write_text(listed(OBJECTS))
    with fork(empty_host, words(command, folder), tmp_path / "log") as proxy:
        proxy.wait_until(lambda: any("10.96.0.20:80" in line for line in virtual_servers(empty_host)))
        proxy.wait_until(lambda: "10.96.0.20/32" in bound(empty_host))
        assert proxy.stop() == ExitCode.OK
    assert virtual_servers(empty_host)
    assert said(empty_host, *CLEAN_UP)[0] == ExitCode.OK
    assert (virtual_servers(empty_host), bound(empty_host)) == ([], set())


@typed(r"ipvsproxy --init-only.*")
def test_a_host_is_put_in_order(empty_host: Namespace, tmp_path: Path, command: Command):
    code, _ = said(empty_host, *words(command, tmp_path))
    assert code == ExitCode.OK
    assert empty_host.sysctl("net/ipv4/vs/conntrack") == "1"


@typed(r"ln -s .* /usr/local/sbin/ipvsadm", "docs/status.md")
def test_the_link_lists_as_ipvsadm_does(shop: ProxyNode, command: Command):
    expected = shop.host.run("ipvsadm", "-L", "-n")
    assert FOREIGN in expected
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = f"mount -t tmpfs none /usr/local/sbin && PATH={path} && {command.text} && /usr/local/sbin/ipvsadm -L -n"
    assert shop.host.run("unshare", "--mount", "sh", "-c", script) == expected


@typed(r"ipvsadm -[SL].*")
def test_ipvsadm_lists_what_the_pages_compare_with(shop: ProxyNode, command: Command):
    assert "203.0.113" in shop.host.run(*shlex.split(command.text))


@typed(r"(ipvsadm|ip|ipset) -?(R|batch|restore)", "docs/performance.md")
def test_the_tools_that_are_measured_take_their_input(empty_host: Namespace, command: Command):
    given = {"ipvsadm": "-A -t 203.0.113.98:80 -s rr\n", "ip": "link show lo\n", "ipset": "create PAGE hash:ip\n"}
    empty_host.run(*shlex.split(command.text), *["-"] * (command.program == "ip"), given=given[command.program])


# docs/migrate.md, on a node


@typed(r"curl .*/proxyMode", "docs/migrate.md")
def test_the_mode_of_the_proxy_is_told(node: ProxyNode, command: Command):
    assert node.host.run(*shlex.split(command.text)) == "ipvs"


@typed(r"modprobe .*", "docs/migrate.md")
def test_ipvs_is_in_the_kernel_afterwards(node: ProxyNode, command: Command):
    node.host.run(*shlex.split(command.text))
    assert node.host.run("test", "-e", "/proc/net/ip_vs") == ""


def test_kube_proxys_nftables_tables_are_removed(empty_host: Namespace):
    for family in ("ip", "ip6"):
        empty_host.run("nft", "add table", family, "kube-proxy")
        empty_host.run("nft", "add chain", family, "kube-proxy", "services", "{ type nat hook prerouting priority 0; }")
    empty_host.run("nft", "add table ip theirs")
    for command in NFT:
        empty_host.run(*shlex.split(command.text))
    assert empty_host.run("nft", "list tables") == "table ip theirs\n"


@typed(r"rm -f .*", "docs/migrate.md")
def test_the_manifest_of_rke2_is_removed(empty_host: Namespace, command: Command):
    path = Path(shlex.split(command.text)[-1])
    assert path.parent == Path("/var/lib/rancher/rke2/agent/pod-manifests")
    before = f"mount -t tmpfs none /var/lib && mkdir -p {path.parent} && touch {path} {path.parent}/etcd.yaml"
    script = f"{before} && {command.text} && ls {path.parent}"
    assert empty_host.run("unshare", "--mount", "sh", "-c", script) == "etcd.yaml\n"
