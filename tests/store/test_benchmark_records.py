"""Stores in benchmarks/records: each is of the current version, and its answers can be computed."""

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
def test_stored_benchmarks_are_current_and_have_answers(stored, tmp_path):
    path = Path(shutil.copy(stored, tmp_path))
    with closing(sqlite3.connect(path)) as plain:
        versions = plain.execute("select version from cubemesh_store").fetchall()
    assert versions == [(len(MIGRATIONS) + 1,)]
    with Store.open(str(path), read_only=True) as store:
        store.check()
        records = {r.run_id: r for r in store.records()}
        assert all(r.key.spec_id == r.spec.spec_id for r in records.values())
        runs = store.experiment_runs()
        assert runs
        for run in runs:
            result = stored_result(EXPERIMENTS[run.experiment], run, store)
            assert result.answer.findings
            assert set(result.answer.run_ids) <= set(records)
            assert {r.run_id for r in result.records} == set(run.run_ids)
