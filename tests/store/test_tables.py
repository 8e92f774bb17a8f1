"""Versions of a store: an older one is upgraded, a newer one refused."""

import sqlite3

import pytest
from sqlalchemy import Connection, create_mock_engine, text

from cubemesh.errors import StoreError
from cubemesh.store import Store
from cubemesh.store.migrations import MIGRATIONS
from cubemesh.store.tables import metadata


def add_note(connection: Connection) -> None:
    connection.execute(text("alter table records add column note varchar(40)"))
    connection.execute(text("update records set note = 'batch ' || batch_per_device"))


def add_then_fail(connection: Connection) -> None:
    add_note(connection)
    raise RuntimeError("the power went out")


def version(path) -> int:
    with sqlite3.connect(path) as plain:
        return plain.execute("select version from cubemesh_store").fetchone()[0]


@pytest.fixture
def record(path, saving):
    """A record in a store of the present version."""
    one = saving.make_record(batch=16)
    with Store.open(str(path)) as store:
        store.save(one)
    return one


NEXT = (*MIGRATIONS, add_note)


@pytest.mark.parametrize("read_only", [False, True])
def test_an_older_store_is_upgraded_and_keeps_its_records(path, record, read_only):
    before = version(path)
    with Store.open(str(path), migrations=NEXT, read_only=read_only) as store:
        assert store.records() == [record]
        with store._database.read() as connection:
            assert connection.execute(text("select note from records")).scalar() == "batch 16"
    assert version(path) == before + 1
    Store.open(str(path), migrations=NEXT).close()
    assert version(path) == before + 1


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_store_is_refused_and_left_alone(path, record, read_only):
    Store.open(str(path), migrations=NEXT).close()
    newer = version(path)
    with pytest.raises(StoreError, match=f"schema version {newer}.*up to {newer - 1}.*Upgrade"):
        Store.open(str(path), read_only=read_only)
    assert version(path) == newer


def test_a_migration_that_fails_leaves_the_store_as_it_was(path, record):
    before = version(path)
    with pytest.raises(RuntimeError, match="power"):
        Store.open(str(path), migrations=(*MIGRATIONS, add_then_fail))
    assert version(path) == before
    with Store.open(str(path)) as store:
        assert store.records() == [record]
        with store._database.read() as connection:
            columns = connection.execute(text("select * from records")).keys()
        assert "note" not in columns


def test_a_new_store_has_the_latest_version(path):
    Store.open(str(path)).close()
    assert version(path) == len(MIGRATIONS) + 1


def test_tables_of_another_program_are_left_alone(path):
    with sqlite3.connect(path) as plain:
        plain.execute("create table photos (name text)")
    for read_only in (False, True):
        with pytest.raises(StoreError, match=r"\bphotos\b"):
            Store.open(str(path), read_only=read_only)
    with sqlite3.connect(path) as plain:
        assert plain.execute("select name from sqlite_master").fetchall() == [("photos",)]


def test_an_empty_file_becomes_a_store_but_cannot_be_read_as_one(path):
    path.touch()
    with pytest.raises(StoreError, match="not a cubemesh store"):
        Store.open(str(path), read_only=True)
    with Store.open(str(path)) as store:
        assert store.records() == []


def test_sqlite_is_set_up_to_keep_what_it_reports(store, path):
    with store._database.read() as connection:
        ask = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert ask == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 30_000,
    }


def test_the_tables_can_be_made_in_postgresql_too():
    statements = []
    engine = create_mock_engine(
        "postgresql://",
        lambda sql, *_, **__: statements.append(str(sql.compile(dialect=engine.dialect))),
    )
    metadata.create_all(engine, checkfirst=False)
    made = "\n".join(statements)
    assert made.count("CREATE TABLE") == len(metadata.tables) == 9
    assert "BYTEA" in made
    assert "SERIAL" in made
