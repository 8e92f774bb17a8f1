"""Windows of several ranks as windows of the run."""

from hypothesis import given
from hypothesis import strategies as st

from cubemesh.measure.together import together
from cubemesh.model import Window


def window(rank, start_s, elapsed_s, phase="measure", samples=8):
    return Window(
        rank=rank, phase=phase, start_s=start_s, elapsed_s=elapsed_s, steps=2, samples=samples
    )


def test_a_rank_alone_keeps_its_windows():
    windows = [window(0, 1.0, 0.5), window(0, 1.5, 0.5)]
    assert together(windows) == windows


def test_windows_of_two_ranks_last_from_the_first_start_to_the_last_end():
    found = together(
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


def test_phases_stay_apart_and_what_one_rank_did_more_is_left_out():
    windows = [window(0, 0.0, 1.0, "warm-up"), window(0, 1.0, 1.0), window(0, 2.0, 1.0)]
    found = together([*windows, window(1, 0.0, 1.0, "warm-up"), window(1, 1.0, 1.0)])
    assert [(w.phase, w.start_s) for w in found] == [("warm-up", 0.0), ("measure", 1.0)]


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0.01, 1), st.integers(1, 9)), min_size=2, max_size=8
    )
)
def test_no_rank_was_faster_than_the_run_says_of_all(timed):
    windows = [window(n, *times, samples=s) for n, (*times, s) in enumerate(timed)]
    (run,) = together(windows)
    assert run.samples == sum(w.samples for w in windows)
    assert run.elapsed_s >= max(w.elapsed_s for w in windows) - 1e-9
