"""K18: edits of a Service with streams through it. Each is in force after one sync, and in place where it can be.

The same edits without packets: tests/unit/sync/test_takeover.py. Another scheduler takes a restart: test_restart.py.
"""

from __future__ import annotations

import contextlib
import re
from itertools import pairwise

import msgspec
import pytest

from tests.clusters import Svc
from tests.lab.traffic import Conversation, Transport, ask
from tests.vm.nodes import ProxyNode, bound, sets, virtual_servers
from tests.vm.places import A1, B1, every_family, ready

PLAIN = Svc(
    "edited",
    ("10.96.0.71", "2001:db8:96::71"),
    endpoints=ready(A1),
    node_ports=(30071,),
    ingress=(("203.0.113.71", "VIP"), ("2001:db8:113::71", "VIP")),
)
BALANCER = tuple(ip for ip, _ in PLAIN.ingress)


def altered(service: Svc, **changes: object) -> Svc:
    """The Service with these fields."""
    return msgspec.structs.replace(service, **changes)


# One after the other; cluster IP and load-balancer IP keep their virtual servers for port 80.
IN_PLACE = {
    "as it was": PLAIN,
    "session affinity begins": altered(PLAIN, affinity_s=10800),
    "its time-out changes": altered(PLAIN, affinity_s=60),
    "session affinity ends": PLAIN,
    "external policy becomes Local": altered(PLAIN, external_policy="Local"),
    "external policy becomes Cluster": PLAIN,
    "another port comes": altered(PLAIN, ports=((80, "TCP"), (443, "TCP")), node_ports=(30071, 0)),
    "its number changes": altered(PLAIN, ports=((80, "TCP"), (8081, "TCP")), node_ports=(30071, 0)),
    "its protocol changes": altered(PLAIN, ports=((80, "TCP"), (8081, "UDP")), node_ports=(30071, 0)),
    "the node port changes": altered(PLAIN, node_ports=(30072,)),
    "the node port goes": altered(PLAIN, node_ports=()),
    "another endpoint comes": altered(PLAIN, endpoints=ready(A1, B1)),
}
# Nobody talks to this one: where clients are cut, an address stays bound for a minute.
QUIET = Svc(
    "quiet",
    ("10.96.0.73", "2001:db8:96::73"),
    endpoints=ready(A1),
    node_ports=(30073,),
    ingress=(("203.0.113.73", "VIP"), ("2001:db8:113::73", "VIP")),
)
OWN = re.compile(r"10\.96\.0\.73|203\.0\.113\.7[34]|2001:db8:(96|113)::7[34]|3007[34]|" + "|".join(map(re.escape, A1)))
"""What stands in each line of the tools about it."""
FORMS = {
    "session affinity": altered(QUIET, affinity_s=60),
    "external policy Local": altered(QUIET, external_policy="Local"),
    "another port": altered(QUIET, ports=((81, "TCP"),)),
    "another protocol": altered(QUIET, ports=((80, "UDP"),)),
    "another node port": altered(QUIET, node_ports=(30074,)),
    "another load-balancer IP": altered(QUIET, ingress=(("203.0.113.74", "VIP"), ("2001:db8:113::74", "VIP"))),
    "source ranges": altered(QUIET, source_ranges=("198.51.100.0/24",)),
    "type ClusterIP": altered(QUIET, node_ports=(), ingress=()),
    "another target port": altered(QUIET, target=9000),
    "type ExternalName": altered(QUIET, external_name=True),
    "as it was": QUIET,
}


def seen(node: ProxyNode) -> list[str]:
    """All that the tools say of the quiet Service."""
    lines = (*virtual_servers(node.host), *sorted(bound(node.host)), *sets(node.host))
    return [line for line in lines if OWN.search(line)]


@every_family
def test_k18_streams_outlive_every_edit_that_leaves_their_virtual_server_its_address_protocol_and_port(node, family):
    inside, outside = ((PLAIN.ips, "a3"), (BALANCER, "outside"))
    node.sync(PLAIN)
    with contextlib.ExitStack() as stack:
        talks = [
            stack.enter_context(Conversation(node.hosts[client], addresses[family], 80))
            for addresses, client in (inside, outside)
        ]
        for what, service in IN_PLACE.items():
            node.sync(service)
            assert [talk.ask().server for talk in talks] == ["a1", "a1"], what


@every_family
def test_k18_session_affinity_and_its_time_out_are_in_force_after_one_sync(node, family):
    address = PLAIN.ips[family]
    front = f"-A -t {f'[{address}]' if ':' in address else address}:80 -s rr"
    for affinity_s in (0, 10800, 60, 0):
        node.sync(altered(PLAIN, endpoints=ready(A1, B1), affinity_s=affinity_s))
        (line,) = [line for line in virtual_servers(node.host) if line.startswith(front)]
        assert line.removeprefix(front).split()[:2] == (["-p", str(affinity_s)] if affinity_s else [])
        assert len({ask(node.hosts["a3"], address, 80).server for _ in range(4)}) == (1 if affinity_s else 2)


@pytest.mark.parametrize("before, after", [pytest.param(*pair, id=" → ".join(pair)) for pair in pairwise(FORMS)])
def test_k18_after_an_edit_nothing_of_the_former_form_is_left_in_ipvs_sets_and_addresses(node, before, after):
    node.sync()
    node.sync(FORMS[after])
    right = seen(node)
    node.sync(FORMS[before])
    assert seen(node) != right
    node.sync(FORMS[after])
    assert seen(node) == right


@every_family
def test_k18_after_an_edit_the_former_port_and_protocol_refuse_at_once(node, family):
    address, client = PLAIN.ips[family], node.hosts["a3"]
    node.sync(PLAIN)
    assert ask(client, address, 80).server == "a1"
    node.sync(altered(PLAIN, ports=((443, "TCP"),)))
    assert ask(client, address, 443).server == "a1"
    with pytest.raises(ConnectionRefusedError):
        ask(client, address, 80)
    node.sync(altered(PLAIN, ports=((53, "UDP"),)))
    assert ask(client, address, 53, Transport.UDP).server == "a1"
    with pytest.raises(ConnectionRefusedError):
        ask(client, address, 443)
