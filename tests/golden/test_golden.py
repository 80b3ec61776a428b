"""What `plan` prints for given objects, to the byte, and that the daemon brings the (fake) kernel to the same.

tests/vm brings the real kernel there and reads it back with the real tools.
"""

from __future__ import annotations

import pytest

from ipvsproxy import dry_run
from ipvsproxy.config.command_line import Serve, parse_command_line
from ipvsproxy.config.types import PlanFormat
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.status import wanted
from tests.builders import FakeClock
from tests.golden.cases import FORMATS, PLAN_ONLY_FLAGS, Daemon

GIVEN = {"given.yaml", "flags.txt"}


@pytest.mark.parametrize("plan_format", [pytest.param(name, id=name) for name in FORMATS])
def test_plan_prints_the_golden_text(case, plan_format, capsys, pytestconfig):
    command = case.command(plan_format)
    dry_run.run(command.config, command.options)
    text = capsys.readouterr().out
    if pytestconfig.getoption("--golden-update"):
        case.file(plan_format).write_text(text)
    assert text == case.file(plan_format).read_text()


def test_a_folder_holds_what_is_given_and_one_text_for_each_format(case):
    assert {path.name for path in case.folder.iterdir()} == GIVEN | {f"{name}.txt" for name in FORMATS}


def test_a_sync_brings_the_fake_kernel_to_the_golden_state(case):
    command = case.command()
    fake = FakeKernel(command.options.families)
    result = Daemon(command, fake.kernel, FakeClock()).sync(case.events())
    assert (result.refused, result.waiting) == (0, 0)
    for plan_format in FORMATS:
        shown, golden = list(wanted.FORMATS[plan_format](fake.state)), case.file(plan_format).read_text().splitlines()
        if plan_format is PlanFormat.SYSCTL:  # the kernel has others, which are not ours
            shown = [line for line in shown if line in golden]
        assert shown == golden


def test_the_daemon_takes_the_flags_of_every_case_too(case):
    flags = [flag for flag in case.flags if not flag.startswith(PLAN_ONLY_FLAGS)]
    assert isinstance(parse_command_line([*flags, "--manifests", str(case.folder)]), Serve)
