"""Batch normalization, scales and biases in the products before them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.inference import passes
from cubemesh.inference.passes import affine, optimize
from onnx_graphs import Sketch, by_onnxruntime, by_reference, distance, in_float64, kinds

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(3)
BEGIN = RNG.bit_generator.state


def normal(*shape):
    return RNG.standard_normal(shape)


def norm_parameters(channels):
    return normal(channels), normal(channels), normal(channels), RNG.uniform(0.1, 2, channels)


def checked(graph, inputs, bound=1e-12):
    """The optimized graph, which has the same results in float64, and in float32 to rounding."""
    groups = [o.attributes.get("group", 1) for o in graph.operators if o.kind == "ConvTranspose"]
    if any(group > 1 for group in groups):  # which the reference computes wrongly
        made, _ = optimize(graph)
        inputs = {name: array.astype(np.float32) for name, array in inputs.items()}
        assert distance(by_onnxruntime(made, inputs), by_onnxruntime(graph, inputs)) <= 1e-4
        return made
    wide = in_float64(graph)
    given = {name: array.astype(np.float64) for name, array in inputs.items()}
    wanted = by_reference(wide, given)
    optimized, _ = optimize(wide)
    assert distance(by_reference(optimized, given), wanted) <= bound
    assert optimize(optimized)[0] is optimized
    narrow, _ = optimize(graph)
    assert kinds(narrow) == kinds(optimized)
    for array in narrow.constants.values():
        assert array.dtype != np.float64
    found = by_reference(narrow, {n: a.astype(np.float32) for n, a in inputs.items()})
    assert all(f.dtype == np.float32 for f in found)
    assert distance(found, wanted) <= 1e-4
    return narrow


@st.composite
def convolutions(draw):
    """A convolution of one or two dimensions with whatever is left out, and what follows it."""
    groups = draw(st.sampled_from([1, 2, 3]))
    channels, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 3))
    dimensions = draw(st.integers(1, 2))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(dimensions))
    transposed = draw(st.booleans())
    attributes = {
        "group": groups,
        "strides": tuple(draw(st.integers(1, 2)) for _ in kernel),
        "dilations": tuple(draw(st.integers(1, 2)) for _ in kernel),
        "pads": tuple(draw(st.integers(0, 1)) for _ in (*kernel, *kernel)),
    }
    if draw(st.booleans()):
        attributes["kernel_shape"] = kernel
    ends = ("BatchNormalization", "Mul", "Add", "Div", "Sub", "Sub from", "scalar", "Relu")
    after = draw(st.lists(st.sampled_from(ends), min_size=1, max_size=3))
    return groups, channels, outputs, kernel, transposed, draw(st.booleans()), attributes, after


def follow(sketch, x, end, channels, rank):
    shape = (channels, *[1] * (rank - 2))
    if RNG.random() < 0.5:
        shape = (1, *shape)
    if end == "BatchNormalization":
        return sketch.BatchNormalization(x, *norm_parameters(channels), epsilon=1e-3)
    if end == "scalar":
        return sketch.Mul(sketch.constant(-1.5), x)
    if end == "Relu":
        return sketch.Relu(x)
    if end == "Sub from":
        return sketch.Sub(sketch.constant(normal(*shape)), x)
    other = RNG.uniform(0.5, 2, shape) if end == "Div" else normal(*shape)
    return sketch.call(end, x, sketch.constant(other))


@settings(max_examples=60)
@given(convolutions())
def test_what_follows_a_convolution_is_part_of_it(drawn):
    RNG.bit_generator.state = BEGIN  # an example has its numbers
    groups, channels, outputs, kernel, transposed, biased, attributes, after = drawn
    size = (2, channels, *[7] * len(kernel))
    sketch = Sketch(x=("batch", *size[1:]))
    rows = (channels, outputs // groups) if transposed else (outputs, channels // groups)
    inputs = ["x", sketch.constant(normal(*rows, *kernel))]
    inputs += [sketch.constant(normal(outputs))] * biased
    y = sketch.call("ConvTranspose" if transposed else "Conv", *inputs, **attributes)
    for end in after:
        y = follow(sketch, y, end, outputs, len(size))
    graph = sketch.graph(y, rank=len(size))
    folded = after.index("Relu") if "Relu" in after else len(after)
    made = checked(graph, {"x": normal(*size)})
    assert len(kinds(made)) <= 1 + 2 * (len(after) - folded)


@settings(max_examples=40)
@given(
    st.sampled_from(["Gemm", "Gemm transposed", "MatMul", "MatMul of 3 axes", "MatMul and Add"]),
    st.booleans(),
    st.sampled_from([(), (1,), (5,), (1, 5)]),
    st.lists(st.sampled_from(["Mul", "Div", "Add", "Sub", "Sub from", "norm"]), max_size=3),
)
def test_what_follows_a_matrix_product_is_part_of_it(form, biased, shape, after):
    RNG.bit_generator.state = BEGIN
    size = (2, 3, 4) if form.endswith("axes") else (3, 4)
    sketch = Sketch(x=("batch", *size[1:]))
    if form.startswith("Gemm"):
        columns = normal(5, 4) if form.endswith("transposed") else normal(4, 5)
        bias = [sketch.constant(normal(*shape))] * biased
        more = {"transB": 1} if form.endswith("transposed") else {}
        y = sketch.Gemm("x", columns, *bias, alpha=0.5, beta=1.5, **more)
    else:
        y = sketch.MatMul("x", normal(4, 5))
        if form.endswith("Add") or biased:
            y = sketch.Add(sketch.constant(normal(5)), y)
    for end in after:
        if end == "norm":
            if len(size) == 2:
                y = sketch.BatchNormalization(y, *norm_parameters(5))
        elif end == "Sub from":
            y = sketch.Sub(normal(*shape), y)
        else:
            y = sketch.call(end, y, RNG.uniform(0.5, 2, shape))
    made = checked(sketch.graph(y, rank=len(size)), {"x": normal(*size)})
    if len(size) == 2:
        assert len(made.operators) <= 2
    if form.startswith("Gemm"):
        assert kinds(made) == ["Gemm"]


def test_a_norm_without_a_product_is_a_product_and_a_sum():
    sketch = Sketch(x=("n", 3, 4, 4))
    y = sketch.BatchNormalization(sketch.Relu("x"), *norm_parameters(3))
    made = checked(sketch.graph(y, rank=4), {"x": normal(2, 3, 4, 4)})
    assert kinds(made) == ["Relu", "Mul", "Add"]
    assert sorted(a.shape for a in made.constants.values()) == [(3, 1, 1), (3, 1, 1)]


def test_a_convolution_with_another_use_keeps_its_result():
    sketch = Sketch(x=(1, 3, 5, 5))
    y = sketch.Conv("x", normal(4, 3, 3, 3))
    z = sketch.BatchNormalization(y, *norm_parameters(4))
    made = checked(sketch.graph(sketch.Add(y, z), rank=4), {"x": normal(1, 3, 5, 5)})
    assert kinds(made) == ["Conv", "Mul", "Add", "Add"]
    both = checked(replace(sketch.graph(y, z, rank=4)), {"x": normal(1, 3, 5, 5)})
    assert kinds(both) == ["Conv", "Mul", "Add"]


def test_weights_that_two_convolutions_share_stay_those_of_the_other():
    sketch = Sketch(x=(1, 3, 5, 5))
    weights = sketch.constant(normal(3, 3, 3, 3))
    y = sketch.Conv("x", weights, pads=(1, 1, 1, 1))
    y = sketch.BatchNormalization(y, *norm_parameters(3))
    y = sketch.Conv(sketch.Relu(y), weights)
    made = checked(sketch.graph(y, rank=4), {"x": normal(1, 3, 5, 5)})
    assert kinds(made) == ["Conv", "Relu", "Conv"]
    assert weights in made.constants


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"variance": -1.0}, "BatchNormalization"),
        ({"variance": np.nan}, "BatchNormalization"),
        ({"weights": 1e30}, "BatchNormalization"),
        ({"kept": True}, "BatchNormalization"),
        ({"half": True}, "BatchNormalization"),
    ],
)
def test_norms_that_cannot_be_folded_stay(change, kind):
    scale, shift, mean, variance = norm_parameters(4)
    sketch = Sketch(x=(1, 3, 5, 5))
    weights = normal(4, 3, 1, 1) * change.get("weights", 1)
    variance = np.full(4, change["variance"]) if "variance" in change else variance
    if "weights" in change:
        scale = scale * 1e30
    dtype = np.float16 if "half" in change else np.float32
    arrays = [sketch.constant(a, dtype) for a in (scale, shift, mean, variance)]
    if "half" in change:
        sketch.inputs["x"] = replace(sketch.inputs["x"], dtype="float16")
    y = sketch.Conv("x", sketch.constant(weights, dtype))
    y = sketch.BatchNormalization(y, *arrays, **({"training_mode": 1} if "kept" in change else {}))
    graph = sketch.graph(y, rank=4, dtype=np.dtype(dtype).name)
    made, _ = optimize(graph)
    assert kinds(made)[0] == "Conv"
    if "weights" in change:
        assert kinds(made) == ["Conv", "Mul", "Add"]  # the weights would be infinite
    else:
        assert kinds(made) == ["Conv", kind]


@pytest.mark.parametrize("shape", [(4, 3, 1), (3,), (2, 4, 1, 1), (1, 1, 4, 1, 1), (1, 1, 3, 3)])
def test_constants_along_other_axes_stay(shape):
    sketch = Sketch(x=(1, 3, 5, 5))
    y = sketch.Add(sketch.Conv("x", normal(4, 3, 3, 3)), normal(*shape))
    rank = max(4, len(shape))
    made = checked(sketch.graph(y, rank=rank), {"x": normal(1, 3, 5, 5)})
    assert kinds(made) == ["Conv", "Add"]


def test_one_channel_that_a_constant_makes_several_stays():
    sketch = Sketch(x=(1, 3, 5, 5))
    y = sketch.Add(sketch.Conv("x", normal(1, 3, 3, 3)), normal(4, 1, 1))
    made = checked(sketch.graph(y, rank=4), {"x": normal(1, 3, 5, 5)})
    assert kinds(made) == ["Conv", "Add"]


def test_a_bias_of_a_matrix_product_makes_a_gemm_only_of_matrices():
    sketch = Sketch(x=(2, 3, 4), y=(3, 4))
    bias = sketch.constant(normal(5))
    three = sketch.Add(sketch.MatMul("x", normal(4, 5)), bias)
    two = sketch.Add(sketch.MatMul("y", normal(4, 5)), bias)
    rows = sketch.Add(sketch.MatMul("y", normal(4, 5)), normal(3, 1))
    graph = sketch.graph(sketch.Add(sketch.Add(three, two), rows), rank=3)
    made = checked(graph, {"x": normal(2, 3, 4), "y": normal(3, 4)})
    assert sorted(kinds(made)) == ["Add", "Add", "Add", "Add", "Gemm", "MatMul", "MatMul"]


def test_a_bias_that_is_an_input_joins_its_matrix_product():
    sketch = Sketch(x=(3, 4), b=(5,))
    graph = sketch.graph(sketch.Add("b", sketch.MatMul("x", normal(4, 5))), rank=2)
    made = checked(graph, {"x": normal(3, 4), "b": normal(5)})
    assert kinds(made) == ["Gemm"]


def test_shared_weights_of_many_products_are_not_copied_without_bound(monkeypatch):
    for module in (affine, passes):
        monkeypatch.setattr(module, "MOST_ADDED_BYTES", 4 * 4 * 5 * 3)
    sketch = Sketch(x=(3, 4))
    weights = sketch.constant(normal(4, 5))
    results = [sketch.Mul(sketch.MatMul(x, weights), normal(5)) for x in _distinct(sketch, 6)]
    made, _ = optimize(sketch.graph(sketch.Sum(*results), rank=2))
    assert kinds(made).count("Mul") == 3
    assert weights in made.constants


def _distinct(sketch, count):
    return [sketch.LeakyRelu("x", alpha=0.1 * (n + 1)) for n in range(count)]
