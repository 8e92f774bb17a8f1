"""The package as Python sees it: its names, how light it is, and values in and out."""

import inspect
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import cubemesh
from cubemesh.api.arguments import setting_lines, value_text
from cubemesh.errors import StoreWarning, UsageError
from cubemesh.runs import Silent
from cubemesh.schema import RunSpec
from cubemesh.store import Store

pytestmark = pytest.mark.usefixtures("forked_servers")

FUNCTIONS = [
    name for name in cubemesh.__all__ if name not in ("__version__", "Collector", "Plan", "measure")
]
VERBS = ("probe", "run", "train", "tune", "compare", "collectives", "predict", "results", "report")
NULL = {"framework": "null", "ceiling": False}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_name_is_a_documented_function(name: str) -> None:
    function = getattr(cubemesh, name)
    assert inspect.isfunction(function)
    assert inspect.getdoc(function)
    assert function is getattr(cubemesh, name), "looked up once"


def test_the_names_are_listed_and_others_are_not() -> None:
    assert set(VERBS) <= set(dir(cubemesh))
    with pytest.raises(AttributeError):
        _ = cubemesh.frobnicate


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys, cubemesh\n"
        "print(cubemesh.__version__, dir(cubemesh))\n"
        "sys.exit(','.join(m for m in sys.modules if m.startswith('cubemesh.')) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "none"), (True, "true"), ([1, 2], "1,2"), (("a",), "a"), (0.5, "0.5"), ("x", "x")],
)
def test_values_as_they_are_typed(value, text) -> None:
    assert value_text(value) == text


def test_settings_are_a_mapping_or_lines() -> None:
    assert setting_lines({"networks": ["a", "b"]}) == ["networks=a,b"]
    assert setting_lines(["networks=a"]) == ["networks=a"]


def test_a_store_that_is_locked_at_the_end_is_to_be_tried_again(tmp_path: Path) -> None:
    """The lock of another connection is taken when the run has begun."""
    path = tmp_path / "s.sqlite"

    class Locking(Silent):
        def start(self, spec: RunSpec) -> None:
            other.execute("BEGIN IMMEDIATE")

    with (
        Store.open(str(path), busy_timeout_s=0.1) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        settings = {"settings": NULL, "batch_sizes": [8], "quick": True, "store": store}
        with pytest.warns(StoreWarning, match="--recover"):
            locked = cubemesh.run("minibatch", observer=Locking(), **settings)
        assert locked.ok
        assert locked.exit_code == 75
        assert store.records() == []
        other.execute("ROLLBACK")
        with pytest.warns(StoreWarning, match="from the spool"):
            again = cubemesh.run("minibatch", **settings)
        assert again.exit_code == 0
        assert again.records == locked.records
        assert tuple(store.records()) == locked.records


def test_run_takes_an_open_store_and_leaves_it_open(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "s.sqlite")) as store:
        found = cubemesh.run("minibatch", batch_sizes=[8], settings=NULL, quick=True, store=store)
        assert found.ok
        assert [r.run_id for r in store.records()] == [r.run_id for r in found.records]
        assert found.answer.experiment == "minibatch"
        assert "ok=True" in repr(found)


def test_a_crash_is_not_ok_and_is_a_value(tmp_path: Path) -> None:
    settings = {**NULL, "script": "segfault@5"}
    found = cubemesh.run("minibatch", batch_sizes=[8], settings=settings, store=tmp_path / "s.db")
    assert not found.ok
    assert [r.outcome.status.value for r in found.records] == ["crashed"]


def test_fail_below_is_a_gate(tmp_path: Path) -> None:
    found = cubemesh.run(
        "minibatch",
        batch_sizes=[8],
        settings={**NULL, "script": "step=0.01,jitter=0.02", "forward": False},
        against={"script": "step=0.0106,jitter=0.02"},
        fail_below=0.99,
        quick=True,
        store=tmp_path / "s.db",
    )
    assert found.gate is not None
    assert found.gate.exit_code == 99


@pytest.mark.parametrize(
    "arguments",
    [
        {"quick": True, "full": True},
        {"fail_below": 0.9},
        {"colour": "red"},
        {"batch_sizes": [0]},
        {"networks": ["resnet-5O"]},
    ],
)
def test_wrong_arguments_are_usage_errors_before_anything_runs(arguments, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        cubemesh.run("minibatch", store=tmp_path / "s.db", **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"devices": [0]},
        {"devices": [16]},
        {"measured": {1: 0.0}},
        {"precision": "fp23"},
        {"mode": "week"},
        {"sync": "all-reduc"},
        {"what_if": {"speed": 2}},
    ],
)
def test_predict_refuses_impossible_values(arguments) -> None:
    with pytest.raises(UsageError):
        cubemesh.predict("resnet-50", "dgx1-p100", **arguments)


def test_predict_returns_points_with_memory_and_power() -> None:
    found = cubemesh.predict("resnet-50", "dgx1-p100", devices=[1, 8], measured={1: 219})
    assert [one.point.devices for one in found.points] == [1, 8]
    assert found.points[0].point.samples_per_s == pytest.approx(219)
    assert found.points[0].fits
    assert found.points[1].power_watts == pytest.approx(8 * 300, rel=0.3)
    assert len(repr(found).splitlines()) == 3
    changed = cubemesh.predict("resnet-50", "dgx1-p100", devices=[8], what_if={"straggler": 1.5})
    assert changed.points[0].point.samples_per_s < changed.before[0].point.samples_per_s


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two devices on a CPU are two cores")
def test_collectives_return_rows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = cubemesh.collectives(
        "all_reduce_perf",
        min_bytes=1024,
        max_bytes=2048,
        iterations=2,
        warmup_iterations=1,
        device="cpu",
        store=tmp_path / "s.db",
    )
    assert found.ok
    assert {row["operation"] for row in found.rows} == {"all-reduce"}
    assert {row["size"] for row in found.rows} == {1024, 2048}
    assert {row["devices"] for row in found.rows} == {2}
    assert {"all-reduce", "2"} <= set(repr(found).split())


def test_topology_of_a_described_system() -> None:
    found = cubemesh.topology("dgx1-v100", gpus=range(4))
    assert len(found.topology.gpus) == 4
    assert len(found.analysis.rings.rings) == 4
    with pytest.raises(UsageError):
        cubemesh.topology("knl-7250", gpus=[0])


def test_networks_and_experiments_are_listed() -> None:
    names = {network.name for network in cubemesh.list_networks()}
    assert {"resnet-50", "little-cnn"} <= names
    found = cubemesh.network_layers("little-cnn")
    assert sum(row.parameters for row in found.layers) == found.summary.parameters
    catalogue = cubemesh.list_experiments()
    assert "null" in {framework.name for framework in catalogue.frameworks}
    for experiment in catalogue.experiments:
        settings = cubemesh.experiment_settings(experiment.name)
        assert all(s.means for s in (*settings.settings, *settings.fields)), experiment.name


def test_published_figures_are_filtered() -> None:
    found = cubemesh.published_figures("vgg19", device="v100", limit=3)
    assert len(found.figures) == min(3, found.matching)
    assert all("V100" in figure.device for figure, _ in found.figures)
    with pytest.raises(UsageError):
        cubemesh.published_figures("vgg19", device="abacus")


def test_launch_writes_a_script() -> None:
    job = cubemesh.launch(["run", "quick"], dry_run=True, gpus_per_node=8)
    assert job.job is None
    assert "#SBATCH --gpus-per-node=8" in job.script
