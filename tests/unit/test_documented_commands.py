"""Every command that a page shows is run by a test, as the page says it; here those for developers.

The tests are those that ask tests/documented.py for commands. What stands in for what cannot be had here:

- `make`: asked what it would do (`--dry-run`), since most targets run these tests; so is `kubeadm init`.
- `docker build`: buildah, on bases made of packages.
- `kubectl logs` and `exec`: what they name, for kwok's Pods have no containers; the program behind `exec` runs in one.
- The services of k3s and rke2: others of these names, under a real systemd.
- `bench.py --update`: without its measurement, which the stage `figures` makes.
- A name alone, such as `helm upgrade`: its program must know it.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documented import PAGES, PROGRAMS, ROOT, TAKEN, Command, codes_in, commands, commands_in, documented

TESTS = ROOT / "tests"
TARGETS = dict.fromkeys(command.filled({"…": "true"}) for command in documented(program="make"))
(GREP,) = documented(program="grep")
(HOOKS,) = documented("CONTRIBUTING.md", program="prek")
NO_PROGRAMS = frozenset("add configmap create delete exit explain is mypy not on plan status violates".split())  # noqa: SIM905
"""What else code of several words begins with: what a program says, or a part of its arguments."""
PAGE = """\
# One

Read `ipvsproxy` first, then type `helm upgrade --wait
name chart`, not `a b`.

```sh
# First
one --flag \\
  word         # what it does
two '
# not a comment
' |
  three &&
  four
```

## Two

```console
# ipvsproxy status
helm no command
$ next
```

```yaml
helm: no command
```
"""


def takers() -> list[str]:
    """The modules that run commands of pages."""
    files = [path for path in TESTS.rglob("*.py") if re.search(r"\bdocumented\(", path.read_text())]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    return [name for name in names if name not in {"tests.documented", "tests.unit.test_documented_commands"}]


def test_every_command_of_every_page_is_run_by_a_test():
    for name in takers():
        importlib.import_module(name)
    assert [command for command in commands() if command not in TAKEN] == []


def test_a_command_is_a_line_of_a_shell_block_or_code_that_begins_with_a_program():
    found = [(command.heading, command.text, command.block) for command in commands_in("page", PAGE)]
    assert found == [
        ("One", "one --flag word", 1),
        ("One", "two '\n# not a comment\n' |\n  three &&\n  four", 1),
        ("One", "helm upgrade --wait name chart", 0),
        ("Two", "ipvsproxy status", 1),
        ("Two", "next", 1),
    ]


def test_what_begins_a_command_in_a_block_begins_one_in_a_sentence_too():
    assert {command.program for command in commands() if command.block} <= PROGRAMS


def test_a_program_that_a_sentence_runs_is_a_known_one():
    """Else its command would not be seen."""
    words = [code.split() for page in PAGES for code in codes_in((ROOT / page).read_text())]
    programs = {word for word, *more in words if more and re.fullmatch(r"[a-z][a-z0-9.+-]*", word)}
    assert programs - PROGRAMS - NO_PROGRAMS == set()


def test_there_is_no_block_whose_commands_would_not_be_seen():
    """One without a language, indented in either way, between other marks, or above the first heading."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        assert text.startswith("# "), page
        assert not re.search(r"^\n    \S", text, re.MULTILINE), page
        marks = re.findall(r"^.*(?:```|~~~).*$", text, re.MULTILINE)
        assert set(marks[::2]) <= {f"```{shell}" for shell in ("sh", "console", "text", "yaml", "ini")}, page
        assert set(marks[1::2]) <= {"```"}, page


def test_whoever_takes_commands_does_something_with_them():
    trees = {name: ast.parse((ROOT / f"{name.replace('.', '/')}.py").read_text()) for name in takers()}
    used_by_any = set().union(*map(names_used, trees.values()))
    for name, tree in trees.items():
        used = names_used(tree) if name.rpartition(".")[2].startswith("test_") else used_by_any
        assert names_taken(tree) - used == set(), name


def names_taken(tree: ast.Module) -> set[str]:
    """What a module calls the commands that it takes."""
    return {
        node.id
        for statement in tree.body
        if isinstance(statement, ast.Assign) and "documented(" in ast.unparse(statement.value)
        for target in statement.targets
        for node in ast.walk(target)
        if isinstance(node, ast.Name)
    }


def names_used(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def test_to_ask_for_a_command_that_no_page_has_is_an_error():
    with pytest.raises(LookupError):
        documented("README.md", program="nothing")


def test_words_of_the_reader_are_filled_in():
    assert Command("", "", "a FILE [b]", 1).filled({"FILE": "/x", "[b]": "y"}) == "a /x y"


@pytest.mark.parametrize("command", TARGETS)
def test_a_target_of_make_would_run_files_that_there_are(command):
    done = subprocess.run(["sh", "-c", f"{command} --dry-run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    named = re.findall(r"\btests/[\w/.]+", done.stdout)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_tests_of_a_known_report_are_found_by_its_number():
    done = subprocess.run(["sh", "-c", GREP.text], cwd=ROOT, capture_output=True, text=True, check=False)
    assert re.search(r"def test_k09_", done.stdout)


def test_the_hooks_are_installed_in_a_clone(tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / ".pre-commit-config.yaml").write_bytes((ROOT / ".pre-commit-config.yaml").read_bytes())
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    done = subprocess.run(["sh", "-c", HOOKS.text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"pre-commit", "pre-push"} <= {path.name for path in (tmp_path / ".git" / "hooks").iterdir()}
