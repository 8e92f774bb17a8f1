"""`cubemesh.measure`: a step in the caller's own process, alone and by turns."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

import cubemesh
from cubemesh.errors import UsageError
from cubemesh.schema import OwnStep
from cubemesh.schema.comparison import Difference
from cubemesh.store import Store

pytestmark = pytest.mark.usefixtures("forked_servers")

SHORT = {"seconds": 0.0, "windows": 6, "warmup_seconds": 0.0}


def make(work: int = 2000):
    """A step, and its calls so far."""
    calls = itertools.count()

    def step() -> int:
        sum(range(work))
        return next(calls)

    return step, calls


def test_the_package_can_be_called_and_has_its_files() -> None:
    import cubemesh.measure.timing.timer as timer

    assert cubemesh.measure is sys.modules["cubemesh.measure"]
    assert cubemesh.measure.timing.timer is timer
    assert "measure" in dir(cubemesh)


def test_a_step_is_measured_and_printed() -> None:
    step, calls = make()
    found = cubemesh.measure(step, samples=4, steps=12, **SHORT)
    record = found.record
    assert next(calls) == sum(w.steps for w in record.windows)
    assert sum(w.steps for w in record.measured) >= 12
    assert all(w.samples == 4 * w.steps for w in record.measured)
    seconds = sum(w.elapsed_s for w in record.measured)
    assert found.throughput.value == pytest.approx(
        sum(w.samples for w in record.measured) / seconds
    )
    assert (found.throughput.low, found.throughput.high) != (None, None)
    assert {phase.name for phase in record.phases} == {"warm-up", "measure"}
    assert record.ranks[0].device == "cpu"
    assert record.spec.work == OwnStep(step="test_own_step.py:step", samples=4, by="caller")
    lines = repr(found).splitlines()
    assert "samples/s" in lines[0]
    assert "a step (median of" in lines[1]
    assert [line[0] for line in lines if line.startswith("!")] == ["!"] * len(found.warnings)


def test_steps_of_one_sample_are_steps_per_second() -> None:
    found = cubemesh.measure(make()[0], samples=np.int64(1), name="training", **SHORT)
    assert repr(found).startswith("training: ")
    assert "steps/s" in repr(found)


def test_a_short_measurement_says_what_it_lacks() -> None:
    found = cubemesh.measure(make()[0], steps=2, seconds=0, windows=2, warmup_seconds=0)
    assert found.throughput.low is None
    assert "few-windows" in {w.code for w in found.warnings}
    assert "! few-windows: 2 windows" in repr(found)


def test_a_measurement_is_stored_and_measured_again(tmp_path: Path) -> None:
    step, _ = make()
    path = tmp_path / "results.sqlite"
    first = cubemesh.measure(step, samples=4, store=path, **SHORT)
    second = cubemesh.measure(step, samples=4, store=path, **SHORT)
    assert first.stored
    assert second.record.attempt == 2
    with Store.open(str(path), must_exist=True) as store:
        records = store.records()
        assert records == [first.record, second.record]
        assert "resident_bytes" in {s.name for s in store.series(first.record.run_id)}
        assert store.machine(first.record.key.machine_id) is not None
    compared = cubemesh.compare(first.record.run_id, second.record.run_id, store=path)
    assert compared.ratio.value == pytest.approx(second.throughput.value / first.throughput.value)
    assert "test_own_step.py:step" in repr(compared.answer.tables)
    assert first.record.key.data_id, "the digest of the file of the step"
    assert len({r.spec.workload_id for r in records}) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"step": 3}, "must be a function"),
        ({"samples": 0}, "samples=0"),
        ({"samples": 1.5}, "samples=1.5"),
        ({"windows": 0}, "windows=0"),
        ({"target_ci": 0}, "target_ci=0"),
    ],
)
def test_invalid_arguments_are_refused(arguments, words) -> None:
    with pytest.raises(UsageError, match=words):
        cubemesh.measure(**{"step": make()[0], **arguments})


def test_what_a_step_raises_is_raised() -> None:
    def step() -> None:
        raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        cubemesh.measure(step, **SHORT)


def test_batches_that_end_are_named() -> None:
    batches = iter(range(5))
    with pytest.raises(UsageError, match=r"batches of the step ended .*itertools\.cycle"):
        cubemesh.measure(lambda: next(batches), **SHORT)


def test_ranks_of_torch_distributed_agree(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        found = cubemesh.measure(make()[0], **SHORT)
    finally:
        torch.distributed.destroy_process_group()
    assert found.record.spec.program.framework == "pytorch"
    assert len(found.record.measured) >= 6


def test_two_steps_alternate() -> None:
    order: list[str] = []

    def step_of(name: str):
        def step() -> None:
            order.append(name)
            sum(range(50_000))

        return step

    found = cubemesh.measure_interleaved({"a": step_of("a"), "b": step_of("b")}, samples=8, **SHORT)
    turns = [name for name, _ in itertools.groupby(order)]
    assert len(turns) > 2 * 6
    assert found.names == ("a", "b")
    assert found.ratio.verdict is Difference.NOT_ENOUGH_DATA, "one instance of each"
    assert "lists of four or more" in repr(found)
    lines = repr(found).splitlines()
    assert lines[0].startswith("a  ")
    assert "samples/s" in lines[1]
    assert lines[2].startswith("b / a  ")


def test_instances_of_two_steps_have_a_verdict() -> None:
    def light() -> int:
        return sum(range(2_000))

    def heavy() -> int:
        return sum(range(200_000))

    found = cubemesh.measure_interleaved({"light": [light] * 2, "heavy": [heavy] * 2}, **SHORT)
    assert found.ratio.n == 2
    assert found.ratio.value < 1
    assert found.ratio.low is not None
    assert found.throughputs[0].value > found.throughputs[1].value


@pytest.mark.parametrize(
    "steps", [{}, {"a": make()[0]}, {"a": [], "b": []}, {"a": make()[0], "b": [make()[0]] * 2}]
)
def test_two_sides_with_as_many_instances_are_needed(steps) -> None:
    with pytest.raises(UsageError, match="compares two steps"):
        cubemesh.measure_interleaved(steps)
