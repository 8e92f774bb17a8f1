"""Histograms of activations: exact however the samples come."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cubemesh.errors import DataError, UsageError
from cubemesh.inference.quantization import calibrate as calibration
from cubemesh.inference.quantization.calibrate import (
    BINS,
    Calibration,
    HistogramBuilder,
    calibrate,
    channel_axis,
    counted_stride,
)
from cubemesh.inference.quantization.ranges import METHODS
from cubemesh.onnx.engines import ENGINES
from cubemesh.onnx.graph import Graph, Operator, Value

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

floats = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
chunks = st.lists(arrays(np.float32, st.integers(1, 40), elements=floats), min_size=1, max_size=6)


def histogram_of(*parts, axis=None):
    builder = HistogramBuilder(axis)
    for part in parts:
        builder.add(np.asarray(part, np.float32))
    return builder.result()


def open_session(content):
    return ENGINES["onnxruntime"].load().open_session(content, threads=1)


def two_layers(batch="batch"):
    """image (3 channels) → convolution → ReLU → mean → scores"""
    weight = np.random.default_rng(0).normal(size=(4, 3, 1, 1)).astype(np.float32)
    return Graph(
        name="two",
        opset=20,
        inputs=(Value(name="image", dtype="float32", shape=(batch, 3, 5, 6)),),
        outputs=(Value(name="scores", dtype="float32", shape=(batch, 4, 1, 1)),),
        operators=(
            Operator(kind="Conv", inputs=("image", "w"), outputs=("conv",)),
            Operator(kind="Relu", inputs=("conv",), outputs=("relu",)),
            Operator(kind="Conv", inputs=("relu", "v"), outputs=("second",)),
            Operator(kind="GlobalAveragePool", inputs=("second",), outputs=("scores",)),
        ),
        constants={"w": weight, "v": np.ones((4, 4, 1, 1), np.float32)},
    )


@settings(deadline=None)
@given(chunks)
def test_batches_give_the_histogram_of_all_samples_at_once(parts):
    whole = histogram_of(np.concatenate(parts))
    for order in (parts, parts[::-1]):
        found = histogram_of(*order)
        assert (found.exponent, found.first, found.low, found.high) == (
            whole.exponent,
            whole.first,
            whole.low,
            whole.high,
        )
        assert (found.counts == whole.counts).all()


@settings(deadline=None)
@given(chunks)
def test_each_element_is_in_the_bin_that_covers_it(parts):
    found = histogram_of(*parts)
    counts = np.zeros(BINS, int)
    for x in np.concatenate(parts).tolist():
        counts[math.floor(x / found.width) - found.first] += 1
    assert (found.counts == counts).all()
    assert found.size == sum(map(len, parts))


@given(st.floats(1e-6, 1e6), st.floats(-1e3, 1e3))
def test_bins_are_as_fine_as_their_number_allows(span, low):
    found = histogram_of([low, low + span])
    bins = math.floor(found.high / found.width) - math.floor(found.low / found.width) + 1
    assert bins <= BINS
    finest = max(abs(found.low), abs(found.high)) * 2.0**-23
    assert bins > BINS // 2 or found.width <= finest


def test_values_that_are_all_the_same():
    for value in (0.0, 3.5, -1e-30, 1e30):
        found = histogram_of([value] * 5, [value])
        assert found.low == found.high == np.float32(value)
        assert found.counts.max() == found.size == 6


def test_channel_means_of_images_and_sequences():
    images = np.random.default_rng(0).normal(size=(7, 3, 4, 5)).astype(np.float32)
    found = histogram_of(images[:3], images[3:], axis=1)
    assert np.allclose(found.means, images.mean(axis=(0, 2, 3)), atol=1e-6)
    rows = images[:, 0]
    found = histogram_of(rows[:3], rows[3:], axis=-1)
    assert np.allclose(found.means, rows.mean(axis=(0, 1)), atol=1e-6)


@pytest.mark.parametrize("shape", [(64, 112, 112), (2048, 7, 7), (197, 768), (5,), (3, 224, 224)])
def test_of_large_samples_evenly_spaced_elements_are_counted(shape, monkeypatch):
    stride = counted_stride(shape)
    counted = -(-math.prod(shape) // stride)
    assert counted <= calibration.MOST_COUNTED
    assert counted >= min(math.prod(shape), calibration.MOST_COUNTED // 4)
    places = np.unravel_index(np.arange(0, math.prod(shape), stride), shape)
    for axis, length in enumerate(shape):  # about as often at each index of every axis
        counts = np.bincount(places[axis], minlength=length)
        assert counts.min() >= counts.max() - max(2, 0.1 * counts.max())


def test_counting_a_part_depends_on_neither_batches_nor_order(monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.standard_t(3, size=(6, 8, 30, 30)).astype(np.float32)
    whole = histogram_of(images, axis=1)
    monkeypatch.setattr(calibration, "MOST_COUNTED", 500)
    part = histogram_of(images[4:], images[:1], images[1:4], axis=1)
    assert (part.counts == histogram_of(images, axis=1).counts).all()
    assert part.size < whole.size / 10
    assert (part.low, part.high) == (whole.low, whole.high)
    assert np.allclose(part.means, whole.means)
    covered = [METHODS["percentile"](h, 99.0).high for h in (part, whole)]
    assert covered[0] == pytest.approx(covered[1], rel=0.1)


def test_channels_are_those_that_products_sum_over():
    one = two_layers()
    assert channel_axis(one, "image") == channel_axis(one, "relu") == 1
    assert channel_axis(one, "conv") is None
    product = Operator(kind="MatMul", inputs=("image", "v"), outputs=("scores",))
    only = replace(one, operators=(product,))
    assert channel_axis(only, "image") == -1
    assert channel_axis(replace(one, operators=(*one.operators, product)), "image") is None


def test_a_network_is_observed_while_it_runs(monkeypatch):
    graph = two_layers()
    images = np.random.default_rng(1).normal(size=(9, 3, 5, 6)).astype(np.float32)
    weight = graph.constants["w"][:, :, 0, 0]
    conv = np.einsum("nihw,oi->nohw", images, weight)
    batches = [{"image": images[:6]}, {"image": images[6:]}]
    for most in (1, 1 << 30):  # samples one by one, and batches as they are
        monkeypatch.setattr(calibration, "MOST_OUTPUT_BYTES", most)
        found = calibrate(graph, open_session, batches, ["image", "conv", "relu", "scores"])
        assert found.samples == 9
        image, relu = found.histograms["image"], found.histograms["relu"]
        assert (image.low, image.high) == (images.min(), images.max())
        assert np.allclose(image.means, images.mean(axis=(0, 2, 3)), atol=1e-6)
        assert (relu.low, relu.size) == (0, conv.size)
        assert relu.high == pytest.approx(conv.max(), rel=1e-5)
        assert np.allclose(relu.means, np.maximum(conv, 0).mean(axis=(0, 2, 3)), atol=1e-6)
        assert found.histograms["conv"].means.size == 0  # no product reads it
        assert found.histograms["scores"].size == 9 * 4


def test_a_fixed_batch_size_is_not_divided(monkeypatch):
    monkeypatch.setattr(calibration, "MOST_OUTPUT_BYTES", 1)
    images = np.ones((2, 3, 5, 6), np.float32)
    found = calibrate(two_layers(batch=2), open_session, [{"image": images}] * 2, ["relu"])
    assert found.samples == 4


@pytest.mark.parametrize(("value", "words"), [(np.nan, "has NaN"), (np.inf, "has infinity")])
def test_activations_that_are_not_finite_are_named(value, words):
    images = np.zeros((4, 3, 5, 6), np.float32)
    images[3, 0, 0, 0] = value
    with pytest.raises(DataError, match=f"'image' of two .*{words} in samples 2 to 4"):
        calibrate(
            two_layers(), open_session, [{"image": images[:2]}, {"image": images[2:]}], ["image"]
        )


def test_activations_that_overflow_inside_are_named():
    images = np.full((1, 3, 5, 6), 3e38, np.float32)
    graph = two_layers()
    graph = replace(graph, constants={**graph.constants, "w": np.full((4, 3, 1, 1), 9, np.float32)})
    with pytest.raises(DataError, match=r"'relu' of two .* infinity"):
        calibrate(graph, open_session, [{"image": images}], ["relu"])


def test_hopeless_requests_are_refused():
    with pytest.raises(UsageError, match="has no activation 'rleu'"):
        calibrate(two_layers(), open_session, [], ["rleu"])
    with pytest.raises(UsageError, match="needs samples, and there are none"):
        calibrate(two_layers(), open_session, [], ["relu"])


def test_a_calibration_survives_a_file():
    images = np.random.default_rng(1).normal(size=(2, 3, 5, 6)).astype(np.float32)
    found = calibrate(two_layers(), open_session, [{"image": images}], ["image", "conv", "relu"])
    stored = found.arrays()
    again = Calibration.from_arrays(2, ["relu", "image", "conv"], stored)
    assert again.samples == 2
    for name, histogram in found.histograms.items():
        other = again.histograms[name]
        assert (other.exponent, other.first, other.low, other.high) == (
            histogram.exponent,
            histogram.first,
            histogram.low,
            histogram.high,
        )
        assert (other.counts == histogram.counts).all()
        assert (other.means == histogram.means).all()
    assert Calibration.from_arrays(1, [], Calibration(samples=1, histograms={}).arrays())
    for damage in (
        {"counts": stored["counts"][:, :-1]},
        {"means": stored["means"][:-1]},
        {"extremes": stored["extremes"] * np.nan},
        {"bins": stored["bins"].astype(np.float64)},
    ):
        with pytest.raises(DataError, match="damaged"):
            Calibration.from_arrays(2, found.histograms, {**stored, **damage})
    with pytest.raises(DataError, match="damaged"):
        Calibration.from_arrays(2, ["relu"], stored)
