"""A sweep of a program whose operations take scripted time."""

import pytest

from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import OutOfMemory
from cubemesh.schema import Budget, Collective, Placement, RunSpec
from cubemesh.worker.report.outcomes import outcome_from_error
from cubemesh.worker.run.collectives import build, sweep
from in_memory_log import InMemoryLog

KIB = 1 << 10


class Three(SingleProcessGroup):
    """The first of three ranks."""

    size = 3


class Scripted:
    """Each call takes a nanosecond for each byte; every result has three wrong elements."""

    library, places = "scripted", (False, True)

    def __init__(self):
        self.now, self.calls = 0.0, []

    def lay_out(self, extent, in_place, pair=None):
        self.extent = extent
        self.calls.append(("lay out", extent.size_bytes, in_place, pair))

    def fill(self, repetition):
        self.calls.append(f"fill {repetition}")

    def call(self):
        self.now += self.extent.size_bytes * 1e-9
        self.calls.append("call")

    def synchronize(self):
        self.calls.append("wait")

    def barrier(self):
        self.calls.append("meet")

    def wrong(self, repetition):
        return 3

    def clock(self):
        return self.now


def spec(steps=2, windows=3, seconds=10.0, **work):
    return RunSpec(
        work=Collective(**work),
        placement=Placement(devices=3),
        budget=Budget(steps=steps, windows=windows, seconds=seconds),
    )


def run_sweep(asked, group=None):
    program, log = Scripted(), InMemoryLog()
    sweep(asked, program, group or Three(), log)
    return program, log


def test_a_size_is_warmed_up_timed_in_groups_and_checked():
    program, log = run_sweep(spec(sizes_bytes=(KIB,), warmup_iterations=1, checks=2, windows=2))
    of_one_way = [
        *("call", "wait"),
        *("meet", "call", "call", "wait"),
        *("meet", "call", "call", "wait"),
        *("fill 1", "meet", "call", "wait", "fill 2", "meet", "call", "wait"),
    ]
    first, rest = program.calls[0], program.calls[1:]
    assert first == ("lay out", KIB, False, None)
    assert rest[: len(of_one_way)] == of_one_way
    assert rest[len(of_one_way) :] == [("lay out", KIB, True, None), *of_one_way]
    out, inside = log.points
    assert (out.in_place, inside.in_place) == (False, True)
    assert out.seconds == pytest.approx((KIB * 1e-9,) * 2)
    assert (out.iterations, out.wrong) == (2, 6)
    assert log.fractions == [0.5, 1.0]


def test_sizes_rise_and_each_is_measured_once():
    _, log = run_sweep(spec(collective="all-gather", sizes_bytes=(KIB, 1, 2, 12)))
    assert [p.size_bytes for p in log.points if p.in_place] == [12, 1020]
    assert log.points[0].count == 1


def test_the_budget_limits_the_groups_to_one_at_least():
    _, log = run_sweep(spec(sizes_bytes=(8,), windows=100, seconds=6e-8))
    assert len(log.points[0].seconds) == 4, "of 2 calls, 8 ns each: 64 ns are more than 60"
    _, log = run_sweep(spec(sizes_bytes=(KIB,), windows=100, seconds=0.0))
    assert len(log.points[0].seconds) == 1


def test_pairs_are_measured_at_the_largest_size_and_logged_by_both_ranks():
    program, log = run_sweep(spec(collective="send-receive", sizes_bytes=(8, KIB)))
    pairs = [entry[3] for entry in program.calls if entry[0] == "lay out" and entry[3]]
    assert pairs == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert [p.pair for p in log.points if p.pair] == [(0, 1), (0, 2), (1, 0), (2, 0)]
    assert {p.size_bytes for p in log.points if p.pair} == {KIB}


def test_unchecked_results_have_no_count():
    program, log = run_sweep(spec(sizes_bytes=(8,), checks=0))
    assert log.points[0].wrong is None
    assert "fill 1" not in program.calls


def test_arrays_that_cannot_fit_are_refused_before_allocation():
    class Framework:
        def build_collective(self, work, device, threads, largest):
            raise AssertionError("nothing may be built")

    large = spec(sizes_bytes=(8 << 40,))
    limit = 4 << 30
    with pytest.raises(OutOfMemory) as refused:
        build(large, Framework(), Three(), "cpu", 1, limit)
    outcome = outcome_from_error(
        refused.value, large, limit_bytes=limit, is_out_of_memory=lambda error: False, device="cpu"
    )
    assert outcome.status == "oom"
    assert outcome.facts["forecast_bytes"] == 32 << 40
    assert "1 GiB" in outcome.message
