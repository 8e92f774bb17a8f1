"""How does a graph become a function that TensorFlow can trace and differentiate?

    images or tokens ──nodes in their order──▶ value of each head, new state

The function walks over the nodes while it is traced; the traced graph holds the operations alone.
The arrays are variables under the graph's names. Weights of convolutions lie (height, width, in,
out), as TensorFlow has them in either layout: `to_program` and `to_graph` turn them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from cubemesh.batches import PADDING, Array
from cubemesh.frameworks.api.program import Unsupported
from cubemesh.frameworks.api.validation import check_layers
from cubemesh.frameworks.tensorflow.lowerings import LOWERINGS
from cubemesh.frameworks.tensorflow.place import Place
from cubemesh.frameworks.tensorflow.runtime import Numerics
from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers import Convolution, LocalResponseNorm

SeedOf = Callable[[int], Any]
"""Number of a node → two integers that its random draws begin from."""


class NetworkFunction:
    """A network as functions of its variables, in one layout and precision. Unsupported when it has
    a layer that has no lowering."""

    def __init__(self, network: Network, layout: str, numerics: Numerics, compiled: bool) -> None:
        check_network(network, LOWERINGS, "tensorflow")
        self.network, self.layout, self.numerics = network, layout, numerics
        self._compiled = compiled
        convolutions = (n for n in network.nodes if isinstance(n.layer, Convolution))
        self._turned = frozenset(n.parameters["weight"] for n in convolutions)
        self.parameters = {n: self._variable(n, s.shape) for n, s in network.parameters.items()}
        self.state = {n: self._variable(n, s.shape) for n, s in network.state.items()}

    def _variable(self, name: str, shape: tuple[int, ...]) -> Any:
        if name in self._turned:
            shape = (*shape[2:], shape[1], shape[0])
        return tf.Variable(tf.zeros(shape, self.numerics.arrays), trainable=False)

    def loss(self, inputs: Sequence[Any], labels: Any, seed: SeedOf) -> Any:
        """The weighted sum over the heads of the batch's mean cross entropy; the statistics take
        the batch in."""
        values = self._run(self.network.nodes, inputs, seed)
        losses = [
            head.weight * self._cross_entropy(values[head.value], labels)
            for head in self.network.heads
        ]
        return losses[0] if len(losses) == 1 else tf.add_n(losses)

    def scores(self, *inputs: Any) -> Any:
        """What the network says in evaluation, (batch, …, classes)."""
        output = self.network.output
        values = self._run(self.network.needed(output), inputs, None)
        return tf.cast(values[output], self.numerics.arrays)

    def to_program(self, name: str, array: Array) -> Array:
        """An array of the graph's layout in the program's."""
        return array.transpose(2, 3, 1, 0) if name in self._turned else array

    def to_graph(self, name: str, array: Array) -> Array:
        """An array of the program's layout in the graph's."""
        return array.transpose(3, 2, 0, 1) if name in self._turned else array

    def _run(
        self, nodes: tuple[Node, ...], fed: Sequence[Any], seed: SeedOf | None
    ) -> dict[str, Any]:
        """Every node's value; in training where there is a seed."""
        values = {i.name: array for i, array in zip(self.network.inputs, fed, strict=True)}
        for i, node in enumerate(nodes):
            place = Place(
                arrays={role: self.parameters[name] for role, name in node.parameters.items()}
                | {role: self.state[name] for role, name in node.state.items()},
                shape=node.shape,
                layout=self.layout,
                numerics=self.numerics,
                training=seed is not None,
                compiled=self._compiled,
                seed=partial(seed or _no_seed, i),
            )
            inputs = (values[name] for name in node.inputs)
            values[node.name] = LOWERINGS[type(node.layer)](node.layer, place, *inputs)
            for role, array in place.new_state.items():
                self.state[node.state[role]].assign(array)
        return values

    def _cross_entropy(self, scores: Any, labels: Any) -> Any:
        """The mean over all labels but those of padding."""
        wide = tf.cast(scores, self.numerics.arrays)
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
        if not self.network.targets[0].shape:
            return tf.reduce_mean(cross_entropy(labels=labels, logits=wide))
        counted = labels != PADDING
        losses = cross_entropy(labels=tf.where(counted, labels, 0), logits=wide)
        kept = tf.where(counted, losses, tf.zeros_like(losses))
        return tf.reduce_sum(kept) / tf.cast(tf.math.count_nonzero(counted), wide.dtype)


def check_network(network: Network, lowerings: Any, framework: str) -> None:
    """Unsupported for what `framework`, with these lowerings, cannot run."""
    check_layers(network, lowerings, framework)
    for node in network.nodes:
        norm = node.layer
        if isinstance(norm, LocalResponseNorm) and len(node.shape) != 3:
            raise Unsupported(
                f"{framework} normalises local responses of images, and '{node.name}' of "
                f"{network.name} is given {node.shape}."
            )


def _no_seed(node: int) -> Any:
    raise AssertionError(f"node {node} draws in an evaluation")
