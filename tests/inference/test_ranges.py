"""Ranges of activations, and the 8 bits that cover them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cubemesh.inference.quantization.calibrate import HistogramBuilder
from cubemesh.inference.quantization.ranges import METHODS, Range, percentile, uint8_scale

floats = st.floats(-(2.0**100), 2.0**100, width=32)
ends = st.tuples(floats, floats).map(sorted)


def histogram_of(x):
    builder = HistogramBuilder()
    builder.add(np.asarray(x, np.float32))
    return builder.result()


def heavy_tailed(samples=200_000):
    return np.random.default_rng(0).standard_t(3, samples)


def squared_error(x, covered):
    scale = uint8_scale(covered)
    return float(np.mean((scale.dequantize(scale.quantize(x)) - x) ** 2))


@given(ends)
def test_zero_is_exact_and_the_range_is_covered(pair):
    scale = uint8_scale(Range(*pair))
    assert scale.scale > 0
    assert np.float32(scale.scale) == scale.scale
    assert 0 <= scale.zero_point <= 255
    assert scale.dequantize(scale.quantize(np.zeros(1)))[0] == 0
    # Both ends are covered to within half a step.
    half = scale.scale * 0.5001
    low, high = -scale.zero_point * scale.scale, (255 - scale.zero_point) * scale.scale
    assert low - half <= min(pair[0], 0)
    assert low <= min(pair[0], 0) + half
    assert high >= max(pair[1], 0) - half


@given(
    st.tuples(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32)).map(sorted),
    arrays(np.float32, 20, elements=st.floats(-2e6, 2e6, width=32)),
)
def test_rounding_is_that_of_a_scalar_reference(pair, x):
    scale = uint8_scale(Range(*pair))
    for value, found in zip(x, scale.quantize(x).tolist(), strict=True):
        with np.errstate(over="ignore"):
            steps = float(np.float32(float(value) / scale.scale))
        whole = round(min(max(steps, -1000), 1000))  # half to even
        assert found == min(max(whole + scale.zero_point, 0), 255)


def test_rounding_is_that_of_onnx():
    reference = pytest.importorskip("onnx.reference")
    helper = pytest.importorskip("onnx.helper")
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])
    run = reference.ReferenceEvaluator(node).run
    rng = np.random.default_rng(0)
    for low, high in ((-1, 2), (0, 5), (-3, 0), (-1e-3, 7)):
        scale = uint8_scale(Range(low, high))
        x = rng.uniform(2 * low - 1, 2 * high + 1, 1000).astype(np.float32)
        x[:200] = np.float32(scale.scale) * (np.arange(200) - 80 + np.float32(0.5))
        feeds = {"x": x, "s": np.float32(scale.scale), "z": np.uint8(scale.zero_point)}
        (wanted,) = run(None, feeds)
        assert (scale.quantize(x) == wanted).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "x",
    [[0.0] * 9, [2.5] * 9, [-2.5] * 9, [1e-30], [3e38, -3e38], [1000.0, 1000.5], [0.0, 0.0, 1e6]],
    ids=str,
)
def test_odd_distributions_have_a_range(method, x):
    covered = METHODS[method](histogram_of(x))
    assert covered.low <= 0 <= covered.high
    assert covered.low >= min(*x, 0) * (1 + 1e-6)
    assert covered.high <= max(*x, 0) * (1 + 1e-6)
    scale = uint8_scale(covered)
    assert math.isfinite(scale.scale)
    if len(set(x)) == 1 and abs(x[0]) > 1e-29:
        exact = scale.dequantize(scale.quantize(np.float32(x)))
        assert np.allclose(exact, x, rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_one_side_and_its_mirror_image(method):
    x = np.maximum(np.random.default_rng(0).normal(size=100_000), 0)
    positive = METHODS[method](histogram_of(x))
    negative = METHODS[method](histogram_of(-x))
    assert positive.low == negative.high == 0
    assert positive.high > 2
    assert negative.low == pytest.approx(-positive.high, rel=0.05)
    assert uint8_scale(positive).zero_point == 0
    assert uint8_scale(negative).zero_point == 255


@settings(deadline=None, max_examples=50)
@given(arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e4, 1e4, width=32)))
def test_no_method_leaves_the_range_of_the_elements(x):
    histogram = histogram_of(x)
    everything = METHODS["min-max"](histogram)
    for method in METHODS.values():
        found = method(histogram)
        assert everything.low <= found.low <= 0 <= found.high <= everything.high


def test_methods_differ_on_a_heavy_tail():
    x = heavy_tailed()
    found = {name: method(histogram_of(x)) for name, method in METHODS.items()}
    widths = {name: covered.high - covered.low for name, covered in found.items()}
    assert widths["min-max"] == pytest.approx(x.max() - x.min(), rel=1e-6)
    for name in ("percentile", "entropy", "mse"):
        assert widths[name] < 0.8 * widths["min-max"]
    assert len({round(w, 3) for w in widths.values()}) == len(METHODS)


def test_percentiles_are_those_of_the_elements():
    x = heavy_tailed()
    found = percentile(histogram_of(x), 99)
    width = histogram_of(x).width
    assert found.low == pytest.approx(np.percentile(x, 1), abs=width)
    assert found.high == pytest.approx(np.percentile(x, 99), abs=width)


@pytest.mark.parametrize(
    "x",
    [
        heavy_tailed(50_000),
        np.abs(heavy_tailed(50_000)),
        np.maximum(heavy_tailed(50_000), 0),
        np.maximum(heavy_tailed(50_000), -0.2),
    ],
    ids=["both sides", "one side", "half zero", "short lower side"],
)
def test_mse_is_near_the_least_error_of_all_ranges(x):
    x = x.astype(np.float32)
    found = squared_error(x, METHODS["mse"](histogram_of(x)))
    lows, highs = np.linspace(0, x.min(), 40), np.linspace(0, x.max(), 80)[1:]
    least = min(squared_error(x, Range(float(a), float(b))) for a in lows for b in highs)
    assert found <= 1.1 * least
    for method in METHODS.values():
        assert found <= 1.01 * squared_error(x, method(histogram_of(x)))


def test_entropy_clips_what_costs_few_elements():
    """A thousand times as wide for one element in 100,000."""
    x = np.append(np.random.default_rng(0).normal(size=100_000), 1000.0)
    covered = METHODS["entropy"](histogram_of(x))
    assert 2 < covered.high < 200


def test_entropy_covers_a_uniform_distribution():
    covered = METHODS["entropy"](histogram_of(np.random.default_rng(0).uniform(-1, 1, 100_000)))
    assert covered.high > 0.95
    assert covered.low < -0.95
