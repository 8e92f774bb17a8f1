"""A network as a function that TensorFlow traces and differentiates.

    images or tokens ──nodes in their order──▶ value of each head, new state

The function visits the nodes while it is traced; the traced graph holds only the operations. The
arrays are variables with the graph's names. Weights of convolutions are (height, width, in, out) in
either layout; `to_program` and `to_graph` transpose them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from cubemesh.batches import PADDING, Array
from cubemesh.detection.labels import BOX_WEIGHT, UNITS
from cubemesh.frameworks.contract.validation import check_network
from cubemesh.frameworks.tensorflow.lowerings import LOWERINGS, TensorFlowContext
from cubemesh.frameworks.tensorflow.runtime import TensorFlowNumerics
from cubemesh.networks.graph import Head, Network, Node
from cubemesh.networks.layers import Convolution

SeedOf = Callable[[int], Any]
"""Number of a node → two integers that seed its random draws."""


class TensorFlowFunction:
    """A network as functions of its variables, in one layout and precision. Unsupported when it has
    a layer that has no lowering."""

    def __init__(
        self,
        network: Network,
        layout: str,
        numerics: TensorFlowNumerics,
        *,
        compiled: bool,
        on_gpu: bool,
    ) -> None:
        check_network(network, LOWERINGS, "tensorflow")
        self.network, self.layout, self.numerics = network, layout, numerics
        self._compiled, self._on_gpu = compiled, on_gpu
        convolutions = (n for n in network.nodes if isinstance(n.layer, Convolution))
        self._turned = frozenset(n.parameters["weight"] for n in convolutions)
        self.parameters = {n: self._variable(n, s.shape) for n, s in network.parameters.items()}
        self.state = {n: self._variable(n, s.shape) for n, s in network.state.items()}

    def _variable(self, name: str, shape: tuple[int, ...]) -> Any:
        if name in self._turned:
            shape = (*shape[2:], shape[1], shape[0])
        return tf.Variable(tf.zeros(shape, self.numerics.arrays), trainable=False)

    def loss(self, inputs: Sequence[Any], labels: Any, seed: SeedOf) -> Any:
        """The weighted sum over the heads of the batch's mean loss; the running statistics are
        updated."""
        values = self._run(self.network.nodes, inputs, seed)
        losses = [
            head.weight * self._loss(head, values[head.value], labels)
            for head in self.network.heads
        ]
        return losses[0] if len(losses) == 1 else tf.add_n(losses)

    def finite_outputs(self, inputs: Sequence[Any], seed: SeedOf) -> dict[str, Any]:
        """Whether each node's output in training mode is finite; the running statistics are
        updated."""
        values = self._run(self.network.nodes, inputs, seed)
        return {
            node.name: tf.reduce_all(tf.math.is_finite(values[node.name]))
            for node in self.network.nodes
        }

    def scores(self, *inputs: Any) -> Any:
        """Scores in evaluation mode, (batch, …, classes)."""
        output = self.network.output
        values = self._run(self.network.needed(output), inputs, None)
        return tf.cast(values[output], self.numerics.arrays)

    def to_program(self, name: str, array: Array) -> Array:
        """An array from the graph's layout to the program's."""
        return array.transpose(2, 3, 1, 0) if name in self._turned else array

    def to_graph(self, name: str, array: Array) -> Array:
        """An array from the program's layout to the graph's."""
        return array.transpose(3, 2, 0, 1) if name in self._turned else array

    def _run(
        self, nodes: tuple[Node, ...], fed: Sequence[Any], seed: SeedOf | None
    ) -> dict[str, Any]:
        """Every node's value; in training mode where there is a seed."""
        values = {i.name: array for i, array in zip(self.network.inputs, fed, strict=True)}
        for i, node in enumerate(nodes):
            context = TensorFlowContext(
                arrays={role: self.parameters[name] for role, name in node.parameters.items()}
                | {role: self.state[name] for role, name in node.state.items()},
                shape=node.shape,
                layout=self.layout,
                numerics=self.numerics,
                training=seed is not None,
                compiled=self._compiled,
                on_gpu=self._on_gpu,
                seed=partial(seed or _no_seed, i),
            )
            inputs = (values[name] for name in node.inputs)
            values[node.name] = LOWERINGS[type(node.layer)](node.layer, context, *inputs)
            for role, array in context.new_state.items():
                self.state[node.state[role]].assign(array)
        return values

    def _loss(self, head: Head, values: Any, labels: Any) -> Any:
        if head.loss == "detection":
            return _detection_loss(tf.cast(values, self.numerics.arrays), labels)
        return self._cross_entropy(values, labels)

    def _cross_entropy(self, scores: Any, labels: Any) -> Any:
        """The mean over all labels except padding."""
        full = tf.cast(scores, self.numerics.arrays)
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
        if not self.network.targets[0].shape:
            return tf.reduce_mean(cross_entropy(labels=labels, logits=full))
        counted = labels != PADDING
        losses = cross_entropy(labels=tf.where(counted, labels, 0), logits=full)
        unpadded = tf.where(counted, losses, tf.zeros_like(losses))
        return tf.reduce_sum(unpadded) / tf.cast(tf.math.count_nonzero(counted), full.dtype)


def _detection_loss(values: Any, labels: Any) -> Any:
    """The mean over the batch of the loss of coverage and boxes, of `values` (batch, cells, classes
    + 4) and labels as in `detection/labels.py`."""
    cells, classes = values.shape[1], values.shape[2] - 4
    own = labels[:, :cells]
    kinds, offsets = own[..., 0], tf.cast(own[..., 2:], values.dtype) / UNITS
    target = tf.one_hot(kinds, classes, dtype=values.dtype)
    coverage = tf.reduce_sum(tf.square(values[..., :classes] - target)) / 2
    sides = tf.maximum(offsets[..., 2:] - offsets[..., :2], 1 / UNITS)
    distances = tf.abs(values[..., classes:] - offsets) / tf.concat([sides, sides], axis=-1)
    shares = 1 / tf.cast(tf.maximum(own[..., 1], 1), values.dtype)
    weights = tf.where(kinds >= 0, shares, tf.zeros_like(shares))
    boxes = tf.reduce_sum(tf.reduce_sum(distances, axis=-1) * weights)
    return (coverage + BOX_WEIGHT * boxes) / tf.cast(tf.shape(values)[0], values.dtype)


def _no_seed(node: int) -> Any:
    raise AssertionError(f"node {node} draws in an evaluation")
