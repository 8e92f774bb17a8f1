"""Models of plans: what the writer makes passes, everything else gets a sentence in little time and
memory, before an engine sees it."""

from dataclasses import replace

import numpy as np
import pytest

from cubemesh import networks
from cubemesh.inference.passes import optimize
from cubemesh.onnx.export import graph_of
from cubemesh.onnx.graph import BATCH, Graph, Operator, Value
from cubemesh.onnx.structure import check_models, check_structure, with_weights_in
from cubemesh.onnx.writer import serialized, to_model
from layer_samples import NARROW
from script_server import run_code

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper

SMALL = {
    "translator": {"sequence_length": 4, "vocabulary": 10, "hidden": 8},
    "translator-plain": {"sequence_length": 4, "vocabulary": 10, "hidden": 8},
}


def graph(*operators, constants=None, shape=(BATCH, 4)):
    value = Value(name="x", dtype="float32", shape=shape)
    return Graph(
        name="small",
        opset=20,
        inputs=(value,),
        outputs=(replace(value, name="y"),),
        operators=operators
        or (
            Operator(kind="MatMul", inputs=("x", "w"), outputs=("p",)),
            Operator(kind="Softmax", inputs=("p",), outputs=("y",), attributes={"axis": -1}),
        ),
        constants={"w": np.eye(4, dtype=np.float32)} if constants is None else constants,
    )


@pytest.mark.parametrize("name", ["resnet-18", "gpt2", "translator", "googlenet", "vit-b16"])
def test_what_the_writer_makes_passes(name):
    if name in NARROW:
        network = NARROW[name]()
    else:
        smallest = networks.entry(name).smallest_image_size
        network = networks.build(name, **SMALL.get(name, {"image_size": smallest}))
    specs = {**network.parameters, **network.state}
    made = graph_of(network, {n: np.zeros(s.shape, np.float32) for n, s in specs.items()})
    for one in (made, optimize(made)[0]):
        content = serialized(one)
        found = check_structure(content)
        assert found.inputs == one.inputs
        assert [v.name for v in found.outputs] == [v.name for v in one.outputs]
        assert found.operators == len(one.operators)
        for initializer in found.initializers:
            array = one.constants[initializer.name]
            assert (initializer.shape, initializer.dtype) == (array.shape, array.dtype.name)
            part = content[initializer.offset : initializer.offset + initializer.size_bytes]
            assert part == array.tobytes()


def refused(model):
    with pytest.raises(ValueError, match=r"\w") as caught:
        check_structure(model if isinstance(model, bytes) else model.SerializeToString())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_truncated_model():
    content = serialized(graph())
    for end in range(len(content)):
        assert len(refused(content[:end])) < 200


def test_a_flipped_bit_in_any_byte_is_an_error_or_a_model_of_the_same_form():
    content = serialized(graph())
    for position in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            try:
                found = check_structure(bytes(damaged))
            except ValueError:
                continue
            assert found.operators == 2
            assert sum(one.size_bytes for one in found.initializers) == 64


def test_arrays_in_another_file():
    model = to_model(graph())
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    assert refused(model) == "it has arrays in another file, which no plan has"


def test_graphs_in_operators_functions_and_training():
    model = to_model(graph())
    model.graph.node[0].attribute.append(helper.make_attribute("body", model.graph))
    assert "contains a graph" in refused(model)
    model = to_model(graph())
    model.functions.add(name="f")
    assert refused(model) == "it defines functions, which no plan has"
    model = to_model(graph())
    model.training_info.add()
    assert "a field that no plan has (number 20)" in refused(model)
    model = to_model(graph())
    model.graph.sparse_initializer.add()
    assert "a field that no plan has (number 15)" in refused(model)


def test_operators_of_others():
    assert "operator 'Secret'" in refused(
        to_model(graph(Operator(kind="Secret", inputs=("x",), outputs=("y",))))
    )
    model = to_model(graph())
    model.graph.node[0].domain = "com.example"
    assert "a field that no plan has (number 7)" in refused(model)
    model = to_model(graph())
    model.opset_import.add(domain="com.example", version=1)
    assert "a domain that is not ONNX's" in refused(model)
    model.ClearField("opset_import")
    assert "opset 0" in refused(model)


