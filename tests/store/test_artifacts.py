"""Files of runs: in a folder beside an SQLite file, in the database of a server."""

import io
from dataclasses import replace

import pytest

from cubemesh.store import Store
from cubemesh.store import store as store_file


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """The folders of another user, as on another host."""

    def use(name: str) -> None:
        for variable in ("XDG_DATA_HOME", "XDG_STATE_HOME", "TMPDIR"):
            folder = tmp_path / name / variable
            folder.mkdir(parents=True, exist_ok=True)
            monkeypatch.setenv(variable, str(folder))

    use("here")
    return use


def saved(store: Store, saving, data: bytes):
    record = saving.make_record()
    path = store.attach(record.run_id, "trace.json", io.BytesIO(data))
    record = replace(record, artifacts={"trace": path})
    store.save(record)
    return record


def test_a_file_of_a_run_is_read_back(store, saving, own_folders):
    record = saved(store, saving, b"a trace")
    with store.open_artifact(record, "trace") as file:
        assert file.read() == b"a trace"
    assert store.open_artifact(record, "other") is None
    stranger = replace(record, run_id="0123456789ab", artifacts={"trace": "/etc/passwd"})
    assert store.open_artifact(stranger, "trace") is None


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_file_in_a_server_is_read_from_elsewhere(location, saving, own_folders, tmp_path):
    with Store.open(location) as store:
        record = saved(store, saving, b"\x00\xff" * 1000)
    own_folders("there")
    with Store.open(location, read_only=True) as store:
        stored = store.record(record.run_id)
        with store.open_artifact(stored, "trace") as file:
            assert file.read() == b"\x00\xff" * 1000
    assert not list((tmp_path / "here").rglob("trace.json"))


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_larger_file_stays_on_its_host(location, saving, own_folders, tmp_path, monkeypatch):
    monkeypatch.setattr(store_file, "MAX_ARTIFACT_BYTES", 10)
    with Store.open(location) as store:
        record = saved(store, saving, b"x" * 11)
        with store.open_artifact(record, "trace") as file:
            assert file.read() == b"x" * 11
    assert list((tmp_path / "here").rglob("trace.json"))
    own_folders("there")
    with Store.open(location, read_only=True) as store:
        assert store.open_artifact(record, "trace") is None
