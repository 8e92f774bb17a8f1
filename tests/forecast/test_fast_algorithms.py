"""How few operations convolutions can be done with, by hand and in networks."""

import pytest

from cubemesh.forecast.fast_algorithms import Operations, above_peak, operations, saving
from cubemesh.networks import build
from cubemesh.networks.cost import totals


def test_savings_by_hand():
    assert saving((1, 1)) == 1
    assert saving((3, 3)) == 4, "Winograd: 16 results of 9 products each from 36"
    assert saving((3, 3), (2, 2)) == 1, "no fast algorithm moves by two"
    assert saving((5, 5)) == pytest.approx(25 * 28 * 28 / (4 * 32 * 17))
    assert saving((11, 11)) > saving((9, 9)) > saving((5, 5)) > saving((3, 3))
    assert saving((40, 40)) == 1, "larger than a tile"


@pytest.mark.parametrize("name", ["little-cnn", "vgg16", "resnet-50", "vit-b16", "gpt2"])
def test_counted_is_what_the_costs_count_and_least_is_no_more(name):
    found, cost = operations(build(name), 4), totals(build(name), 4)
    assert found.forward.counted == cost.forward.matrix_flops
    assert found.backward.counted == cost.backward.matrix_flops
    assert found.both.counted == cost.total.matrix_flops
    assert 0 < found.both.least <= found.both.counted


def test_vgg_can_save_almost_a_factor_of_four_and_a_transformer_hardly_anything():
    vgg, vit = operations(build("vgg16")).both, operations(build("vit-b16")).both
    assert vgg.counted / vgg.least > 3.5
    assert vit.least == vit.counted


def test_up_to_all_of_a_peak_there_is_nothing_to_say():
    assert above_peak(1.0, Operations(counted=4.0, least=1.0), "it", "the peak") is None


def test_more_than_a_peak_is_explained_where_fewer_operations_fit_under_it():
    explained = above_peak(1.5, Operations(counted=4.0, least=1.0), "it", "the peak")
    assert explained is not None
    assert explained.code == "above-peak"
    assert "150 %" in explained.cause
    assert "Winograd" in explained.cause
    assert "25 %" in explained.cause


def test_more_than_a_fast_algorithm_could_do_is_said_to_be_unexplained():
    wrong = above_peak(1.5, Operations(counted=4.0, least=3.0), "it", "p", at_least=True)
    assert wrong is not None
    assert "at least 150 %" in wrong.cause
    assert "no fast algorithm" in wrong.cause
    assert "Winograd" not in wrong.cause
