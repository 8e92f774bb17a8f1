"""A store that cannot be used says so: what is wrong with it, and what to do."""

import contextlib
import os
import re
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError

from cubemesh.errors import BusyError, StoreError, UsageError
from cubemesh.store import Store
from cubemesh.store.db_errors import explained
from cubemesh.store.location import locate


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A tmpfs of one MiB at `folder`; skips the test where mounting is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", ",".join(("size=1m", *options)), "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a tmpfs needs root and the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def save_until_full(store: Store, saving) -> tuple[list[str], str]:
    """The runs that were stored before the store said that it is full, and how it said so."""
    saved = []
    for number in range(5000):
        record = saving.make_record(number)
        try:
            store.save(record, [saving.make_series()])
        except StoreError as error:
            return saved, str(error)
        saved.append(record.run_id)
    pytest.fail("the store never was full")


def test_a_full_database_keeps_what_it_has(store, path, saving):
    with store._database.read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 20}")
    saved, said = save_until_full(store, saving)
    assert f"The store {path} is full" in said
    assert "--store" in said
    assert len(saved) > 2
    assert [r.run_id for r in store.records()] == saved
    store.check()


def test_a_full_disk_keeps_what_it_has(tmp_path, saving):
    with mounted(tmp_path / "disk") as disk:
        path = disk / "results.sqlite"
        with Store.open(str(path)) as store:
            saved, said = save_until_full(store, saving)
            assert f"The store {path} is full" in said
            assert [r.run_id for r in store.records()] == saved
        with Store.open(str(path), must_exist=True, read_only=True) as store:
            assert [r.run_id for r in store.records()] == saved
            store.check()


def test_a_disk_that_is_full_already_is_found_out_on_opening(tmp_path, saving):
    with mounted(tmp_path / "disk") as disk:
        path, filler = disk / "results.sqlite", disk / "filler"
        with Store.open(str(path)) as store:
            store.save(saving.make_record())
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        for location in (path, disk / "new.sqlite"):
            with pytest.raises(StoreError, match=f"The store {location} is full"):
                Store.open(str(location))
        filler.unlink()
        with Store.open(str(path)) as store:
            store.check()
            assert len(store.records()) == 1


def test_a_read_only_disk_can_be_read_and_refuses_to_be_written(tmp_path, saving):
    with mounted(tmp_path / "disk") as disk:
        path = disk / "results.sqlite"
        with Store.open(str(path)) as store:
            store.save(saving.make_record())
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(StoreError, match=f"{path} cannot be (written|opened).*--store"):
            Store.open(str(path))
        with pytest.raises(StoreError, match=r"Read-only file system|cannot be opened"):
            Store.open(str(disk / "new" / "results.sqlite"))
        with Store.open(str(path), must_exist=True, read_only=True) as store:
            assert len(store.records()) == 1


def test_a_folder_without_permission(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o500)
    user = os.geteuid()
    try:
        if user == 0:  # root may write everywhere
            os.seteuid(65534)
        with pytest.raises(StoreError, match=r"(Permission denied|cannot be opened).*--store"):
            Store.open(str(folder / "results.sqlite"))
    finally:
        os.seteuid(user)


def test_a_store_opened_for_reading_is_not_written(path, saving):
    Store.open(str(path)).close()
    before = path.read_bytes()
    with Store.open(str(path), read_only=True) as store:
        with pytest.raises(StoreError, match="cannot be written"):
            store.save(saving.make_record())
        assert store.records() == []
    assert path.read_bytes() == before


@pytest.mark.parametrize("options", [{"must_exist": True}, {"read_only": True}])
def test_reading_makes_no_store(tmp_path, options):
    path = tmp_path / "folder" / "results.sqlite"
    with pytest.raises(StoreError, match=f"no store at {path}.*cubemesh run"):
        Store.open(str(path), **options)
    assert not path.parent.exists()


