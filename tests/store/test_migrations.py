"""Migration of older stores: of version 1, before fields were renamed, and of version 2, before
runs were listed from columns."""

import os
import signal
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, inspect, text

from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.experiments.runner import stored_result
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.schedules import Schedules
from cubemesh.jobs.values import Question, Wants
from cubemesh.store import ExperimentRun, Store, versions
from cubemesh.store.migrations import MIGRATIONS
from cubemesh.store.migrations.list_tables import add_list_tables
from cubemesh.store.migrations.renamed_fields import SETTINGS, _settings, rename_fields
from forks import Forked

VERSION_1 = Path(__file__).with_name("version_1.sql")
"""Two experiment runs with four records: one alternating, one on two devices, one with warnings and
a tuning."""


@pytest.fixture
def old(path):
    with sqlite3.connect(path) as plain:
        plain.executescript(VERSION_1.read_text())
    return path


def version(path) -> int:
    with sqlite3.connect(path) as plain:
        return plain.execute("select version from cubemesh_store").fetchone()[0]


@pytest.mark.parametrize("read_only", [False, True])
def test_records_of_version_1_are_rewritten(old, read_only):
    with Store.open(str(old), read_only=read_only) as store:
        alternating, one, two, tuned = store.records()
        series = store.series(alternating.run_id)
    assert alternating.spec.budget.target_ci == 0.5
    assert alternating.spec.budget.heartbeat_timeout_s == 20
    assert alternating.spec.budget.max_seconds == 0.3
    assert alternating.spec.against.program.data_location == "device"
    assert [r.spec.program.sync for r in (one, two)] == ["none", "all-reduce"]
    assert two.spec.placement.oversubscribe
    assert (tuned.spec.program.decode_location, tuned.spec.program.cache_decoded) == (
        "device",
        True,
    )
    assert tuned.spec.tuned.experiment_run_id == "1627f9dd99ee"
    assert tuned.spec.tuned.settings == ("sync=all-reduce", "data_location=device")
    assert [w.code for w in tuned.warnings] == [
        "images-skipped",
        "precision-mismatch",
        "tuned-for-other-batch-size",
        "oversubscribed",
        "low-host-memory",
    ]
    assert {s.name for s in series} == set(alternating.series)


def test_ids_are_computed_again_where_they_stand(old):
    with Store.open(str(old)) as store:
        records = store.records()
        assert all(store.find(r.key) is not None for r in records)
    assert all(r.key.spec_id == r.spec.spec_id for r in records)
    with sqlite3.connect(old) as plain:
        columns = plain.execute("select spec_id, workload_id from records order by sequence")
        assert columns.fetchall() == [(r.key.spec_id, r.spec.workload_id) for r in records]


def test_experiment_runs_of_version_1_are_answered(old):
    with Store.open(str(old)) as store:
        batch_sizes, scaling = store.experiment_runs()
        for run in (batch_sizes, scaling):
            answered = stored_result(EXPERIMENTS[run.experiment], run, store)
            assert answered.answer.findings
            assert answered.answer.simulated
    assert batch_sizes.settings["batch_sizes"] == [8]
    assert batch_sizes.settings["data_location"] == "device"
    assert batch_sizes.overrides["target_ci"] == 0.5
    assert batch_sizes.started_utc == "2026-11-22T18:03:56+00:00"
    assert scaling.overrides["oversubscribe"] is True


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def renamed_then_killed(connection: Connection) -> None:
    rename_fields(connection)
    die()


def listed_then_killed(connection: Connection) -> None:
    add_list_tables(connection)
    die()


def killed_while_linking(path: str) -> None:
    """Kill the migration when the tables for lists hold all runs, before the experiment runs."""
    versions.link_experiment_run = die
    Store.open(path)


KILLED = {
    "renaming": lambda path: Store.open(path, migrations=(renamed_then_killed,)),
    "listing": lambda path: Store.open(path, migrations=(rename_fields, listed_then_killed)),
    "linking": killed_while_linking,
}


@pytest.mark.parametrize("moment", KILLED)
def test_a_migration_that_is_killed_changes_nothing(old, moment):
    with sqlite3.connect(old) as plain:
        before = list(plain.iterdump())
    assert Forked(KILLED[moment], str(old)).wait() == -signal.SIGKILL
    assert version(old) == 1
    with sqlite3.connect(old) as plain:
        assert list(plain.iterdump()) == before
    with Store.open(str(old)) as store:
        store.check()
        assert len(store.records()) == 4
        assert len(store.list_runs().rows) == 4
    assert version(old) == len(MIGRATIONS) + 1


def test_runs_of_older_stores_are_listed_as_if_saved_now(old, tmp_path):
    with Store.open(str(old)) as store, Store.open(str(tmp_path / "new.sqlite")) as new:
        for record in store.records():
            new.save(record)
        for run in store.experiment_runs():
            new.save_experiment_run(run)
        for machine in store.machines():
            new.save_machine(machine)
        migrated, saved = list(store.each_run()), list(new.each_run())
        ids = [row.run_id for row in migrated]
        assert any(row.experiment for row in migrated)
        assert migrated == saved
        assert store.figures(ids) == new.figures(ids)
        assert {name for one in store.figures(ids).values() for name in one}


