"""Two GPUs that train together: the step and the link of each rank."""

import dataclasses

import pytest

from cubemesh.machines import probe
from cubemesh.runs import Executor
from cubemesh.schema import Placement, ProgramSettings
from cubemesh.store import Store

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs"),
]


@pytest.fixture(scope="module")
def records(tmp_path_factory, null_spec):
    """A run over what NCCL takes by itself, and one over the host's memory."""
    folder = tmp_path_factory.mktemp("gpus")
    step = null_spec(framework="pytorch", network="resnet-18", batch_per_device=64, steps=40)
    step = dataclasses.replace(
        step,
        placement=Placement(device="cuda", devices=2),
        program=ProgramSettings(sync="all-reduce", data_location="device"),
        budget=dataclasses.replace(step.budget, attribution=True, warmup_seconds=10.0),
    )
    slow = dataclasses.replace(
        step, placement=dataclasses.replace(step.placement, link="shared-memory")
    )
    with (
        Store.open(str(folder / "results.db")) as store,
        Executor(store, machine=probe(), runs_folder=folder / "runs") as executor,
    ):
        return executor.run([step, slow])


def test_each_rank_separates_waits_from_compute(records):
    for record in records:
        assert record.ok, record.outcome
        assert len(record.rank_parts) == 2
        waited = [{part.name for part in parts} & {"straggler_wait"} for parts in record.rank_parts]
        assert any(waited), "one of two is the later"
        for parts in record.rank_parts:
            seconds = {part.name: part.seconds for part in parts}
            step_s = sum(seconds.values())
            assert seconds["compute"] > 0.3 * step_s
            assert seconds["exposed_communication"] >= 0
            assert seconds.get("straggler_wait", 0.0) >= 0, "the last rank does not wait"
            assert abs(seconds["unattributed"]) < 0.2 * step_s


def test_ranks_share_no_processor(records):
    for record in records:
        first, second = (set(rank.processors) for rank in record.ranks)
        assert bool(first) == bool(second)
        assert not first & second


def test_each_rank_logs_its_link(records):
    fast, slow = records
    assert {rank.transport for rank in slow.ranks} <= {"NCCL SHM/direct", "NCCL SHM/cuMem"}
    assert all(rank.transport.startswith("NCCL ") for rank in fast.ranks)
    assert not any(w.code == "faster-link-unused" for w in slow.warnings), "it was asked for"
