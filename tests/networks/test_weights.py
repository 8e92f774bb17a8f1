from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from cubemesh.networks import build
from cubemesh.networks.layers import GLOROT, HE_IN, HE_OUT, ONES, ZEROS, Initializer, ParameterSpec
from cubemesh.networks.weights import _draw_one, draw, fans, standard_deviation


def digest(arrays) -> str:
    sha = hashlib.sha256()
    for name, values in arrays.items():
        sha.update(name.encode())
        sha.update(values.astype("<f4").tobytes())
    return sha.hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("little-cnn", "cfcd53a6a1a66ace"),
        ("cifarnet", "2266dcc0d9497e65"),
        ("resnet-18", "c495938d50557312"),
    ],
)
def test_the_same_values_on_any_machine(name, expected):
    assert digest(build(name).draw(seed=0)) == expected


def test_the_seed_decides():
    network = build("cifarnet")
    first, again, other = (
        network.draw(7),
        draw({**network.parameters, **network.state}, 7),
        network.draw(8),
    )
    assert digest(first) == digest(again) != digest(other)
    with pytest.raises(ValueError, match="negative"):
        network.draw(-1)


def test_fans_come_from_the_layout():
    assert fans((64, 3, 7, 7)) == (147, 3136)
    assert fans((10, 512)) == (512, 10)
    # Two groups of 16 inputs: each output sums over its own group only.
    assert fans((32, 16, 3, 3)) == (144, 288)


@pytest.mark.parametrize(
    ("initializer", "expected"),
    [
        (HE_IN, math.sqrt(2 / (50 * 9))),
        (HE_OUT, math.sqrt(2 / (400 * 9))),
        (Initializer(kind="he_normal", scale=0.5), 0.5 * math.sqrt(2 / (50 * 9))),
        (GLOROT, math.sqrt(2 / (450 * 9))),
        (Initializer(kind="normal", scale=0.01), 0.01),
        (ZEROS, 0.0),
        (ONES, 0.0),
    ],
)
def test_values_spread_as_the_initializer_says(initializer, expected):
    shape = (400, 50, 3, 3)
    spec = ParameterSpec(shape=shape, initializer=initializer)
    values = _draw_one(spec, np.random.default_rng(1))
    assert values.shape == shape
    assert values.dtype == np.float32
    assert standard_deviation(initializer, shape) == pytest.approx(expected)
    assert float(values.std()) == pytest.approx(expected, rel=0.01)
    mean = 1.0 if initializer is ONES else 0.0
    assert float(values.mean()) == pytest.approx(mean, abs=expected / 50)
    if initializer.kind == "glorot_uniform":
        assert float(np.abs(values).max()) <= math.sqrt(6 / (450 * 9))


def test_drawing_in_parts_changes_nothing(monkeypatch):
    network = build("cifarnet")
    whole = digest(network.draw())
    monkeypatch.setattr("cubemesh.networks.weights._CHUNK", 1000)
    assert digest(network.draw()) == whole
