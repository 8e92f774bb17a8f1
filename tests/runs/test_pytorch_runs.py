"""Runs of PyTorch: a measured step, out of memory, a stored trace."""

import json
from pathlib import Path

import pytest

from cubemesh.exports.record_json import record_json
from cubemesh.runs import Executor
from cubemesh.schema import Status
from cubemesh.store import Store

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def measured(tmp_path_factory, small_machine, null_spec):
    """The records of all runs below, of one executor: PyTorch is imported once."""
    folder = tmp_path_factory.mktemp("pytorch")
    quick = {"framework": "pytorch", "steps": 4, "windows": 2}
    specs = {
        "good": null_spec(**quick),
        "refused": null_spec(**quick, batch_per_device=1024, memory_limit_bytes=300 << 20),
        "wild": null_spec(**quick, learning_rate=1e30),
        "traced": null_spec(**quick, image_size=8, trace=True, attribution=True),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))  # no other runner's lock is in the way
        with (
            Store.open(str(folder / "mine.sqlite")) as store,
            Executor(store, machine=small_machine, runs_folder=folder / "runs") as executor,
        ):
            found = dict(zip(specs, executor.run(list(specs.values())), strict=True))
            found["stored"] = store.record(found["traced"].run_id)
    return found | {"folder": folder}


def test_a_step_is_measured(measured):
    good = measured["good"]
    assert good.ok, good.outcome
    assert good.figure("throughput_per_s") > 0
    assert 9e6 < good.figure("peak_memory_bytes") < 300 << 20
    weights = good.figure("memory_weights_bytes")
    assert weights == good.figure("memory_optimizer_bytes")  # momentum
    assert 2 * weights < good.figure("forecast_memory_bytes") < 300 << 20
    assert good.ranks[0].device.startswith(("cpu", "cuda"))
    assert good.figure("model_flops_per_s") > 0
    assert good.figure("ceiling_mfu_percent") is None, "no ceiling was measured before"


def test_memory_over_the_limit_is_an_outcome(measured):
    if measured["good"].ranks[0].device != "cpu":
        pytest.skip("the limit is of the host's memory")
    outcome = measured["refused"].outcome
    assert (outcome.status, outcome.origin) == (Status.OOM, "worker")
    assert outcome.facts["forecast_bytes"] > 300 << 20
    assert 1 <= outcome.facts["largest_batch_that_fits"] < 1024


def test_a_loss_that_is_nan_is_an_outcome(measured):
    assert measured["wild"].outcome.status is Status.DIVERGED


def test_a_trace_is_stored_as_a_file(measured):
    record = measured["traced"]
    assert record.ok, record.outcome
    assert measured["stored"].artifacts == record.artifacts
    trace = Path(record.artifacts["trace"])
    assert trace == measured["folder"] / "mine-files" / record.run_id / "trace.json"
    assert json.loads(trace.read_text())["traceEvents"]
    document = record_json(record)
    parts = document["attribution_s"]
    assert sum(parts.values()) == pytest.approx(document["step_s"]["mean"], rel=1e-6)
    assert {b["name"] for b in document["breakdowns"]} >= {"category", "layer"}
