"""All passes over the networks of the zoo: scores stay, and the numbers of steps."""

import numpy as np
import pytest

from cubemesh import networks
from cubemesh.inference.passes import OPTIONAL, PASSES, optimize, steps
from cubemesh.onnx import export, writer
from layer_samples import (
    DISTINCT,
    NARROW,
    every_layer,
    every_sequence_layer,
    mixed,
    recurrent,
    trained_weights,
)
from onnx_graphs import (
    by_onnxruntime,
    by_reference,
    cheap_weights,
    distance,
    in_float64,
    kinds,
    side_by_side,
)

pytest.importorskip("onnx")

SIZES = {
    "translator": {"sequence_length": 6, "vocabulary": 300, "hidden": 64},
    "translator-plain": {"sequence_length": 6, "vocabulary": 300, "hidden": 64},
    "translator-2x": {"sequence_length": 6, "vocabulary": 300, "hidden": 64},
    "deep-speech-gru": {"sequence_length": 9, "vocabulary": 29, "hidden": 64},
    "deep-speech-rnn": {"sequence_length": 9, "vocabulary": 29, "hidden": 64},
    "captioner": {"image_size": 11, "sequence_length": 4, "vocabulary": 300, "hidden": 64},
}
"""Sizes of networks of sequences; images have the smallest size."""
EVERY = {**PASSES, **OPTIONAL}


def network(name):
    if name in NARROW:
        return NARROW[name]()
    sizes = SIZES.get(name) or {"image_size": networks.entry(name).smallest_image_size}
    return networks.build(name, **sizes)


def graph_of(built, weights, batch=None):
    made = export.graph_of(built, weights)
    for array in made.constants.values():
        array.flags.writeable = False
    if batch is None:
        return made
    return writer.with_shapes(made, {v.name: (batch, *v.shape[1:]) for v in made.inputs})


def inputs_of(built, samples):
    rng = np.random.default_rng(samples)
    return {
        i.name: rng.random((samples, *i.shape), np.float32)
        if i.dtype == "float"
        else rng.integers(0, np.array(i.vocabularies or i.classes), (samples, *i.shape))
        for i in built.inputs
    }


STEPS = {
    "little-cnn": (8, 8),
    "little-cnn-unpadded": (8, 8),
    "cifarnet": (11, 11),
    "alexnet": (11, 11),
    "overfeat": (11, 11),
    "vgg11": (16, 16),
    "vgg16": (21, 21),
    "vgg19": (24, 24),
    "googlenet": (72, 63),
    "googlenet-paper": (74, 65),
    "inception-bn": (83, 73),
    "inception-v3": (109, 99),
    "resnet-18": (23, 23),
    "resnet-34": (39, 39),
    "resnet-50": (56, 56),
    "resnet-101": (107, 107),
    "resnet-152": (158, 158),
    "efficientnet-b0": (164, 164),
    "unet": (20, 20),
    "detectnet": (74, 67),
    "detectnet-little": (7, 9),
    "convnext-t": (54, 54),
    "vit-b16": (199, 199),
    "gpt2": (196, 196),
    "bert-base": (38, 40),
    "llama3-8b": (79, 75),
    "mixtral-8x7b": (93, 91),
    "translator": (19, 20),
    "translator-plain": (17, 17),
    "translator-2x": (78, 78),
    "deep-speech-gru": (16, 16),
    "deep-speech-rnn": (16, 16),
    "captioner": (88, 78),
    "dlrm-small": (91, 91),
}
"""Steps of each network after the default passes, and with sibling products as one too."""


@pytest.mark.parametrize("name", DISTINCT)
def test_optimized_networks_have_the_same_scores(name):
    pytest.importorskip("onnxruntime")
    built = network(name)
    graph = graph_of(built, cheap_weights(built), 1)
    operators, constants = graph.operators, dict(graph.constants)
    default, results = optimize(graph)
    optimized, _ = optimize(default, EVERY)
    wanted, found = by_onnxruntime(side_by_side(graph, optimized), inputs_of(built, 1))
    assert np.isfinite(wanted).all()
    assert np.ptp(wanted) > 1e-3 * np.abs(wanted).max()
    assert distance([found], [wanted]) <= 1e-5
    # the graph that was given has not changed, and nothing is left to do
    assert graph.operators is operators
    assert list(graph.constants) == list(constants)
    assert optimize(default)[0] is default
    assert optimize(optimized, EVERY)[0] is optimized
    assert results[0].before == len(graph.operators)
    assert results[-1].after == len(default.operators)
    assert (len(steps(default)), len(steps(optimized))) == STEPS[name]


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize(
    "build",
    [
        *(mixed, every_layer, every_sequence_layer, recurrent),
        *(lambda: network("little-cnn"), lambda: network("cifarnet")),
    ],
    ids=["mixed", "layers", "sequence-layers", "recurrent", "little-cnn", "cifarnet"],
)
def test_scores_in_float64_differ_by_rounding_alone(build, batch):
    built = build()
    graph = in_float64(graph_of(built, trained_weights(built), batch))
    inputs = {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in inputs_of(built, 2).items()
    }
    optimized, _ = optimize(graph, EVERY)
    assert optimize(optimized, EVERY)[0] is optimized
    assert len(optimized.operators) < len(graph.operators)
    assert distance(by_reference(optimized, inputs), by_reference(graph, inputs)) <= 1e-12


def test_norms_of_residual_networks_are_part_of_convolutions():
    built = networks.build("resnet-18", networks.entry("resnet-18").smallest_image_size)
    weights = {n: np.ones(s.shape, np.float32) for n, s in built.parameters.items()}
    weights.update({n: np.ones(s.shape, np.float32) for n, s in built.state.items()})
    optimized, results = optimize(graph_of(built, weights))
    assert set(kinds(optimized)) == {
        *("Conv", "Relu", "Add", "MaxPool", "GlobalAveragePool", "Flatten", "Gemm")
    }
    (norms,) = (r for r in results if r.name == "norms" and r.changes)
    assert norms.changes == {"BatchNormalization": -20}
    assert norms.before - norms.after == 20


def test_a_network_without_anything_to_do_reports_every_pass():
    built = network("little-cnn")
    once, _ = optimize(graph_of(built, trained_weights(built)))
    again, results = optimize(once)
    assert again is once
    assert [r.name for r in results] == list(PASSES)
    assert all(r.before == r.after and not r.changes for r in results)


@pytest.mark.parametrize("name", ["googlenet", "inception-v3"])
def test_concatenations_of_inceptions_are_no_steps(name):
    built = network(name)
    weights = {n: np.ones(s.shape, np.float32) for n, s in built.parameters.items()}
    weights.update({n: np.ones(s.shape, np.float32) for n, s in built.state.items()})
    optimized, _ = optimize(graph_of(built, weights, 1))
    found = {operator.kind for step in steps(optimized) for operator in step.operators}
    assert "Concat" in kinds(optimized)
    assert "Concat" not in found
