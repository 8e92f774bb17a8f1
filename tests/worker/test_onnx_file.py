"""ONNX files as networks of a user: which become a graph that computes the same, and what is said
of a node that has no layer type."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

import own_modules
from cubemesh.frameworks.contract.own_module import DescriptionRequest
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.frameworks.pytorch.own import onnx_building
from cubemesh.networks import layers
from cubemesh.networks.own_networks import network_of
from cubemesh.networks.zoo.littlecnn import little_cnn
from cubemesh.onnx.export import export
from cubemesh.onnx.graph import Value
from cubemesh.onnx.writer import serialized, to_model
from cubemesh.user_code import locate_network
from cubemesh.worker.describe import describe
from onnx_graphs import Sketch, by_reference

IMAGE = (2, 3, 8, 8)


def described(path, **given):
    """The description of a file, and the arrays of its graph."""
    return describe(DescriptionRequest(named=locate_network(str(path)), **given))


def scores(own, arrays, x):
    """What the graph of a description computes in evaluation."""
    built = build_modules(network_of(own))
    built.load(arrays)
    built.training.eval()
    with torch.no_grad():
        return built.training(torch.from_numpy(x))[0].numpy()


@pytest.fixture
def sketched(tmp_path):
    """The description of a graph that is made by hand for random images of 3×8×8."""

    def make(build, rank=2, **given):
        sketch = Sketch(x=given.pop("shape", ("batch", 3, 8, 8)))
        path = tmp_path / "net.onnx"
        path.write_bytes(serialized(sketch.graph(build(sketch, "x"), rank=rank)))
        return described(path, **given)

    return make


def weights(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def head(s, x, channels=4):
    """The mean of all positions and a product."""
    return s.Gemm(s.Flatten(s.GlobalAveragePool(x)), weights(channels, 5), weights(5))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Language", "Gates"])
def test_a_file_that_pytorch_exports_becomes_the_graph_of_its_module(name, tmp_path):
    pytest.importorskip("onnxruntime")
    from onnx_graphs import session_of

    module = getattr(own_modules, name)().eval()
    x = torch.randint(11, (2, 6)) if name == "Language" else torch.rand(IMAGE)
    path = tmp_path / "net.onnx"
    free = {"x": {0: "batch"}}
    torch.onnx.export(module, (x,), str(path), dynamo=False, input_names=["x"], dynamic_axes=free)
    own, arrays = described(path)
    assert (own.fault, own.untraced, own.name) == ("", "", "net.onnx")
    network = network_of(own)
    assert network.parameter_count == sum(p.numel() for p in module.parameters())
    (expected,) = session_of(str(path)).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(scores(own, arrays, x.numpy()), expected, atol=1e-5)


def test_the_file_of_a_network_of_the_zoo_is_that_network(tmp_path):
    original = little_cnn(16, 7)
    export(original, original.draw(0), tmp_path / "net.onnx")
    own, arrays = described(tmp_path / "net.onnx")
    network = network_of(own)
    assert [type(n.layer) for n in network.nodes] == [
        type(n.layer) for n in original.nodes if not isinstance(n.layer, layers.Dropout)
    ]
    assert network.parameter_count == original.parameter_count
    x = np.random.default_rng(0).random((2, 3, 16, 16), np.float32)
    built = build_modules(original)
    built.load(original.draw(0))
    built.training.eval()
    with torch.no_grad():
        (expected,) = built.training(torch.from_numpy(x))
    np.testing.assert_allclose(scores(own, arrays, x), expected.numpy(), atol=1e-5)


def kinds(own):
    return [type(node.layer).__name__ for node in network_of(own).nodes]


def test_batch_normalization_has_its_statistics_and_a_last_softmax_is_left_out(sketched):
    def build(s, x):
        x = s.Conv(x, weights(4, 3, 3, 3), pads=(1, 1, 1, 1))
        x = s.BatchNormalization(x, *(np.abs(weights(4)) for _ in range(4)), momentum=0.8)
        return s.Softmax(head(s, s.Relu(x)))

    own, arrays = sketched(build)
    assert kinds(own) == ["Convolution", "BatchNorm", "ReLU", "GlobalAveragePool", "Linear"]
    norm = network_of(own).nodes[1].layer
    assert norm.momentum == pytest.approx(0.2)
    assert np.allclose(next(a for n, a in arrays.items() if "variance" in n), np.abs(weights(4)))


def test_a_fixed_batch_is_free(sketched):
    def build(s, x):
        return s.Gemm(s.Reshape(x, s.integers(1, 192)), weights(192, 5), weights(5))

    own, _ = sketched(build, shape=(1, 3, 8, 8))
    assert (own.fault, kinds(own)) == ("", ["Flatten", "Linear"])


def test_free_lengths_are_those_of_the_settings(sketched):
    def build(s, x):
        return head(s, s.Conv(x, weights(4, 3, 1, 1)))

    shape = ("batch", 3, "height", "width")
    own, _ = sketched(build, shape=shape)
    assert own.fault == (
        "net.onnx has the input x of shape batch×3×height×width, whose sizes it leaves free. Set "
        "input_shape=CHANNELSxHEIGHTxWIDTH."
    )
    for given in ({"image_size": 6}, {"input_shape": (3, 6, 6)}):
        own, _ = sketched(build, shape=shape, **given)
        assert network_of(own).inputs[0].shape == (3, 6, 6)
    own, _ = sketched(build, shape=shape, input_shape=(4, 6, 6))
    assert "which images of 4×6×6 do not fit" in own.fault


REFUSED = {
    "'scores' (Elu) has no layer type: its layer type does not exist": lambda s, x: head(
        s, s.Elu(x, result="scores"), 3
    ),
    "node 'gate' has no layer type: there is no layer type for aten.softmax": lambda s, x: head(
        s, s.Mul(x, s.Softmax(x, axis=1, result="gate")), 3
    ),
    "'conv' (Conv) has no layer type: it pads its sides by different": lambda s, x: head(
        s, s.Conv(x, weights(4, 3, 2, 2), pads=(0, 0, 1, 1), result="conv")
    ),
    "'grown' (Conv) has no layer type: its input 1 is not a constant": lambda s, x: head(
        s, s.Conv(x, s.Slice(x, s.integers(0), s.integers(1), s.integers(0)), result="grown"), 1
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_node_without_a_layer_type_is_named(sketched, words):
    own, arrays = sketched(REFUSED[words])
    assert words in own.fault
    assert arrays is None
    assert own.fault.startswith("net.onnx: node ")


def test_a_node_is_named_as_in_the_file(tmp_path):
    sketch = Sketch(x=("batch", 3, 8, 8))
    model = to_model(sketch.graph(head(sketch, sketch.Elu("x"), 3), rank=2))
    model.graph.node[0].name = "/block/elu/Elu"
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    assert (
        "node '/block/elu/Elu' (Elu) has no layer type" in described(tmp_path / "net.onnx")[0].fault
    )


def test_a_file_that_is_none_or_has_two_inputs_is_a_fault(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"no model")
    assert "is not an ONNX model, or is damaged" in described(path)[0].fault
    sketch = Sketch(a=("batch", 3, 8, 8), b=("batch", 3, 8, 8))
    path.write_bytes(serialized(sketch.graph(sketch.Add("a", "b"), rank=4)))
    assert "net.onnx has the inputs a, b; a network of one input" in described(path)[0].fault
    words = Sketch(x=Value(name="x", dtype="int64", shape=("batch", 6)))
    path.write_bytes(serialized(words.graph(words.Cast("x", to=1), rank=2)))
    assert described(path)[0].fault == (
        "net.onnx has the input x of shape batch×6, whose vocabulary it does not state. Set "
        "input_shape=LENGTH:VOCABULARY."
    )


def test_a_chain_of_operators_that_use_a_value_twice_is_searched_once(tmp_path):
    words = Sketch(x=Value(name="x", dtype="int64", shape=("batch", 6)))
    last = "x"
    for _ in range(60):
        last = words.Reshape(last, last)
    (tmp_path / "net.onnx").write_bytes(serialized(words.graph(last, rank=2, dtype="int64")))
    assert "Set input_shape=LENGTH:VOCABULARY" in described(tmp_path / "net.onnx")[0].fault


def test_an_input_that_is_too_large_is_refused_before_it_is_made(sketched):
    own, _ = sketched(lambda s, x: head(s, x, 3), shape=("batch", 3, 8192, 8192))
    assert own.fault == (
        "net.onnx takes images of 3×8192×8192, and an input has at most 67,108,864 numbers."
    )


def test_constants_of_a_graph_have_a_limit_in_all(monkeypatch):
    sketch = Sketch(x=("batch", 3, 8, 8))
    sums = [sketch.Add(weights(4), weights(4)) for _ in range(3)]
    rows = sketch.GatherElements(weights(2, 3), sketch.constant([[0], [1]], np.int64), axis=1)
    graph = sketch.graph(sketch.Relu("x"), rank=4)
    for most, found in ((14, [True] * 4), (9, [True, True, False, False])):
        monkeypatch.setattr(onnx_building, "MOST_COMPUTED_IN_ALL", most)
        building = onnx_building.Building(graph, {})
        assert [building.constant(name) is not None for name in (*sums, rows)] == found


def test_equal_matrices_are_one_and_a_changed_file_is_another(tmp_path):
    """Exporters write a table that is also a product's weight twice."""
    table = weights(11, 4)
    path, digests = tmp_path / "net.onnx", set()
    for weight, parameters in ((table.T, 44), (weights(4, 11), 88)):
        words = Sketch(x=Value(name="x", dtype="int64", shape=("batch", 6)))
        scores = words.MatMul(words.Gather(table, "x"), weight)
        path.write_bytes(serialized(words.graph(scores, rank=3)))
        own, _ = described(path)
        assert network_of(own).parameter_count == parameters
        assert network_of(own).inputs[0].classes == 11
        digests.add(own.digest)
    assert len(digests) == 2


