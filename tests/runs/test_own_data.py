"""Data of a user: where their code may run, what a run of them stores, what broken ones are."""

from dataclasses import replace

import pytest

import cubemesh
from cubemesh.data import own
from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import apply
from cubemesh.experiments.session import resolve
from cubemesh.runs import Executor
from cubemesh.schema import Status
from cubemesh.schema.own_network import OwnData
from cubemesh.store import Store

CODE = """
import numpy as np
data = [(np.zeros((3, 8, 8)), {label})] * 20
"""
SETTINGS = {
    "framework": "null",
    "networks": "little-cnn",
    "image_size": 8,
    "batch_sizes": 4,
    "seconds": 0,
    "warmup_seconds": 0,
    "input_threads": 1,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with the file of a user."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # no other runner's lock is in the way
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE.format(label=3))
    return tmp_path


def test_a_run_is_stored_with_its_code_and_a_changed_file_is_another_run(folder):
    def measured():
        found = cubemesh.run("minibatch", data="mine.py:data", store="s.sqlite", **SETTINGS)
        return next(r for r in found.records if r.spec.batch_per_device)

    first, again = measured(), measured()
    assert first.ok, first.outcome
    assert first.spec.work.data == "mine.py:data"
    assert first.spec.work.own_data == OwnData(source=f"{folder}/mine.py:data", folder=str(folder))
    assert first.figures["input_wait_s"].value > 0
    assert again.run_id == first.run_id
    (folder / "mine.py").write_text(CODE.format(label=30))
    changed = measured()
    assert changed.key.data_id != first.key.data_id
    assert changed.spec.workload_id == first.spec.workload_id
    assert changed.outcome.status is Status.CRASHED
    assert "field 1 (label) has the value 30" in changed.outcome.message


def test_a_queue_and_a_page_name_no_code(folder):
    """Both resolve settings so; only `run`, `train` and `tune` say what the user named."""
    for experiment, lines in (
        ("minibatch", ["data=mine.py:data"]),
        ("train", ["data=package.module:train"]),
        ("input-pipeline", ["data=mine.py:data"]),
    ):
        with pytest.raises(UsageError, match="runs only where a command names it"):
            resolve([experiment], lines, None)


def test_a_spec_of_a_store_runs_no_code(tmp_path, small_machine, null_spec):
    data = OwnData(source="/folder/mine.py:data", folder="/folder")
    spec = null_spec()
    spec = replace(spec, work=replace(spec.work, data=data.name, own_data=data))
    with (
        Store.open(str(tmp_path / "s.sqlite")) as store,
        Executor(store, machine=small_machine) as executor,
    ):
        with pytest.raises(UsageError, match="runs only where a command names it"):
            executor.run([spec])
        other = replace(data, source="/other/mine.py:data")
        with own.named([other]), pytest.raises(UsageError, match="not what this command named"):
            executor.run([spec])
        assert store.records() == []


def test_a_spec_gets_the_code_of_the_data_that_it_names(null_spec):
    data = OwnData(source="/folder/mine.py:data", folder="/folder")
    spec = null_spec()
    with own.named([data]):
        found = apply(spec, {"data": "mine.py:data"})
        assert (found.work.data, found.work.own_data) == ("mine.py:data", data)
        assert apply(spec, {}) == spec


def test_two_data_sets_alternate_and_the_answer_names_them(folder):
    (folder / "other.py").write_text(CODE.format(label=4))
    settings = {k: v for k, v in SETTINGS.items() if k != "input_threads"}
    found = cubemesh.run(
        "minibatch",
        data="mine.py:data",
        against=["data=other.py:data"],
        store="s.sqlite",
        **settings,
    )
    titles = [table.title for table in found.answer.tables]
    assert any("B (data=other.py:data) compared with A (data=mine.py:data)" in t for t in titles)