def test_a_file_where_a_folder_would_have_to_be(tmp_path):
    (tmp_path / "file").write_text("x")
    blocked = rf"{re.escape(str(tmp_path / 'file'))}(?!/)"
    with pytest.raises(StoreError, match=blocked):
        Store.open(str(tmp_path / "file" / "deep" / "results.sqlite"))
    with pytest.raises(StoreError, match=blocked):
        Store.open(str(tmp_path / "file" / "results.sqlite"))


def test_a_folder_where_a_file_would_have_to_be(tmp_path):
    with pytest.raises(StoreError, match=re.escape(str(tmp_path / "results.sqlite"))):
        Store.open(str(tmp_path))


def test_a_file_that_is_no_database(path):
    path.write_text("time,throughput\n" * 100)
    for read_only in (False, True):
        with pytest.raises(StoreError, match=f"{path} is not a database"):
            Store.open(str(path), read_only=read_only)
    assert path.read_text().startswith("time,")


def test_a_damaged_store(path, saving):
    with Store.open(str(path)) as store:
        for number in range(40):
            store.save(saving.make_record(number), [saving.make_series()])
    content = bytearray(path.read_bytes())
    pages = len(content) // 4096
    for page in range(pages // 2, pages, 2):  # the first ones hold the schema
        content[page * 4096 : page * 4096 + 2048] = b"\xa5" * 2048
    path.write_bytes(bytes(content))
    with Store.open(str(path)) as store, pytest.raises(StoreError, match="is damaged"):
        store.check()


def test_a_store_that_another_process_holds(path, saving):
    Store.open(str(path)).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(BusyError, match=re.escape(str(path))) as raised:
        Store.open(str(path), busy_timeout_s=0.1)
    assert raised.value.exit_code == 75
    with Store.open(str(path), read_only=True) as reader:
        assert reader.records() == []
    other.execute("ROLLBACK")
    other.close()
    with Store.open(str(path)) as store:
        store.save(saving.make_record())


def test_a_locked_new_store_does_not_wait_for_ever(path):
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(BusyError, match="locked"):
        Store.open(str(path), busy_timeout_s=0.1)
    other.close()


def test_a_server_without_its_driver_says_what_to_install():
    pytest.importorskip("sqlalchemy")
    try:
        import psycopg2  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(UsageError, match=r"cubemesh\[postgresql\]") as raised:
            Store.open("postgresql+psycopg2://user:secret@host/database")
        assert "secret" not in str(raised.value)
    else:
        pytest.skip("psycopg2 is installed here")


def test_an_unknown_kind_of_database_is_wrong_use():
    with pytest.raises(UsageError, match="needs a driver"):
        Store.open("oracel://host/database")


def test_a_violated_constraint_is_a_bug_and_stays_one():
    with pytest.raises(IntegrityError), explained(locate("x.sqlite")):
        raise IntegrityError("insert", {}, sqlite3.IntegrityError("UNIQUE"))


def test_what_no_one_foresaw_is_passed_on_in_its_own_words(store):
    with pytest.raises(StoreError, match="nowhere"), store._database.read() as c:
        c.exec_driver_sql("select * from nowhere")


def test_a_process_stopped_in_a_writing_transaction_keeps_no_other_from_writing(
    server, monkeypatch, saving
):
    monkeypatch.setattr("cubemesh.store.engine.IDLE_TRANSACTION_S", 0.5)
    with Store.open(server.url) as stopped, Store.open(server.url) as other:
        writing = stopped._database.engine.execution_options(writes=True)
        with writing.connect() as connection:
            connection.begin()
            connection.exec_driver_sql("LOCK TABLE records IN EXCLUSIVE MODE")
            other.save(saving.make_record(0))  # without a limit it would wait forever
            with pytest.raises(DBAPIError, match="idle-in-transaction timeout") as ended:
                connection.exec_driver_sql("SELECT 1")
            assert ended.value.connection_invalidated, "so a commit is tried again"
        assert [r.run_id for r in stopped.records()] == [saving.make_record(0).run_id]
