"""Files that a run names are kept beside the store, and named in its record."""

import json
from pathlib import Path

import pytest

from cubemesh.errors import StoreError
from cubemesh.results import Store
from cubemesh.runs import Executor
from cubemesh.views.plain import record_json


def test_a_trace_is_kept_beside_the_store(tmp_path, small_machine, null_spec):
    pytest.importorskip("torch")
    spec = null_spec(framework="pytorch", steps=4, windows=2, trace=True, attribution=True)
    with (
        Store.open(str(tmp_path / "mine.sqlite")) as store,
        Executor(store, machine=small_machine, runs_folder=tmp_path / "runs") as executor,
    ):
        (record,) = executor.run([spec])
        assert store.record(record.run_id).artifacts == record.artifacts
    assert record.ok, record.outcome
    trace = Path(record.artifacts["trace"])
    assert trace == tmp_path / "mine-files" / record.run_id / "trace.json"
    assert json.loads(trace.read_text())["traceEvents"]
    document = record_json(record)
    parts = document["attribution_s"]
    assert sum(parts.values()) == pytest.approx(document["step_s"]["mean"], rel=1e-6)
    assert {b["name"] for b in document["breakdowns"]} >= {"category", "layer"}


def test_a_file_that_cannot_be_kept_is_an_error_of_the_store(tmp_path):
    (tmp_path / "mine-files").write_text("in the way")
    file = tmp_path / "trace.json"
    file.write_text("{}")
    with (
        Store.open(str(tmp_path / "mine.sqlite")) as store,
        pytest.raises(StoreError, match="cannot be kept"),
    ):
        store.keep("abc", file)
