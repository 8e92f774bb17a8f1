"""GELU, layer normalization and HardSwish as exporters write them out."""

import math

import numpy as np
import pytest

from cubemesh.inference.passes import optimize
from cubemesh.inference.passes.opset import EXTENDED, with_opset
from onnx_graphs import Sketch, by_onnxruntime, distance, in_float64, kinds

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

X = np.random.default_rng(0).standard_normal((2, 5, 6)).astype(np.float32) * 2
ROOT = math.sqrt(2)
TANH = math.sqrt(2 / math.pi)


def found(write, opset=20, wide=False):
    """Kinds of the optimized graph, whose result is checked, and its version."""
    sketch = Sketch(opset=opset, x=("n", 5, 6))
    x = sketch.Sub("x", sketch.constant(0.1 * np.ones(6)))
    graph = sketch.graph(write(sketch, x), rank=3)
    if wide:
        graph = in_float64(graph)
    made, _ = optimize(graph)
    if not wide:
        inputs = {"x": X}
        wanted = by_onnxruntime(graph, inputs)
        assert distance(by_onnxruntime(made, inputs), wanted) <= 1e-6
    assert optimize(made)[0] is made
    return kinds(made)[1:], made


def erf(s, x):
    return s.Add(s.Erf(s.Div(x, ROOT)), 1.0)


def cube(s, x):
    return s.Mul(s.Pow(x, 3.0), 0.044715)


