"""Constant folding, and its limits."""

import numpy as np
import pytest

from cubemesh.inference import passes
from cubemesh.inference.passes import constants, optimize
from cubemesh.inference.passes.constants import fold_constants
from onnx_graphs import Sketch, by_reference, distance, kinds

pytest.importorskip("onnx")


def test_arithmetic_of_constants_is_done():
    sketch = Sketch(x=(2, 3))
    weights = sketch.Transpose(sketch.constant(np.arange(6).reshape(2, 3)))
    weights = sketch.Concat(sketch.Sqrt(sketch.Mul(weights, [4.0, 9.0])), weights, axis=1)
    graph = sketch.graph(sketch.MatMul("x", weights), rank=2)
    made = fold_constants(graph)
    assert kinds(made) == ["MatMul"]
    assert len(made.constants) == 1
    inputs = {"x": np.ones((2, 3), np.float32)}
    assert distance(by_reference(made, inputs), by_reference(graph, inputs)) <= 1e-7


@pytest.mark.parametrize("gathered", [True, False])
def test_lengths_that_are_known_are_constants(gathered):
    """What exporters write for x.view(x.size(0), -1)."""
    sketch = Sketch(x=(2, 3, 4))
    if gathered:
        index = sketch.constant(0, np.int64)
        batch = sketch.Unsqueeze(sketch.Gather(sketch.Shape("x"), index), sketch.integers(0))
    else:
        batch = sketch.Shape("x", start=0, end=1)
    y = sketch.Reshape("x", sketch.Concat(batch, sketch.integers(-1), axis=0))
    size = sketch.Cast(sketch.Size("x"), to=1)
    made, _ = optimize(sketch.graph(sketch.Div(y, size), rank=2))
    assert kinds(made) == ["Reshape", "Div"]
    assert sorted(a.tolist() for a in made.constants.values() if a.ndim) == [[2, -1]]


def test_only_lengths_that_are_free_are_asked_for():
    sketch = Sketch(x=("n", 3, 4))
    index = sketch.constant(-2, np.int64)
    known = sketch.Unsqueeze(sketch.Gather(sketch.Shape("x"), index), sketch.integers(0))
    batch = sketch.Shape("x", start=0, end=1)
    y = sketch.Reshape("x", sketch.Concat(batch, known, sketch.integers(-1), axis=0))
    made, _ = optimize(sketch.graph(y, rank=3))
    assert kinds(made) == ["Shape", "Concat", "Reshape"]
    x = np.ones((5, 3, 4), np.float32)
    assert by_reference(made, {"x": x})[0].shape == (5, 3, 4)


def test_an_output_that_is_known_keeps_its_name():
    sketch = Sketch(x=(2,))
    known = sketch.Add(sketch.constant([1.0]), sketch.constant([2.0]))
    later = sketch.Mul(known, sketch.constant([2.0]))
    graph = sketch.graph(known, sketch.Add("x", later), rank=1)
    made, _ = optimize(graph)
    assert sorted(kinds(made)) == ["Add", "Identity"]
    assert [v.name for v in made.outputs] == [v.name for v in graph.outputs]
    inputs = {"x": np.ones(2, np.float32)}
    assert distance(by_reference(made, inputs), by_reference(graph, inputs)) == 0
    assert optimize(made)[0] is made


