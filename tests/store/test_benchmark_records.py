"""Stores in benchmarks/records: each is migrated, and its answers can be computed."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.experiments.runner import stored_result
from cubemesh.store import Store
from cubemesh.store.migrations import MIGRATIONS

RECORDS = Path(__file__).parents[2] / "benchmarks" / "records"
STORES = sorted(RECORDS.glob("*.sqlite"))


@pytest.mark.parametrize("stored", STORES, ids=lambda path: path.stem)
def test_stored_benchmarks_are_migrated_and_have_answers(stored, tmp_path):
    path = Path(shutil.copy(stored, tmp_path))
    with closing(sqlite3.connect(path)) as plain:
        kept = {row[0] for row in plain.execute("select run_id from records")}
    with Store.open(str(path), read_only=True) as store:
        store.check()
        with closing(sqlite3.connect(path)) as plain:
            versions = plain.execute("select version from cubemesh_store").fetchall()
        assert versions == [(len(MIGRATIONS) + 1,)]
        records = {r.run_id: r for r in store.records()}
        assert set(records) == kept
        assert {row.run_id: row.outcome for row in store.each_run()} == {
            run_id: record.outcome.status for run_id, record in records.items()
        }
        figures = store.figures(list(records))
        assert all(
            own[name].value == record.figures[name].value
            for run_id, own in figures.items()
            for record in [records[run_id]]
            for name in own
        )
        assert all(r.key.spec_id == r.spec.spec_id for r in records.values())
        runs = store.experiment_runs()
        assert runs
        for run in runs:
            result = stored_result(EXPERIMENTS[run.experiment], run, store)
            assert result.answer.findings
            assert set(result.answer.run_ids) <= set(records)
            assert {r.run_id for r in result.records} == set(run.run_ids)
