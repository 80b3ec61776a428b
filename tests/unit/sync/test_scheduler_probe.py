from __future__ import annotations

import errno

import pytest

from ipvsproxy.errors import KernelError, Unsupported
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.kernel_objects import Kind, Verb, VirtualServer
from ipvsproxy.sync.scheduler_probe import require_scheduler
from tests.builders import vs_key

PROBE = vs_key("198.51.100.0", 20000)


def put(fake, key, scheduler):
    fake.state[Kind.VIRTUAL_SERVER][key] = VirtualServer(scheduler)
    fake.state[Kind.REAL_SERVER][key] = b""


def test_a_scheduler_that_the_kernel_has_is_tried_and_nothing_stays_behind():
    fake = FakeKernel()
    require_scheduler(fake.kernel.ipvs, "lc")
    assert fake.messages > 0
    assert fake.state[Kind.VIRTUAL_SERVER] == {}


def test_a_scheduler_that_is_in_use_is_not_tried():
    fake = FakeKernel()
    put(fake, vs_key("10.96.0.20", 80), "lc")
    require_scheduler(fake.kernel.ipvs, "lc")
    assert fake.messages == 0


def test_k45_a_scheduler_that_the_kernel_lacks_is_refused_with_what_to_do():
    fake = FakeKernel()
    with pytest.raises(Unsupported) as caught:
        require_scheduler(fake.kernel.ipvs, "nope")
    assert 'scheduler "nope"' in caught.value.what
    assert "ip_vs_nope" in caught.value.hint
    assert "--ipvs-scheduler to rr" in caught.value.hint
    assert fake.state[Kind.VIRTUAL_SERVER] == {}


def test_a_probe_left_over_by_a_run_that_was_killed_proves_nothing():
    fake = FakeKernel()
    put(fake, PROBE, "rr")
    with pytest.raises(Unsupported):
        require_scheduler(fake.kernel.ipvs, "nope")
    assert fake.state[Kind.VIRTUAL_SERVER] == {}


def test_another_refusal_is_an_error_that_names_the_virtual_server():
    fake = FakeKernel()
    fake.faults[Verb.ADD, Kind.VIRTUAL_SERVER, PROBE] = errno.EPERM
    with pytest.raises(KernelError, match=r"198\.51\.100\.0:20000/TCP.*EPERM"):
        require_scheduler(fake.kernel.ipvs, "lc")