def sequence(s, x):
    """Patches of the image as a sequence of 16 vectors of 4."""
    patches = s.Conv(x, weights(4, 3, 2, 2), strides=(2, 2))
    return s.Transpose(s.Reshape(patches, s.integers(0, 4, 16)), perm=(0, 2, 1))


def masked_attention(s, x):
    """Causal, with the mask that an exporter computes, and a NaN replaced as one does."""
    rows = sequence(s, x)
    ones = s.ConstantOfShape(s.integers(16, 16))
    seen = s.Cast(s.Trilu(s.Add(ones, 1.0), upper=0), to=9)
    query, keys, values = (
        s.Transpose(s.Reshape(s.MatMul(rows, w), s.integers(0, 16, 2, 2)), perm=perm)
        for w, perm in (
            (weights(4, 4), (0, 2, 1, 3)),
            (2 * weights(4, 4), (0, 2, 3, 1)),
            (weights(4, 4) / 2, (0, 2, 1, 3)),
        )
    )
    scores = s.Mul(0.5, s.MatMul(s.Mul(query, 2**0.25), s.Mul(2**0.25, keys)))
    shares = s.Softmax(s.Where(seen, scores, -np.inf), axis=-1)
    shares = s.Where(s.IsNaN(shares), 0.0, shares)
    mixed = s.Transpose(s.MatMul(shares, values), perm=(0, 2, 1, 3))
    return s.Reshape(mixed, s.integers(0, 16, 4))


