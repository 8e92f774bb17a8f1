"""A training step in Keras: `model.train_on_batch` of a functional model on TensorFlow.

The model is compiled with an optimizer and a weighted loss for each head. Keras traces the step
into a `tf.function` at the first batch.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

from cubemesh.batches import Array, Batch
from cubemesh.frameworks.contract.program import (
    BuildRequest,
    Capabilities,
    Snapshot,
    Unsupported,
)
from cubemesh.frameworks.contract.snapshot import (
    GENERATOR,
    generator_states,
    optimizer_arrays,
    optimizer_slots,
)
from cubemesh.frameworks.contract.validation import check_weights
from cubemesh.frameworks.contract.weight_inspection import fingerprint, first_nonfinite
from cubemesh.frameworks.keras import own
from cubemesh.frameworks.keras.layers import LOWERINGS, KerasContext, TorchRules
from cubemesh.frameworks.tensorflow import runtime
from cubemesh.frameworks.tensorflow.network import check_network
from cubemesh.frameworks.tensorflow.program import CpuProgram
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Convolution, Linear
from cubemesh.networks.opaque import Opaque
from cubemesh.schema.work import Training

POLICIES = {"fp64": "float64", "fp32": "float32", "bf16": "mixed_bfloat16"}
"""Precision → Keras's name of its policy: the types of arrays and of computation."""

_TRANSPOSED: dict[type, tuple[tuple[int, ...], tuple[int, ...]]] = {
    Convolution: ((2, 3, 1, 0), (3, 2, 0, 1)),
    Linear: ((1, 0), (1, 0)),
}
"""Layer → axes of its weight from the graph's layout to Keras's, and back."""


def capabilities() -> Capabilities:
    """What Keras can do here: CNNs, on the CPU."""
    able = runtime.capabilities()
    return dataclasses.replace(
        able,
        works=able.works - {"infer_load"},
        precisions={"cpu": frozenset(POLICIES)},
        sync_features=frozenset(),
    )


def preload() -> None:
    """Nothing more: importing this module has imported Keras and TensorFlow whole."""


