"""Forecasts of published transformer rates: rows, fits and what is left out."""

import numpy as np
import pytest

from cubemesh.forecast.transformers.factors import (
    BAND,
    BAND_CALIBRATED,
    FITTED,
    fitted_values,
)
from cubemesh.papers.validation.transformers import (
    calibrated,
    errors,
    fit,
    left_out,
    transformer_rows,
)


def row_of(source, devices, **plan):
    (found,) = (
        row
        for row in transformer_rows()
        if row.figure.source == source and row.figure.devices == devices
        if all(getattr(row.figure, key) == value for key, value in plan.items())
    )
    return found


def test_a_step_follows_from_tflops_that_count_recomputation():
    """Megatron-LM, table 1: 137 TFLOP/s on each of 32 devices, by its equation 3."""
    batch, s, layers, h, v = 512, 2048, 24, 2304, 51200
    flops = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    row = row_of("Megatron-LM 2021", 32)
    assert row.step_s == pytest.approx(flops / 137e12 / 32)


def test_a_step_follows_from_tokens_per_device():
    row = row_of("TorchTitan, A100", 64, network="llama3-70b")
    assert row.step_s == pytest.approx(8192 / 331)


def test_recomputation_that_no_source_states_is_as_little_as_fits():
    small = row_of("NeMo 24.07", 8, network="llama2-7b")
    large = [row for row in transformer_rows() if row.figure.recompute == "auto"]
    assert small.plan.recompute == "none"
    assert {row.plan.recompute for row in large} == {"none", "full"}


def test_the_factors_in_use_hold_for_the_rows_that_they_were_fitted_to():
    rows = [row for row in transformer_rows() if row.fitted]
    found = np.abs(errors(rows, fitted_values()))
    assert found.mean() < 0.06
    assert np.quantile(found, 0.9) < BAND - 1


@pytest.mark.parametrize("by", ["source", "style"])
def test_what_is_left_out_is_not_seen_by_the_factors_that_judge_it(by):
    def key(row):
        return row.group if by == "source" else row.figure.style

    folds = left_out(by, rounds=0)
    judged = [row for fold in folds for row, _ in fold.judged]
    assert len(judged) == len(set(map(id, judged))) == len(transformer_rows())
    for fold in folds:
        assert fold.left_out not in set(map(key, fold.saw))
        assert {key(row) for row, _ in fold.judged} == {fold.left_out}
        assert all(row.fitted for row in fold.saw)
        assert fold.factors == {name: factor.prior for name, factor in FITTED.items()}


def test_a_fit_comes_closer_than_its_priors_and_stays_within_bounds():
    rows = [row for row in transformer_rows() if row.group == "IBM"]
    priors = {name: factor.prior for name, factor in FITTED.items()}
    found = fit(rows, rounds=1)
    assert np.abs(errors(rows, found)).mean() < np.abs(errors(rows, priors)).mean()
    assert fit(rows, rounds=1) == found
    for name, value in found.items():
        assert FITTED[name].least <= value <= FITTED[name].most


def test_rows_on_more_devices_are_calibrated_with_those_on_the_fewest():
    found = calibrated()
    assert len(found) > 100
    assert all(row.figure.devices >= 16 for row, _ in found)
    size = np.abs([error for _, error in found])
    plain = np.abs(errors([row for row, _ in found], fitted_values()))
    assert size.mean() < plain.mean()
    assert np.quantile(size, 0.9) < BAND_CALIBRATED - 1


def test_memory_forecasts_are_near_what_a_source_states():
    rows = [row for row in transformer_rows() if row.figure.source == "TorchTitan, H100"]
    one_dimensional = [row for row in rows if row.figure.layout.startswith("dp=")]
    assert len(one_dimensional) == 8
    for row in one_dimensional:
        assert row.memory_gib == pytest.approx(row.figure.memory_gib, rel=0.07)
