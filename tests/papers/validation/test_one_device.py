"""One device from its datasheet: rows, what each factor saw, and corrections."""

import numpy as np
import pytest

from cubemesh.forecast.attained import FITTED
from cubemesh.papers.validation.fitting import LeftOut
from cubemesh.papers.validation.one_device import (
    GROUPS,
    OneDeviceFit,
    corrected,
    one_device_folds,
    one_device_judged,
    one_device_rows,
)


def test_every_published_step_of_one_gpu_is_forecast_or_has_a_reason() -> None:
    found, left = one_device_rows()
    assert len(found) == 406
    assert sum(len(those) for those in left.values()) == 246
    assert all(row.seconds > 0 and row.ideal.amounts for row in found)
    assert {row.software.layout for row in found} == {"nchw", "nhwc"}


def test_the_factors_in_use_are_those_of_a_fit_to_all_rows() -> None:
    found, _ = one_device_rows()
    values = OneDeviceFit(found).fit(np.ones(len(found), dtype=bool))
    for name, (used, _) in FITTED.items():
        assert values[name] == pytest.approx(used, rel=0.03), name


@pytest.mark.parametrize("left_out", ["source", "machine"])
def test_no_factor_saw_what_it_is_judged_on(left_out: LeftOut) -> None:
    of = GROUPS[left_out]
    folds = one_device_folds(left_out)
    assert sum(len(fold.judged) for fold in folds) == 406
    for fold in folds:
        assert {of(one.row) for one in fold.judged} == {fold.left_out}
        assert all(of(row) != fold.left_out for rows in fold.saw.values() for row in rows)


def test_a_factor_without_rows_keeps_a_plausible_value() -> None:
    """Tensor cores with libraries of 2017 are in one source."""
    (fold,) = (f for f in one_device_folds("source") if f.left_out.startswith("u39kun"))
    assert fold.saw["first_tensor_share"] == ()
    assert 0.1 < fold.values["first_tensor_share"] < 0.7


def test_a_correction_is_by_another_network_under_the_same_conditions() -> None:
    found = corrected(one_device_judged("source"))
    assert len(found) == 321
    for each in found:
        for one in each:
            assert one.row.conditions == one.other.conditions
            assert one.row.figure.canonical != one.other.figure.canonical
        assert each[0].spread == min(one.spread for one in each)


def test_the_stated_band_contains_nine_in_ten() -> None:
    best = [each[0] for each in corrected(one_device_judged("source"))]
    inside = [abs(np.log1p(one.error)) <= 1.645 * one.spread for one in best]
    assert 0.85 <= np.mean(inside) <= 0.95
