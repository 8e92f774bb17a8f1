"""INT8 kernels of a CPU: every result equals exact sums rounded as stated, with all instructions,
numbers of threads and groups of images; networks without residual sums equal ONNX Runtime's."""

import ctypes
import math
import struct
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from byte_reference import run_program
from cubemesh import Plan, build_plan
from cubemesh.errors import UsageError
from cubemesh.inference.cpu import engine
from cubemesh.inference.cpu.lower import lower
from cubemesh.inference.cpu.program import NormStep, ProductStep
from cubemesh.inference.cpu.session import CpuSession, segments
from cubemesh.inference.lowering import AddStep, PoolStep
from cubemesh.inference.passes import optimize
from cubemesh.inference.plan_file import read_plan
from cubemesh.inference.quantization.quantized_graph import NotLowered
from cubemesh.kernels.cpu.int8 import library
from cubemesh.onnx.export import export
from cubemesh.onnx.graph import Graph, Operator, Value
from cubemesh.onnx.light_reader import graph_of_model
from cubemesh.onnx.reader import parse
from cubemesh.onnx.writer import serialized
from hwnc_networks import fp32, images, int8, scores
from onnx_graphs import Sketch

pytestmark = pytest.mark.skipif(bool(library.unsupported()), reason=library.unsupported())
WAYS = [("vnni", 1, 1 << 20), ("vnni", 2, 1 << 20), ("emulated-amx", 1, 1 << 14)]
"""Instructions, threads, and the L2 that groups of images are cut to."""
COUNT = 3


class Small:
    """A quantized graph of a few operators, made by a function of a sketch and its input."""

    def __init__(self, body, shape=(3, 9, 10), rank=2):
        self.random = np.random.default_rng(0)
        sketch = Sketch(x=("batch", *shape))
        graph, _ = optimize(sketch.graph(body(self, sketch, "x"), rank=rank))
        self.graph = int8(graph)
        self.program = lower(self.graph)
        self.images = images(graph, COUNT)

    def conv(self, sketch, x, inputs, outputs, kernel=3, **attributes):
        """A convolution with drawn weights and biases."""
        size = (kernel, kernel) if isinstance(kernel, int) else kernel
        weights = self.random.standard_normal((outputs, inputs, *size)) / inputs**0.5
        bias = self.random.standard_normal(outputs)
        return sketch.Conv(x, weights, bias, kernel_shape=size, **attributes)

    def classified(self, sketch, x, channels, pixels=1):
        """Five scores of an array."""
        weights = self.random.standard_normal((5, channels * pixels)) / channels
        return sketch.Gemm(sketch.Flatten(x), weights, np.zeros(5), transB=1)

    def agrees(self):
        """Assert that all ways to compute equal NumPy's; the scores."""
        wanted = run_program(self.program, self.images)[0]
        for instructions, threads, l2 in WAYS:
            session = CpuSession(self.program, COUNT, threads, instructions, l2, least_work=1)
            found = session.run({self.program.input: self.images})[0]
            assert np.array_equal(found, wanted), (instructions, threads, l2)
        return wanted


