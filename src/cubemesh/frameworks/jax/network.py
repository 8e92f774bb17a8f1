"""A network as a function that JAX traces, differentiates and compiles.

    (parameters, state, inputs, key) ──nodes in their order──▶ (value of each head, new state)

The function visits the nodes while it is traced; only the operations are compiled. Arrays have the
graph's names. In `nhwc` the weights of convolutions are (height, width, in, out); `to_program` and
`to_graph` transpose them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from cubemesh.batches import PADDING, Array
from cubemesh.detection.labels import BOX_WEIGHT, UNITS
from cubemesh.frameworks.contract.own_module import SAMPLES
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.contract.validation import check_layers
from cubemesh.frameworks.jax.lowerings import LOWERINGS, JaxContext
from cubemesh.frameworks.jax.own import load_described
from cubemesh.frameworks.jax.runtime import JaxNumerics
from cubemesh.networks.graph import Head, Network, Node
from cubemesh.networks.layers import Convolution, Linear
from cubemesh.networks.opaque import Opaque

Arrays = Mapping[str, jax.Array]
AnyArray = TypeVar("AnyArray", jax.Array, Array)


class JaxFunction:
    """A network as pure functions of its arrays, in one layout and precision; the products of the
    nodes in `layer_numerics` have others, forward and backward. In training each of `norm_parts`
    equal parts of a minibatch is normalized by its own statistics. Unsupported for a layer that is
    not lowered."""

    def __init__(
        self,
        network: Network,
        layout: str,
        numerics: JaxNumerics,
        layer_numerics: Mapping[str, tuple[JaxNumerics, JaxNumerics]] = MappingProxyType({}),
        norm_parts: int = 1,
    ) -> None:
        check_layers(network, {*LOWERINGS, Opaque}, "jax")
        self._opaque = {n.name: _opaque(n, network, layout) for n in network.nodes if _is_opaque(n)}
        if norm_parts > 1 and any(node.state for node in network.nodes if _is_opaque(node)):
            raise Unsupported(
                f"{network.name} runs as it is, with its own normalization, which takes all "
                "devices' samples here. Set batch_norm=global."
            )
        self.network, self.layout, self.numerics = network, layout, numerics
        self._layer_numerics, self._norm_parts = layer_numerics, norm_parts
        convolutions = (n for n in network.nodes if isinstance(n.layer, Convolution))
        self._turned = frozenset(n.parameters["weight"] for n in convolutions)

    def loss(
        self,
        parameters: Arrays,
        state: Arrays,
        inputs: Sequence[jax.Array],
        labels: jax.Array,
        key: jax.Array,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The weighted sum over the heads of the batch's mean loss, and the new state."""
        values, state = self._run(parameters, state, inputs, key)
        losses = [
            head.weight * self._loss(head, values[head.value], labels)
            for head in self.network.heads
        ]
        return sum(losses[1:], start=losses[0]), state

    def finite_outputs(
        self,
        parameters: Arrays,
        state: Arrays,
        key: jax.Array,
        *inputs: jax.Array,
    ) -> dict[str, jax.Array]:
        """Whether each node's output in training mode is finite."""
        values, _ = self._run(parameters, state, inputs, key)
        return {node.name: jnp.isfinite(values[node.name]).all() for node in self.network.nodes}

    def scores(self, parameters: Arrays, state: Arrays, *inputs: jax.Array) -> jax.Array:
        """Scores in evaluation mode, (batch, …, classes). Nodes that only other heads need are
        traced, and removed by the compiler."""
        values, _ = self._run(parameters, state, inputs, None)
        return values[self.network.output].astype(self.numerics.arrays)

    def product_types(self) -> dict[str, DTypeLike]:
        """Parameter → type of products, for weights that every layer casts to it."""
        found: dict[str, set[DTypeLike | None]] = {}
        for node in self.network.nodes:
            is_product = isinstance(node.layer, Convolution | Linear)
            numerics, _ = self._layer_numerics.get(node.name, (self.numerics, None))
            for name in node.parameters.values():
                found.setdefault(name, set()).add(numerics.products if is_product else None)
        return {
            name: dtype
            for name, types in found.items()
            if len(types) == 1 and (dtype := next(iter(types))) is not None
        }

    def to_program(self, name: str, array: AnyArray) -> AnyArray:
        """An array from the graph's layout to the program's."""
        return array.transpose(2, 3, 1, 0) if self._is_turned(name) else array

    def to_graph(self, name: str, array: AnyArray) -> AnyArray:
        """An array from the program's layout to the graph's."""
        return array.transpose(3, 2, 0, 1) if self._is_turned(name) else array

    def _is_turned(self, name: str) -> bool:
        return self.layout == "nhwc" and name in self._turned

    def _run(
        self,
        parameters: Arrays,
        state: Arrays,
        fed: Sequence[jax.Array],
        key: jax.Array | None,
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Every node's value and the new state; in training mode where there is a key."""
        values = {i.name: array for i, array in zip(self.network.inputs, fed, strict=True)}
        after = dict(state)
        for i, node in enumerate(self.network.nodes):
            numerics, backward = self._layer_numerics.get(node.name, (self.numerics, self.numerics))
            context = JaxContext(
                arrays={role: parameters[name] for role, name in node.parameters.items()}
                | {role: after[name] for role, name in node.state.items()},
                shape=node.shape,
                layout=self.layout,
                numerics=numerics,
                training=key is not None,
                key=partial(jax.random.fold_in, key, np.uint32(i)),
                norm_parts=self._norm_parts,
            )
            inputs = (values[name] for name in node.inputs)
            if node.name in self._opaque:
                found = self._opaque[node.name](context, *inputs)
            elif backward is numerics:
                found = LOWERINGS[type(node.layer)](node.layer, context, *inputs)
            else:
                found = _product_by_pass(node, context, backward, *inputs)
            if node.name in self._layer_numerics and found.dtype == jnp.float64:
                found = found.astype(self.numerics.arrays)  # the widest around it
            values[node.name] = found
            after.update((node.state[role], array) for role, array in context.new_state.items())
        return values, after

    def _loss(self, head: Head, values: jax.Array, labels: jax.Array) -> jax.Array:
        if head.loss == "detection":
            return _detection_loss(values.astype(self.numerics.arrays), labels)
        if head.loss == "cross_entropy":
            return self._cross_entropy(values, labels)
        return values.mean()

    def _cross_entropy(self, scores: jax.Array, labels: jax.Array) -> jax.Array:
        """The mean over all labels except padding."""
        full = scores.astype(self.numerics.arrays)
        own = jnp.take_along_axis(full, labels[..., None], axis=-1, mode="clip")[..., 0]
        losses = jax.nn.logsumexp(full, axis=-1) - own
        if not self.network.targets[0].shape:
            return losses.mean()
        counted = labels != PADDING
        return jnp.where(counted, losses, 0).sum() / counted.sum()


def _detection_loss(values: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean over the batch of the loss of coverage and boxes, of `values` (batch, cells, classes
    + 4) and labels as in `detection/labels.py`."""
    batch, cells, columns = values.shape
    classes, own = columns - 4, labels[:, :cells]
    kinds, offsets = own[..., 0], own[..., 2:].astype(values.dtype) / UNITS
    target = (kinds[..., None] == jnp.arange(classes)).astype(values.dtype)
    coverage = ((values[..., :classes] - target) ** 2).sum() / 2
    sides = jnp.maximum(offsets[..., 2:] - offsets[..., :2], 1 / UNITS)
    distances = abs(values[..., classes:] - offsets) / jnp.concatenate([sides, sides], axis=-1)
    weights = jnp.where(kinds >= 0, 1 / jnp.maximum(own[..., 1], 1).astype(values.dtype), 0)
    boxes = (distances.sum(axis=-1) * weights).sum()
    return (coverage + BOX_WEIGHT * boxes) / batch


def _is_opaque(node: Node) -> bool:
    return isinstance(node.layer, Opaque)


def _opaque(
    node: Node, network: Network, layout: str
) -> Callable[[JaxContext, jax.Array], jax.Array]:
    """The lowering of a module that runs as it is, which is imported here. Weights and inputs are
    cast to the type of products; the module decides what it computes in."""
    assert isinstance(node.layer, Opaque)
    own, given = node.layer.own, network.inputs[0]
    assert own is not None, "a network made of a description"
    if given.dtype == "float":
        channels, height, width = given.shape
        sample = jnp.zeros((SAMPLES, height, width, channels), jnp.float32)
    else:
        sample = jnp.zeros((SAMPLES, *given.shape), jnp.int32)
    module = load_described(own, sample)

    def run(context: JaxContext, x: jax.Array) -> jax.Array:
        if given.dtype == "float":
            x = x.transpose(0, 2, 3, 1) if layout == "nchw" else x
            x = x.astype(context.numerics.products)
        trained = {n: context.arrays[n].astype(context.numerics.products) for n in module.trained}
        state = {n: context.arrays[n] for n in module.state}
        key = context.key() if context.training else None
        with jax.default_matmul_precision(context.numerics.precision):
            y, after = module(trained, state, x, key)
        if context.training:
            context.new_state.update({n: a.astype(state[n].dtype) for n, a in after.items()})
        return y.astype(context.numerics.arrays)

    return run


def _product_by_pass(
    node: Node, context: JaxContext, backward: JaxNumerics, x: jax.Array
) -> jax.Array:
    """A product whose gradients are computed with other numerics than the product."""

    def run(numerics: JaxNumerics, arrays: Arrays, x: jax.Array) -> jax.Array:
        own = replace(context, numerics=numerics, arrays=arrays)
        return LOWERINGS[type(node.layer)](node.layer, own, x)

    product = jax.custom_vjp(partial(run, context.numerics))

    def ahead(arrays: Arrays, x: jax.Array) -> Any:
        return product(arrays, x), (arrays, x)

    def back(saved: Any, gradient: jax.Array) -> Any:
        y, pull = jax.vjp(partial(run, backward), *saved)  # the result is not used
        return pull(gradient.astype(y.dtype))

    product.defvjp(ahead, back)
    found: jax.Array = product(dict(context.arrays), x)
    return found
