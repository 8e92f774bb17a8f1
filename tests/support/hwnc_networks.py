"""Small networks of the operators that have kernels on a GPU, as ONNX graphs with free batches."""

import functools

import numpy as np

from cubemesh.inference.build import with_free_batch
from cubemesh.inference.passes import optimize
from cubemesh.inference.quantization.calibrate import calibrate
from cubemesh.inference.quantization.quantize import observed_values, quantize
from cubemesh.networks import build
from cubemesh.onnx.engines import ENGINES
from cubemesh.onnx.export import graph_of
from cubemesh.onnx.writer import serialized
from onnx_graphs import cheap_weights

ZOO = {
    "little-cnn": {},
    "resnet-18": {"image_size": 64, "classes": 10},
    "googlenet": {"image_size": 64, "classes": 10},
    "inception-v3": {"image_size": 139, "classes": 10},
    "alexnet": {"image_size": 67, "classes": 10},
}
"""Name → arguments that make it small."""


@functools.cache
def fp32(name):
    """The optimized graph of a network of the zoo, with weights made in little time."""
    network = build(name, **ZOO.get(name, {}))
    graph = with_free_batch(graph_of(network, cheap_weights(network)), {})
    optimized = optimize(graph)[0]
    for array in optimized.constants.values():
        array.flags.writeable = False  # tests share them
    return optimized


def images(graph, count=2, seed=0):
    """Random inputs."""
    shape = (count, *graph.inputs[0].shape[1:])
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def scores(graph, inputs):
    """The first result, by ONNX Runtime."""
    session = ENGINES["onnxruntime"].load().open_session(serialized(graph), threads=1)
    return session.run({graph.inputs[0].name: inputs})[0]


def int8(graph, method="min-max", operators=None):
    """The graph in 8 bits, its sums and pools too."""
    module = ENGINES["onnxruntime"].load()
    calibration = calibrate(
        graph,
        lambda content: module.open_session(content, threads=1),
        [{graph.inputs[0].name: images(graph, 4)}],
        observed_values(graph),
    )
    return quantize(graph, calibration, method, operators, sums=True)
