"""A measured step of JAX in a worker, and memory that XLA is refused there."""

import dataclasses
import os

import pytest

from cubemesh.runs import Executor
from cubemesh.schema import Status
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.store import Store


def test_a_step_is_measured_and_memory_over_the_limit_is_an_outcome(
    tmp_path, small_machine, null_spec
):
    pytest.importorskip("jax")
    budget = {"framework": "jax", "steps": 4, "windows": 2}
    on_cpu = Placement(device="cpu")
    specs = [
        null_spec(**budget),
        null_spec(**budget, batch_per_device=2048, memory_limit_bytes=500 << 20),
    ]
    specs = [dataclasses.replace(spec, placement=on_cpu) for spec in specs]
    specs += [
        dataclasses.replace(
            specs[0],
            placement=Placement(device="cpu", devices=2, threads=1),
            program=ProgramSettings(framework="jax", sync="all-reduce"),
        )
    ]
    with (
        Store.open(str(tmp_path / "results.db")) as store,
        Executor(store, machine=small_machine, runs_folder=tmp_path / "runs") as executor,
    ):
        good, refused, several = executor.run(specs)
    assert good.ok, good.outcome
    assert good.figure("throughput_per_s") > 0
    assert good.figure("peak_memory_bytes") > 9e6
    assert good.ranks[0].device == "cpu"
    assert (refused.outcome.status, refused.outcome.origin) == (Status.OOM, "worker"), refused
    assert "RESOURCE_EXHAUSTED" in refused.outcome.facts["error"]
    assert refused.outcome.facts["forecast_bytes"] > 500 << 20
    if len(os.sched_getaffinity(0)) > 1:
        _check_several(several)


def _check_several(record):
    """One process drove both devices and is recorded so; a step is the global minibatch."""
    assert record.ok, record.outcome
    (rank,) = record.ranks
    assert (rank.device, rank.devices) == ("cpu", ("cpu:0", "cpu:1"))
    assert rank.threads == len(rank.processors) == 2
    assert {w.samples / w.steps for w in record.measured} == {2 * 8}
