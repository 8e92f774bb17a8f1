"""A collective between two devices, as a run: what is recorded, and what cannot be done."""

import os

import pytest

from cubemesh.runs import Executor
from cubemesh.schema import Budget, Collective, Placement, RunSpec, Status
from cubemesh.schema.collective import COLLECTIVES
from cubemesh.store import Store

pytest.importorskip("torch")

SIZES = (64, 1 << 16)


def spec(device="cpu", **work):
    return RunSpec(
        work=Collective(**{"sizes_bytes": SIZES, "warmup_iterations": 1, **work}),
        placement=Placement(device=device, devices=2),
        budget=Budget(steps=2, windows=2, seconds=600.0),
    )


def run(folder, small_machine, specs):
    with (
        Store.open(str(folder / "results.db")) as store,
        Executor(store, machine=small_machine, runs_folder=folder / "runs") as executor,
    ):
        records = executor.run(specs)
        assert [store.record(r.run_id) for r in records] == records, "what is stored is all of it"
    return records


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two devices on a CPU are two cores")
def test_two_ranks_are_recorded_with_their_sweep(tmp_path, small_machine):
    specs = [spec(collective="send-receive"), spec(sizes_bytes=(1 << 45,))]
    record, large = run(tmp_path, small_machine, specs)
    assert record.ok, record.outcome
    assert record.library == "gloo"
    assert [r.device for r in record.ranks] == ["cpu", "cpu"]
    assert [(p.size_bytes, p.pair) for p in record.sweep] == [
        *((size, None) for size in SIZES),
        *((SIZES[1], pair) for pair in ((0, 1), (1, 0))),
    ]
    assert [p.wrong for p in record.sweep] == [0] * len(record.sweep)
    assert [len(p.seconds) for p in record.sweep] == [2] * len(record.sweep)
    assert min(p.time_s for p in record.sweep) > 0
    assert record.figure("bus_bytes_per_s") > 0
    assert record.figure("wrong_elements") == 0
    assert "step_s" not in record.figures
    assert not [w for w in record.warnings if w.code == "wrong-results"]
    assert large.outcome.status is Status.OOM
    assert "128 TiB" in large.outcome.message


@pytest.mark.gpu
@pytest.mark.parametrize("name", COLLECTIVES)
def test_two_gpus_exchange_and_every_element_is_right(tmp_path, small_machine, name):
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip(f"this machine has {torch.cuda.device_count()} GPUs, two are needed")
    (record,) = run(tmp_path, small_machine, [spec(device="cuda", collective=name)])
    assert record.ok, record.outcome
    assert record.library.startswith("nccl ")
    assert record.figure("wrong_elements") == 0
