"""The convergence check of tuned settings, from short loss curves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.experiments.tune.convergence_check import (
    DIVERGES,
    LOW_DESCENT,
    NO_LOSSES,
    NOISY,
    admission,
    allowed,
    descent,
    diverges,
    means_of,
)
from cubemesh.schema import Curve, RunSpec, TrainSteps
from cubemesh.schema.record import FIRST_LOSSES

FALLING = (2.3, 2.1, 1.8, 1.4)
SEEDS = (FALLING, (2.4, 2.15, 1.75, 1.3), (2.25, 2.05, 1.85, 1.5))


def with_curve(record_of, losses):
    record = record_of(RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8)))
    steps = tuple(float(n) for n in range(1, len(losses) + 1))
    curves = (Curve(name=FIRST_LOSSES, x_name="step", x=steps, y=tuple(losses)),) if losses else ()
    return type(record)(**{**vars(record), "curves": curves})


def test_means_are_of_quarters(record_of):
    assert means_of(with_curve(record_of, [4, 2, 3, 1, 2, 2, 1, 0])) == (3, 2, 2, 0.5)
    assert means_of(with_curve(record_of, [])) is None
    assert means_of(with_curve(record_of, [1.0, 2.0, 3.0])) is None


def test_rounding_is_admitted_and_divergence_is_not():
    near = tuple(loss * 1.009 for loss in FALLING)
    assert admission(FALLING, near, (), lower_precision=True).admitted
    far = (*FALLING[:3], FALLING[3] * 1.02)
    result = admission(FALLING, far, (), lower_precision=False)
    assert result.code == DIVERGES
    assert "1.428 in quarter 4" in result.why
    assert "1.4 ± 0.023" in result.why


def test_a_difference_within_the_run_to_run_spread_is_admitted():
    found = (2.35, 2.12, 1.83, 1.48)
    assert not admission(FALLING, found, (), lower_precision=True).admitted
    assert admission(FALLING, found, SEEDS, lower_precision=True).admitted


def test_a_setting_that_does_not_learn_is_rejected_however_large_the_spread():
    wild = ((2.3, 2.1, 1.8, 1.4), (5.0, 5.0, 5.0, 5.0))
    assert allowed(FALLING, wild)[3] == pytest.approx(descent(FALLING) / 2)
    assert not admission(FALLING, (2.3, 2.3, 2.3, 2.3), wild, lower_precision=True).admitted


def test_noisy_baseline_runs_are_the_reason_where_they_differ_by_more_than_the_descent():
    """LittleCNN with eight samples a step: the masks of dropout count for more than the descent."""
    stock = (2.281, 1.964, 2.013, 2.117)
    seeds = (stock, (2.312, 2.033, 1.779, 1.590), (2.352, 2.094, 1.765, 1.829))
    result = admission(stock, (2.293, 2.223, 1.954, 2.021), seeds, lower_precision=False)
    assert result.code == NOISY
    assert "0.53" in result.why
    assert admission(stock, stock, seeds, lower_precision=True).admitted


def test_rounding_of_a_memorized_minibatch_does_not_count():
    memorized = (3.51, 5.5e-4, 2.1e-6, 1.5e-7)
    assert admission(memorized, (3.50, 2.2e-4, 1.7e-7, 0.0), (), lower_precision=True).admitted


def test_a_constant_loss_admits_no_lower_precision():
    constant = (2.30, 2.30, 2.29, 2.29)
    result = admission(constant, constant, (), lower_precision=True)
    assert result.code == LOW_DESCENT
    assert admission(constant, constant, (), lower_precision=False).admitted


def test_without_losses_nothing_is_admitted():
    assert admission(FALLING, None, (), lower_precision=False).code == NO_LOSSES
    assert admission(None, FALLING, (), lower_precision=False).code == NO_LOSSES


def test_a_nan_loss_diverges():
    assert diverges(FALLING, (2.3, float("nan"), 1.8, 1.4), SEEDS)


@given(st.lists(st.floats(0.1, 10), min_size=4, max_size=4), st.floats(1.03, 5))
def test_an_equal_curve_is_admitted_and_a_higher_one_is_not(losses, times):
    stock = tuple(losses)
    assert not diverges(stock, stock)
    assert diverges(stock, tuple(times * loss for loss in stock))