class KerasProgram(CpuProgram):
    """A functional model on the CPU."""

    def __init__(self, request: BuildRequest) -> None:
        super().__init__(request)
        _check_inputs(request.network)
        check_network(request.network, {*LOWERINGS, Opaque}, "keras")
        self._network = request.network
        policy = keras.DTypePolicy(POLICIES[request.program.precision])
        self._dtype = policy.variable_dtype
        self._variables: dict[str, Any] = {}
        self._transposed: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        # For the whole process: losses and the learning rate use it when they are built.
        keras.config.set_floatx(self._dtype)
        keras.config.set_dtype_policy(policy)
        self.model, self._evaluated = self._models(request.network)
        self._weights = [h.weight for h in request.network.heads]
        self._pass = tf.function(self._make_pass, autograph=False)
        self._both = tf.function(self._make_both, autograph=False)
        self._scores = tf.function(self._make_scores, autograph=False)

    def _models(self, network: Network) -> tuple[Any, Any]:
        """The model with every head, and that of the evaluated head; they share layers."""
        channels, height, width = network.inputs[0].shape
        images = keras.Input((height, width, channels))
        values = {network.inputs[0].name: images}
        for i, node in enumerate(network.nodes):
            context = KerasContext(shape=node.shape, seed=self._work.seed + i, full=self._dtype)
            inputs = (values[name] for name in node.inputs)
            if isinstance(node.layer, Opaque):
                assert node.layer.own is not None, "a network made of a description"
                values[node.name], variables = own.apply(node.layer.own, *inputs)
                context.arrays.update(variables)
            else:
                values[node.name] = LOWERINGS[type(node.layer)](node.layer, context, *inputs)
            for role, name in {**node.parameters, **node.state}.items():
                if name in self._variables:
                    raise Unsupported(
                        f"keras cannot share arrays, as {network.name} does '{name}'."
                    )
                self._variables[name] = context.arrays[role]
                if role == "weight" and type(node.layer) in _TRANSPOSED:
                    self._transposed[name] = _TRANSPOSED[type(node.layer)]
        self._outputs = {node.name: values[node.name] for node in network.nodes}
        heads = [values[head.value] for head in network.heads]
        return keras.Model(images, heads), keras.Model(images, values[network.output])

    def place(self, batch: Batch) -> tuple[Any, Any]:
        """Copy to tensors of Keras's layout and type, which `tf.constant` owns."""
        images = batch.images.transpose(0, 2, 3, 1).astype(self._dtype, copy=False)
        return tf.constant(images), tf.constant(batch.labels)

    def train_step(self, placed: Any) -> None:
        """Forward, backward and update."""
        self._check_trains()
        images, labels = placed
        logs = self.model.train_on_batch(images, [labels] * len(self._weights))
        self._loss = logs[0] if isinstance(logs, (list, tuple)) else logs

    def forward(self, placed: Any) -> None:
        """The forward pass in training mode, and the loss."""
        self._check_loaded()
        self._loss = self._pass(*placed)

    def forward_backward(self, placed: Any) -> None:
        """Forward and backward pass in training mode; the gradients are dropped."""
        self._check_loaded()
        self._loss, _ = self._both(*placed)

    def _make_both(self, images: Any, labels: Any) -> Any:
        """The loss and the gradients, as the step of `fit` computes them."""
        with tf.GradientTape() as tape:
            loss = self._make_pass(images, labels)
        return loss, tape.gradient(loss, self.model.trainable_weights)

    def infer(self, placed: Any) -> Any:
        """See `SupportsInference`: the graph of `predict`, without its copies to the host."""
        self._check_loaded()
        return self._scores(placed[0])

    def _make_scores(self, images: Any) -> Any:
        return self._evaluated(images, training=False)

    def fetch(self, scores: Any) -> Array:
        """See `SupportsInference`."""
        found: Array = np.asarray(scores)
        return found.astype(self._dtype)

    def _make_pass(self, images: Any, labels: Any) -> Any:
        """The forward pass and loss of `fit`; Keras has no method for it alone."""
        values = self.model(images, training=True)
        values = values if isinstance(values, (list, tuple)) else [values]  # of one head: itself
        return sum(
            weight * keras.ops.mean(_cross_entropy(labels, value))
            for weight, value in zip(self._weights, values, strict=True)
        )

    def evaluate(self, placed: Any) -> Array:
        """Scores (batch, classes) in float32, or float64 where the program computes in it."""
        self._check_loaded()
        scores: Array = np.asarray(self._evaluated.predict_on_batch(placed[0]))
        return scores.astype(self._dtype)

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy `weights` into Keras's variables, and reset the optimizer."""
        check_weights(weights, self._network)
        for name, variable in self._variables.items():
            array = self._to_keras(name, weights[name])
            variable.assign(tf.constant(array.astype(self._dtype)))
        work = self._work
        if isinstance(work, Training):
            rates = (work.learning_rate, work.momentum, work.weight_decay)
            self.model.compile(
                optimizer=TorchRules(work.optimizer, *rates),
                loss=[_cross_entropy] * len(self._weights),
                loss_weights=self._weights,
                jit_compile=False,
            )
        self._loaded = True

    def state(self) -> dict[str, Array]:
        """A copy of every array on the host, in float32, or float64 for programs in fp64."""
        self._check_loaded()
        names = (*self._network.parameters, *self._network.state)
        return {name: self._to_graph(name, self._variables[name]) for name in names}

    def _to_keras(self, name: str, array: Array) -> Array:
        """An array of a variable's shape from the graph's layout to Keras's."""
        return array.transpose(self._transposed[name][0]) if name in self._transposed else array

    def _to_graph(self, name: str, variable: Any) -> Array:
        """A copy on the host of a variable of that shape, in the graph's layout."""
        array = variable.value.numpy()
        if name in self._transposed:
            array = array.transpose(self._transposed[name][1])
        return np.array(array, order="C")

    def _slots(self) -> dict[str, dict[str, Any]]:
        """The optimizer's variables by slot and parameter; they are made at the first step, or
        here."""
        optimizer, weights = self.model.optimizer, self.model.trainable_variables
        optimizer.build(weights)
        places = {id(variable): place for place, variable in enumerate(weights)}
        return {
            slot: {
                name: variables[places[id(self._variables[name])]]
                for name in self._network.parameters
            }
            for slot, variables in optimizer.slots.items()
        }

    def _generators(self) -> dict[str, Any]:
        """The variables of random generators, which are integers, by their places."""
        is_float, variables = keras.backend.is_float_dtype, self.model.non_trainable_variables
        found = (variable for variable in variables if not is_float(variable.dtype))
        return {f"keras.{place}": variable for place, variable in enumerate(found)}

    def snapshot(self) -> Snapshot:
        """See `SupportsSnapshots`."""
        self._check_trains()
        slots = {
            slot: {name: self._to_graph(name, variable) for name, variable in variables.items()}
            for slot, variables in self._slots().items()
        }
        states = {GENERATOR + n: np.array(v.value.numpy()) for n, v in self._generators().items()}
        return Snapshot(
            weights=self.state(),
            arrays={**optimizer_arrays(slots), **states},
            plain={"updates": int(self.model.optimizer.iterations)},
        )

    def restore(self, snapshot: Snapshot) -> None:
        """See `SupportsSnapshots`."""
        self.load(snapshot.weights)
        self._check_trains()
        slots, generators = self._slots(), self._generators()
        found = optimizer_slots(snapshot.arrays, self._network.parameters, slots)
        for slot, variables in slots.items():
            for name, variable in variables.items():
                variable.assign(tf.constant(self._to_keras(name, found[slot][name])))
        states = generator_states(snapshot.arrays, generators, self.device)
        for name, variable in generators.items():
            variable.assign(tf.constant(states[name]))
        self.model.optimizer.iterations.assign(snapshot.plain["updates"])

    def fingerprint(self) -> int:
        """See `SupportsWeightInspection`."""
        weights = self.state()
        return fingerprint({name: weights[name] for name in self._network.parameters})

    def first_nonfinite(self, placed: Any) -> str:
        """See `SupportsWeightInspection`."""
        weights = self.state()  # before statistics are updated
        found = keras.Model(self.model.inputs, self._outputs)(placed[0], training=True)
        outputs = {name: bool(np.isfinite(np.asarray(v)).all()) for name, v in found.items()}
        return first_nonfinite(self._network, weights, outputs)

    def set_learning_rate(self, rate: float) -> None:
        """See `SupportsLearningRate`."""
        self.model.optimizer.learning_rate = rate

    def close(self) -> None:
        """Drop the models and their arrays."""
        del self.model, self._evaluated, self._variables, self._outputs
        del self._pass, self._both, self._scores
        self._loss = float("nan")


def _check_inputs(network: Network) -> None:
    """Unsupported for a network whose inputs are not images and labels."""
    fed = (*network.inputs, *network.targets)
    if len(fed) != 2 or network.inputs[0].dtype != "float":
        raise Unsupported(
            f"keras supports images and labels as input; {network.name} takes "
            f"{', '.join(i.name for i in fed)}."
        )


def _cross_entropy(labels: Any, scores: Any) -> Any:
    """Of each sample; in float64 or float32."""
    full = tf.cast(scores, tf.float64 if scores.dtype == "float64" else tf.float32)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.reshape(tf.cast(labels, tf.int64), [-1]), logits=full
    )


def build(request: BuildRequest) -> KerasProgram:
    """The program for `request`."""
    return KerasProgram(request)