GELUS = {
    "pytorch": ("none", lambda s, x: s.Mul(s.Mul(x, erf(s, x)), 0.5)),
    "half first": ("none", lambda s, x: s.Mul(s.Mul(0.5, x), erf(s, x))),
    "half of the sum": ("none", lambda s, x: s.Mul(x, s.Mul(s.constant(0.5), erf(s, x)))),
    "halved": ("none", lambda s, x: s.Div(s.Mul(x, erf(s, x)), 2.0)),
    "times the inverse": (
        "none",
        lambda s, x: s.Mul(
            s.Mul(x, [0.5]), s.Add(s.constant([1.0]), s.Erf(s.Mul(x, np.float32(1 / ROOT))))
        ),
    ),
    "tanh": (
        "tanh",
        lambda s, x: s.Mul(
            s.Mul(x, 0.5), s.Add(s.Tanh(s.Mul(s.Add(x, cube(s, x)), TANH)), 1.0)
        ),
    ),
    "tanh of products": (
        "tanh",
        lambda s, x: s.Mul(
            s.Mul(0.5, x),
            s.Add(
                1.0, s.Tanh(s.Mul(TANH, s.Add(x, s.Mul(s.Mul(s.Mul(x, x), x), 0.044715))))
            ),
        ),
    ),
    "tanh, factored": (
        "tanh",
        lambda s, x: s.Mul(
            s.Mul(0.5, x),
            s.Add(
                1.0,
                s.Tanh(
                    s.Mul(s.Mul(TANH, x), s.Add(1.0, s.Mul(0.044715, s.Mul(x, x))))
                ),
            ),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GELUS)
@pytest.mark.parametrize("opset", [13, 20])
def test_gelu_is_found(name, opset):
    approximation, write = GELUS[name]
    left, made = found(write, opset)
    assert left == ["Gelu"]
    assert made.opset == 20
    assert made.operators[-1].attributes["approximate"] == approximation


NO_GELUS = {
    "another slope": lambda s, x: s.Mul(s.Mul(x, s.Add(s.Erf(s.Div(x, 1.5)), 1.0)), 0.5),
    "another factor": lambda s, x: s.Mul(s.Mul(x, erf(s, x)), 0.25),
    "another x": lambda s, x: s.Mul(s.Mul("x", erf(s, x)), 0.5),
    "another constant": lambda s, x: s.Mul(s.Mul(x, s.Add(s.Erf(s.Div(x, ROOT)), 2.0)), 0.5),
    "sigmoid": lambda s, x: s.Mul(x, s.Sigmoid(s.Mul(x, 1.702))),
    "square": lambda s, x: s.Mul(
        s.Mul(x, 0.5),
        s.Add(s.Tanh(s.Mul(s.Add(x, s.Mul(s.Pow(x, 2.0), 0.044715)), TANH)), 1.0),
    ),
    "parts used elsewhere": lambda s, x: (
        lambda e: s.Add(s.Mul(s.Mul(x, e), 0.5), e)
    )(erf(s, x)),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_GELUS)
def test_what_is_no_gelu_stays(name):
    assert "Gelu" not in found(NO_GELUS[name])[0]


def test_constants_of_32_bits_are_no_gelu_in_float64():
    assert "Gelu" not in found(GELUS["pytorch"][1], wide=True)[0]


def mean(s, x, axes=(-1,), **more):
    if s.opset < 18:
        return s.ReduceMean(x, axes=axes, **more)
    return s.ReduceMean(x, s.integers(*axes), **more)


def layer_norm(s, x, axes=(-1,), twice=False, form="Sqrt", square="Pow"):
    d = s.Sub(x, mean(s, x, axes))
    e = s.Sub(x, mean(s, x, axes)) if twice else d
    squared = s.Pow(e, 2.0) if square == "Pow" else s.Mul(e, e)
    spread = s.Add(mean(s, squared, axes), 1e-5)
    if form == "Sqrt":
        return s.Div(d, s.Sqrt(spread))
    if form == "Pow":
        return s.Mul(s.Pow(spread, -0.5), d)
    return s.Mul(d, s.Reciprocal(s.Sqrt(spread)))


GAMMA, BETA = np.random.default_rng(1).random((2, 6)).astype(np.float32)
NORMS = {
    "pytorch": lambda s, x: s.Add(s.Mul(layer_norm(s, x), GAMMA), BETA),
    "tensorflow": lambda s, x: s.Add(
        BETA, s.Mul(GAMMA, layer_norm(s, x, twice=True, form="Reciprocal", square="Mul"))
    ),
    "power": lambda s, x: s.Mul(layer_norm(s, x, form="Pow"), GAMMA),
    "bare": lambda s, x: layer_norm(s, x),
    "two axes": lambda s, x: s.Add(layer_norm(s, x, (-2, -1)), np.ones((5, 6))),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("opset", [13, 17, 20])
def test_layer_norms_are_found(name, opset):
    left, made = found(NORMS[name], opset)
    assert left == ["LayerNormalization"]
    assert made.opset == max(opset, 17)


@pytest.mark.parametrize(
    "write",
    [
        lambda s, x: layer_norm(s, x, (1,)),
        lambda s, x: s.Div(s.Sub(x, mean(s, x)), s.Sqrt(s.Add(mean(s, s.Mul(x, x)), 1e-5))),
        lambda s, x: s.Div(x, s.Sqrt(s.Add(mean(s, s.Pow(s.Sub(x, mean(s, x)), 2.0)), 1e-5))),
    ],
    ids=["another axis", "another square", "not centred"],
)
def test_what_is_no_layer_norm_stays(write):
    assert "LayerNormalization" not in found(write)[0]


def test_a_scale_of_another_shape_stays_a_product():
    left, _ = found(lambda s, x: s.Mul(layer_norm(s, x), np.full((5, 1), 2.0)))
    assert left == ["LayerNormalization", "Mul"]


def clip(s, x):
    return s.Clip(s.Add(x, 3.0), 0.0, 6.0)


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (lambda s, x: s.Div(s.Mul(x, clip(s, x)), 6.0), "HardSwish"),
        (lambda s, x: s.Mul(x, s.Div(clip(s, x), 6.0)), "HardSwish"),
        (lambda s, x: s.Mul(s.Mul(clip(s, x), np.float32(1 / 6)), x), "HardSwish"),
        (lambda s, x: s.Mul(s.HardSigmoid(x, alpha=1 / 6, beta=0.5), x), "HardSwish"),
        (lambda s, x: s.Div(clip(s, x), 6.0), "HardSigmoid"),
        (lambda s, x: s.Mul(s.HardSigmoid(x, alpha=0.2, beta=0.5), x), None),
        (lambda s, x: s.Div(s.Clip(s.Add(x, 3.0), 0.0, 5.0), 6.0), None),
        (lambda s, x: s.Div(s.Mul("x", clip(s, x)), 6.0), None),
    ],
)
def test_hard_swish_is_found(write, kind):
    for opset in (13, 20):
        left, _ = found(write, opset)
        assert left == [kind] if kind else not {"HardSwish"} & {*left}


def test_a_graph_with_an_operator_that_has_changed_keeps_its_version():
    def write(s, x):
        y = GELUS["pytorch"][1](s, x)
        return s.Resize(y, "", s.constant([1, 1, 2]), mode="nearest")

    left, made = found(write, 13)
    assert made.opset == 13
    assert "Gelu" not in left


def test_newer_versions_mean_the_same():
    sketch = Sketch(opset=13, x=(2, 5, 6))
    parts = sketch.Split("x", axis=2, outputs=2)
    y = sketch.Mul(*(sketch.ReduceMax(p, axes=(1,), keepdims=0) for p in parts))
    y = sketch.Add(y, sketch.ReduceMean("x", keepdims=1, axes=(0, 1, 2)))
    graph = sketch.graph(y, rank=3)
    made = with_opset(graph, 20)
    assert made.opset == 20
    assert distance(by_onnxruntime(made, {"x": X}), by_onnxruntime(graph, {"x": X})) == 0


@pytest.mark.parametrize("kind", sorted(EXTENDED))
def test_operators_that_were_extended_have_the_same_form(kind):
    """Later versions have all inputs and attributes of version 13, with the same defaults."""
    old, new = (onnx.defs.get_schema(kind, max_inclusive_version=v) for v in (13, 20))
    assert new.min_input <= old.min_input <= old.max_input <= new.max_input
    for name, attribute in old.attributes.items():
        assert new.attributes[name].type == attribute.type
        assert new.attributes[name].required == attribute.required
        assert new.attributes[name].default_value == attribute.default_value
    assert not any(a.required for n, a in new.attributes.items() if n not in old.attributes)
