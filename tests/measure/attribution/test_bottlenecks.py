import dataclasses

import pytest

from cubemesh.measure.attribution.attribution import PARTS
from cubemesh.measure.attribution.bottlenecks import largest_bottleneck, losses
from cubemesh.schema import Figure, Outcome, RunRecord, RunSpec, TrainSteps
from cubemesh.schema.outcome import Status
from cubemesh.schema.record import Part, RunKey

SPEC = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8))
RECORD = RunRecord(
    run_id="a",
    spec=SPEC,
    key=RunKey(spec_id="s", machine_id="m", software_id="w", code_version="c"),
    started_utc="2026-11-23T08:00:00Z",
    elapsed_s=1.0,
    outcome=Outcome(status=Status.OK),
)


def parts(**ms):
    return tuple(Part(name=name, seconds=v / 1e3, method="made up") for name, v in ms.items())


def record(*ranks, **figures):
    """A run with the parts of each rank."""
    return dataclasses.replace(
        RECORD,
        parts=ranks[0] if ranks else (),
        rank_parts=ranks if len(ranks) > 1 else (),
        figures={name: Figure(value=value, unit="%") for name, value in figures.items()},
    )


def test_the_largest_overhead_has_a_fraction_and_a_remedy():
    measured = parts(compute=6.9, launch_gaps=3.1, host=0.5, unattributed=-0.5)
    found = largest_bottleneck(record(measured))
    assert found.name == "launch_gaps"
    assert found.text.startswith("31 % ")
    assert found.text.endswith(" 8")
    assert "pytorch-compiled" in found.remedy
    assert found.share == pytest.approx(0.31)


def test_a_small_overhead_has_no_remedy():
    found = largest_bottleneck(record(parts(compute=99.6, host=0.2, unattributed=0.2)))
    assert (found.name, found.remedy) == ("", "")


def test_without_an_attribution_there_is_no_bottleneck():
    assert largest_bottleneck(record()) is None
    assert largest_bottleneck(record((), ())) is None


@pytest.mark.parametrize("name", [name for name in PARTS if name != "compute"])
def test_every_part_but_compute_has_a_remedy(name):
    assert largest_bottleneck(record(parts(compute=1, **{name: 9}))).remedy


def test_a_throttled_clock_costs_its_share_of_compute():
    measured = parts(compute=90, launch_gaps=10)
    found = largest_bottleneck(record(measured, clock_loss_percent=25.0))
    assert found.name == "throttled_clock"
    assert found.share == pytest.approx(0.225)
    assert found.remedy
    assert largest_bottleneck(record(measured, clock_loss_percent=5.0)).name == "launch_gaps"


def test_a_slow_rank_is_named_with_what_slows_it():
    waiting = parts(compute=60, straggler_wait=35, cpu_contention=1, host=4)
    slow = parts(compute=60, straggler_wait=0, cpu_contention=36, host=4)
    for ranks in ((waiting, slow), (slow, waiting), (waiting, slow, waiting)):
        found = largest_bottleneck(record(*ranks))
        assert found.name == "straggler_wait"
        assert found.share == pytest.approx(0.35)
        rank = ranks.index(slow)
        assert f"rank {rank} is the slowest, by 35 ms of cpu contention" in found.text


def test_a_loss_of_all_ranks_is_no_slow_rank():
    ranks = [parts(compute=60, straggler_wait=wait, cpu_contention=40 - wait) for wait in (0, 3)]
    assert largest_bottleneck(record(*ranks)).name == "cpu_contention"


def test_losses_are_in_order():
    measured = parts(compute=60, launch_gaps=5, host=30, input_stall=5.5, unattributed=-0.5)
    assert list(losses(record(measured))) == ["host", "input_stall", "launch_gaps", "unattributed"]
