import dataclasses

import pytest

from cubemesh.measure.attribution.attribution import PARTS
from cubemesh.measure.attribution.bottlenecks import (
    largest_bottleneck,
    losses,
    over_ranks,
    step_parts,
)
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
    for ranks, name, share in (
        ((waiting, slow), "cpu_contention", 0.185),
        ((slow, waiting), "cpu_contention", 0.185),
        ((waiting, slow, waiting), "straggler_wait", 0.70 / 3),
    ):
        found = largest_bottleneck(record(*ranks))
        assert (found.name, found.share) == (name, pytest.approx(share))
        assert f"mean over {len(ranks)} ranks" in found.text
        rank = ranks.index(slow)
        assert f"rank {rank} is the slowest, by 35 ms of cpu contention" in found.text


def test_the_mean_over_the_ranks_adds_up_to_their_mean_step():
    ranks = [parts(compute=60, straggler_wait=w, host=40 - w) for w in (0, 10, 32)]
    found = step_parts(record(*ranks))
    assert [part.name for part in found] == ["compute", "straggler_wait", "host"]
    assert [1e3 * part.seconds for part in found] == pytest.approx([60, 14, 26])
    assert losses(record(*ranks))["straggler_wait"] == pytest.approx(0.14)
    assert step_parts(record(ranks[2])) == record(ranks[2]).parts
    assert step_parts(record(ranks[0], ())) == ranks[0], "the second rank was not attributed"
    assert over_ranks(record(*ranks)) == "mean over 3 ranks"
    assert over_ranks(record(ranks[0])) == over_ranks(record(ranks[0], ())) == ""


def test_parts_of_any_rank_that_exceed_the_step_give_no_verdict():
    good, bad = parts(compute=90, host=10), parts(compute=120, host=10, unattributed=-30)
    assert largest_bottleneck(record(good, bad)).name == ""
    assert "exceed the step by 30 %" in largest_bottleneck(record(good, bad)).text


def test_a_loss_of_all_ranks_is_no_slow_rank():
    ranks = [parts(compute=60, straggler_wait=wait, cpu_contention=40 - wait) for wait in (0, 3)]
    assert largest_bottleneck(record(*ranks)).name == "cpu_contention"


def test_losses_are_in_order():
    measured = parts(compute=60, launch_gaps=5, host=30, input_stall=5.5, unattributed=-0.5)
    assert list(losses(record(measured))) == ["host", "input_stall", "launch_gaps", "unattributed"]