def test_values_before_they_are_computed():
    cycle = (
        Operator(kind="Add", inputs=("x", "b"), outputs=("a",)),
        Operator(kind="Add", inputs=("x", "a"), outputs=("b",)),
        Operator(kind="Relu", inputs=("b",), outputs=("y",)),
    )
    assert "uses 'b', which nothing before it computes (a cycle" in refused(to_model(graph(*cycle)))
    twice = tuple(Operator(kind="Relu", inputs=("x",), outputs=("y",)) for _ in range(2))
    assert "'y' is computed twice" in refused(to_model(graph(*twice)))
    nothing = (Operator(kind="Relu", inputs=("x",), outputs=("z",)),)
    assert "nothing computes its output 'y'" in refused(to_model(graph(*nothing)))


@pytest.mark.parametrize("shape", [(1 << 40,), (-1,), (4, 5), (1 << 62, 1 << 62), (0,), (1,) * 40])
def test_an_array_whose_content_is_not_as_long_as_its_shape_says(shape):
    model = to_model(graph())
    tensor = model.graph.initializer[0]
    tensor.ClearField("dims")
    tensor.dims.extend(shape)
    assert "the array 'w'" in refused(model)


def test_shapes_that_no_memory_holds():
    assert "'x' has an impossible shape" in refused(to_model(graph(shape=(BATCH, 1 << 40))))
    for kind in ("Expand", "Tile", "Pad"):
        made = graph(
            Operator(kind=kind, inputs=("x", "n"), outputs=("y",)),
            constants={"n": np.array([1 << 20, 1 << 20])},
        )
        assert f"{kind} makes an array of more than" in refused(to_model(made))
    made = graph(
        Operator(
            kind="AveragePool",
            inputs=("x",),
            outputs=("y",),
            attributes={"kernel_shape": (1, 1), "pads": (1 << 40,) * 4},
        )
    )
    assert "pads of an operator AveragePool" in refused(to_model(made))


def test_models_of_another_plan():
    made = graph()
    content = {"fp32": serialized(made)}
    check_models(content, made.inputs, ("y",))
    with pytest.raises(ValueError, match="its model fp32 has other inputs than it says"):
        check_models(content, (replace(made.inputs[0], name="z"),), ("y",))
    with pytest.raises(ValueError, match="its model fp32 has other outputs than it says"):
        check_models(content, made.inputs, ("scores",))


def field(number, content):
    """A field of bytes."""
    size, length = len(content), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


NODE = field(1, field(1, b"x") + field(2, b"y") + field(4, b"Relu"))
OPSET = field(8, b"\x10\x14")


def of_nodes(count):
    return field(7, NODE * count) + OPSET


def of_inputs(count):
    return field(7, field(1, field(1, b"x") * count)) + OPSET


def of_numbers(count):
    return field(7, field(1, field(4, b"Relu") + field(5, field(8, b"\x01" * count)))) + OPSET


@pytest.mark.parametrize("make", [of_nodes, of_inputs, of_numbers])
def test_a_million_parts_are_refused_in_little_memory(make, tmp_path):
    """In a process of its own, whose memory is limited to 500 MB above what it has."""
    (tmp_path / "model.onnx").write_bytes(make(1_500_000))
    program = """
import resource, sys
from cubemesh.onnx.structure import check_structure
content = open(sys.argv[1], "rb").read()
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 500_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
try:
    check_structure(content)
except ValueError as error:
    print(error)
"""
    printed = run_code(program, tmp_path / "model.onnx")
    assert "more than" in printed or "before it computes" in printed


def test_weights_in_a_file_of_their_own_are_the_same(tmp_path):
    rng = np.random.default_rng(0)
    made = graph(
        Operator(kind="MatMul", inputs=("x", "w"), outputs=("p",)),
        Operator(kind="Add", inputs=("p", "b"), outputs=("y",)),
        constants={
            "w": rng.random((40, 40), np.float32),
            "b": rng.random(40, np.float32),
        },
        shape=(BATCH, 40),
    )
    content = serialized(made)
    small = with_weights_in("0.weights", content, check_structure(content))
    assert len(small) < len(content) - 6000
    assert made.constants["b"].tobytes() in small  # it is small
    (tmp_path / "0.weights").write_bytes(content)
    (tmp_path / "0.onnx").write_bytes(small)
    again = onnx.load(tmp_path / "0.onnx")
    for tensor in again.graph.initializer:
        tensor.ClearField("data_location")  # stated, and equal to the default
    assert again.SerializeToString(deterministic=True) == content