def pooled(body, channels):
    """A network that ends in the means of channels and five scores."""

    def whole(small, sketch, x):
        return small.classified(sketch, sketch.GlobalAveragePool(body(small, sketch, x)), channels)

    return whole


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        (1, {}),
        (1, {"strides": (2, 2)}),
        (3, {"pads": (1, 1, 1, 1)}),
        (3, {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
        (3, {"pads": (0, 2, 1, 0), "strides": (2, 1)}),
        (3, {"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
        ((1, 5), {"pads": (0, 2, 0, 2)}),
        ((4, 2), {}),
    ],
)
def test_convolutions_of_any_window(kernel, attributes):
    """The first one reads the image, the second one 20 channels, in either kind of instructions."""

    def body(small, sketch, x):
        a = sketch.Relu(small.conv(sketch, x, 3, 20, kernel, **attributes))
        b = sketch.Relu(small.conv(sketch, a, 20, 37, 1))
        return small.conv(sketch, b, 37, 70, (1, 1) if kernel == (4, 2) else kernel, **attributes)

    small = Small(pooled(body, 70), shape=(3, 14, 15))
    assert np.array_equal(small.agrees(), scores(small.graph, small.images))


@pytest.mark.parametrize(
    ("shape", "kernel", "pads"),
    [
        ((3, 1, 1), (1, 5), (0, 2, 0, 2)),  # lines whose taps do not follow one another
        ((3, 1, 8), (1, 5), (0, 0, 1, 0)),  # as many results as pixels, elsewhere
        ((3, 6, 1), (3, 3), (0, 1, 0, 1)),
    ],
)
def test_windows_beyond_a_narrow_image(shape, kernel, pads):
    def body(small, sketch, x):
        a = sketch.Relu(small.conv(sketch, x, 3, 20, 1))
        return small.conv(sketch, a, 20, 37, kernel, pads=pads)

    small = Small(pooled(body, 37), shape=shape)
    for step in small.program.steps:
        if isinstance(step, ProductStep):
            assert step.weights.shape[1] == math.prod(step.window.kernel)
    assert np.array_equal(small.agrees(), scores(small.graph, small.images))


def residual(small, sketch, x):
    """Two blocks, the first with a projection, the second a sum of two pools."""
    a = sketch.Relu(small.conv(sketch, x, 3, 16, pads=(1, 1, 1, 1)))
    b = small.conv(sketch, a, 16, 24, pads=(1, 1, 1, 1), strides=(2, 2))
    c = small.conv(sketch, a, 16, 24, 1, strides=(2, 2))
    d = sketch.Relu(sketch.Add(b, c))
    e = small.conv(sketch, sketch.Relu(small.conv(sketch, d, 24, 24, 1)), 24, 24, 1)
    return small.conv(sketch, sketch.Add(e, d), 24, 12, 1)


def test_a_residual_sum_is_computed_by_its_convolution():
    small = Small(pooled(residual, 12), shape=(3, 16, 16))
    products = [s for s in small.program.steps if isinstance(s, ProductStep)]
    assert [bool(s.residual) for s in products].count(True) == 2
    assert not any(isinstance(s, AddStep) for s in small.program.steps)
    small.agrees()


def branches(small, sketch, x):
    """Parts of a concatenation of different kinds, and one that is used elsewhere too."""
    a = sketch.Relu(small.conv(sketch, x, 3, 17, pads=(1, 1, 1, 1)))
    b = small.conv(sketch, a, 17, 5, 1)
    c = sketch.MaxPool(a, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    d = sketch.AveragePool(a, kernel_shape=(3, 3), pads=(1, 1, 1, 1), count_include_pad=1)
    whole = sketch.Concat(b, small.conv(sketch, c, 17, 6, 1), c, d, axis=1)
    return sketch.Relu(small.conv(sketch, whole, 45, 33, 1))


def test_parts_of_a_concatenation_are_written_where_they_belong():
    small = Small(pooled(branches, 33))
    arrays = small.program.arrays
    slices = [a for a in arrays.values() if a.owner != a.name]
    assert sorted((a.offset, a.channels) for a in slices) == [(0, 5), (5, 6), (11, 17), (28, 17)]
    small.agrees()


def pools(small, sketch, x):
    """Pools, a sum of pools, and a response normalization."""
    a = sketch.Relu(small.conv(sketch, x, 3, 21))
    b = sketch.MaxPool(a, kernel_shape=(2, 3), strides=(2, 2), ceil_mode=1)
    c = sketch.AveragePool(a, kernel_shape=(2, 3), strides=(2, 2), ceil_mode=1)
    d = small.conv(sketch, sketch.Add(b, c), 21, 19, 1)
    e = small.conv(sketch, sketch.LRN(d, size=5, alpha=0.5, beta=0.75, bias=1.0), 19, 18, 1)
    return sketch.Relu(sketch.MaxPool(e, kernel_shape=(3, 3), pads=(1, 1, 1, 1)))


def test_pools_sums_and_normalization():
    small = Small(pooled(pools, 18), shape=(3, 12, 11))
    kinds = {type(s) for s in small.program.steps}
    assert {NormStep, AddStep, PoolStep} < kinds
    small.agrees()


def test_products_of_whole_images_and_a_result_with_pixels():
    def body(small, sketch, x):
        return small.classified(sketch, sketch.Relu(small.conv(sketch, x, 1, 6)), 6, 56)

    flat = Small(body, shape=(1, 9, 10))
    assert np.array_equal(flat.agrees(), scores(flat.graph, flat.images))

    def unpooled(small, sketch, x):
        return small.conv(sketch, x, 4, 9, pads=(1, 1, 1, 1))

    pixels = Small(unpooled, (4, 5, 6), rank=4)
    assert pixels.agrees().shape == (COUNT, 9, 5, 6)


@pytest.fixture(scope="module")
def cifarnet():
    """The quantized graph of CifarNet."""
    return int8(fp32("cifarnet"))


def test_cifarnet_normalizes_within_channels(cifarnet):
    program = lower(cifarnet)
    norms = [s for s in program.steps if isinstance(s, NormStep)]
    assert [(s.size, s.window.kernel) for s in norms] == [(1, (3, 3))] * 2
    session = CpuSession(program, 1, 1)
    given = images(cifarnet, 1)
    found = session.run({session.program.input: given})[0]
    assert np.array_equal(found, run_program(session.program, given)[0])


@pytest.fixture(scope="module")
def resnet():
    """The program of ResNet-18."""
    return lower(int8(fp32("resnet-18")))


def test_a_resnet_has_a_step_for_each_convolution_and_pool(resnet):
    program = resnet
    kinds = [type(step).__name__ for step in program.steps]
    assert (kinds.count("ProductStep"), kinds.count("PoolStep"), len(kinds)) == (21, 2, 24)
    assert not [s for s in program.steps if isinstance(s, PoolStep) and s.window.kernel == (1, 1)]


def test_segments_hold_what_a_cache_does(resnet):
    program = resnet
    found = segments(program, 8, 1 << 16)
    assert [s.first for s in found[1:]] == [s.last for s in found[:-1]]
    assert [s.group for s in found] == sorted({s.group for s in found})
    assert (found[0].group, found[-1].group, found[-1].last) == (1, 8, len(program.steps))


def test_nothing_is_allocated_after_load():
    small = Small(pooled(residual, 12))
    session = CpuSession(small.program, COUNT, 2, least_work=1)
    assert session.threads == 2
    given = {small.program.input: small.images}
    first = session.run(given)[0]

    class Usage(ctypes.Structure):
        _fields_ = [(f"f{n}", ctypes.c_size_t) for n in range(10)]

    usage = ctypes.CDLL(None).mallinfo2
    usage.restype = Usage
    network = session._network
    before = usage().f7
    for _ in range(5):
        network.run(small.images)
    assert usage().f7 == before
    assert session.run(given)[0] is first


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda small, sketch, x: sketch.Sigmoid(small.conv(sketch, x, 3, 4)), "Sigmoid"),
        (lambda small, sketch, x: small.conv(sketch, x, 1, 3, group=3), "convolutions in groups"),
        (
            lambda small, sketch, x: small.conv(sketch, x, 3, 4, auto_pad="SAME_UPPER"),
            "automatic padding",
        ),
    ],
)
def test_what_has_no_kernel_is_refused_by_name(body, reason):
    with pytest.raises(NotLowered, match=reason):
        Small(body, rank=4)


