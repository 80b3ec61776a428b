"""The document that programs read: its schema, and that nothing is lost in it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from ipvsproxy.cluster.known import Known, KnownDrain, KnownEndpoint, KnownHead, KnownPort, KnownService
from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.model.json_schema import schema_text
from ipvsproxy.model.observed import IpvsTable, Statistics
from ipvsproxy.status import document
from ipvsproxy.status.names import Names
from ipvsproxy.status.order import sort_real_servers, sort_virtual_servers
from ipvsproxy.status.rows import rows
from tests.unit.status.ipvs_states import observed_table
from tests.unit.status.test_rows import TABLE

STATES = sorted((Path(__file__).parents[2] / "data/ipvsadm").glob("*.state.json"))
NAMES = Names(
    Known(
        KnownHead(1, drains=(KnownDrain("TCP", "10.96.0.20", 80, "10.244.1.6", 8080, 61.5),)),
        (
            KnownService(
                "shop", "web", "", ("10.96.0.20",), (KnownPort("TCP", 80, "http"),),
                (KnownEndpoint("10.244.1.5", "ready", "web-5", "n1", "a"),),
            ),
        ),
    )
)  # fmt: skip
SMALL = IpvsTable(0x010201, 4096, TABLE)


def text_of(table: IpvsTable, names: Names | None = None) -> str:
    return "\n".join(document.json_text(info_of(table), rows(table.virtual_servers, names)))


def info_of(table: IpvsTable) -> document.Info:
    return table.version, table.conn_tab_size


def in_order(table: IpvsTable) -> IpvsTable:
    servers = tuple(
        msgspec.structs.replace(server, real_servers=tuple(sort_real_servers(server.real_servers)))
        for server in sort_virtual_servers(table.virtual_servers)
    )
    return msgspec.structs.replace(table, virtual_servers=servers)


@pytest.mark.parametrize("path", STATES, ids=lambda path: path.name.removesuffix(".state.json"))
def test_what_was_written_is_read_back_as_it_was(path):
    state = json.loads(path.read_text())
    if "services" not in state:
        pytest.skip("a kernel without IPVS has nothing to write")
    table = observed_table(state)
    assert document.read_table(text_of(table)) == in_order(table)


def test_statistics_are_read_back_too():
    (server, *_) = TABLE
    (real,) = server.real_servers
    counted = msgspec.structs.replace(
        server,
        statistics=Statistics(*range(10)),
        real_servers=(msgspec.structs.replace(real, statistics=Statistics(*range(10, 20))),),
    )
    table = IpvsTable(0x010201, 4096, (counted,))
    assert document.read_table(text_of(table)) == table


def test_the_schema_in_the_package_is_what_the_types_say():
    assert document.PATH.read_text() == schema_text(document.Document)


@pytest.mark.parametrize("names", [None, NAMES], ids=["without names", "with names"])
def test_what_is_written_has_no_field_that_the_schema_does_not_have(names):
    written = json.loads(text_of(SMALL, names))
    assert json.loads(msgspec.json.encode(msgspec.json.decode(json.dumps(written), type=document.Document))) == written


def test_k53_the_document_tells_who_is_behind_each_server():
    written = json.loads(text_of(SMALL, NAMES))
    web = written["virtualServers"][0]
    assert web["service"] == {"namespace": "shop", "name": "web", "port": 80, "portName": "http"}
    assert web["ours"] is True
    five, six, *_ = web["realServers"]
    assert {key: five[key] for key in ("state", "pod", "node", "zone")} == {
        "state": "ready", "pod": "web-5", "node": "n1", "zone": "a",
    }  # fmt: skip
    assert (six["state"], six["drainSecondsLeft"], "pod" in six) == ("draining", 61.5, False)


def test_what_nobody_asked_for_is_not_there():
    server = json.loads(text_of(SMALL))["virtualServers"][0]
    assert server.keys().isdisjoint({"service", "ours", "statistics"})
    assert server["realServers"][0].keys().isdisjoint({"state", "pod", "node", "zone", "statistics", "tunnel"})


def test_the_document_says_what_it_is():
    written = json.loads(text_of(IpvsTable(0x010203, 8192)))
    assert written == {
        "apiVersion": "ipvsproxy.io/v1",
        "kind": "IpvsStatus",
        "ipvsVersion": "1.2.3",
        "connectionTableSize": 8192,
        "virtualServers": [],
    }


@pytest.mark.parametrize("table", [SMALL, IpvsTable(0x010201, 4096)], ids=["some", "none"])
def test_every_form_says_the_same(table):
    found = [*rows(table.virtual_servers, NAMES)]
    as_json = json.loads("\n".join(document.json_text(info_of(table), found)))
    (line,) = document.json_line(info_of(table), found)
    assert json.loads(line) == as_json
    assert yaml.safe_load("\n".join(document.yaml_text(info_of(table), found))) == as_json


@pytest.mark.parametrize("table", [SMALL, IpvsTable(0x010201, 4096)], ids=["some", "none"])
def test_the_text_is_laid_out_as_json_usually_is(table):
    assert text_of(table) == json.dumps(json.loads(text_of(table)), indent=2)


@pytest.mark.parametrize(
    "field,value",
    [
        pytest.param("ipvsVersion", "one", id="a version that is none"),
        pytest.param("ipvsVersion", "1.2.-1", id="a version below 0"),
        pytest.param("connectionTableSize", -1, id="a size below 0"),
        pytest.param("kind", "List", id="another kind"),
        pytest.param("apiVersion", "ipvsproxy.io/v9", id="a later format"),
        pytest.param("virtualServers", None, id="no servers"),
    ],
)
def test_what_is_no_such_document_is_refused(field, value):
    written = json.loads(text_of(SMALL)) | {field: value}
    with pytest.raises(IpvsproxyError, match="cannot understand the file"):
        document.read_table(json.dumps(written))


@pytest.mark.parametrize(
    "field,value",
    [
        pytest.param("address", "localhost", id="a name"),
        pytest.param("address", "fd00::1", id="another family's address"),
        pytest.param("protocol", "TCPP", id="no protocol"),
        pytest.param("persistenceMask", "255", id="no mask"),
        pytest.param("port", 65536, id="a port that there is not"),
        pytest.param("port", -1, id="a port below 0"),
        pytest.param("firewallMark", 2**32, id="a mark of more than 32 bits"),
        pytest.param("scheduler", "\x1b[31mrr", id="a terminal's command for a name"),
        pytest.param("persistenceEngine", "x" * 16, id="a name too long for the kernel"),
    ],
)
def test_a_server_that_makes_no_sense_is_refused(field, value):
    written = json.loads(text_of(SMALL))
    written["virtualServers"][0][field] = value
    with pytest.raises(IpvsproxyError, match="cannot understand the file"):
        document.read_table(json.dumps(written))


def test_a_document_nested_without_end_is_refused():
    with pytest.raises(IpvsproxyError, match="cannot understand the file"):
        document.read_table('{"a":' * 100_000)


def test_fields_of_later_versions_are_passed_over():
    written = json.loads(text_of(SMALL))
    written["virtualServers"][0]["colour"] = "blue"
    assert document.read_table(json.dumps(written | {"more": 1})) == in_order(SMALL)