def root_mean_square(s, x):
    """A vector for all positions, and a normalization that is written out."""
    rows = s.Add(sequence(s, x), weights(4))
    mean = s.ReduceMean(s.Mul(rows, rows), s.integers(-1), keepdims=1)
    return s.Mul(s.Div(rows, s.Sqrt(s.Add(mean, 1e-6))), weights(4))


def inverse_root_mean_square(s, x):
    """The same, by a quotient of 1."""
    rows = sequence(s, x)
    mean = s.ReduceMean(s.Mul(rows, rows), s.integers(-1), keepdims=1)
    return s.Mul(s.Mul(rows, s.Div(1.0, s.Sqrt(s.Add(mean, 1e-6)))), weights(4))


def test_scores_that_are_divided_by_zero_are_no_attention(sketched):
    def build(s, x):
        rows = sequence(s, x)
        scores = s.Div(s.MatMul(rows, s.Transpose(rows, perm=(0, 2, 1))), 0.0)
        return s.ReduceMean(s.MatMul(s.Softmax(scores, axis=-1), rows), s.integers(1), keepdims=0)

    own, arrays = sketched(build)
    assert arrays is None
    assert "has no layer type" in own.fault


def with_token(s, x):
    """A vector before those of the patches."""
    token = s.Expand(weights(1, 1, 4), s.integers(2, 1, 4))
    return s.Concat(token, sequence(s, x), axis=1)


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (masked_attention, "Attention"),
        (root_mean_square, "RMSNorm"),
        (inverse_root_mean_square, "RMSNorm"),
        (with_token, "ClassToken"),
    ],
)
def test_what_is_written_out_is_one_layer(build, kind, tmp_path):
    sketch = Sketch(x=("batch", 3, 8, 8))
    rows = build(sketch, "x")
    mean = sketch.ReduceMean(rows, sketch.integers(1), keepdims=0)
    graph = sketch.graph(sketch.Gemm(mean, weights(4, 5), weights(5)), rank=2)
    (tmp_path / "net.onnx").write_bytes(serialized(graph))
    own, arrays = described(tmp_path / "net.onnx")
    assert own.fault == ""
    assert kind in kinds(own)
    x = np.random.default_rng(0).random(IMAGE, np.float32)
    (expected,) = by_reference(graph, {"x": x})
    np.testing.assert_allclose(scores(own, arrays, x), expected, atol=1e-5)
