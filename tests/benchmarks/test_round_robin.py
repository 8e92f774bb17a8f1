"""Programs of a known speed, in turn."""

import pytest


class Clocked:
    """A side whose step takes as long as it says, on a clock of its own."""

    def __init__(self, step_s):
        self.now, self.step_s, self.steps = 0.0, step_s, 0

    def step(self):
        self.steps += 1
        self.now += self.step_s

    def side(self, script):
        return script("ab_comparison").Side(
            step=self.step, synchronize=lambda: None, clock=lambda: self.now
        )


def test_every_program_has_a_window_in_each_round(script):
    rounds = script("round_robin")
    programs = {"one": Clocked(0.1), "two": Clocked(0.15)}
    sides = {name: program.side(script) for name, program in programs.items()}
    for side in sides.values():
        rounds.settle(side)
    found = rounds.in_rounds(sides, 4, 3)
    assert {name: len(steps_s) for name, steps_s in found.items()} == {"one": 4, "two": 4}
    assert programs["one"].steps == rounds.SETTLING_STEPS + 4 * 3
    both = rounds.compared(found["two"], found["one"], 3)
    assert both.ratio == pytest.approx(1.5)
    assert (both.low, both.high) == pytest.approx((1.5, 1.5))
    assert (both.first_step_ms, both.second_step_ms) == pytest.approx((150, 100))
    assert (both.pairs, both.steps_per_window) == (4, 3)


def test_one_slow_round_does_not_move_the_ratio_and_one_round_alone_bears_none(script):
    rounds = script("round_robin")
    value, low, high = rounds.ratio([1, 1, 1, 1, 9], [2, 2, 2, 2, 2])
    assert value == 2
    assert low <= 2 <= high
    with pytest.raises(ValueError, match="--rounds 2"):
        rounds.ratio([1], [2])