def as_version_2(location: str) -> None:
    """Take from a store what version 3 added."""
    engine = create_engine(location if "://" in location else f"sqlite:///{location}")
    with engine.begin() as connection:
        for table in ("runs", "figures", "run_experiments", "artifacts"):
            connection.execute(text(f"drop table {table}"))
        connection.execute(text("update cubemesh_store set version = 2"))
    engine.dispose()


def test_version_2_is_migrated_and_a_kill_in_the_middle_loses_nothing(location, saving):
    with Store.open(location) as store:
        for number in range(5):
            store.save(saving.make_record(number))
        records, rows = store.records(), list(store.each_run())
        run = ExperimentRun(
            experiment_run_id="e",
            experiment="minibatch",
            machine_id="m1",
            started_utc="2026-01-01T00:00:00+00:00",
            run_ids=(rows[0].run_id,),
        )
        store.save_experiment_run(run)
        rows = list(store.each_run())
    as_version_2(location)
    assert Forked(KILLED["linking"], location).wait() == -signal.SIGKILL
    engine = create_engine(location if "://" in location else f"sqlite:///{location}")
    assert "runs" not in inspect(engine).get_table_names()
    engine.dispose()
    with Store.open(location, read_only=True) as store:
        assert store.records() == records
        assert list(store.each_run()) == rows
        assert rows[0].experiment == "minibatch"


def test_a_damaged_record_does_not_stop_the_migration(old):
    with sqlite3.connect(old) as plain:
        plain.execute("update records set record = 'torn' where sequence = 2")
    with Store.open(str(old)) as store:
        assert len(list(store.each_run())) == 3
        assert len(store.records()) == 3
        assert [one.what for one in store.damage] == ["run"]


@pytest.mark.parametrize(
    ("experiment", "old_settings", "new_settings"),
    [
        ("tune", {"batch_per_device": 64, "batches": []}, {"batch_sizes": [64]}),
        ("tune", {"batch_per_device": 64, "batches": [32, 64]}, {"batch_sizes": [64, 32]}),
        (
            "batch-accuracy",
            {"learning_rate": 0.1, "learning_rates": []},
            {"learning_rates": [0.1]},
        ),
        (
            "batch-accuracy",
            {"learning_rate": 0.1, "learning_rates": [0.2]},
            {"learning_rates": [0.2]},
        ),
        ("frameworks", {"batch_per_device": None, "runs": 5}, {"batch_sizes": [], "steps": 5}),
        ("interconnect", {"alone": True, "links": []}, {"links": []}),
        ("model-size", {"data_on": "both"}, {"data_location": "both"}),
    ],
)
def test_settings_are_renamed(experiment, old_settings, new_settings):
    assert _settings(experiment, old_settings) == new_settings


def test_settings_are_renamed_to_those_that_exist():
    for name, names in SETTINGS.items():
        known = EXPERIMENTS[name].settings.__dataclass_fields__
        assert {new.removesuffix("[]") for new in names.values() if new} <= set(known)


def test_an_older_store_gets_the_tables_of_jobs_and_teams(old: Path) -> None:
    with Store.open(str(old)) as store:
        inspected = inspect(store.database.engine)
        assert {"jobs", "team_users", "team_audit_log"} <= set(inspected.get_table_names())
        assert "slurm" in {column["name"] for column in inspected.get_columns("jobs")}


def test_jobs_of_version_4_get_the_column_of_slurm(path: Path) -> None:
    with Store.open(str(path)):
        pass
    with sqlite3.connect(path) as plain:
        plain.execute("alter table jobs drop column slurm")
        plain.execute("drop table team_users")
        plain.execute("drop table team_audit_log")
        plain.execute("update cubemesh_store set version = 4")
    with Store.open(str(path)) as store:
        inspected = inspect(store.database.engine)
        assert "slurm" in {column["name"] for column in inspected.get_columns("jobs")}
        assert inspected.has_table("team_users")
    assert version(path) == len(MIGRATIONS) + 1


def test_schedules_of_version_7_can_be_paused(path: Path) -> None:
    with Store.open(str(path)) as store:
        made = Schedules(JobQueue(store.database)).add(
            Question(names=("minibatch",)), Wants(), at_s=0
        )
    with sqlite3.connect(path) as plain:
        plain.execute("alter table schedules drop column paused_s")
        plain.execute("update cubemesh_store set version = 7")
    with Store.open(str(path)) as store:
        paused = Schedules(JobQueue(store.database)).pause(made.schedule_id, who="ada")
    assert paused.paused_utc is not None
    assert version(path) == len(MIGRATIONS) + 1
