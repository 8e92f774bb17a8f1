"""Lowering to a program for a GPU: the program, computed by NumPy, has the results of ONNX Runtime;
what has no kernel is refused by name."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

from cubemesh.inference.gpu.lower import lower
from cubemesh.inference.gpu.program import ConvStep, ImageStep
from cubemesh.inference.lowering import PoolStep
from cubemesh.inference.quantization.quantized_graph import NotLowered
from cubemesh.onnx.graph import Graph, Operator, Value
from hwnc_networks import ZOO, fp32, images, int8, scores
from hwnc_reference import run_program

FP16_WEIGHTS = 2e-3
"""Of the largest score: weights are rounded to 11 bits."""


def relative(found, wanted):
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.fixture(scope="module", params=ZOO)
def network(request):
    """The optimized graph of a network, its inputs, and the scores of ONNX Runtime."""
    graph = fp32(request.param)
    inputs = images(graph)
    return graph, inputs, scores(graph, inputs)


def test_a_program_has_the_scores_of_the_graph(network):
    graph, inputs, wanted = network
    found = run_program(lower(graph), inputs)[0]
    assert found.shape == wanted.shape
    assert relative(found, wanted) < FP16_WEIGHTS


def test_a_program_in_8_bits_has_the_scores_of_the_graph(network):
    graph, inputs, wanted = network
    quantized = int8(graph)
    program = lower(quantized)
    assert {a.dtype for a in program.arrays.values()} == {"int8", "float32"}
    rounding = relative(scores(quantized, inputs), wanted)
    found = run_program(program, inputs)[0]
    # Kernels round elsewhere than ONNX Runtime: not between the operators of one step.
    assert relative(found, wanted) <= 2 * rounding + 1e-3


def test_a_resnet_has_a_step_for_each_convolution_and_pool():
    program = lower(fp32("resnet-18"))
    kinds = [type(step).__name__ for step in program.steps]
    assert kinds.count("ConvStep") == 18
    assert kinds.count("PoolStep") == 2
    assert kinds.count("ImageStep") == 1
    assert len(kinds) == 21
    convolutions = [s for s in program.steps if isinstance(s, ConvStep)]
    residuals = [s for s in convolutions if s.residual]
    projected = [s for s in convolutions if s.projection]
    assert (len(residuals), len(projected)) == (5, 3)
    assert all(step.relu for step in residuals + projected)
    assert all(step.projection.stride == (2, 2) for step in projected)


def sum_of_convolutions(first, second):
    """(1, 1) and (3, 3) of strides 2, in either order, or two of one tap."""
    random = np.random.default_rng(4)
    constants = {"w": random.standard_normal((32, 3, 3, 3)).astype(np.float32)}
    operators = [conv("x", "a", pads=(1, 1, 1, 1))]
    for name, (kernel, stride) in {"p": first, "q": second}.items():
        constants[f"w{name}"] = random.standard_normal((40, 32, kernel, kernel)).astype(np.float32)
        pads = (kernel // 2,) * 4
        operators.append(conv("a", name, f"w{name}", strides=(stride, stride), pads=pads))
    operators.append(Operator(kind="Add", inputs=("p", "q"), outputs=("s",)))
    operators.append(Operator(kind="Relu", inputs=("s",), outputs=("y",)))
    return graph_of_operators(*operators, constants=constants)


@pytest.mark.parametrize(
    ("first", "second"),
    [((1, 2), (3, 2)), ((3, 2), (1, 2)), ((1, 1), (1, 1)), ((3, 1), (3, 1))],
)
def test_a_projection_is_computed_with_the_convolution_to_which_it_is_added(first, second):
    graph = sum_of_convolutions(first, second)
    program = lower(graph)
    joined = [s for s in program.steps if isinstance(s, ConvStep) and s.projection]
    assert len(joined) == (1 in (first[0], second[0]))
    inputs = images(graph, 3)
    assert relative(run_program(program, inputs)[0], scores(graph, inputs)) < FP16_WEIGHTS


def test_buffers_are_used_again():
    program = lower(fp32("resnet-18"))
    assert len(program.arrays) == 21
    assert len(program.buffers) <= 4


def test_parts_of_a_concatenation_are_written_where_they_belong():
    program = lower(fp32("googlenet"))
    copies = [
        s
        for s in program.steps
        if isinstance(s, PoolStep) and not s.average and s.window.kernel == (1, 1)
    ]
    assert copies == []
    assert any(a.row > a.channels for a in program.arrays.values() if not a.line_pixels)


def graph_of_operators(*operators, shape=("batch", 3, 8, 8), constants=None, output="y"):
    return Graph(
        name="small",
        opset=17,
        inputs=(Value(name="x", dtype="float32", shape=shape),),
        outputs=(Value(name=output, dtype="float32", shape=("batch", "", "", "")),),
        operators=operators,
        constants=constants or {},
    )


def conv(source, output, weights="w", **attributes):
    return Operator(kind="Conv", inputs=(source, weights), outputs=(output,), attributes=attributes)


@pytest.mark.parametrize(
    ("attributes", "kernel"),
    [
        ({"pads": (1, 1, 1, 1)}, 3),
        ({"pads": (0, 2, 1, 0), "strides": (2, 1)}, 3),
        ({"pads": (2, 2, 2, 2), "dilations": (2, 2)}, 3),
        ({"strides": (3, 2)}, 1),
        ({"strides": (2, 2), "pads": (1, 0, 1, 1)}, 3),
        ({"strides": (2, 2), "pads": (2, 1, 0, 1)}, 5),
        ({"strides": (2, 2), "pads": (3, 3, 3, 3)}, 7),
        ({"strides": (2, 2)}, 1),
        ({"pads": (5, 5, 5, 5), "strides": (2, 2)}, 8),
        ({"pads": (7, 7, 7, 7)}, 11),
    ],
)
def test_any_window_of_a_first_and_a_second_convolution(attributes, kernel):
    random = np.random.default_rng(1)
    constants = {
        "w": random.standard_normal((40, 3, kernel, kernel)).astype(np.float32),
        "v": random.standard_normal((8, 40, 3, 3)).astype(np.float32),
    }
    graph = graph_of_operators(
        conv("x", "a", **attributes),
        Operator(kind="Relu", inputs=("a",), outputs=("r",)),
        conv("r", "y", "v", pads=(1, 1, 1, 1), strides=(2, 2), dilations=(1, 1)),
        constants=constants,
    )
    inputs = images(graph, 3)
    assert relative(run_program(lower(graph), inputs)[0], scores(graph, inputs)) < FP16_WEIGHTS


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("MaxPool", {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ("MaxPool", {"kernel_shape": (2, 3), "strides": (2, 2), "ceil_mode": 1}),
        ("AveragePool", {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
        ("AveragePool", {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 1}),
        ("GlobalAveragePool", {}),
    ],
)
def test_pools(kind, attributes):
    weights = np.random.default_rng(2).standard_normal((7, 3, 3, 3)).astype(np.float32)
    graph = graph_of_operators(
        conv("x", "a"),
        Operator(kind=kind, inputs=("a",), outputs=("y",), attributes=attributes),
        constants={"w": weights},
        shape=("batch", 3, 9, 10),
    )
    inputs = images(graph)
    assert relative(run_program(lower(graph), inputs)[0], scores(graph, inputs)) < FP16_WEIGHTS


def test_an_image_is_stored_with_its_border():
    program = lower(fp32("resnet-18"))
    step = next(s for s in program.steps if isinstance(s, ImageStep))
    array = program.arrays[step.y]
    assert (step.top, step.left) == (3, 3)
    assert (array.height, array.width) == (35, 35)
    assert (step.fold, array.row, array.line_pixels, array.channels) == (2, 16, 4, 64)


@pytest.mark.parametrize(
    ("operators", "constants", "reason"),
    [
        (
            [Operator(kind="LRN", inputs=("x",), outputs=("y",), attributes={"size": 3})],
            {},
            "it has no kernel for LRN (y)",
        ),
        (
            [conv("x", "y", group=3)],
            {"w": np.ones((3, 1, 3, 3), np.float32)},
            "it has no kernel for convolutions in groups (y)",
        ),
        (
            [conv("x", "y")],
            {"w": np.ones((3, 3, 3), np.float32)},
            "it has no kernel for convolutions of 1 axes",
        ),
        (
            [Operator(kind="Relu", inputs=("x",), outputs=("y",))],
            {},
            "y reads the network's input",
        ),
        (
            [conv("x", "y")],
            {"w": np.ones((4, 3, 3, 20), np.float32)},
            "its first kernel is 20 pixels wide",
        ),
    ],
)
def test_what_has_no_kernel_is_refused_by_name(operators, constants, reason):
    graph = graph_of_operators(*operators, constants=constants, shape=("batch", 3, 24, 24))
    with pytest.raises(NotLowered, match=f"^{reason.replace('(', '[(]').replace(')', '[)]')}$"):
        lower(graph)


def test_an_image_of_many_channels_is_refused():
    graph = graph_of_operators(
        conv("x", "y"),
        constants={"w": np.ones((4, 5, 3, 3), np.float32)},
        shape=("batch", 5, 8, 8),
    )
    with pytest.raises(NotLowered, match="5 channels"):
        lower(graph)


def test_a_value_in_8_bits_and_in_floating_point_is_refused():
    graph = int8(fp32("little-cnn"))
    relu = next(o for o in graph.operators if o.kind == "Relu")
    read_whole = tuple(
        replace(o, inputs=(relu.name, *o.inputs[1:])) if o.kind == "MaxPool" else o
        for o in graph.operators
    )
    quantized = {o.inputs[0] for o in graph.operators if o.kind == "QuantizeLinear"}
    assert relu.name in quantized
    with pytest.raises(NotLowered, match="used both in 8 bits and in floating point"):
        lower(replace(graph, operators=read_whole))
