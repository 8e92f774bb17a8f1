"""Trials on a scripted clock, and the record of latencies."""

import random

import pytest

from cubemesh.errors import DataError, UsageError
from cubemesh.inference.timing import (
    TIE,
    Latency,
    TimingRecord,
    choose,
    interleaved_latencies,
    values_beyond,
)


class Machine:
    """A clock that programs advance, on a machine whose speed changes."""

    def __init__(self, seed=0):
        self.now = 0.0
        self.noise = random.Random(seed)

    def clock(self):
        return self.now

    def program(self, seconds):
        def run():
            drift = 1 + 0.5 * (int(self.now) % 2)
            self.now += seconds * drift * self.noise.uniform(0.98, 1.02)

        return run


def measured(**seconds):
    machine = Machine()
    programs = {name: machine.program(s) for name, s in seconds.items()}
    return interleaved_latencies(programs, seconds=30.0, clock=machine.clock)


def test_the_fastest_is_found_although_the_machine_changes_its_speed():
    found = measured(a=0.010, b=0.011, c=0.030)
    assert choose(found) == "a"
    assert found["a"].ratio == 1
    assert found["b"].ratio_low < 1.1 < found["b"].ratio_high
    assert found["b"].ratio_high < 1.2
    assert found["c"].ratio_low > 2.5


def test_equal_candidates_are_chosen_by_their_order():
    assert choose(measured(first=0.0101, second=0.010)) == "first"
    assert choose({"x": latency(1.0 * TIE), "y": latency(1.0)}) == "x"
    assert choose({"x": latency(1.03), "y": latency(1.0)}) == "y"


def latency(seconds):
    return Latency(seconds=seconds, low=seconds, high=seconds)


def test_slow_candidates_leave_early():
    machine, runs = Machine(), {"fast": 0, "slow": 0}

    def counted(name, seconds):
        run = machine.program(seconds)

        def call():
            runs[name] += 1
            run()

        return call

    interleaved_latencies(
        {"fast": counted("fast", 0.06), "equal": machine.program(0.06), "slow": counted("slow", 1)},
        seconds=1000.0,
        clock=machine.clock,
    )
    assert runs["slow"] < 20 < runs["fast"]


@pytest.mark.parametrize(("count", "beyond"), [(5, 0), (6, 0), (8, 0), (9, 1), (17, 4), (25, 7)])
def test_intervals_of_medians_are_those_of_the_sign_test(count, beyond):
    assert values_beyond(count) == beyond


def test_a_record_is_read_back_exactly(tmp_path):
    path = tmp_path / "timing.json"
    found = measured(a=0.010, b=0.011)
    TimingRecord(path).add(found)
    assert TimingRecord(path).latencies == found


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"latencies": 3}', '{"latencies": {"x": {"seconds": "fast"}}}']
)
def test_a_damaged_record_is_named(tmp_path, text):
    path = tmp_path / "timing.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"timing.json' is not a timing record: .*delete it"):
        TimingRecord(path)


def test_a_record_that_cannot_be_written(tmp_path):
    record = TimingRecord(tmp_path / "no" / "timing.json")
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        record.add({"x": latency(1.0)})