HUGE = 10**6
REQUESTS = {
    "ConstantOfShape": lambda s: s.ConstantOfShape(s.integers(HUGE, HUGE)),
    "Expand": lambda s: s.Expand([1.0], s.integers(HUGE, HUGE)),
    "Tile": lambda s: s.Tile([1.0], s.integers(HUGE * HUGE)),
    "Pad": lambda s: s.Pad([1.0], s.integers(HUGE * HUGE, 0)),
    "Range": lambda s: s.Cast(
        s.Range(*(s.constant(n, np.int64) for n in (0, HUGE * HUGE, 1))), to=1
    ),
    "broadcast": lambda s: s.Add(np.ones((5_000, 1)), np.ones((1, 5_000))),
    "MatMul": lambda s: s.MatMul(np.ones((800, 800)), np.ones((800, 800))),
    "OneHot": lambda s: s.OneHot(
        s.integers(*range(9)), s.constant(HUGE, np.int64), s.constant([0.0, 1.0])
    ),
    "Gather": lambda s: s.Gather(np.ones((1, HUGE)), s.constant(np.zeros(HUGE), np.int64)),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_what_would_be_huge_is_not_computed(kind, monkeypatch):
    computed = []
    monkeypatch.setattr(constants, "_evaluated", lambda *given: computed.append(given))
    sketch = Sketch(x=(1,))
    graph = sketch.graph(sketch.Mul("x", REQUESTS[kind](sketch)), rank=2)
    assert fold_constants(graph) is graph
    assert computed == []


def test_one_number_is_not_stored_many_times():
    sketch = Sketch(x=(1, 300, 300))
    zeros = sketch.ConstantOfShape(sketch.integers(300, 300))
    small = sketch.ConstantOfShape(sketch.integers(3, 1))
    y = sketch.Add(sketch.Add("x", zeros), sketch.Slice(small, *_first_row(sketch)))
    made, _ = optimize(sketch.graph(y, rank=3))
    assert kinds(made) == ["ConstantOfShape", "Add", "Add"]


def _first_row(sketch):
    return sketch.integers(0), sketch.integers(1), sketch.integers(0)


def many(sketch, count):
    shared = sketch.constant(np.ones((100, 100)))
    results = [sketch.Add(shared, [float(n)]) for n in range(count)]
    return sketch.graph(sketch.Add("x", sketch.Concat("x", *results, axis=0)), rank=2)


def test_copies_of_a_constant_have_a_bound(monkeypatch):
    for module in (constants, passes):
        monkeypatch.setattr(module, "MOST_ADDED_BYTES", 5 * 40_000)
    graph = many(Sketch(x=(1, 100)), 20)
    made, _ = optimize(graph)
    assert kinds(made).count("Add") == 1 + 20 - 5
    assert made.constant_bytes <= graph.constant_bytes + 5 * 40_000


@pytest.mark.parametrize(
    ("limit", "value"), [("MOST_OPERATORS", 7), ("MOST_READ_BYTES", 7 * 80_004)]
)
def test_a_run_has_a_bound(monkeypatch, limit, value):
    monkeypatch.setattr(constants, limit, value)
    made = fold_constants(many(Sketch(x=(1, 100)), 20))
    assert kinds(made).count("Add") == 1 + 20 - 7


def test_quantized_weights_stay_integers():
    sketch = Sketch(x=(2, 3))
    weights = sketch.DequantizeLinear(sketch.constant(np.ones((3, 4)), np.int8), 0.5)
    made, _ = optimize(sketch.graph(sketch.MatMul("x", weights), rank=2))
    assert kinds(made) == ["DequantizeLinear", "MatMul"]


def test_what_the_reference_cannot_compute_stays():
    sketch = Sketch(x=(2,))
    index = sketch.Gather(sketch.constant([1.0, 2.0]), sketch.integers(5))
    graph = sketch.graph(sketch.Add("x", index), rank=1)
    assert fold_constants(graph) is graph


def test_a_mask_of_an_exported_transformer_is_a_constant():
    sketch = Sketch(x=(2, 8, 8))
    length = sketch.Gather(sketch.Shape("x"), sketch.constant(1, np.int64))
    zero, one = (sketch.constant(n, np.int64) for n in (0, 1))
    positions = sketch.Range(zero, length, one)
    rows = sketch.Unsqueeze(positions, sketch.integers(1))
    mask = sketch.Where(sketch.Less(rows, positions), [-1e9], [0.0])
    graph = sketch.graph(sketch.Softmax(sketch.Add("x", mask), axis=-1), rank=3)
    made, _ = optimize(graph)
    assert kinds(made) == ["Add", "Softmax"]
    inputs = {"x": np.random.default_rng(0).random((2, 8, 8), np.float32)}
    assert distance(by_reference(made, inputs), by_reference(graph, inputs)) == 0


@pytest.mark.parametrize("kind", ["Range", "Expand", "ConstantOfShape"])
def test_a_length_that_is_computed_can_be_huge(kind):
    sketch = Sketch(x=(1,))
    length = sketch.Mul(sketch.integers(HUGE), sketch.integers(HUGE))
    if kind == "Range":
        zero, one = (sketch.constant(n, np.int64) for n in (0, 1))
        vector = sketch.Range(zero, sketch.Squeeze(length), one)
    elif kind == "Expand":
        vector = sketch.Expand(sketch.integers(1), length)
    else:
        vector = sketch.ConstantOfShape(length)
    made, _ = optimize(sketch.graph(sketch.Mul("x", sketch.Cast(vector, to=1)), rank=1))
    assert kinds(made)[0] == kind
