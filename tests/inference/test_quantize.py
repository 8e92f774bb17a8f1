"""Quantized graphs: their numbers, what they quantize, and what engines make of them."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.inference.accuracy import agreement
from cubemesh.inference.quantization.calibrate import calibrate
from cubemesh.inference.quantization.quantize import (
    CANDIDATES,
    mean_shift,
    observed_values,
    quantizable,
    quantize,
)
from cubemesh.inference.quantization.ranges import METHODS
from cubemesh.inference.quantization.sensitivity import scores_of, sensitivity
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.onnx import export, reader
from cubemesh.onnx.engines import ENGINES
from cubemesh.onnx.graph import Graph, Operator, Value
from cubemesh.onnx.writer import serialized
from layer_samples import every_layer, every_sequence_layer, mixed, trained_weights

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
INSTALLED = [name for name, line in ENGINES.items() if line.installed]


def opener(engine):
    return lambda content: ENGINES[engine].load().open_session(content, threads=1)


open_session = opener("onnxruntime")


def images(network, samples, seed=0):
    (source,) = network.inputs
    return {source.name: np.random.default_rng(seed).random((samples, *source.shape), np.float32)}


def folded(graph):
    """The graph with transposed weights as constants."""
    transposed = {
        o.name: graph.constants[o.inputs[0]].transpose(o.attributes["perm"])
        for o in graph.operators
        if o.kind == "Transpose" and o.inputs[0] in graph.constants
    }
    others = (o for o in graph.operators if o.name not in transposed)
    return graph.with_operators(others, transposed)


def prepared(network, samples=16):
    """A graph with weights, samples, and its calibration."""
    graph = folded(export.graph_of(network, trained_weights(network)))
    batch = images(network, samples)
    return graph, batch, calibrate(graph, open_session, [batch], observed_values(graph))


def one_product(operator, weight, bias=None, shape=(2, 3, 4, 4), scores=("batch", 5, "", "")):
    """A graph of one operator."""
    inputs = ("x", "w") if bias is None else ("x", "w", "b")
    constants = {"w": np.asarray(weight, np.float32)}
    if bias is not None:
        constants["b"] = np.asarray(bias, np.float32)
    return Graph(
        name="one",
        opset=20,
        inputs=(Value(name="x", dtype="float32", shape=("batch", *shape[1:])),),
        outputs=(Value(name="y", dtype="float32", shape=scores),),
        operators=(replace(operator, inputs=inputs, outputs=("y",)),),
        constants=constants,
    )


def conv(**attributes):
    return Operator(kind="Conv", inputs=(), outputs=(), attributes=attributes)


def quantized_one(graph, x, **options):
    calibration = calibrate(graph, open_session, [{"x": x}], ["x"])
    return quantize(graph, calibration, "min-max", **options)


def kernels_of_onnxruntime(graph, folder):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    onnxruntime.InferenceSession(serialized(graph), options, providers=["CPUExecutionProvider"])
    return Counter(n.op_type for n in onnx.load(folder / "optimized.onnx").graph.node)


def kernels_of_openvino(graph):
    session = opener("openvino")(serialized(graph))
    kinds = ("layerType", "runtimePrecision")
    return Counter(
        tuple(str(n.get_rt_info()[k].astype(str)) for k in kinds)
        for n in session._compiled.get_runtime_model().get_ops()
    )


def test_a_convolution_has_the_numbers_of_integer_arithmetic():
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(5, 3, 1, 1)), rng.normal(size=5)
    graph = one_product(conv(), weight, bias)
    x = rng.normal(size=(2, 3, 4, 4)).astype(np.float32)
    # Of 7 bits, because 8-bit sums saturate on CPUs without VNNI.
    quantized = quantized_one(graph, x, correct_bias=False, reduce_range=True)
    c = quantized.constants
    q = np.clip(np.rint(x / c["x/scale"]) + c["x/zero_point"], 0, 255).astype(np.int64)
    products = np.einsum(
        "nihw,oi->nohw",
        q - int(c["x/zero_point"]),
        c["y/weight/quantized"][:, :, 0, 0].astype(np.int64),
    )
    whole = products + c["y/bias/quantized"][:, None, None]
    wanted = whole * c["x/scale"] * c["y/weight/scale"][:, None, None]
    for engine in INSTALLED:
        found = scores_of(quantized, opener(engine), [{"x": x}])
        assert np.allclose(found, wanted, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.booleans())
def test_weights_are_rounded_to_the_nearest_of_each_channel(seed, reduce_range):
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(5, 3, 2, 2)) * 10.0 ** rng.integers(-3, 3, (5, 1, 1, 1))
    weight[seed % 5] = 0
    graph = one_product(conv(), weight)
    x = rng.normal(size=(2, 3, 4, 4)).astype(np.float32)
    c = quantized_one(graph, x, reduce_range=reduce_range).constants
    whole, scale = c["y/weight/quantized"], c["y/weight/scale"]
    levels = 63 if reduce_range else 127
    assert whole.dtype == np.int8
    for stored, one, of_one in zip(whole, scale.tolist(), weight, strict=True):
        assert np.abs(stored * one - of_one).max() <= 0.5001 * one
        assert np.abs(stored).max() == (levels if of_one.any() else 0)


def test_a_bias_that_its_weights_are_too_small_for_stays():
    """Channels whose weights are nearly 0: folding batch normalization makes them."""
    weight = np.full((5, 3, 1, 1), 1e-14)
    weight[0] = 1
    bias = np.array([1, -2, 3, 0, 1e-3])
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)
    quantized = quantized_one(one_product(conv(), weight, bias), x)
    (first,) = (scores_of(quantized, open_session, [{"x": x}]),)
    assert np.allclose(first[:, 1:], bias[1:, None, None], atol=1e-6)


@pytest.mark.parametrize("groups", [1, 2])
def test_the_mean_shift_of_a_convolution(groups):
    rng = np.random.default_rng(0)
    weight, means = rng.normal(size=(6, 4 // groups, 3, 2)), rng.normal(size=4)
    graph = one_product(conv(group=groups), weight, shape=(1, 4, 3, 2))
    x = np.broadcast_to(means[:, None, None], (1, 4, 3, 2)).astype(np.float32)
    wanted = scores_of(graph, open_session, [{"x": x}])[0, :, 0, 0]
    assert np.allclose(mean_shift(conv(), weight, means), wanted, atol=1e-5)


def test_the_mean_shift_of_products():
    rng = np.random.default_rng(0)
    weight, means = rng.normal(size=(4, 6)), rng.normal(size=4)
    for kind, attributes, stored in (
        ("Gemm", {}, weight),
        ("Gemm", {"transB": 1}, weight.T),
        ("MatMul", {}, weight),
    ):
        operator = Operator(kind=kind, inputs=(), outputs=(), attributes=attributes)
        assert np.allclose(mean_shift(operator, stored, means), means @ weight)


@pytest.mark.parametrize(
    ("operator", "weight", "shape"),
    [
        (conv(), (5, 3, 1, 1), (64, 3, 4, 4)),
        (Operator(kind="Gemm", inputs=(), outputs=(), attributes={"transB": 1}), (5, 3), (64, 3)),
        (Operator(kind="Gemm", inputs=(), outputs=()), (3, 5), (64, 3)),
        (Operator(kind="MatMul", inputs=(), outputs=()), (3, 5), (64, 4, 3)),
    ],
    ids=["Conv", "Gemm transposed", "Gemm", "MatMul"],
)
@pytest.mark.parametrize("engine", INSTALLED)
def test_corrected_biases_restore_the_mean(operator, weight, shape, engine):
    rng = np.random.default_rng(0)
    axes = ("batch", 5, "", "") if len(shape) == 4 else ("batch", *shape[1:-1], 5)
    graph = one_product(operator, rng.normal(size=weight), shape=shape, scores=axes)
    x = (3 + rng.normal(size=shape) / 5).astype(np.float32)
    run = opener(engine)
    wanted = scores_of(graph, run, [{"x": x}])
    channel = tuple(n for n in range(len(shape)) if n != (1 if len(shape) == 4 else len(shape) - 1))
    errors = []
    for correct_bias in (False, True):
        quantized = quantized_one(graph, x, correct_bias=correct_bias)
        found = scores_of(quantized, run, [{"x": x}])
        errors.append(np.abs((found - wanted).mean(axis=channel)).max())
    assert errors[1] < errors[0] / 3


def test_the_correction_of_a_product_is_part_of_its_bias():
    graph, _, calibration = prepared(every_sequence_layer(), samples=2)
    quantized = quantize(graph, calibration, "min-max")
    for one in (graph, quantized):
        (product,) = (o for o in one.operators if o.kind == "MatMul" and o.name == "fc1/product")
        (addition,) = one.consumers[product.name]
        assert addition.kind == "Add"
        assert addition.name == "fc1"
    assert sum(o.kind == "Add" for o in quantized.operators) == sum(
        o.kind == "Add" for o in graph.operators
    )


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda c: c.name)
@pytest.mark.parametrize("make", [every_layer, every_sequence_layer, mixed])
def test_every_form_of_small_networks_agrees_with_fp32(make, candidate):
    network = make()
    graph, batch, calibration = prepared(network)
    quantized = quantize(graph, calibration, candidate.method, sums=candidate.sums)
    onnx.checker.check_model(onnx.load_from_string(serialized(quantized)), full_check=True)
    for engine in INSTALLED:
        wanted = scores_of(graph, opener(engine), [batch])
        found = scores_of(quantized, opener(engine), [batch])
        assert np.abs(found - wanted).max() <= 0.1 * np.abs(wanted).max()


@pytest.mark.parametrize("sums", [True, False])
def test_littlecnn_decides_as_in_fp32(sums):
    graph, batch, calibration = prepared(networks.build("little-cnn"))
    quantized = quantize(graph, calibration, "mse", sums=sums)
    other = images(networks.build("little-cnn"), 40, seed=1)
    for engine in INSTALLED:
        wanted = scores_of(graph, opener(engine), [other])
        found = agreement(wanted, scores_of(quantized, opener(engine), [other]))
        assert found.largest_error < 0.02
        assert found.changed <= 1
    assert batch


def test_engines_run_littlecnn_in_integers(tmp_path):
    graph, _, calibration = prepared(networks.build("little-cnn"), samples=2)
    quantized = quantize(graph, calibration, "min-max")
    found = kernels_of_onnxruntime(quantized, tmp_path)
    assert found["QLinearConv"] == 4
    assert found["QGemm"] == 2
    assert not {"Conv", "FusedConv", "Gemm", "MatMul"} & set(found)


@pytest.mark.skipif("openvino" not in INSTALLED, reason="needs openvino")
@pytest.mark.parametrize("sums", [True, False])
def test_openvino_runs_littlecnn_in_integers(sums):
    graph, _, calibration = prepared(networks.build("little-cnn"), samples=2)
    found = kernels_of_openvino(quantize(graph, calibration, "min-max", sums=sums))
    assert found["Convolution", "u8"] == 4
    assert found["FullyConnected", "u8"] == 2


def residual():
    net = NetworkBuilder("residual")
    x = net.relu(net.conv(net.input("image", (3, 12, 12)), 8, kernel=3, padding=1))
    y = net.conv(net.relu(net.conv(x, 8, kernel=3, padding=1)), 8, kernel=1)
    x = net.relu(net.add(y, x))
    parts = [net.relu(net.conv(x, 8, kernel=1)), net.max_pool(x, 3, stride=1, padding=1)]
    x = net.max_pool(net.concat(*parts), 2)
    net.classify(net.linear(net.flatten(net.global_average_pool(net.conv(x, 8, kernel=1))), 5))
    return net.build()


def test_sums_and_concatenations_stay_in_integers(tmp_path):
    graph, _, calibration = prepared(residual(), samples=2)
    found = kernels_of_onnxruntime(quantize(graph, calibration, "min-max"), tmp_path)
    assert (found["QLinearConv"], found["QLinearAdd"], found["QLinearConcat"]) == (5, 1, 1)
    assert not {"Conv", "FusedConv", "Add", "Concat"} & set(found)
    assert found["DequantizeLinear"] <= 1
    if "openvino" in INSTALLED:
        found = kernels_of_openvino(quantize(graph, calibration, "min-max"))
        assert found["Convolution", "u8"] == 5
        assert not [kind for kind, precision in found if kind == "Eltwise" and precision == "f32"]


def test_pools_and_concatenations_have_one_scale():
    graph, _, calibration = prepared(residual(), samples=2)
    quantized = quantize(graph, calibration, "mse")
    (concat,) = (o for o in graph.operators if o.kind == "Concat")
    pool = graph.sole_consumer(concat.name)
    c = quantized.constants
    values = [pool.name, *pool.inputs, *concat.inputs[:1]]
    assert len({c[f"{v}/scale"].item() for v in values}) == 1


def test_a_value_is_quantized_once_and_products_read_it():
    graph, _, calibration = prepared(residual(), samples=2)
    quantized = quantize(graph, calibration, "mse")
    inputs = [o.inputs[0] for o in quantized.operators if o.kind == "QuantizeLinear"]
    assert len(inputs) == len(set(inputs))
    for operator in quantized.operators:
        if operator.kind in ("Conv", "Gemm"):
            assert [quantized.producers[i].kind for i in operator.inputs] == [
                "DequantizeLinear"
            ] * 3


def test_parts_of_a_split_have_the_scale_of_the_whole(tmp_path):
    rng = np.random.default_rng(0)
    weights = {"w": (8, 3, 1, 1), "v": (4, 4, 3, 3), "u": (4, 4, 1, 1)}
    graph = Graph(
        name="split",
        opset=20,
        inputs=(Value(name="x", dtype="float32", shape=("batch", 3, 6, 6)),),
        outputs=(Value(name="scores", dtype="float32", shape=("batch", 8, 1, 1)),),
        operators=(
            Operator(kind="Conv", inputs=("x", "w"), outputs=("whole",)),
            Operator(kind="Relu", inputs=("whole",), outputs=("relu",)),
            Operator(
                kind="Split",
                inputs=("relu",),
                outputs=("first", "second"),
                attributes={"axis": 1, "num_outputs": 2},
            ),
            Operator(
                kind="Conv",
                inputs=("first", "v"),
                outputs=("conv1",),
                attributes={"pads": (1, 1, 1, 1)},
            ),
            Operator(kind="Conv", inputs=("second", "u"), outputs=("conv2",)),
            Operator(
                kind="Concat", inputs=("conv1", "conv2"), outputs=("both",), attributes={"axis": 1}
            ),
            Operator(kind="GlobalAveragePool", inputs=("both",), outputs=("scores",)),
        ),
        constants={n: rng.normal(size=s).astype(np.float32) for n, s in weights.items()},
    )
    batch = {"x": rng.random((4, 3, 6, 6), np.float32)}
    calibration = calibrate(graph, open_session, [batch], observed_values(graph))
    quantized = quantize(graph, calibration, "min-max")
    scales = [quantized.constants[f"{v}/scale"].item() for v in ("relu", "first", "second")]
    assert len(set(scales)) == 1
    found = kernels_of_onnxruntime(quantized, tmp_path)
    assert found["QLinearConv"] == 3
    assert found["DequantizeLinear"] <= 1
    wanted = scores_of(graph, open_session, [batch])
    for engine in INSTALLED:
        got = agreement(wanted, scores_of(quantized, opener(engine), [batch]))
        assert got.largest_error < 0.02


def test_only_the_chosen_operators_are_quantized():
    graph, _, calibration = prepared(networks.build("little-cnn"), samples=2)
    quantized = quantize(graph, calibration, "min-max", ["conv2", "fc1"], sums=False)
    whole = [n for n, a in quantized.constants.items() if a.dtype == np.int8 and a.ndim > 1]
    assert sorted(whole) == ["conv2/weight/quantized", "fc1/weight/quantized"]
    assert quantized.constants["conv1.weight"].dtype == np.float32
    unchanged = quantize(graph, calibration, "min-max", [])
    assert unchanged.digest() == graph.digest()


def test_what_can_be_quantized():
    weight = np.ones((3, 5))
    gemm = Operator(kind="Gemm", inputs=(), outputs=())
    able = one_product(gemm, weight, np.ones(5))
    assert quantizable(able) == ("y",)
    assert quantizable(one_product(gemm, weight, np.ones((1, 5)))) == ("y",)
    assert quantizable(one_product(gemm, weight, 1.0)) == ("y",)
    assert not quantizable(one_product(gemm, weight, np.ones((2, 5))))
    assert not quantizable(one_product(gemm, np.full((3, 5), np.nan)))
    for attributes in ({"alpha": 2.0}, {"beta": 0.5}, {"transA": 1}):
        assert not quantizable(one_product(replace(gemm, attributes=attributes), weight))
    two = replace(able, inputs=(*able.inputs, replace(able.inputs[0], name="w")), constants={})
    assert not quantizable(two)
    network = every_sequence_layer()
    graph = folded(export.graph_of(network, network.draw(0)))
    kinds = [graph.producers[name].kind for name in quantizable(graph)]
    assert kinds == ["Conv", "MatMul", "Gemm"]  # those of attention have two activations


def test_a_quantized_graph_survives_a_file():
    graph, _, calibration = prepared(every_layer(), samples=2)
    quantized = quantize(graph, calibration, "min-max")
    again = reader.parse(serialized(quantized), quantized.name)
    assert {n: a.dtype for n, a in again.constants.items()} == {
        n: a.dtype for n, a in quantized.constants.items()
    }
    assert [o.name for o in again.operators] == [o.name for o in quantized.operators]


@pytest.mark.parametrize("padding", [0, 1])
def test_average_pools_that_hang_over_the_edge(padding):
    """ONNX Runtime divides their sums by the size of a whole window, in integers alone."""
    net = NetworkBuilder("hanging")
    x = net.relu(net.conv(net.input("image", (3, 8, 8)), 4, kernel=1))
    x = net.average_pool(x, 3, stride=2, padding=padding, ceil_mode=True)
    net.classify(net.linear(net.flatten(net.relu(net.conv(x, 4, kernel=1))), 5))
    graph, batch, calibration = prepared(net.build())
    quantized = quantize(graph, calibration, "min-max")
    for engine in INSTALLED:
        wanted = scores_of(graph, opener(engine), [batch])
        found = agreement(wanted, scores_of(quantized, opener(engine), [batch]))
        assert found.largest_error < 0.03


def test_hopeless_requests_are_refused():
    graph, _, calibration = prepared(networks.build("little-cnn"), samples=2)
    with pytest.raises(UsageError, match="operator 'relu1' of little-cnn cannot be quantized"):
        quantize(graph, calibration, "mse", ["relu1"])
    few = replace(calibration, histograms={"image": calibration.histograms["image"]})
    with pytest.raises(UsageError, match="of little-cnn was not calibrated"):
        quantize(graph, few, "mse")


def test_candidates_are_every_method_in_both_forms():
    assert len({c.name for c in CANDIDATES}) == 2 * len(METHODS)
    assert CANDIDATES[0].name == "min-max, products and sums"


def test_the_most_sensitive_operator_comes_first():
    network = networks.build("little-cnn")
    weights = trained_weights(network)
    # One channel that dominates the range of what fc1 reads hides the others from 8 bits.
    graph = export.graph_of(network, weights)
    constants = dict(graph.constants)
    constants["conv4.weight"] = constants["conv4.weight"].copy()
    constants["conv4.weight"][0] *= 1000
    constants["fc1.weight"] = constants["fc1.weight"].copy()
    constants["fc1.weight"][:, : constants["fc1.weight"].shape[1] // 64] /= 1000
    graph = replace(graph, constants=constants)
    batch = images(network, 16)
    calibration = calibrate(graph, open_session, [batch], observed_values(graph))
    found = sensitivity(graph, calibration, "min-max", open_session, [batch])
    assert [len(s.operators) for s in found] == [1] * 6
    assert {o for s in found for o in s.operators} == set(quantizable(graph))
    assert found[0].operators == ("fc1",)
    assert found[0].agreement.divergence > 3 * found[1].agreement.divergence
    grouped = sensitivity(graph, calibration, "min-max", open_session, [batch], most_groups=2)
    assert [len(s.operators) for s in grouped] == [3, 3]
    assert "fc1" in grouped[0].operators
