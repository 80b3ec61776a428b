"""The folder: what each load tells, what stays in force, and that nothing in it can stop the daemon."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipvsproxy.cluster.events import Changed, Listed, Rejected, Removed
from ipvsproxy.errors import ConfigError
from ipvsproxy.kube.manifest_files import MAX_FILE_BYTES, _NotAFileError, _read_regular, read_file
from ipvsproxy.kube.manifests import ManifestFolder
from ipvsproxy.model.api_objects import EndpointSlice, Service
from ipvsproxy.model.notes import Note
from tests.nobody import as_nobody

LISTED = [Listed("Service"), Listed("EndpointSlice"), Listed("Node")]
FAR_FUTURE_NS = 4_000_000_000_000_000_000  # every file has settled by then


def service(name: str, cluster_ip: str = "10.96.0.10") -> str:
    return f"{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{clusterIP: {cluster_ip}}}}}\n"


def endpoint_slice(name: str, owner: str, address: str) -> str:
    return (
        f"{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, "
        f"metadata: {{name: {name}, labels: {{kubernetes.io/service-name: {owner}}}}}, "
        f"endpoints: [{{addresses: [{address}]}}]}}\n"
    )


def endpoints(name: str, address: str) -> str:
    return (
        f"{{apiVersion: v1, kind: Endpoints, metadata: {{name: {name}}}, "
        f"subsets: [{{addresses: [{{ip: {address}}}], ports: [{{port: 80}}]}}]}}\n"
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "manifests"
    path.mkdir()
    return path


@pytest.fixture
def source(folder) -> ManifestFolder:
    return ManifestFolder(folder)


def write(path: Path, *texts: str):
    path.write_text("---\n".join(texts))


def summary(events) -> list[str]:
    """Events in words: `+Kind ns/name`, `-Kind ns/name`, `=Kind`."""
    words = []
    for event in events:
        match event:
            case Changed(ref=ref):
                words.append(f"+{ref}")
            case Removed(ref=ref):
                words.append(f"-{ref}")
            case Listed(kind=kind):
                words.append(f"={kind}")
    return words


def notes(events) -> list[Note]:
    return [note for event in events if isinstance(event, Rejected) for note in event.notes]


def cluster_ip(events, name: str) -> str | None:
    for event in events:
        if isinstance(event, Changed) and event.ref.name == name:
            assert isinstance(event.object, Service)
            assert event.object.spec is not None
            return event.object.spec.cluster_ip
    raise AssertionError(name)


def test_the_first_load_tells_everything_and_closes_each_kind(folder, source):
    write(folder / "b.yaml", service("web"), endpoint_slice("web-1", "web", "10.0.0.1"))
    write(folder / "a.yml", service("api"))
    (folder / "n.json").write_text('{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}')
    events = source.load()
    assert summary(events) == [
        "+EndpointSlice default/web-1",
        "+Node n1",
        "+Service default/api",
        "+Service default/web",
        "=Service",
        "=EndpointSlice",
        "=Node",
    ]
    assert notes(events) == []


def test_a_load_without_a_change_tells_nothing(folder, source):
    write(folder / "a.yaml", service("web"))
    source.load()
    assert source.load() == []


def test_only_what_changed_is_told(folder, source):
    write(folder / "a.yaml", service("web"), service("api"))
    write(folder / "b.yaml", service("db"))
    source.load()
    write(folder / "a.yaml", service("web", "10.96.0.11"), service("api"))
    events = source.load()
    assert summary(events) == ["+Service default/web"]
    assert cluster_ip(events, "web") == "10.96.0.11"


def test_an_object_that_left_a_file_and_a_file_that_left_are_removed(folder, source):
    write(folder / "a.yaml", service("web"), service("api"))
    write(folder / "b.yaml", service("db"))
    source.load()
    write(folder / "a.yaml", service("api"))
    (folder / "b.yaml").unlink()
    assert summary(source.load()) == ["-Service default/db", "-Service default/web"]


def test_an_object_that_moves_between_files_is_not_touched(folder, source):
    write(folder / "a.yaml", service("web"))
    source.load()
    (folder / "a.yaml").rename(folder / "b.yaml")
    assert source.load() == []


@pytest.mark.parametrize("name", [".hidden.yaml", "..data", "notes.txt", "web.yaml~", "web.yaml.bak", "yaml"])
def test_other_names_are_not_read(folder, source, name):
    write(folder / "a.yaml", service("web"))
    (folder / name).write_bytes(b"\xff")
    assert notes(source.load()) == []


def test_a_config_map_volume_is_followed_through_its_links(folder, source):
    for version, address in (("..v1", "10.96.0.10"), ("..v2", "10.96.0.11")):
        (folder / version).mkdir()
        write(folder / version / "web.yaml", service("web", address))
    (folder / "..data").symlink_to("..v1")
    (folder / "web.yaml").symlink_to("..data/web.yaml")
    assert cluster_ip(source.load(), "web") == "10.96.0.10"
    (folder / "..tmp").symlink_to("..v2")
    (folder / "..tmp").rename(folder / "..data")
    assert cluster_ip(source.load(), "web") == "10.96.0.11"


def test_the_last_good_version_of_a_broken_file_stays_in_force(folder, source):
    write(folder / "a.yaml", service("web"), service("api"))
    write(folder / "b.yaml", service("db"))
    source.load()
    (folder / "a.yaml").write_text("a: [")
    write(folder / "b.yaml", service("db", "10.96.0.99"))
    events = source.load()
    assert summary(events) == ["+Service default/db"]
    assert [note.subject for note in notes(events)] == [f"{folder}/a.yaml:1"]
    write(folder / "a.yaml", service("web"))
    assert summary(source.load()) == ["-Service default/api"]


def test_the_last_good_version_of_a_bad_object_stays_in_force(folder, source):
    write(folder / "a.yaml", service("web"), service("api"))
    source.load()
    write(folder / "a.yaml", service("web", "[1]"), service("api", "10.96.0.11"))
    events = source.load()
    assert summary(events) == ["+Service default/api"]
    assert [note.subject for note in notes(events)] == [f"{folder}/a.yaml:1"]
    write(folder / "a.yaml", service("api", "10.96.0.11"))
    assert summary(source.load()) == ["-Service default/web"]


def test_what_another_file_says_well_counts_before_what_is_only_kept(folder, source):
    write(folder / "a.yaml", service("web"))
    source.load()
    (folder / "a.yaml").write_text("a: [")
    write(folder / "b.yaml", service("web", "10.96.0.11"))
    assert cluster_ip(source.load(), "web") == "10.96.0.11"


def test_of_equal_objects_the_first_counts_and_the_other_is_one_note(folder, source):
    write(folder / "a.yaml", service("web", "10.96.0.1"))
    write(folder / "b.yaml", service("web", "10.96.0.2"), service("web", "10.96.0.3"))
    events = source.load()
    assert cluster_ip(events, "web") == "10.96.0.1"
    assert notes(events) == [
        Note(
            f"{folder}/b.yaml:{line}",
            f"Service default/web is already declared at {folder}/a.yaml:1, which counts",
            "Remove one of the two",
        )
        for line in (1, 3)
    ]
    (folder / "a.yaml").unlink()
    assert cluster_ip(source.load(), "web") == "10.96.0.2"


def test_what_counted_of_equal_objects_is_what_is_kept(folder, source):
    write(folder / "a.yaml", service("web", "10.96.0.1"), service("web", "10.96.0.2"))
    write(folder / "b.yaml", service("web", "10.96.0.3"))
    source.load()
    (folder / "a.yaml").write_text("a: [")
    (folder / "b.yaml").write_text("a: [")
    assert summary(source.load()) == []


def test_a_note_is_told_once_until_it_changes(folder, source):
    (folder / "a.yaml").write_text("a: [")
    assert len(notes(source.load())) == 1
    assert source.load() == []
    (folder / "a.yaml").write_text("a: 1\nb: [")
    assert [note.subject for note in notes(source.load())] == [f"{folder}/a.yaml:2"]
    write(folder / "a.yaml", service("web"))
    source.load()
    (folder / "a.yaml").write_text("a: [")
    assert len(notes(source.load())) == 1


def test_endpoints_stand_in_only_where_a_service_has_no_slice(folder, source):
    write(folder / "a.yaml", endpoints("web", "10.0.0.1"), endpoints("api", "10.0.0.2"))
    write(folder / "b.yaml", endpoint_slice("api-1", "api", "10.0.0.3"))
    assert summary(source.load())[:2] == ["+EndpointSlice default/api-1", "+EndpointSlice default/web:0:IPv4"]
    write(folder / "c.yaml", endpoint_slice("web-1", "web", "10.0.0.4"))
    assert summary(source.load()) == ["+EndpointSlice default/web-1", "-EndpointSlice default/web:0:IPv4"]
    (folder / "c.yaml").unlink()
    assert summary(source.load()) == ["+EndpointSlice default/web:0:IPv4", "-EndpointSlice default/web-1"]


def test_endpoints_and_service_of_one_name_are_two_objects(folder, source):
    write(folder / "a.yaml", service("web"), endpoints("web", "10.0.0.1"))
    events = source.load()
    assert notes(events) == []
    (piece,) = (event.object for event in events if isinstance(event, Changed) and event.ref.kind == "EndpointSlice")
    assert isinstance(piece, EndpointSlice)


@pytest.mark.parametrize(
    "age_s, is_read_again",
    [
        pytest.param(1, True, id="a young time stamp proves nothing: a second write may fall into the same tick"),
        pytest.param(3, False, id="a settled one proves that nothing was written since"),
    ],
)
def test_an_untouched_file_is_opened_again_only_while_its_time_stamp_is_young(folder, age_s, is_read_again):
    path = folder / "a.yaml"
    write(path, service("web"))
    source = ManifestFolder(folder, now_ns=lambda: path.stat().st_ctime_ns + age_s * 10**9)
    source.load()
    file = source._files["a.yaml"]
    assert source.load() == []
    assert (source._files["a.yaml"] is not file) is is_read_again


def test_a_settled_file_that_is_written_again_is_read_again(folder):
    source = ManifestFolder(folder, now_ns=lambda: FAR_FUTURE_NS)
    write(folder / "a.yaml", service("web", "10.96.0.10"))
    source.load()
    write(folder / "a.yaml", service("web", "10.96.0.20"))
    assert cluster_ip(source.load(), "web") == "10.96.0.20"


def test_a_file_that_vanished_after_it_was_listed_is_gone(folder):
    assert read_file(folder / "gone.yaml", None, time.time_ns) is None


def test_a_file_with_the_same_bytes_is_not_parsed_again(folder, source):
    write(folder / "a.yaml", service("web"))
    source.load()
    live = source._files["a.yaml"].live
    write(folder / "a.yaml", service("web"))
    assert source.load() == []
    assert source._files["a.yaml"].live is live


def test_a_file_that_becomes_a_fifo_before_it_is_opened_blocks_nobody(folder):
    write(folder / "a.yaml", service("web"))
    status = (folder / "a.yaml").stat()
    os.mkfifo(folder / "x.yaml")
    with pytest.raises(_NotAFileError):
        _read_regular(folder / "x.yaml", status)


def make_fifo(path: Path):
    os.mkfifo(path)


def make_device(path: Path):
    path.symlink_to("/dev/zero")


def make_loop(path: Path):
    path.symlink_to(path.name)


def make_huge(path: Path):
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)


@pytest.mark.parametrize(
    "make, reason",
    [
        pytest.param(make_fifo, "not a regular file", id="FIFO"),
        pytest.param(make_device, "not a regular file", id="device"),
        pytest.param(Path.mkdir, "a folder, not a file", id="folder"),
        pytest.param(make_loop, "ELOOP", id="loop of symbolic links"),
        pytest.param(lambda path: path.symlink_to("nowhere"), "ENOENT", id="symbolic link to nothing"),
        pytest.param(make_huge, "the limit is 67108864", id="huge file"),
    ],
)
def test_what_is_no_readable_file_is_told_once_and_costs_nothing_else(folder, source, make, reason):
    write(folder / "a.yaml", service("web"))
    make(folder / "x.yaml")
    events = source.load()
    assert summary(events)[0] == "+Service default/web"
    (note,) = notes(events)
    assert note.subject == f"{folder}/x.yaml"
    assert reason in note.reason
    assert note.hint
    assert source.load() == []


def test_a_file_that_becomes_unreadable_stays_in_force_and_comes_back(folder, source):
    path = folder / "a.yaml"
    write(path, service("web"))
    source.load()
    path.unlink()
    make_loop(path)
    assert summary(source.load()) == []
    path.unlink()
    write(path, service("web", "10.96.0.11"))
    events = source.load()
    assert cluster_ip(events, "web") == "10.96.0.11"
    assert notes(events) == []


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


def test_a_file_without_permission_is_told_and_costs_nothing_else(open_folder):
    write(open_folder / "a.yaml", service("web"))
    write(open_folder / "b.yaml", service("api"))
    (open_folder / "a.yaml").chmod(0o644)
    (open_folder / "b.yaml").chmod(0)
    with as_nobody():
        events = ManifestFolder(open_folder).load()
    assert summary(events)[0] == "+Service default/web"
    (note,) = notes(events)
    assert "EACCES" in note.reason
    assert note.hint == "Give the daemon's user permission to read it"


def test_a_folder_without_permission_is_refused_at_the_start(open_folder):
    open_folder.chmod(0o700 if os.geteuid() == 0 else 0)
    with as_nobody(), pytest.raises(ConfigError, match="EACCES"):
        ManifestFolder(open_folder).load()
    open_folder.chmod(0o755)


@pytest.mark.parametrize(
    "make", [pytest.param(lambda path: path.write_text(""), id="a file"), pytest.param(make_loop, id="a loop")]
)
def test_what_is_no_folder_is_refused_at_the_start(tmp_path, make):
    path = tmp_path / "x"
    make(path)
    with pytest.raises(ConfigError) as caught:
        ManifestFolder(path).load()
    assert caught.value.what == f"--manifests {path}"
    assert caught.value.hint


def test_a_missing_folder_is_refused_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match="ENOENT"):
        ManifestFolder(tmp_path / "nowhere").load()


def test_a_folder_that_vanishes_later_is_told_once_and_its_state_stands(folder, source):
    write(folder / "a.yaml", service("web"))
    (folder / "b.yaml").write_text("a: [")
    source.load()
    folder.rename(folder.with_name("gone"))
    events = source.load()
    assert summary(events) == []
    assert [note.subject for note in notes(events)] == [str(folder)]
    assert source.load() == []
    folder.with_name("gone").rename(folder)
    assert source.load() == []


def test_an_empty_folder_is_told_and_listed(folder, source):
    events = source.load()
    assert events[:3] == LISTED
    assert [(note.subject, note.reason) for note in notes(events)] == [(str(folder), "holds no manifests")]
    write(folder / "a.yaml", service("web"))
    assert summary(source.load()) == ["+Service default/web"]


def test_a_file_name_that_is_no_text_can_still_be_told(folder, source):
    (folder / os.fsdecode(b"\xff\n.yaml")).write_text("a: [")
    (note,) = notes(source.load())
    assert note.subject == f"{folder}/\\xff?.yaml:1"


class ScriptedWatch:
    """A watch that lets something happen to the folder before each answer."""

    def __init__(self, *happenings) -> None:
        self._happenings = list(happenings)

    def wait(self) -> bool:
        if not self._happenings:
            return False
        self._happenings.pop(0)()
        return True

    def stop(self) -> None:
        self._happenings.clear()


def test_each_load_with_news_is_one_delivery(folder, source):
    write(folder / "a.yaml", service("web"), service("api"))
    watch = ScriptedWatch(
        lambda: None,
        lambda: write(folder / "a.yaml", service("db")),
    )
    deliveries: list[list[str]] = []
    source.run(lambda events: deliveries.append(summary(events)), watch)
    assert deliveries == [
        ["+Service default/api", "+Service default/web", "=Service", "=EndpointSlice", "=Node"],
        ["+Service default/db", "-Service default/api", "-Service default/web"],
    ]


def test_a_watch_that_is_stopped_ends_the_run(folder, source):
    write(folder / "a.yaml", service("web"))
    watch = ScriptedWatch(lambda: None)
    watch.stop()
    deliveries: list[object] = []
    source.run(deliveries.append, watch)
    assert len(deliveries) == 1
