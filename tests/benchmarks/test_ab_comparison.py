"""Both ways to interleave programs, on scripted clocks."""

import pytest


def test_the_faster_of_two_is_found(script, scripted_program):
    both = [tuple(scripted_program(s).side(script) for s in (0.01, 0.005)) for _ in range(2)]
    found = script("ab_comparison").compare(both, 0.3)
    assert found.pairs >= 6
    assert (found.low, found.ratio, found.high) == pytest.approx((2, 2, 2))
    assert (found.first_step_ms, found.second_step_ms) == pytest.approx((10, 5))


def test_one_instance_is_too_few(script, scripted_program):
    side = scripted_program(0.01).side(script)
    with pytest.raises(ValueError, match="--instances 2"):
        script("ab_comparison").compare([(side, side)], 0.1)


def test_every_program_has_a_window_in_each_round(script, scripted_program):
    pairs = script("ab_comparison")
    programs = {"one": scripted_program(0.1), "two": scripted_program(0.15)}
    sides = {name: program.side(script) for name, program in programs.items()}
    found = pairs.in_rounds(sides, 4, 3)
    assert {name: len(steps_s) for name, steps_s in found.items()} == {"one": 4, "two": 4}
    assert programs["one"].steps == 4 * 3
    both = pairs.compare_rounds(found["two"], found["one"], 3)
    assert (both.low, both.ratio, both.high) == pytest.approx((1.5, 1.5, 1.5))
    assert (both.first_step_ms, both.second_step_ms) == pytest.approx((150, 100))
    assert (both.pairs, both.steps_per_window) == (4, 3)


def test_one_slow_round_does_not_move_the_ratio(script):
    found = script("ab_comparison").compare_rounds([2, 2, 2, 2, 2], [1, 1, 1, 1, 9], 1)
    assert found.ratio == 2
    assert found.low <= 2 <= found.high


def test_one_round_is_too_few(script):
    with pytest.raises(ValueError, match="--rounds 2"):
        script("ab_comparison").compare_rounds([1], [2], 1)
