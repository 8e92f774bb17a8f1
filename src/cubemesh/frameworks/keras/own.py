"""Keras models of a user, which run as they are, on TensorFlow.

Images come with their channels last. FLOPs are those of TensorFlow's profiler for the graph of a
step; saved values are what the backward pass reads of the forward pass.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cubemesh.batches import Array
from cubemesh.frameworks.contract.own_module import (
    SAMPLES,
    DescriptionRequest,
    check_scores,
    check_trained,
    check_unchanged,
    make,
    of_framework,
    opaque_description,
    scores_in,
)
from cubemesh.frameworks.tensorflow.runtime import is_out_of_memory
from cubemesh.networks.layers import Shape
from cubemesh.networks.opaque import Opaque
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.user_code import UserCodeError, UserObject, attempt


def load(named: UserObject, found: Any = None) -> Any:
    """The model. UserCodeError where there is none, or its Keras does not run on TensorFlow."""
    if found is None:
        found = make(named, is_out_of_memory)
    model = of_framework(named, found, "keras")
    if keras.backend.backend() != "tensorflow":
        raise UserCodeError(
            f"{named.short}: its Keras runs on {keras.backend.backend()}, and here Keras runs on "
            "TensorFlow. Leave KERAS_BACKEND out."
        )
    return model


def apply(own: OwnNetwork, images: Any) -> tuple[Any, dict[str, Any]]:
    """The scores of a described model for an input of Keras's functional API, and its variables by
    their names in the graph. UserCodeError where it cannot be built, or its files are others."""
    named = check_unchanged(own)
    model = load(named)
    y = attempt(named, "running it", lambda: scores_of(model(images)), is_out_of_memory)
    return y, named_variables(model)


def named_variables(model: Any) -> dict[str, Any]:
    """Its variables of numbers, trained ones first, by their places: names that Keras counts differ
    between processes."""
    variables = [*model.trainable_variables, *_state(model)]
    return {f"{number}.{v.name}": v for number, v in enumerate(variables)}


def describe(request: DescriptionRequest, found: Any) -> OwnNetwork:
    """The description of a model as one layer. UserCodeError where it cannot be run."""
    named, model = request.named, load(request.named, found)
    samples = request.samples()
    if request.vocabulary is None:
        samples = samples.transpose(0, 2, 3, 1)
    x = tf.constant(samples)
    running = f"running it on {request.shown_input}"
    scores = attempt(named, running, lambda: scores_of(model(x, training=False)), is_out_of_memory)
    floating = tf.as_dtype(scores.dtype).is_floating
    check_scores(request, tuple(scores.shape), floating=floating)
    trained = list(model.trainable_variables)
    check_trained(request, trained)
    arrays: dict[str, Array] = {
        n: np.array(v.numpy(), np.float32) for n, v in named_variables(model).items()
    }
    training = f"training it on {request.shown_input}"
    forward, both, saved = attempt(
        named, training, lambda: _counts(model, x, trained), is_out_of_memory
    )
    shapes: list[tuple[str, Shape]] = [(n, tuple(a.shape)) for n, a in arrays.items()]
    layer = Opaque(
        output=tuple(scores.shape[1:]),
        trained=tuple(shapes[: len(trained)]),
        updated=tuple(shapes[len(trained) :]),
        forward_flops=forward // SAMPLES,
        backward_flops=max(0, both - forward) // SAMPLES,
        saved_values=saved // 4 // SAMPLES,
    )
    return opaque_description(request, "keras", layer, arrays)


def scores_of(result: Any) -> Any:
    """See `scores_in`."""
    return scores_in(result, (tf.Tensor, keras.KerasTensor), "a tensor")


def _state(model: Any) -> list[Any]:
    """Variables that training updates without a gradient; not the seeds of random numbers."""
    return [v for v in model.non_trainable_variables if keras.backend.is_float_dtype(v.dtype)]


def _counts(model: Any, x: Any, trained: list[Any]) -> tuple[int, int, int]:
    """FLOPs of the forward pass and of the whole step, and bytes that the former leaves for the
    backward pass."""
    boundary: list[set[str]] = []

    def forward(x: Any) -> Any:
        return tf.reduce_mean(tf.cast(scores_of(model(x, training=True)), tf.float32))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = forward(x)
        boundary.append({operation.name for operation in loss.graph.get_operations()})
        return tape.gradient(loss, [v.value for v in trained])

    given = tf.TensorSpec(x.shape, x.dtype)
    graphs = [
        tf.function(run, autograph=False).get_concrete_function(given).graph
        for run in (forward, step)
    ]
    before, whole = boundary[-1], graphs[1]
    saved: dict[str, int] = {}
    for operation in whole.get_operations():
        if operation.name in before:
            continue
        for tensor in operation.inputs:
            made = tensor.op
            shape = tensor.shape.as_list() if tensor.shape.rank is not None else [None]
            if made.name in before and made.type not in _EXISTING and None not in shape:
                saved[tensor.name] = math.prod(shape) * tensor.dtype.size
    return _flops(graphs[0]), _flops(whole), sum(saved.values())


_EXISTING = frozenset({"Placeholder", "ReadVariableOp", "Const", "Identity", "Cast"})
"""Operations whose results are weights, inputs or constants."""


def _flops(graph: Any) -> int:
    """Operations of a graph that TensorFlow has a formula for."""
    profiler = tf.compat.v1.profiler
    options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation())
    with graph.as_default():
        found = profiler.profile(graph, options=options.with_empty_output().build())
    return 0 if found is None else int(found.total_float_ops)
