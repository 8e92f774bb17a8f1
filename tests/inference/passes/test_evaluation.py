"""Operators that do nothing in evaluation, chains of views, duplicates."""

import numpy as np
import pytest

from cubemesh.inference.passes import optimize
from cubemesh.inference.passes.duplicates import merge_duplicates
from cubemesh.inference.passes.evaluation import remove_no_ops
from cubemesh.onnx.graph import Graph, Operator, Value
from onnx_graphs import Sketch, by_reference, distance, kinds

pytest.importorskip("onnx")

MOST = np.iinfo(np.int64).max
X = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)


def between(write, shape=(2, 3, 4, 5), opset=20, rank=4, dtype="float32"):
    """Kinds of the optimized graph with `write`'s operators between a Relu and a Tanh, whose result
    is checked."""
    sketch = Sketch(opset=opset, x=shape)
    graph = sketch.graph(
        sketch.Tanh(write(sketch, sketch.Relu("x")), result="result"), rank=rank, dtype=dtype
    )
    made, _ = optimize(graph)
    assert distance(by_reference(made, {"x": X}), by_reference(graph, {"x": X})) == 0
    assert [v.name for v in made.outputs] == ["result"]
    return kinds(made)[1:-1]


NO_OPS = {
    "identity": lambda s, x: s.Identity(x),
    "identities": lambda s, x: s.Identity(s.Identity(x)),
    "dropout": lambda s, x: s.Dropout(x, 0.5),
    "dropout not in training": lambda s, x: s.Dropout(x, 0.5, s.constant(False, bool)),
    "dropout with a mask": lambda s, x: s.Dropout(x, 0.5, outputs=2)[0],
    "cast": lambda s, x: s.Cast(x, to=1),
    "reshape": lambda s, x: s.Reshape(x, s.integers(2, 3, 4, 5)),
    "reshape with zeros": lambda s, x: s.Reshape(x, s.integers(0, 0, -1, 5)),
    "transpose": lambda s, x: s.Transpose(x, perm=(0, 1, 2, 3)),
    "transposes": lambda s, x: s.Transpose(s.Transpose(x, perm=(0, 2, 3, 1)), perm=(0, 3, 1, 2)),
    "reversals": lambda s, x: s.Transpose(s.Transpose(x)),
    "views and back": lambda s, x: s.Reshape(s.Flatten(x), s.integers(2, 3, 4, 5)),
    "concat": lambda s, x: s.Concat(x, axis=1),
    "pad": lambda s, x: s.Pad(x, s.integers(*[0] * 8)),
    "slice": lambda s, x: s.Slice(
        x, s.integers(0, 0), s.integers(3, MOST), s.integers(1, -1), s.integers(1, 1)
    ),
    "slice from far before": lambda s, x: s.Slice(x, s.integers(-9), s.integers(2)),
    "expand": lambda s, x: s.Expand(x, s.integers(3, 1, 5)),
    "tile": lambda s, x: s.Tile(x, s.integers(1, 1, 1, 1)),
    "split": lambda s, x: s.Split(x, s.integers(3), axis=1),
    "sum": lambda s, x: s.Sum(x),
    "clip": lambda s, x: s.Clip(x),
    "times one": lambda s, x: s.Mul(x, [1.0]),
    "by one": lambda s, x: s.Div(x, 1.0),
    "pool of one": lambda s, x: s.MaxPool(x, kernel_shape=(1, 1), outputs=2)[0],
    "unsqueeze of nothing": lambda s, x: s.Squeeze(s.Unsqueeze(x, s.integers(0)), s.integers(0)),
}


@pytest.mark.parametrize("name", [n for n in NO_OPS if n != "unsqueeze of nothing"])
def test_operators_that_do_nothing_go(name):
    assert between(NO_OPS[name]) == []


@pytest.mark.parametrize("name", ["identity", "dropout", "cast", "reshape with zeros", "pad"])
def test_they_go_where_the_batch_is_free(name):
    assert between(NO_OPS[name], shape=("n", 3, 4, 5)) == []


@pytest.mark.parametrize(
    ("write", "left"),
    [
        (lambda s, x: s.Reshape(x, s.integers(2, 4, 3, 5)), ["Reshape"]),
        (lambda s, x: s.Transpose(x, perm=(0, 1, 3, 2)), ["Transpose"]),
        (lambda s, x: s.Pad(x, s.integers(0, 0, 0, 0, 0, 0, 0, 1)), ["Pad"]),
        (lambda s, x: s.Slice(x, s.integers(1), s.integers(MOST), s.integers(3)), ["Slice"]),
        (lambda s, x: s.Slice(x, s.integers(0), s.integers(-1), s.integers(3)), ["Slice"]),
        (
            lambda s, x: s.Slice(
                x, s.integers(-1), s.integers(-MOST), s.integers(3), s.integers(-1)
            ),
            ["Slice"],
        ),
        (lambda s, x: s.Tile(x, s.integers(1, 1, 1, 2)), ["Tile"]),
        (lambda s, x: s.Add(x, 1.0), ["Add"]),
        (lambda s, x: s.MaxPool(x, kernel_shape=(1, 1), strides=(2, 2)), ["MaxPool"]),
        (lambda s, x: s.Clip(x, 0.5), ["Clip"]),
        (lambda s, x: s.Concat(x, x, axis=1), ["Concat"]),
    ],
)
def test_operators_that_do_something_stay(write, left):
    assert between(write) == left


