"""ONNX files of other people: graphs, and sentences for what cannot be read."""

import contextlib
import importlib
import pkgutil
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from cubemesh import networks
from cubemesh.errors import DataError, UsageError
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.onnx import reader, writer
from cubemesh.onnx.export import graph_of
from cubemesh.onnx.graph import Operator, Value, in_execution_order
from layer_samples import NARROW, REPRESENTATIVES
from onnx_graphs import session_of

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx.backend.test.case import base, node
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator

from onnx import TensorProto, helper, numpy_helper

SMALL = {
    "gpt2": {"sequence_length": 4, "vocabulary": 10},
    "translator": {"sequence_length": 4, "vocabulary": 10, "hidden": 8},
    "translator-plain": {"sequence_length": 4, "vocabulary": 10, "hidden": 8},
    "translator-2x": {"sequence_length": 4, "vocabulary": 10, "hidden": 8},
    "deep-speech-gru": {"sequence_length": 4, "vocabulary": 10, "hidden": 8},
    "deep-speech-rnn": {"sequence_length": 4, "vocabulary": 10, "hidden": 8},
    "captioner": {"image_size": 11, "sequence_length": 4, "vocabulary": 10, "hidden": 8},
}


def model_of(*nodes, inputs=("x",), shape=("n", 3), arrays=None, opset=20, outputs=("y",)):
    graph = helper.make_graph(
        list(nodes),
        "sample",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(a, name) for name, a in (arrays or {}).items()],
    )
    for output in graph.output:  # the number of axes is needed, their lengths are not
        output.type.tensor_type.shape.dim.extend(graph.input[0].type.tensor_type.shape.dim)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def relu(**more):
    return model_of(helper.make_node("Relu", ["x"], ["y"]), **more)


def without_large_constants(graph):
    """Weights as inputs, so that a comparison copies none."""
    large = {n: a for n, a in graph.constants.items() if a.size > 1000}
    return replace(
        graph,
        inputs=(
            *graph.inputs,
            *(Value(name=n, dtype="float32", shape=a.shape) for n, a in large.items()),
        ),
        constants={n: a for n, a in graph.constants.items() if n not in large},
    )


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_what_is_exported_is_read_as_it_was(name):
    if name in NARROW and name not in SMALL:
        network = NARROW[name]()
    else:
        smallest = networks.entry(name).smallest_image_size
        network = networks.build(name, **SMALL.get(name, {"image_size": smallest}))
    specs = {**network.parameters, **network.state}
    weights = {n: np.broadcast_to(np.float32(1), s.shape) for n, s in specs.items()}
    graph = without_large_constants(graph_of(network, weights))
    content = writer.serialized(graph)
    again = reader.parse(content)
    assert again.digest() == graph.digest()
    assert writer.serialized(again) == content


EACH = 5
"""Cases of each kind of operator that are run: collecting them all is most of the time."""


def import_modules(package, names):
    """Those of a package that have one of `names`, all in small letters."""
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.replace("_", "") in names:
            importlib.import_module(f"{package.__name__}.{module.name}")


def standard_cases():
    """Models of one operator with inputs and outputs, of the kinds and types that are read."""
    count = Counter()
    with (
        np.errstate(all="ignore"),
        warnings.catch_warnings(),
        pytest.MonkeyPatch.context() as patch,
    ):
        warnings.simplefilter("ignore")
        # The source of each case, which is for the standard's documentation.
        patch.setattr(base, "process_snippet", lambda kind, name, export: (name, ""))
        # The cases of one operator are computed when their module is imported.
        wanted = {kind.lower() for kind in reader.READABLE} | {"rangeop"}
        patch.setattr(node, "import_recursive", lambda package: import_modules(package, wanted))
        every = collect_testcases(None)
    for case in every:
        (kind, *more) = {n.op_type for n in case.model.graph.node}
        if more or kind not in reader.READABLE or count[kind] >= EACH or not plain(case.model):
            continue
        count[kind] += 1
        yield kind, case


