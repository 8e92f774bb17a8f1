"""Slow ranks from windows, as they would be recorded."""

from collections.abc import Sequence

import numpy as np
import pytest

from cubemesh.measure.slow_ranks import FEWEST_WINDOWS, slow_rank, slow_ranks
from cubemesh.schema.record import Window


def of_rank(rank: int, own_s: Sequence[float], step_s: Sequence[float]) -> list[Window]:
    """Windows of 10 steps, of which each rank waits the rest."""
    return [
        Window(
            rank=rank,
            start_s=0,
            elapsed_s=10 * step,
            steps=10,
            samples=80,
            waited_s=10 * (step - own),
        )
        for own, step in zip(own_s, step_s, strict=True)
    ]


def together(*own_s: Sequence[float], exchange_s: float = 0.0) -> list[Window]:
    """Windows of ranks that wait for one another and then exchange their gradients."""
    step_s = [max(each) + exchange_s for each in zip(*own_s, strict=True)]
    return [w for rank, own in enumerate(own_s) for w in of_rank(rank, own, step_s)]


@pytest.mark.parametrize("slower", [0.1, 0.3])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_slow_rank_is_named_with_its_excess(slower: float, ranks: int) -> None:
    own = [[0.010] * 8 for _ in range(ranks)]
    own[1] = [0.010 * (1 + slower)] * 8
    (found,) = slow_ranks(together(*own, exchange_s=0.001))
    assert found.rank == 1
    assert found.slower == pytest.approx(slower)
    assert found.share == pytest.approx(0.010 * slower / (0.010 * (1 + slower) + 0.001))


def test_a_rank_that_stands_still_in_some_windows_is_named() -> None:
    still = [0.010, 0.010, 0.020] * 12
    (found,) = slow_ranks(together([0.010] * 36, still, [0.010] * 36))
    assert (found.rank, found.slower) == (1, pytest.approx(1 / 3))


@pytest.mark.parametrize(
    ("excess_ms", "named"),
    [
        # A rank that was stopped (SIGSTOP) for 30 of every 100 ms, on a machine with other load.
        ([27, 24, 29, 13, 29, 35, 54, 29, 45, 42, 54, 52, 33, 45, 38, 47], True),
        ([79, 66, 35, 76, 66, 73, 47, 52, 39, 46, 49, 71, 37, 23, -22], True),
        # Ranks alike, with the same load.
        (
            [150, -74, -33, 49, -12, -18, -10, 30, -9, -33, 65, 12, -99, -33, 80, -59, -17, 53],
            False,
        ),
        ([3, -2, -5, 1, 14, -31, 11, 0, 8, -4, -53, 1], False),
    ],
)
def test_recorded_runs_of_two_ranks(excess_ms: list[float], named: bool) -> None:
    own = [0.100 - min(excess, 0) / 1e3 for excess in excess_ms]
    other = [0.100 + max(excess, 0) / 1e3 for excess in excess_ms]
    assert [one.rank for one in slow_ranks(together(own, other))] == [1] * named


def test_a_single_interruption_names_nobody() -> None:
    assert slow_ranks(together([0.010] * 12, [*[0.010] * 11, 0.020])) == []


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_ranks_that_differ_by_chance_are_not_slow(ranks: int) -> None:
    for seed in range(50):
        jitter = np.random.default_rng(seed).normal(1, 0.05, (ranks, 12))
        assert slow_ranks(together(*(0.010 * jitter), exchange_s=0.001)) == []


def test_two_slow_ranks_of_five_are_named_the_slowest_first() -> None:
    own = [[0.010] * 6, [0.012] * 6, [0.010] * 6, [0.014] * 6, [0.010] * 6]
    found = slow_ranks(together(*own))
    assert [one.rank for one in found] == [3, 1]
    warning = slow_rank(found)
    assert warning is not None
    assert warning.cause.startswith("Rank 3 took 14 ms")
    assert "Also slower: rank 1 (20 %)." in warning.cause


def test_a_rank_that_is_faster_names_nobody() -> None:
    assert slow_ranks(together([0.007] * 8, [0.010] * 8, [0.010] * 8)) == []


def test_a_rank_is_not_slow_for_a_little_of_a_step_that_mostly_exchanges() -> None:
    assert slow_ranks(together([0.010] * 8, [0.012] * 8, exchange_s=0.050)) == []


def test_a_rank_with_more_to_do_is_compared_with_and_not_named() -> None:
    windows = together([0.013] * 8, [0.010] * 8, [0.012] * 8, [0.010] * 8)
    assert [one.rank for one in slow_ranks(windows)] == [0, 2]
    assert [one.rank for one in slow_ranks(windows, spared=(0,))] == [2]


def test_without_the_waits_of_every_rank_or_enough_windows_nobody_is_named() -> None:
    windows = together([0.010] * 8, [0.020] * 8)
    unknown = [Window(rank=1, start_s=0, elapsed_s=0.2, steps=10, samples=80)] * 8
    assert slow_ranks([*windows[:8], *unknown]) == []
    assert [one.rank for one in slow_ranks([*windows[:8], *unknown[:5], *windows[13:]])] == [1]
    assert slow_ranks(windows[8:]) == []
    assert slow_ranks([]) == []
    few = FEWEST_WINDOWS - 1
    assert slow_ranks(together([0.010] * few, [0.020] * few)) == []


def test_ranks_that_do_not_wait_for_one_another_are_compared_by_their_steps() -> None:
    windows = [
        *of_rank(0, [0.010] * 8, [0.010] * 8),
        *of_rank(1, [0.013] * 8, [0.013] * 8),
    ]
    (found,) = slow_ranks(windows)
    warning = slow_rank([found], blocking=False)
    assert warning is not None
    assert warning.cause.endswith("It is 30 % slower.")


def test_the_warning_has_the_host_the_times_and_the_cost() -> None:
    assert slow_rank([]) is None
    found = slow_ranks(together([0.010] * 8, [0.010] * 8, [0.013] * 8))
    warning = slow_rank(found, {0: "a", 1: "a", 2: "b"})
    assert warning is not None
    assert warning.code == "slow-rank"
    assert warning.cause == (
        "Rank 2 on b took 13 ms a step without its waits for other ranks; the others took 10 ms "
        "(median). It is 30 % slower, and costs every rank 23 % of the step."
    )
