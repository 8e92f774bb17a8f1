"""Factors and bands are fitted without the rows that they are judged on."""

import copy

import numpy as np
import pytest

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
        assert {of(one.row) for one in fold.judged} == {fold.left_out}
        assert fold.saw.keys() == fold.values.keys()
        assert all(of(row) != fold.left_out for seen in fold.saw.values() for row in seen)


@pytest.mark.parametrize("left_out", ["source", "machine"])
def test_every_row_is_judged_once(left_out: LeftOut) -> None:
    judged = [one.row for fold in published_left_out(left_out) for one in fold.judged]
    assert len(judged) == len(set(judged)) == len(rows()[0])


def test_launches_take_no_time_without_the_source_they_were_read_from() -> None:
    for fold in published_left_out("source"):
        assert ("launch_layer_s" in fold.values) == (not fold.left_out.startswith("stock"))


@pytest.mark.parametrize(
    "name", ["Lambda deeplearning-benchmark v1", "NVIDIA DeepLearningExamples"]
)
def test_rates_that_are_left_out_change_neither_factors_nor_bands(data: FitData, name: str) -> None:
    aside = np.array([source(row) == name for row in data.rows])
    seen = local(data.rows) & ~aside
    halved = copy.copy(data)
    halved.published = np.where(aside, data.published / 2, data.published)
    assert halved.fit(seen) == data.fit(seen)
    assert fitting._bands(halved, ~aside) == fitting._bands(data, ~aside)
    assert halved.fit(local(data.rows)) != data.fit(local(data.rows))


def test_a_planted_factor_is_found(data: FitData) -> None:
    planted = data.fit(local(data.rows)) | {"overlap_slowdown": 0.9, "step_spread": 0.03}
    made = copy.copy(data)
    made.published = data.efficiency(planted)
    found = made.fit(local(data.rows))
    assert found["overlap_slowdown"] == pytest.approx(0.9)
    assert found["step_spread"] == pytest.approx(0.03)
