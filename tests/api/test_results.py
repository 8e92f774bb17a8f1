"""Stored runs as a table: rows, columns, slices, and pandas where it is installed."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cubemesh
from cubemesh.cli import app
from cubemesh.errors import StoreError, UsageError
from cubemesh.schema import Series
from cubemesh.store import Store

pytestmark = pytest.mark.usefixtures("forked_servers")

SCRIPT = "step=0.002,per_sample=0.0001,jitter=0.02"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("results")
    path = str(folder / "s.sqlite")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv("XDG_CACHE_HOME", str(folder))
        found = cubemesh.run(
            "minibatch",
            networks=["little-cnn"],
            batch_sizes=[8, 16],
            ceiling=False,
            settings={"framework": "null", "script": SCRIPT},
            quick=True,
            store=path,
        )
    assert found.ok
    return path


def test_a_row_for_each_run(store):
    table = cubemesh.results(store=store)
    assert len(table) == 2
    assert [row["batch_per_device"] for row in table] == [8, 16]
    assert {row["framework"] for row in table} == {"null"}
    assert {row["outcome"] for row in table} == {"ok"}
    assert all(tuple(row) == table.columns for row in table)
    assert table[0]["throughput_per_s"] == pytest.approx(8 / 0.0028, rel=0.05)
    assert table[0]["median_step_s"] == pytest.approx(0.0028, rel=0.05)
    assert table[1:].records == (table.records[1],)
    assert table.records[0].run_id in repr(table)


def test_filters(store):
    assert len(cubemesh.results(store=store, network="LittleCNN", framework="null")) == 2
    assert len(cubemesh.results(store=store, outcome="oom")) == 0
    assert cubemesh.results(store=store, outcome="oom").columns == ()
    assert [row["batch_per_device"] for row in cubemesh.results(store=store, limit=1)] == [16]


@pytest.mark.parametrize("filters", [{"network": "litle-cnn"}, {"framework": "pytorhc"}])
def test_unknown_names_are_usage_errors(store, filters):
    with pytest.raises(UsageError):
        cubemesh.results(store=store, **filters)


def test_a_record_by_its_prefix(store):
    (run_id, *_) = (row["run_id"] for row in cubemesh.results(store=store))
    assert cubemesh.record(run_id[:6], store=store).run_id == run_id
    with pytest.raises(UsageError):
        cubemesh.record("zzzz", store=store)


def test_the_telemetry_of_a_run(store, tmp_path):
    record = cubemesh.results(store=store).records[0]
    series = Series(name="gpu_power_watts", device="gpu", times_s=(0.0, 0.5), values=(90.0, 110.0))
    path = str(tmp_path / "s.sqlite")
    with Store.open(path) as opened:
        opened.save(record, [series])
    assert cubemesh.telemetry(record.run_id[:6], store=path) == [series]
    done = CliRunner().invoke(app, ["results", record.run_id, "--store", path])
    assert "90 W to 110 W" in done.stdout


def test_a_missing_store_is_a_store_error(tmp_path: Path):
    with pytest.raises(StoreError):
        cubemesh.results(store=tmp_path / "none.sqlite")


def test_pandas_reads_the_table(store):
    pandas = pytest.importorskip("pandas")
    table = cubemesh.results(store=store)
    for frame in (pandas.DataFrame(table), table.to_pandas()):
        assert list(frame.columns) == list(table.columns)
        assert frame["batch_per_device"].tolist() == [8, 16]


def test_without_pandas_to_pandas_names_it(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        cubemesh.results(store=store).to_pandas()
