"""Factors and bands are fitted without the rows that they are judged on."""

import copy

import numpy as np
import pytest

from cubemesh.forecast.calibration import defaults
from cubemesh.papers.validation import fitting
from cubemesh.papers.validation.fitting import (
    FitData,
    LeftOut,
    fit_data,
    local,
    published_left_out,
    source,
)
from cubemesh.papers.validation.rows import rows

OF = {"source": source, "machine": lambda row: row.family}


@pytest.fixture(scope="module")
def data() -> FitData:
    return fit_data()


@pytest.mark.parametrize("left_out", ["source", "machine"])
def test_no_factor_saw_a_row_of_what_it_is_judged_on(left_out: LeftOut) -> None:
    of, folds = OF[left_out], published_left_out(left_out)
    assert {of(row) for row in rows()[0]} == {fold.left_out for fold in folds}
    for fold in folds:
        assert {of(one.row) for one in fold.unknown} == {fold.left_out}
        assert {of(one.row) for one in fold.judged} <= {fold.left_out}
        assert fold.saw.keys() == fold.values.keys()
        assert all(of(row) != fold.left_out for seen in fold.saw.values() for row in seen)


@pytest.mark.parametrize("left_out", ["source", "machine"])
def test_every_row_is_judged_once(left_out: LeftOut) -> None:
    folds = published_left_out(left_out)
    judged = [one.row for fold in folds for one in fold.judged]
    assert len(judged) == len(set(judged))
    assert set(judged) == {row for row in rows()[0] if row.given}
    unknown = [one.row for fold in folds for one in fold.unknown]
    assert len(unknown) == len(set(unknown)) == len(rows()[0])


def test_two_tables_of_one_publisher_are_left_out_together() -> None:
    (fold,) = (f for f in published_left_out("source") if f.left_out.startswith("Lambda"))
    assert len({one.row.figure.source for one in fold.judged}) == 2


@pytest.mark.parametrize("name", ["Lambda deeplearning-benchmark", "NVIDIA DeepLearningExamples"])
def test_rates_that_are_left_out_change_neither_factors_nor_bands(data: FitData, name: str) -> None:
    aside = np.array([source(row) == name for row in data.rows])
    left = {row for row in data.rows if source(row) != name}
    seen = local(data.rows) & ~aside
    halved = copy.copy(data)
    halved.published = np.where(aside, data.published / 2, data.published)
    assert halved.fit(seen) == data.fit(seen)
    assert fitting._bands(halved, halved, left) == fitting._bands(data, data, left)
    assert halved.fit(local(data.rows)) != data.fit(local(data.rows))


def test_the_factors_of_predict_are_those_fitted_to_all_rows(data: FitData) -> None:
    known = defaults()
    for name, value in data.fit(local(data.rows)).items():
        assert known[name] == pytest.approx(value), name
        assert f"{local(data.rows).sum()} published rates" in known.factors[name].source


def test_bands_of_predict_are_of_sources_left_out(data: FitData) -> None:
    known, all_rows = defaults(), set(rows()[0])
    for given, factors in (
        (True, ("band_one_system", "band_systems")),
        (False, ("band_unknown_one_system", "band_unknown_systems")),
    ):
        found = fitting._bands(data, fit_data(given=given), all_rows)
        for one_machine, factor, of in zip((True, False), factors, ("one_", ""), strict=True):
            band = 1 if given else known[f"band_{of}system{'' if of else 's'}"]
            assert known[factor] * band == pytest.approx(found[one_machine], abs=0.01)


def test_a_planted_factor_is_found(data: FitData) -> None:
    planted = data.fit(local(data.rows)) | {"overlap_slowdown": 0.9, "step_spread": 0.03}
    made = copy.copy(data)
    made.published = data.efficiency(planted)
    found = made.fit(local(data.rows))
    assert found["overlap_slowdown"] == pytest.approx(0.9)
    assert found["step_spread"] == pytest.approx(0.03)