def test_a_factor_of_one_that_adds_axes_stays():
    assert between(lambda s, x: s.Mul(x, np.ones((1,) * 5)), rank=5) == ["Mul"]
    assert between(lambda s, x: s.Expand(x, s.integers(2, 1, 1, 1, 1)), rank=5) == ["Expand"]


def test_a_dropout_in_training_stays():
    sketch = Sketch(x=(2, 3))
    y = sketch.Dropout("x", 0.5, sketch.constant(True, bool), seed=1)
    assert kinds(optimize(sketch.graph(y, rank=2))[0]) == ["Dropout"]


def test_a_dropout_whose_mask_is_used_stays():
    sketch = Sketch(x=(2, 3))
    y, mask = sketch.Dropout("x", 0.5, outputs=2)
    graph = sketch.graph(y, Value(name=mask, dtype="bool", shape=(2, 3)), rank=2)
    assert kinds(optimize(graph)[0]) == ["Dropout"]


def test_chains_of_views_are_one():
    write = lambda s, x: s.Reshape(  # noqa: E731
        s.Reshape(s.Flatten(x, axis=2), s.integers(2, 60)), s.integers(5, 2, 3, 4)
    )
    assert between(write) == ["Reshape"]
    write = lambda s, x: s.Transpose(  # noqa: E731
        s.Transpose(x, perm=(0, 2, 3, 1)), perm=(0, 1, 3, 2)
    )
    assert between(write) == ["Transpose"]
    # a zero means a length of the shape before, which is another one
    write = lambda s, x: s.Reshape(  # noqa: E731
        s.Reshape(x, s.integers(6, 4, 5)), s.integers(0, 2, 10)
    )
    assert between(write, rank=3) == ["Reshape", "Reshape"]


def test_outputs_keep_their_names():
    operators = (
        Operator(kind="Identity", inputs=("x",), outputs=("same",)),
        Operator(kind="Relu", inputs=("x",), outputs=("y",)),
        Operator(kind="Identity", inputs=("y",), outputs=("one",)),
        Operator(kind="Dropout", inputs=("y",), outputs=("two",)),
        Operator(kind="Tanh", inputs=("two",), outputs=("three",)),
        Operator(kind="Identity", inputs=("c",), outputs=("constant",)),
    )
    names = ("same", "one", "two", "three", "constant")
    graph = Graph(
        name="outputs",
        opset=20,
        inputs=(Value(name="x", dtype="float32", shape=(3,)),),
        outputs=tuple(Value(name=n, dtype="float32", shape=(3,)) for n in names),
        operators=operators,
        constants={"c": np.ones(3, np.float32)},
    )
    made, _ = optimize(graph)
    assert kinds(made) == ["Identity", "Relu", "Identity", "Tanh", "Identity"]
    assert made.producers["one"].kind == "Relu"
    inputs = {"x": np.array([-1, 0.5, 2], np.float32)}
    assert distance(by_reference(made, inputs), by_reference(graph, inputs)) == 0
    assert optimize(made)[0] is made


def test_operators_that_no_output_needs_go():
    sketch = Sketch(x=(3,))
    y = sketch.Relu("x")
    sketch.Tanh(y)
    sketch.constant([1.0, 2.0])
    made = remove_no_ops(sketch.graph(y, rank=1))
    assert kinds(made) == ["Relu"]
    assert not made.constants


def test_equal_operators_and_constants_are_one():
    sketch = Sketch(x=(3, 4))
    one, two = (sketch.Mul(*pair) for pair in (("x", [2.0]), (sketch.constant([2.0]), "x")))
    y = sketch.Add(sketch.Softmax(one, axis=1), sketch.Softmax(two, axis=1))
    other = sketch.Add(sketch.Softmax(one, axis=0), sketch.constant([-0.0]))
    graph = sketch.graph(y, sketch.Add(other, sketch.constant([0.0])), rank=2)
    made = merge_duplicates(graph)
    assert kinds(made) == ["Mul", "Softmax", "Add", "Softmax", "Add", "Add"]
    assert len(made.constants) == 3  # 0 and -0 are two
    inputs = {"x": X[0, 0, :3, :4]}
    assert distance(by_reference(made, inputs), by_reference(graph, inputs)) == 0


def test_constants_that_look_alike_are_compared_whole():
    sketch = Sketch(x=(100,))
    arrays = np.zeros((3, 100), np.float32)
    arrays[1, 50] = 1
    y = "x"
    for array in arrays:
        y = sketch.Add(y, sketch.constant(array))
    y = sketch.Add(y, sketch.constant(np.zeros(100)))
    made = merge_duplicates(sketch.graph(y, rank=1))
    assert len(made.constants) == 2


def test_outputs_with_the_same_value_are_computed_once():
    sketch = Sketch(x=(3,))
    graph = sketch.graph(sketch.Relu("x"), sketch.Relu("x"), rank=1)
    made, _ = optimize(graph)
    assert kinds(made) == ["Relu", "Identity"]
    assert [v.name for v in made.outputs] == [v.name for v in graph.outputs]
    assert optimize(made)[0] is made


def test_shapes_that_contradict_are_left_to_others():
    sketch = Sketch(x=(3, 4))
    y = sketch.Identity(sketch.MatMul("x", sketch.constant(np.ones((5, 2)))))
    made, _ = optimize(sketch.graph(y, rank=2))
    assert kinds(made) == ["MatMul"]