def test_a_network_in_floating_point_is_refused():
    with pytest.raises(NotLowered, match="its input is not quantized"):
        lower(fp32("little-cnn"))


def test_a_processor_without_vnni_is_unsupported(tmp_path):
    (tmp_path / "cpuinfo").write_text("flags : fpu avx2 avx512f\n")
    assert library.unsupported(tmp_path / "cpuinfo") == "the processor has no AVX512-VNNI"
    with pytest.raises(ValueError, match="the processor has no avx1024"):
        library.choose("avx1024")


def test_the_light_reader_reads_what_the_writer_wrote(cifarnet):
    content = serialized(cifarnet)
    found, wanted = graph_of_model(content), parse(content)
    assert found.digest() == wanted.digest()
    with pytest.raises(ValueError, match="truncated"):
        graph_of_model(content[: len(content) // 2])


def test_a_float_without_bytes_is_damaged():
    norm = Operator(kind="LRN", inputs=("x",), outputs=("y",), attributes={"alpha": 0.5, "size": 3})
    value = Value(name="y", dtype="float32", shape=("batch", 3, 4, 4))
    inputs = (replace(value, name="x"),)
    graph = Graph(
        name="norm", opset=17, inputs=inputs, outputs=(value,), operators=(norm,), constants={}
    )
    content, alpha = serialized(graph), b"\x15" + struct.pack("<f", 0.5)
    assert content.count(alpha) == 1
    damaged = content.replace(alpha, b"\x12\x00" + b"\x4a\x01s")  # no bytes, and a text
    with pytest.raises(ValueError, match=r"alpha.* is damaged"):
        graph_of_model(damaged)


def test_a_plan_in_own_kernels(tmp_path):
    from cubemesh.networks.builder import NetworkBuilder

    net = NetworkBuilder("tiny")
    x = net.relu(net.conv(net.input("image", (1, 6, 6)), 4, kernel=3))
    net.classify(net.linear(net.flatten(x), 3))
    network = net.build()
    export(network, network.draw(0), tmp_path / "tiny.onnx")
    given = np.random.default_rng(1).random((64, 1, 6, 6), np.float32)
    np.savez(tmp_path / "samples.npz", image=given)
    settings = {
        "samples": tmp_path / "samples.npz",
        "precisions": ["int8"],
        "accuracy": 0.5,
        "engines": ["cpu-int8"],
        "batches": (1, 4),
        "threads": 1,
        "seconds": 0.01,
        "timing_record": tmp_path / "timing.json",
    }
    files = [tmp_path / "tiny.plan", tmp_path / "again.plan"]
    for file in files:
        build_plan(str(tmp_path / "tiny.onnx"), file, **settings)
    assert files[0].read_bytes() == files[1].read_bytes()
    document, models = read_plan(files[0])
    assert {(c.engine, c.version) for c in document.choices} == {("cpu-int8", library.VERSION)}
    with Plan.load(files[0], threads=1) as plan:
        found = plan.run(given[:7])
    session = engine.open_session(models[document.choices[0].model], threads=1, batch=7)
    assert np.array_equal(found, session.run({"image": given[:7]})[0])
    program = """
import sys
import numpy as np
from cubemesh import Plan
with Plan.load(sys.argv[1], threads=1) as plan:
    np.save(sys.argv[3], plan.run(np.load(sys.argv[2])["image"][:7]))
loaded = {"torch", "onnx", "onnxruntime", "openvino"} & set(sys.modules)
assert not loaded, loaded
"""
    arguments = [str(files[0]), str(tmp_path / "samples.npz"), str(tmp_path / "scores.npy")]
    subprocess.run([sys.executable, "-c", program, *arguments], check=True)
    assert np.array_equal(np.load(tmp_path / "scores.npy"), found)
    for engines in (["cpu-int8"], ["cpu-int8", "onnxruntime"]):
        with pytest.raises(UsageError, match=r"cpu-int8 computes in 8-bit integers only"):
            build_plan(str(tmp_path / "tiny.onnx"), files[0], engines=engines, threads=1)
