"""Concatenations, sibling products, and the steps that are left."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.inference.passes import OPTIONAL, PASSES, optimize, steps
from onnx_graphs import Sketch, by_reference, distance, in_float64, kinds

pytest.importorskip("onnx")

RNG = np.random.default_rng(5)
EVERY = {**PASSES, **OPTIONAL}


def normal(*shape):
    return RNG.standard_normal(shape)


def checked(graph, passes=PASSES, **shapes):
    """The optimized graph, which has the same results in float64."""
    wide = in_float64(graph)
    inputs = {name: normal(*shape) for name, shape in shapes.items()}
    made, _ = optimize(wide, passes)
    assert distance(by_reference(made, inputs), by_reference(wide, inputs)) <= 1e-12
    assert optimize(made, passes)[0] is made
    return made


def test_nested_concatenations_are_flat():
    sketch = Sketch(x=(2, 3, 4), y=(2, 3, 4))
    inner = sketch.Concat("x", "y", axis=-2)
    other = sketch.Concat("y", "x", axis=0)
    first = sketch.Slice(other, *(sketch.integers(n) for n in (0, 2, 0)))
    graph = sketch.graph(sketch.Concat("y", inner, first, "x", axis=1), rank=3)
    made = checked(graph, x=(2, 3, 4), y=(2, 3, 4))
    assert kinds(made) == ["Concat", "Slice", "Concat"]
    assert made.operators[-1].inputs[:3] == ("y", "x", "y")


def test_a_concatenation_with_another_use_stays():
    sketch = Sketch(x=(2, 3), y=(2, 3))
    inner = sketch.Concat("x", "y", axis=1)
    graph = sketch.graph(inner, sketch.Concat(inner, "y", axis=1), rank=2)
    assert kinds(checked(graph, x=(2, 3), y=(2, 3))) == ["Concat", "Concat"]


@pytest.mark.parametrize("lengths", [(1, 2, 3), None])
def test_a_concatenation_of_the_parts_of_a_split_is_what_was_split(lengths):
    sketch = Sketch(x=(2, 6), y=(2, 3))
    more = [sketch.integers(*lengths)] if lengths else []
    parts = sketch.Split("x", *more, axis=1, outputs=3, **({} if lengths else {"num_outputs": 3}))
    graph = sketch.graph(sketch.Concat("y", *parts, "y", axis=-1), rank=2)
    made = checked(graph, x=(2, 6), y=(2, 3))
    assert kinds(made) == ["Concat"]
    assert made.operators[0].inputs == ("y", "x", "y")
    alone = sketch.graph(sketch.Tanh(sketch.Concat(*parts, axis=1)), rank=2)
    assert kinds(checked(alone, x=(2, 6), y=(2, 3))) == ["Tanh"]


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 1), (0, 0, 1, 2)])
def test_parts_in_another_order_stay(order):
    sketch = Sketch(x=(2, 6))
    parts = sketch.Split("x", sketch.integers(1, 2, 3), axis=1, outputs=3)
    graph = sketch.graph(sketch.Concat(*(parts[n] for n in order), axis=1), rank=2)
    assert kinds(checked(graph, x=(2, 6))) == ["Split", "Concat"]


def test_parts_along_another_axis_stay():
    sketch = Sketch(x=(4, 4))
    parts = sketch.Split("x", axis=0, outputs=2, num_outputs=2)
    graph = sketch.graph(sketch.Concat(*parts, axis=1), rank=2)
    assert kinds(checked(graph, x=(4, 4))) == ["Split", "Concat"]


def test_a_split_of_a_concatenation_is_what_was_concatenated():
    sketch = Sketch(x=(2, 1), y=(2, 3))
    parts = sketch.Split(sketch.Concat("x", "y", axis=1), sketch.integers(1, 3), axis=1, outputs=2)
    graph = sketch.graph(sketch.Mul(*parts), rank=2)
    assert kinds(checked(graph, x=(2, 1), y=(2, 3))) == ["Mul"]
    others = sketch.Split(sketch.Concat("x", "y", axis=1), sketch.integers(3, 1), axis=1, outputs=2)
    graph = sketch.graph(sketch.Mul(*others), rank=2)
    assert kinds(checked(graph, x=(2, 1), y=(2, 3))) == ["Concat", "Split", "Mul"]


def branch(sketch, x, channels, *, bias=True, kernel=1, act="Relu"):
    more = [sketch.constant(normal(channels))] if bias else []
    pads = (kernel // 2,) * 4
    y = sketch.Conv(x, sketch.constant(normal(channels, 3, kernel, kernel)), *more, pads=pads)
    return sketch.call(act, y) if act else y


def test_sibling_convolutions_are_one():
    sketch = Sketch(x=("n", 3, 5, 5))
    parts = [branch(sketch, "x", n, bias=n != 2) for n in (1, 2, 3)]
    other = branch(sketch, parts[2], 2, kernel=3)
    graph = sketch.graph(sketch.Concat(*parts[:2], other, axis=1), rank=4)
    assert kinds(checked(graph, x=(2, 3, 5, 5))).count("Conv") == 4
    made = checked(graph, EVERY, x=(2, 3, 5, 5))
    assert kinds(made) == ["Conv", "Relu", "Split", "Conv", "Relu", "Concat"]


def test_siblings_that_are_concatenated_in_order_need_no_split():
    sketch = Sketch(x=(1, 3, 5, 5))
    parts = [branch(sketch, "x", n, kernel=3) for n in (1, 2, 3)]
    made = checked(sketch.graph(sketch.Concat(*parts, axis=1), rank=4), EVERY, x=(1, 3, 5, 5))
    assert kinds(made) == ["Conv", "Relu"]


def test_siblings_of_different_form_stay():
    sketch = Sketch(x=(1, 3, 6, 6))
    parts = [
        branch(sketch, "x", 3),
        branch(sketch, "x", 3, kernel=3),
        sketch.Conv("x", normal(3, 1, 1, 1), group=3),
        sketch.Conv("x", normal(3, 1, 1, 1), group=3),
        branch(sketch, branch(sketch, "x", 3, kernel=5), 3),
    ]
    made = checked(sketch.graph(sketch.Concat(*parts, axis=1), rank=4), EVERY, x=(1, 3, 6, 6))
    assert kinds(made).count("Conv") == 6


@settings(max_examples=25)
@given(
    st.sampled_from(["Gemm", "Gemm transposed", "MatMul", "MatMul of 3 axes"]),
    st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=2, max_size=4),
    st.booleans(),
)
def test_sibling_products_are_one(form, members, activation):
    size = (2, 3, 4) if form.endswith("axes") else (3, 4)
    sketch = Sketch(x=("n", *size[1:]))
    results = []
    for columns, biased in members:
        if form.startswith("Gemm"):
            weights = normal(columns, 4) if form.endswith("transposed") else normal(4, columns)
            bias = [sketch.constant(normal(columns))] * biased
            more = {"transB": 1} if form.endswith("transposed") else {}
            results.append(sketch.Gemm("x", weights, *bias, **more))
        else:
            results.append(sketch.MatMul("x", normal(4, columns)))
    graph = sketch.graph(*map(sketch.Tanh if activation else sketch.Neg, results), rank=len(size))
    made = checked(graph, EVERY, x=size)
    product = "Gemm" if form.startswith("Gemm") else "MatMul"
    rest = ["Tanh", "Split"] if activation else ["Split", *["Neg"] * len(members)]
    assert kinds(made) == [product, *rest]


def kinds_of_steps(graph):
    return [step.kind for step in steps(graph.with_operators(graph.operators))]


def test_a_residual_belongs_to_the_later_convolution():
    sketch = Sketch(x=(1, 3, 5, 5))
    short = branch(sketch, "x", 4, act=None)
    y = sketch.Conv(branch(sketch, "x", 3), sketch.constant(normal(4, 3, 1, 1)))
    y = sketch.Relu(sketch.Add(short, y))
    graph = sketch.graph(sketch.GlobalAveragePool(y), rank=4)
    assert kinds_of_steps(graph) == ["Conv", "Conv+Relu", "Conv+Add+Relu", "GlobalAveragePool"]
    third = steps(graph)[2]
    assert third.name == y
    assert short in third.inputs


def test_a_gate_that_another_value_spreads_is_a_step_of_its_own():
    sketch = Sketch(x=(1, 3, 5, 5))
    gate = sketch.Sigmoid(branch(sketch, sketch.GlobalAveragePool("x"), 3, act=None))
    graph = sketch.graph(sketch.Mul("x", gate), rank=4)
    assert kinds_of_steps(graph) == ["GlobalAveragePool", "Conv+Sigmoid", "Mul"]


def test_values_with_several_uses_end_steps():
    sketch = Sketch(x=(2, 3))
    y = sketch.Gemm("x", normal(3, 3))
    z = sketch.Mul(sketch.Sigmoid(y), y)
    assert kinds_of_steps(sketch.graph(z, rank=2)) == ["Gemm", "Sigmoid+Mul"]
    both = sketch.graph(y, sketch.Relu(y), rank=2)
    assert kinds_of_steps(both) == ["Gemm", "Relu"]


def test_views_and_what_is_known_are_no_steps():
    sketch = Sketch(x=(2, 3, 4))
    weights = sketch.Transpose(sketch.constant(normal(5, 12)))
    y = sketch.MatMul(sketch.Dropout(sketch.Flatten("x")), weights)
    assert kinds_of_steps(sketch.graph(y, rank=2)) == ["MatMul"]


def test_concatenations_that_are_written_in_slices_are_no_steps():
    sketch = Sketch(x=(1, 3, 5, 5))
    one, two = branch(sketch, "x", 2), branch(sketch, "x", 3)
    pool = sketch.MaxPool(one, kernel_shape=(1, 1))
    free = sketch.Concat(one, two, pool, axis=1)
    assert "Concat" not in kinds_of_steps(sketch.graph(free, rank=4))
    for copied in (
        sketch.Concat(one, two, one, axis=1),  # one value in two places
        sketch.Concat(one, "x", axis=1),  # nothing computes the input
        sketch.Concat(one, sketch.Reshape(two, sketch.integers(1, 3, 5, 5)), axis=1),
    ):
        assert "Concat" in kinds_of_steps(sketch.graph(copied, rank=4))
    other = sketch.Concat(two, pool, axis=1)
    twice = kinds_of_steps(sketch.graph(free, other, rank=4))
    assert twice.count("Concat") == 2  # each value is in two concatenations
    given = sketch.graph(sketch.Concat(one, two, axis=1), one, rank=4)
    assert "Concat" in kinds_of_steps(given)  # a part is an output itself


def test_splits_that_are_read_in_slices_are_no_steps():
    sketch = Sketch(x=(1, 4, 5, 5))
    one, two = sketch.Split("x", axis=1, outputs=2, num_outputs=2)
    read = sketch.graph(sketch.Add(sketch.Relu(one), two), rank=4)
    assert kinds_of_steps(read) == ["Relu+Add"]
    flat = sketch.graph(sketch.Relu(sketch.Flatten(one)), two, rank=2)
    assert kinds_of_steps(flat) == ["Split", "Relu"]
