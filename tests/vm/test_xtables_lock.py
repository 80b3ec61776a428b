"""Another program holds the xtables lock: what needs no rule goes on, the rest waits and recovers (K44)."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from functools import partial

from ipvsproxy.kernel.xtables_lock import XTABLES_LOCK
from tests.clusters import Svc
from tests.vm.nodes import ProxyNode, bound, proxy_on, rules, virtual_servers

WEB = Svc("web", ("10.96.0.20",), endpoints=(("10.244.1.5", True),))
MORE = Svc("web", ("10.96.0.20",), endpoints=(("10.244.1.5", True), ("10.244.1.6", True)))


@contextlib.contextmanager
def lock_held() -> Iterator[int]:
    """As iptables itself holds it. A child must close the descriptor, or it holds the lock too."""
    with XTABLES_LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def test_k44_a_running_proxy_does_not_care(node: ProxyNode):
    node.sync(WEB)
    with lock_held():
        node.sync(MORE, Svc("new", ("10.96.0.33",), endpoints=(("10.244.1.5", True),)))
        assert "-a -t 10.96.0.20:80 -r 10.244.1.6:8080 -m -w 1" in virtual_servers(node.host)
        assert "10.96.0.33/32" in bound(node.host)


def test_k44_at_start_no_address_is_bound_before_the_rules_stand(empty_host, tmp_path):
    with lock_held() as lock, contextlib.ExitStack() as stack:
        proxy = stack.enter_context(proxy_on(empty_host, tmp_path, WEB, before=partial(os.close, lock)))
        line = proxy.wait_for("sync_finished", lambda line: line["services"] > 0)
        assert line["refused"] > 0
        assert line["waiting"] > 0
        assert "-A -t 10.96.0.20:80 -s rr" in virtual_servers(empty_host)
        assert bound(empty_host) == set()
        held = stack.pop_all()
    with held:
        proxy.wait_for("sync_finished", lambda line: line["refused"] == line["waiting"] == 0)
        assert bound(empty_host) == {"10.96.0.20/32"}
        assert "KUBE-SERVICES" in rules(empty_host, 4)["nat"]