def plain(model):
    values = (*model.graph.input, *model.graph.output)
    types = [v.type.tensor_type.elem_type for v in values]
    types += [a.t.data_type for n in model.graph.node for a in n.attribute if a.HasField("t")]
    return not model.functions and set(types) <= reader.NUMPY_TYPES


def test_the_standards_own_cases_have_their_results_after_reading_and_writing():
    kinds, wrong = set(), []
    for kind, case in standard_cases():
        version = case.model.opset_import[0]
        other = not reader.OLDEST_OPSET <= version.version <= reader.NEWEST_OPSET
        version.version = min(max(version.version, reader.OLDEST_OPSET), reader.NEWEST_OPSET)
        try:
            read = writer.to_model(reader.parse(case.model.SerializeToString()))
        except ValueError:
            assert other, case.name  # it has inputs or attributes of another version
            continue
        kinds.add(kind)
        if kind == "Dropout":  # with a mask its result is random
            continue
        inputs, wanted = (
            [numpy_helper.to_array(a) if isinstance(a, TensorProto) else a for a in arrays]
            for arrays in case.data_sets[0]
        )
        names = [i.name for i in case.model.graph.input]
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(read).run(None, dict(zip(names, inputs, strict=False)))
        for a, b in zip(found, wanted, strict=True):
            if not np.allclose(a, b, rtol=case.rtol or 1e-3, atol=case.atol, equal_nan=True):
                wrong.append(case.name)
    assert wrong == []
    assert reader.READABLE - kinds == set()


def refusal(model):
    content = model if isinstance(model, bytes) else model.SerializeToString()
    with pytest.raises(ValueError, match=r".") as caught:
        reader.parse(content)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def test_what_is_not_supported_is_named_with_its_operator():
    unknown = helper.make_node("NonMaxSuppression", ["x", "x"], ["y"], name="boxes")
    assert refusal(model_of(unknown)) == (
        "it needs operators that are not supported: NonMaxSuppression (1 ×, first 'boxes')."
    )
    foreign = helper.make_node("Attention", ["x"], ["y"], domain="com.microsoft", name="a1")
    assert "com.microsoft.Attention (1 ×, first 'a1')" in refusal(model_of(foreign))
    inner = relu().graph
    branch = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner, name="b")
    assert "operator 'b' contains a graph" in refusal(model_of(branch))


def test_weights_in_other_files_are_refused():
    model = model_of(
        helper.make_node("Add", ["x", "w"], ["y"]), arrays={"w": np.ones(3, np.float32)}
    )
    array = model.graph.initializer[0]
    array.ClearField("raw_data")
    array.data_location = TensorProto.EXTERNAL
    entry = array.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"
    assert "the weights 'w' are in another file" in refusal(model)


def test_shapes_that_the_content_does_not_have_are_refused():
    model = model_of(
        helper.make_node("Add", ["x", "w"], ["y"]), arrays={"w": np.ones(3, np.float32)}
    )
    array = model.graph.initializer[0]
    array.dims[:] = [1 << 40, 1 << 40]
    assert "should have more than 2^63 elements and has 3" in refusal(model)
    array.dims[:] = [-1]
    assert "an impossible shape" in refusal(model)


