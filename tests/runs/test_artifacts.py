"""Files of a run that are stored with its record, and those that are refused. A trace:
test_pytorch_runs.py."""

import os
import socket
from pathlib import Path

import pytest

from cubemesh import untrusted
from cubemesh.errors import StoreError
from cubemesh.runs import artifacts
from cubemesh.runs.artifacts import store_artifacts
from cubemesh.store import Store


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "mine.sqlite")) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path):
    """A run's folder with a file, next to a secret."""
    (tmp_path / "secret").write_text("s")
    folder = tmp_path / "run-1"
    folder.mkdir()
    (folder / "trace.json").write_text("{}")
    return folder


def named(*files):
    return [{"event": "artifact", "name": file, "file": file, "of_rank": 1} for file in files]


def test_a_file_of_the_run_is_stored(store, folder):
    stored, warnings = store_artifacts(store, "abc", folder, named("trace.json"))
    assert warnings == []
    assert Path(stored["trace.json"]).read_text() == "{}"
    assert os.path.dirname(stored["trace.json"]).endswith("mine-files/abc")


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to(path.parent.parent / "secret"),
        lambda path: path.hardlink_to(path.parent.parent / "secret"),
        lambda path: path.symlink_to("/dev/zero"),
        os.mkfifo,
        os.mkdir,
        make_socket,
        lambda path: None,
    ],
)
def test_links_fifos_devices_and_folders_are_refused(store, folder, make):
    make(folder / "x")
    stored, (warning,) = store_artifacts(store, "abc", folder, named("x", "trace.json"))
    assert list(stored) == ["trace.json"], "the others are stored"
    assert warning.code == "event-refused"
    assert (folder.parent / "secret").read_text() == "s"


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "..", ".", "", "a/b", "a\n", "é"])
def test_only_plain_names_are_opened(store, folder, name):
    stored, (warning,) = store_artifacts(store, "abc", folder, named(name))
    assert stored == {}
    assert "rank 1" in warning.cause
    assert (folder.parent / "secret").exists()


def test_a_folder_that_is_a_link_is_refused(store, folder):
    link = folder.parent / "link"
    link.symlink_to(folder)
    with pytest.raises(OSError):  # noqa: PT011 - the runner's own folder is never a link
        store_artifacts(store, "abc", link, named("trace.json"))


def test_files_are_stored_in_folders_of_the_store_only(store, folder):
    (folder.parent / "mine-files").mkdir()
    (folder.parent / "mine-files" / "abc").symlink_to(folder.parent)
    for run_id in ("..", "../other", "ABC", ""):
        with (folder / "trace.json").open("rb") as source, pytest.raises(StoreError):
            store.attach(run_id, "trace.json", source)
    stored, _ = store_artifacts(store, "abc", folder, named("trace.json"))
    assert Path(stored["trace.json"]).is_relative_to(folder.parent / "mine-spool" / "abc")
    assert not (folder.parent / "trace.json").exists()


def test_sizes_and_numbers_are_limited(store, folder, monkeypatch):
    monkeypatch.setattr(untrusted, "MOST_FILE_BYTES", 1)
    assert store_artifacts(store, "abc", folder, named("trace.json"))[0] == {}
    monkeypatch.undo()
    monkeypatch.setattr(artifacts, "MOST_FILES", 1)
    (folder / "other").write_text("")
    stored, warnings = store_artifacts(store, "abc", folder, named("trace.json", "other"))
    assert (list(stored), len(warnings)) == (["trace.json"], 1)


def test_a_file_that_cannot_be_stored_waits_in_the_spool(store, folder):
    (folder.parent / "mine-files").write_text("in the way")
    stored, warnings = store_artifacts(store, "abc", folder, named("trace.json"))
    assert warnings == []
    assert Path(stored["trace.json"]).is_relative_to(folder.parent / "mine-spool")


def test_a_file_that_can_be_stored_nowhere_leaves_the_record(
    store, folder, own_folders, monkeypatch
):
    for name in ("mine-files", "mine-spool"):
        (folder.parent / name).write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder.parent / "mine-files"))
    monkeypatch.setattr("tempfile.tempdir", str(folder.parent / "mine-files"))
    with (folder / "trace.json").open("rb") as source, pytest.raises(StoreError):
        store.attach("abc", "trace.json", source)
    stored, warnings = store_artifacts(store, "abc", folder, named("trace.json"))
    assert (stored, len(warnings)) == ({}, 1)
