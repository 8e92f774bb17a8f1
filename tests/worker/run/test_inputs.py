"""Memory for generated images, and their number in the record."""

from contextlib import closing
from types import SimpleNamespace

import pytest

from cubemesh.data.synthetic import open_synthetic
from cubemesh.schema import Budget, Placement, ProgramSettings, RunSpec, TrainSteps
from cubemesh.worker.run import inputs

SPEC = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8))


def test_an_eighth_of_the_memory_that_a_rank_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "available_bytes", lambda: 64 << 30)
    assert inputs.memory_for_generated(SPEC) == 8 << 30
    monkeypatch.setattr(inputs, "rank_from_env", lambda: SimpleNamespace(local_ranks=4))
    assert inputs.memory_for_generated(SPEC) == 2 << 30
    limited = RunSpec(work=SPEC.work, budget=Budget(memory_limit_bytes=1 << 30))
    assert inputs.memory_for_generated(limited) == 1 << 27


@pytest.mark.parametrize(
    ("sync", "parts", "batch"),
    [
        ("all-reduce", (0, 1, 2, 3), 8),
        ("model-parallel", (0, 0, 0, 0), 32),
        ("pipeline", (0, 0, 0, 0), 32),
        ("hybrid", (0, 0, 1, 1), 16),
        ("tensor-parallel", (0, 0, 0, 0), 32),
        ("context-parallel", (0, 0, 0, 0), 32),
    ],
)
def test_ranks_that_divide_the_network_have_the_same_samples(sync, parts, batch):
    spec = RunSpec(
        work=SPEC.work, placement=Placement(devices=4), program=ProgramSettings(sync=sync)
    )
    source = open_synthetic("train", (3, 4, 4), 10, 0, 64)
    for rank, part in enumerate(parts):
        group = SimpleNamespace(rank=rank, size=4)
        with closing(inputs.feed(spec, source, 1.0, group=group)) as fed:
            assert (fed.rank, fed.ranks) == (part, len(set(parts)))
            assert (fed.batch_per_device, fed.samples_per_step) == (batch, 8)


@pytest.mark.parametrize(("needed", "logged"), [(8, []), (1100, [1100])])
def test_another_number_than_the_usual_one_is_in_the_record(needed: int, logged: list) -> None:
    found = []
    log = SimpleNamespace(figure=lambda name, figure: found.append((name, figure.value)))
    inputs.log_generated(log, open_synthetic("train", (3, 4, 4), 10, 0, needed))  # type: ignore[arg-type]
    assert found == [("generated_samples", n) for n in logged]
