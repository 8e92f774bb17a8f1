"""Quantized graphs that no exporter writes: each is refused by name before C++ reads it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cubemesh.inference.cpu.lower import lower
from cubemesh.inference.cpu.session import CpuSession
from cubemesh.inference.quantization.quantized_graph import NotLowered
from cubemesh.kernels.cpu.int8 import library
from cubemesh.onnx.graph import Graph, Operator, Value

SHAPE = (3, 8, 64)
needs_kernels = pytest.mark.skipif(bool(library.unsupported()), reason=library.unsupported())


class Hostile:
    """A quantized graph, operator by operator, with any attributes."""

    def __init__(self):
        self.operators, self.constants = [], {}

    def op(self, kind, inputs, name, **attributes):
        made = Operator(kind=kind, inputs=inputs, outputs=(name,), attributes=attributes)
        self.operators.append(made)
        return name

    def bytes(self, x):
        """A value in 8 bits."""
        self.constants |= {"s": np.float32(0.1), "z": np.int8(0)}
        q = self.op("QuantizeLinear", (x, "s", "z"), f"{x}.q")
        return self.op("DequantizeLinear", (q, "s", "z"), f"{x}.d")

    def conv(self, x, name, shape, scales=None, **attributes):
        w = f"{name}.w"
        self.constants[w] = np.ones(shape, np.int8)
        self.constants[f"{w}.s"] = np.full(shape[0] if scales is None else scales, 0.1, np.float32)
        d = self.op("DequantizeLinear", (w, f"{w}.s"), f"{w}.d", axis=0)
        return self.op("Conv", (x, d), name, **attributes)

    def first(self):
        """Eight channels of the image in 8 bits."""
        return self.bytes(self.conv(self.bytes("x"), "first", (8, *SHAPE[:1], 1, 1)))

    def lower(self, output, rank=4):
        graph = Graph(
            name="hostile",
            opset=17,
            inputs=(Value(name="x", dtype="float32", shape=("batch", *SHAPE)),),
            outputs=(Value(name=output, dtype="float32", shape=("batch",) + ("",) * (rank - 1)),),
            operators=tuple(self.operators),
            constants=self.constants,
        )
        return lower(graph)


def same_name(graph):
    """An operator has the name of the copy in bytes that another one needs."""
    a = graph.first()
    b = graph.bytes(graph.conv(a, "x/bytes (1, 1) 1 [10, 66]", (27, 8, 1, 1)))
    graph.conv("x.d", "c", (27, 3, 3, 3), pads=(1, 1, 1, 1))
    return graph.op("Add", (b, "c"), "sum")


def normalization(graph):
    """x / (1 + mean of x²) in a window whose lengths are negative."""
    x = graph.first()
    graph.constants |= {"one": np.float32(1)}
    square = graph.op("Mul", (x, x), "square")
    window = {"kernel_shape": (-1, -3), "pads": (-1, -2) * 2, "count_include_pad": 1}
    mean = graph.op("AveragePool", (square,), "mean", **window)
    base = graph.op("Add", (graph.op("Mul", (mean, "one"), "scaled"), "one"), "base")
    return graph.op("Div", (x, graph.op("Pow", (base, "one"), "power")), "normalized")


def pooled(graph, **window):
    return graph.op("AveragePool", (graph.first(),), "pool", **window)


def convolved(graph, shape, **attributes):
    return graph.conv(graph.first(), "last", shape, **attributes)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda g: convolved(g, (400, 8, 1, 1), scales=2), "not one scale for each channel"),
        (lambda g: convolved(g, (8, 8, 1, 1), pads=(0, -65536, 0, 65536)), "window of last"),
        (lambda g: convolved(g, (8, 8, 1, 1), strides=(1, -4440)), "window of last"),
        (lambda g: convolved(g, (8, 8, 1, 1), strides=(1,)), "window of last"),
        (lambda g: convolved(g, (8, 8, 1, 1), dilations=(1, 1 << 62)), "window of last"),
        (lambda g: convolved(g, (8, 8, 0, 1)), "window of last"),
        (lambda g: pooled(g, kernel_shape=(-1, 5)), "window of pool"),
        (lambda g: convolved(g, (0, 8, 1, 1)), "weights of last are empty"),
        (lambda g: g.op("LRN", (g.first(),), "norm", size=-3), "LRN over -3 channels"),
        (normalization, "no kernel for Mul"),
        (same_name, r"two values are called x/bytes"),
        (lambda g: convolved(g, (1, 8, 60, 60), pads=(150,) * 4), "its tables have more than"),
        (
            lambda g: pooled(g, kernel_shape=(20000, 20000), pads=(10000,) * 4),
            "its tables have more than",
        ),
    ],
)
def test_what_would_lead_c_plus_plus_astray_is_refused(body, reason):
    graph = Hostile()
    with pytest.raises(NotLowered, match=reason):
        graph.lower(body(graph))


def test_a_long_chain_of_views_and_means_is_short_work():
    graph = Hostile()
    x = graph.first()
    for n in range(3000):
        x = graph.op("Identity", (x,), f"view{n}")
    for n in range(1500):
        x = graph.op("AveragePool", (x,), f"mean{n}", kernel_shape=(1, 1))
    program = graph.lower(graph.conv(x, "last", (4, 8, 1, 1)))
    assert len(program.steps) == 1503


def test_one_scale_serves_all_channels():
    graph = Hostile()
    program = graph.lower(graph.conv(graph.first(), "last", (4, 8, 1, 1), scales=1))
    assert program.steps[-1].scales.shape == (4,)


@needs_kernels
def test_a_batch_whose_arrays_are_too_large_is_refused():
    graph = Hostile()
    wide = graph.bytes(graph.conv(graph.first(), "wide", (4, 8, 1, 1), pads=(3000,) * 4))
    program = graph.lower(graph.op("GlobalAveragePool", (wide,), "means"))
    with pytest.raises(ValueError, match="its arrays for a batch of 40 exceed"):
        CpuSession(program, 40, 40, least_work=1)


@needs_kernels
def test_a_thread_that_does_not_start_is_too_little_memory():
    """In a process that may not map the stack of another thread."""
    from patience import PATIENCE_S  # that process imports this file without it

    program = """
import resource
import sys
sys.path.insert(0, sys.argv[1])
from cubemesh.inference.cpu.session import CpuSession
from cubemesh.kernels.cpu.int8 import library
from test_hostile_plans import Hostile
graph = Hostile()
made = graph.lower(graph.conv(graph.first(), "last", (4, 8, 1, 1)))
library.library()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)
try:
    CpuSession(made, 1, 40, least_work=1)
except MemoryError as error:
    print(error)
"""
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == "there is no memory for the network\n", done
