"""Windows of several ranks as windows of the run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.measure.merge_ranks import merge_free_running, merge_lockstep
from cubemesh.schema import Window


def window(rank, start_s, elapsed_s, phase="measure", samples=8):
    return Window(
        rank=rank, phase=phase, start_s=start_s, elapsed_s=elapsed_s, steps=2, samples=samples
    )


def test_a_single_rank_s_windows_are_unchanged():
    windows = [window(0, 1.0, 0.5), window(0, 1.5, 0.5)]
    assert merge_lockstep(windows) == windows


def test_windows_of_two_ranks_last_from_the_first_start_to_the_last_end():
    found = merge_lockstep(
        [
            window(0, 1.0, 0.5),
            window(1, 1.1, 0.6),
            window(1, 1.8, 0.3),
            window(0, 1.75, 0.25),
        ]
    )
    assert [(w.start_s, round(w.elapsed_s, 9), w.samples, w.steps) for w in found] == [
        (1.0, 0.7, 16, 2),
        (1.75, 0.35, 16, 2),
    ]


def test_phases_are_merged_separately_and_extra_windows_left_out():
    windows = [window(0, 0.0, 1.0, "warm-up"), window(0, 1.0, 1.0), window(0, 2.0, 1.0)]
    found = merge_lockstep([*windows, window(1, 0.0, 1.0, "warm-up"), window(1, 1.0, 1.0)])
    assert [(w.phase, w.start_s) for w in found] == [("warm-up", 0.0), ("measure", 1.0)]


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0.01, 1), st.integers(1, 9)), min_size=2, max_size=8
    )
)
def test_the_run_takes_at_least_as_long_as_each_rank(timed):
    windows = [window(n, *times, samples=s) for n, (*times, s) in enumerate(timed)]
    (run,) = merge_lockstep(windows)
    assert run.samples == sum(w.samples for w in windows)
    assert run.elapsed_s >= max(w.elapsed_s for w in windows) - 1e-9


def test_free_running_a_window_of_rank_0_has_the_samples_of_all_ranks():
    windows = [
        window(0, 1.0, 1.0, samples=10),
        window(0, 2.0, 1.0, samples=10),
        window(1, 0.0, 1.5, "warm-up", samples=6),  # 4 a second, half a second of it meanwhile
        window(1, 1.5, 2.0, samples=16),  # 8 a second
        window(1, 2.0, 1.0, "evaluate", samples=999),
    ]
    found = merge_free_running(windows)
    assert [(w.rank, w.start_s, w.elapsed_s, w.steps) for w in found] == [
        (0, 1.0, 1.0, 2),
        (0, 2.0, 1.0, 2),
    ]
    assert [w.samples for w in found] == [10 + 6, 10 + 8]


def test_free_running_a_rank_without_a_window_then_counts_with_its_mean_rate():
    (found,) = merge_free_running(
        [window(0, 10.0, 2.0, samples=10), window(1, 0.0, 4.0, samples=12)]
    )
    assert found.samples == 10 + 6
    assert merge_free_running([window(0, 0.0, 1.0)]) == [window(0, 0.0, 1.0)]


@given(st.lists(st.floats(0.1, 2.0), min_size=1, max_size=9), st.integers(1, 50))
def test_free_running_constant_rates_are_summed(lengths, rate):
    start_s, theirs = 0.0, []
    for elapsed_s in lengths:
        theirs.append((start_s, elapsed_s))
        start_s += elapsed_s
    windows = [window(1, s, e, samples=1000 * rate * e) for s, e in theirs]
    (found,) = merge_free_running([window(0, 0.05, start_s, samples=0), *windows])
    assert found.samples == pytest.approx(1000 * rate * start_s, abs=1)