def test_cycles_and_missing_values_are_named():
    ring = (helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"]))
    model = model_of(*ring, helper.make_node("Relu", ["b"], ["y"]))
    assert "cycle" in refusal(model) or "topological" in refusal(model)
    assert "'nowhere'" in refusal(model_of(helper.make_node("Add", ["x", "nowhere"], ["y"])))
    with pytest.raises(ValueError, match=r"^a$"):
        in_execution_order(
            [
                Operator(kind="Add", inputs=("x", "b"), outputs=("a",)),
                Operator(kind="Relu", inputs=("a",), outputs=("b",)),
            ],
            ["x"],
        )


def test_too_many_operators_are_refused(monkeypatch):
    monkeypatch.setattr(reader, "MOST_OPERATORS", 10)
    chain = [helper.make_node("Relu", [f"v{n}"], [f"v{n + 1}"]) for n in range(11)]
    model = model_of(*chain, inputs=("v0",), outputs=("v11",))
    assert refusal(model) == "it has 11 operators; at most 10 are read."


def test_older_versions_are_converted():
    old = relu(opset=7)
    assert reader.parse(old.SerializeToString()).opset == reader.OLDEST_OPSET
    axes = helper.make_node("Unsqueeze", ["x"], ["y"], axes=[2])
    graph = reader.parse(model_of(axes, opset=11).SerializeToString())
    session = session_of(writer.serialized(graph))
    assert session.run(None, {"x": np.ones((2, 3), np.float32)})[0].shape == (2, 3, 1)
    assert "opset 3; 7 to 23 are read" in refusal(relu(opset=3))
    assert "opset 99; 7 to 23 are read" in refusal(relu(opset=99))


def test_operators_out_of_order_are_ordered():
    first = Operator(kind="Relu", inputs=("x",), outputs=("a",))
    second = Operator(kind="Relu", inputs=("a",), outputs=("b",))
    assert in_execution_order([second, first], ["x"]) == [first, second]


def test_damaged_files_get_a_sentence():
    """Each byte of a small file, changed: read, or refused in a sentence."""
    network = NetworkBuilder("tiny")
    x = network.conv(network.input("image", (1, 4, 4)), 2, kernel=3)
    network.classify(network.linear(network.flatten(x), 2))
    built = network.build()
    content = writer.serialized(graph_of(built, built.draw(0)))
    refused = 0
    rng = np.random.default_rng(0)
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(rng.integers(8))
        with contextlib.suppress(ValueError):
            reader.parse(bytes(damaged))
            refused -= 1
        refused += 1
    assert refused > len(content) / 20
    for length in range(0, len(content), 7):
        with pytest.raises(ValueError, match=r"\.$"):
            reader.parse(content[:length])


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        reader.read(tmp_path / "no.onnx")
    with pytest.raises(UsageError, match="is not a file"):
        reader.read(tmp_path)
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(DataError, match=r"text.onnx' cannot be used: it is not an ONNX model"):
        reader.read(tmp_path / "text.onnx")


def test_a_million_operators_take_less_than_500_megabytes(tmp_path):
    node = helper.make_node("Relu", ["v"], ["v"]).SerializeToString()
    field = b"\x0a" + bytes([len(node)]) + node  # GraphProto.node
    content = relu().SerializeToString()
    graph = onnx.ModelProto.FromString(content).graph.SerializeToString() + field * 1_000_000
    model = relu()
    model.ClearField("graph")
    length, size = b"", len(graph)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    path = tmp_path / "million.onnx"
    path.write_bytes(model.SerializeToString() + b"\x3a" + length + bytes([size]) + graph)
    program = (
        "import sys\n"
        "from cubemesh.onnx import reader\n"
        "try:\n    reader.read(sys.argv[1])\n"
        "except Exception as error:\n    print(error)\n"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    )
    sentence, kibibytes = done.stdout.splitlines()
    assert sentence.endswith("it has 1,000,001 operators; at most 20,000 are read.")
    assert int(kibibytes) < 500_000


def test_types_follow_from_the_shapes_of_the_inputs():
    graph = reader.parse(
        model_of(
            helper.make_node("MatMul", ["x", "w"], ["y"]), arrays={"w": np.ones((3, 5), "f")}
        ).SerializeToString()
    )
    types = writer.infer_types(writer.with_shapes(graph, {"x": (4, 3)}))
    assert types["y"].shape == (4, 5)
    with pytest.raises(UsageError, match=r"Input 'x' of sample has the shape n×3, was given 4×7"):
        writer.with_shapes(graph, {"x": (4, 7)})
    with pytest.raises(UsageError, match=r"has no input 'z'. Inputs: x"):
        writer.with_shapes(graph, {"z": (4, 7)})


def test_shapes_that_do_not_fit_are_one_sentence():
    graph = reader.parse(
        model_of(
            helper.make_node("MatMul", ["x", "w"], ["y"]), arrays={"w": np.ones((7, 5), "f")}
        ).SerializeToString()
    )
    with pytest.raises(UsageError, match=r"shapes that do not fit together: .*MatMul"):
        writer.infer_types(writer.with_shapes(graph, {"x": (4, 3)}))
