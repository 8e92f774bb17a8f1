import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.measure.figures import figures
from cubemesh.schema.record import Window


def windows(*pairs: tuple[int, float], rank: int = 0) -> list[Window]:
    """Windows of (steps, elapsed_s) with 8 samples a step."""
    return [Window(rank=rank, start_s=0, elapsed_s=s, steps=n, samples=8 * n) for n, s in pairs]


def test_throughput_is_a_ratio_of_sums() -> None:
    # Rates are 80 and 8 a second; their mean would say 44.
    found = figures(windows((10, 1.0), (10, 10.0)), 12.0)["throughput_per_s"]
    assert found.value == pytest.approx(160 / 11)
    assert found.unit == "samples/s"


def test_step_time_is_the_median_over_windows() -> None:
    found = figures(windows((10, 1.0), (10, 1.2), (5, 5.0)), 12.0)["step_s"]
    assert found.value == pytest.approx(0.12)
    assert found.n == 3


def test_ninety_epochs() -> None:
    # 1,000 images a second pass through 115.2 million in 115,200 s.
    found = figures(windows(*[(125, 1.0)] * 8), 10.0)["projected_90_epochs_days"]
    assert found.value == pytest.approx(115_200 / 86_400)
    assert found.unit == "days"


def test_without_windows_there_is_only_wall_time() -> None:
    assert list(figures([], 3.5)) == ["wall_s"]
    assert figures([], 3.5)["wall_s"].value == 3.5


def test_no_interval_from_fewer_than_six() -> None:
    few = figures(windows(*[(10, 1.0)] * 5), 6.0)
    assert all(f.low is None and f.high is None for f in few.values())
    six = figures(windows(*[(10, 1.0)] * 6), 6.0)
    assert six["throughput_per_s"].low == six["throughput_per_s"].high == 80


def test_ranks_are_not_mixed() -> None:
    with pytest.raises(ValueError, match="rank"):
        figures(windows((1, 1.0)) + windows((1, 1.0), rank=1), 1.0)


@given(
    st.lists(
        st.tuples(st.integers(1, 100), st.floats(0.001, 10)),
        min_size=6,
        max_size=20,
    )
)
def test_intervals_include_their_values_and_the_projection_is_inverse(
    pairs: list[tuple[int, float]],
) -> None:
    found = figures(windows(*pairs), 1.0)
    rate, days = found["throughput_per_s"], found["projected_90_epochs_days"]
    for figure in (rate, days, found["step_s"]):
        assert figure.low is not None
        assert figure.high is not None
        assert figure.low <= figure.high
    assert found["step_s"].low <= found["step_s"].value <= found["step_s"].high  # type: ignore[operator]
    assert rate.low is not None
    assert days.high == pytest.approx(90 * 1.28e6 / rate.low / 86_400)
    assert days.low <= days.high  # type: ignore[operator]
