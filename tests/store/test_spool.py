"""What was measured while the store could not take it waits in the spool, and is stored later."""

import contextlib
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from test_db_errors import mounted

from cubemesh.errors import BusyError, StoreError, StoreWarning
from cubemesh.schema import Cpu, Machine, Memory, RunRecord, Software
from cubemesh.store import ExperimentRun, Store
from cubemesh.store.location import locate
from cubemesh.store.spool import Spool, Spooled
from forks import Forked

MACHINE = Machine(
    hostname="h", cpu=Cpu(), memory=Memory(), software=Software(python="3", system="Linux")
)
RUN = ExperimentRun(
    experiment_run_id="e1",
    experiment="minibatch",
    machine_id=MACHINE.machine_id,
    started_utc="2026-01-01T00:00:00+00:00",
    run_ids=(),
    complete=True,
)


@pytest.fixture(autouse=True)
def _state(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary folder, the last place of the spool, is the test's own, too."""
    (own_folders / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(own_folders / "tmp"))
    warnings.simplefilter("ignore", StoreWarning)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process holds the write lock."""
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('BEGIN IMMEDIATE'); print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        yield
        assert holder.stdin is not None
        holder.stdin.close()
        holder.wait()


def stored(store: Store) -> list[RunRecord]:
    """In the order they were measured, not stored."""
    return sorted(store.records(), key=lambda record: record.attempt)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_locked_store_gets_later_what_was_measured(path, saving):
    one, two = saving.make_record(0), saving.make_record(1)
    with Store.open(str(path), busy_timeout_s=0.1) as store:
        with locked(path):
            store.save_or_spool(one, [saving.make_series()])
            store.save_machine(MACHINE)
            store.save_experiment_run(RUN)
            assert isinstance(store.unsaved, BusyError)
            assert len(files(path.with_name("results-spool"))) == 3
            assert store.find(one.key) == one
            assert store.attempts(one.key) == 1
            assert store.settle().exit_code == 75
        store.save_or_spool(two)
        assert stored(store) == [one, two]
        assert len(store.series(one.run_id)[0].values) == 700
        assert (store.machines(), store.experiment_runs()) == ([MACHINE], [RUN])
        assert store.settle() is None
    assert not path.with_name("results-spool").exists()


def test_what_a_killed_process_has_spooled_is_taken_in_once(path, saving):
    Store.open(str(path)).close()
    with locked(path):
        saver = Forked(saving.spool, str(path), "m1", 20)
        with saver.stdout:
            ids = {saver.stdout.readline().strip() for _ in range(20)}
        os.kill(saver.pid, signal.SIGKILL)
        saver.wait()
    takers = [Forked(saving.recover, str(path)) for _ in range(2)]
    assert [taker.wait() for taker in takers] == [0, 0]
    with Store.open(str(path)) as store:
        assert store.recover() == 0
        records = store.records()
        assert len(records) == 20
        assert {r.run_id for r in records} == ids
        assert all(store.series(run_id) for run_id in ids)


def test_a_full_disk_sends_records_to_the_state_folder(tmp_path, saving, own_folders):
    with mounted(tmp_path / "disk") as disk:
        path, filler = disk / "results.sqlite", disk / "filler"
        with Store.open(str(path)) as store:
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(b"x" * 4096):
                    pass
            made = [saving.make_record(number) for number in range(5)]
            for record in made:
                store.save_or_spool(record, [saving.make_series()])
            assert isinstance(store.unsaved, StoreError)
            waiting = files(own_folders / "xdg_state_home")
            assert set(waiting) == {f"run-{record.run_id}.json" for record in made}
            filler.unlink()
            assert store.settle() is None
            assert stored(store) == made
        assert files(own_folders / "xdg_state_home") == []


def test_a_record_that_can_be_written_nowhere_is_printed(path, saving):
    """RLIMIT_FSIZE 0 ends every write to a file, as a full disk does."""
    done = subprocess.run(
        [sys.executable, saving.__file__, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("{")]
    spool = path.with_name("results-spool")
    assert str(spool) in done.stderr
    spool.mkdir()
    (spool / f"run-{json.loads(line)['record']['run_id']}.json").write_text(line)
    with Store.open(str(path)) as store:
        assert store.recover() == 1
        assert [r.run_id for r in store.records()] == [json.loads(line)["record"]["run_id"]]
        assert store.series(store.records()[0].run_id)


def test_a_damaged_file_of_the_spool_stays_and_stops_nothing(path, saving):
    record = saving.make_record()
    with Store.open(str(path), busy_timeout_s=0.1) as store, locked(path):
        store.save_or_spool(record)
    spool = path.with_name("results-spool")
    (spool / "a.json").write_text('{"store": "x", "record": 1}')
    (spool / "b.json").write_bytes(b"\xff")
    with Store.open(str(path)) as store:
        with pytest.warns(StoreWarning) as told:
            assert store.recover() == 1
        assert stored(store) == [record]
    assert files(spool) == ["a.json", "b.json"]
    assert sum(str(spool) in str(one.message) for one in told) == 2


def test_a_folder_of_another_user_is_no_spool(path, saving, monkeypatch, own_folders):
    if os.geteuid() != 0:
        pytest.skip("giving a folder to another user needs root")
    spool = path.with_name("results-spool")
    spool.mkdir(mode=0o777)
    os.chown(spool, 65534, 65534)
    (spool / "run-1.json").write_text("{}")
    with Store.open(str(path), busy_timeout_s=0.1) as store, locked(path):
        store.save_or_spool(saving.make_record())
        assert store.spooled == list((own_folders / "xdg_state_home").rglob("*.json"))
    assert files(spool) == ["run-1.json"]


def test_an_artifact_waits_with_its_record(path, tmp_path, saving):
    blocked = tmp_path / "results-files"
    blocked.write_text("a file where the folder would be")
    with Store.open(str(path), busy_timeout_s=0.1) as store:
        with locked(path):
            record = saving.make_record()
            kept = store.attach(record.run_id, "trace.json", io.BytesIO(b"{}"))
            store.save_or_spool(replace(record, artifacts={"trace": kept}))
        assert Path(kept).is_relative_to(tmp_path / "results-spool")
        blocked.unlink()
        assert store.settle() is None
        (record,) = store.records()
    assert Path(record.artifacts["trace"]).is_relative_to(blocked)
    assert Path(record.artifacts["trace"]).read_text() == "{}"
    assert not (tmp_path / "results-spool").exists()


@pytest.mark.parametrize("where", ["results-spool/../private", "private", "results-spool/{id}/x"])
def test_a_planted_record_moves_no_file_of_the_user(path, tmp_path, saving, where):
    """The spool of a store that somebody else has made, with a record that names any file."""
    (tmp_path / "private").write_text("key")
    record = saving.make_record()
    named = str(tmp_path / where.format(id=record.run_id))
    spool, planted = Spool(locate(str(path))), replace(record, artifacts={"trace": named})
    assert spool.write(Spooled(store=str(path), record=planted)) is not None
    folder = tmp_path / "results-spool" / record.run_id
    folder.mkdir()
    (folder / "x").symlink_to(tmp_path / "private")
    with Store.open(str(path)) as store:
        assert store.recover() == 1
        assert store.open_artifact(store.record(record.run_id), "trace") is None
    assert (tmp_path / "private").read_text() == "key"
    assert not (tmp_path / "results-files").exists()


@pytest.mark.parametrize("run_id", ["../escaped", "..", "x/../../escaped"])
def test_a_planted_record_writes_only_into_the_folder_of_files(path, tmp_path, saving, run_id):
    spool = tmp_path / "results-spool"
    with Store.open(str(path), busy_timeout_s=0.1) as store, locked(path):
        store.save_or_spool(saving.make_record())
    (written,) = spool.iterdir()
    (spool / "abc").mkdir()
    (spool / "abc" / "run.desktop").write_text("Exec=x")
    plain = json.loads(written.read_text())
    plain["record"]["run_id"] = run_id
    plain["record"]["artifacts"] = {"trace": str(spool / "abc" / "run.desktop")}
    written.write_text(json.dumps(plain))
    before = files(tmp_path)
    with Store.open(str(path)) as store:
        assert store.recover() == 0
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "plant",
    [
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path.parent / "nothing"),
        lambda path: path.hardlink_to(path.parent.parent / "other"),
        os.mkfifo,
        os.mkdir,
    ],
    ids=["device", "dangling", "hard link", "fifo", "folder"],
)
def test_what_is_no_file_of_the_spool_stops_nothing(path, tmp_path, saving, plant):
    (tmp_path / "other").write_text("{}")
    with Store.open(str(path), busy_timeout_s=0.1) as store, locked(path):
        store.save_or_spool(saving.make_record())
    plant(tmp_path / "results-spool" / "a.json")
    with Store.open(str(path)) as store:
        assert store.recover() == 1


@pytest.mark.parametrize("removed", [("",), ("", "-wal", "-shm")], ids=["file", "all"])
def test_a_deleted_file_is_made_again_with_what_was_measured(path, saving, removed):
    with Store.open(str(path)) as earlier:
        earlier.save(saving.make_record(7))
    with Store.open(str(path)) as store:
        store.save_machine(MACHINE)
        one, two = saving.make_record(0), saving.make_record(1)
        store.save_or_spool(one, [saving.make_series()])
        store.save_experiment_run(RUN)
        for suffix in removed:
            path.with_name(path.name + suffix).unlink()
        with pytest.warns(StoreWarning, match="deleted"):
            store.save_or_spool(two)
    with Store.open(str(path), must_exist=True, read_only=True) as store:
        store.check()
        assert stored(store) == [one, two]
        assert len(store.series(one.run_id)[0].values) == 700
        assert (store.machines(), store.experiment_runs()) == ([MACHINE], [RUN])


def test_a_file_deleted_after_the_last_run_is_noticed_at_the_end(path, saving):
    record = saving.make_record()
    with Store.open(str(path)) as store:
        store.save_or_spool(record)
        path.unlink()
        assert store.settle() is None
        assert store.settle() is None
    with Store.open(str(path), must_exist=True, read_only=True) as store:
        assert stored(store) == [record]


def test_a_file_that_a_folder_replaced_is_said_to_lose_nothing(path, saving):
    made = [saving.make_record(number) for number in range(3)]
    with Store.open(str(path)) as store:
        store.save_or_spool(made[0])
        path.unlink()
        path.mkdir()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for record in made[1:]:
                store.save_or_spool(record)
        said = [str(one.message) for one in warned]
        assert any("replaced" in text for text in said)
        assert not any("is lost" in text for text in said)
        path.rmdir()
        assert store.settle() is None
        assert stored(store) == made


def test_a_file_that_is_replaced_gets_what_was_measured(path, tmp_path, saving):
    one, two, other = (saving.make_record(number) for number in range(3))
    with Store.open(str(tmp_path / "other.sqlite")) as store:
        store.save(other)
    with Store.open(str(path)) as store:
        store.save_or_spool(one)
        (tmp_path / "other.sqlite").rename(path)
        with pytest.warns(StoreWarning, match="replaced"):
            store.save_or_spool(two)
        assert stored(store) == [one, two, other]
        store.check()


def test_a_folder_where_the_file_was_sends_records_to_the_spool(path, saving):
    one, two = saving.make_record(0), saving.make_record(1)
    with Store.open(str(path)) as store:
        store.save_or_spool(one)
        path.unlink()
        path.mkdir()
        store.save_or_spool(two)
        assert isinstance(store.settle(), StoreError)
        assert len(store.spooled) == 2
        path.rmdir()
        assert store.settle() is None
        assert stored(store) == [one, two]


def test_a_terminated_connection_is_opened_again(server, saving):
    address = server.url.replace("+psycopg", "")
    one, two = saving.make_record(0), saving.make_record(1)
    terminate = (
        "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() "
        "and backend_type = 'client backend'"
    )
    with Store.open(server.url) as store, psycopg.connect(address, autocommit=True) as admin:
        admin.execute(terminate)
        store.save_or_spool(one)
        left = [2]

        @sqlalchemy.event.listens_for(store._database.engine, "before_cursor_execute")
        def _terminate(connection, cursor, statement, *rest):
            if statement.startswith("INSERT INTO series") and left:
                left.pop()
                admin.execute(terminate)

        store.save_or_spool(two, [saving.make_series()])
        assert left == []
        assert store.unsaved is None
        assert stored(store) == [one, two]
        assert len(store.series(two.run_id)[0].values) == 700


def test_records_wait_while_the_server_is_away(server, saving, own_folders):
    made = [saving.make_record(number) for number in range(3)]
    with Store.open(server.url) as store:
        store.save_or_spool(made[0])
        server.kill()
        try:
            store.save_or_spool(made[1])
            store.save_or_spool(made[2])
            assert isinstance(store.settle(), StoreError)
            assert len(files(own_folders / "xdg_state_home")) == 2
        finally:
            server.start()
        assert store.settle() is None
        assert stored(store) == made
    assert files(own_folders / "xdg_state_home") == []


def test_a_run_stored_by_another_process_is_not_stored_twice(server, saving):
    """The other one is faster by the moment between looking and storing."""
    record = saving.make_record()
    with Store.open(server.url) as store, Store.open(server.url) as other:
        faster = [other]

        @sqlalchemy.event.listens_for(store._database.engine, "before_cursor_execute")
        def _first(connection, cursor, statement, *rest):
            if statement.startswith("INSERT INTO records") and faster:
                faster.pop().save(record)

        store.save_or_spool(record)
        assert store.unsaved is None
        assert stored(store) == [record]


def test_sqlite_keeps_the_first_of_two(path, saving):
    record = saving.make_record()
    with Store.open(str(path)) as store, Store.open(str(path)) as other:
        other.save(record)
        store.save_or_spool(record)
        assert store.unsaved is None
        with pytest.raises(StoreError):
            store.save(record)
    with sqlite3.connect(path) as plain:
        assert plain.execute("select count(*) from records").fetchone() == (1,)


def test_the_spool_of_one_store_is_not_that_of_another(tmp_path, saving):
    stores = [tmp_path / "a.sqlite", tmp_path / "b.sqlite"]
    with Store.open(str(stores[0]), busy_timeout_s=0.1) as store, locked(stores[0]):
        store.save_or_spool(saving.make_record())
        assert Spool(store._location).files()
    with Store.open(str(stores[1])) as store:
        assert store.recover() == 0
