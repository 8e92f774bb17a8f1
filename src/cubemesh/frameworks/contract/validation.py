"""Validation of the weights and layers that a framework is given."""

from __future__ import annotations

from collections.abc import Container, Mapping

from cubemesh.batches import Array
from cubemesh.errors import UsageError, unknown_name
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Convolution, Layer, LocalResponseNorm
from cubemesh.networks.opaque import Opaque
from cubemesh.schema.own_network import OwnFramework

RUNS_IN: Mapping[OwnFramework, str] = {
    "pytorch": "PyTorch. Set framework=pytorch or pytorch-compiled",
    "jax": "JAX. Set framework=jax",
    "keras": "Keras. Set framework=keras",
}
"""Framework of a module → where it runs, and how that is set."""


def check_weights(given: Mapping[str, Array], network: Network) -> None:
    """UsageError unless `given` holds exactly the parameters and state of `network`, in their
    shapes."""
    wanted = {**network.parameters, **network.state}
    missing = [name for name in wanted if name not in given]
    if missing:
        raise UsageError(
            f"{network.name}: {len(missing)} of its {len(wanted)} arrays are missing from the "
            f"weights, '{missing[0]}' first. Use those of draw() or state() of this network."
        )
    for name, array in given.items():
        if name not in wanted:
            raise unknown_name(f"array of {network.name}", name, wanted, plural="arrays")
        if array.shape != wanted[name].shape:
            raise UsageError(
                f"{network.name}: '{name}' is of shape {array.shape} and must be "
                f"{wanted[name].shape}."
            )


def check_layers(network: Network, lowered: Container[type[Layer]], framework: str) -> None:
    """`Unsupported` where `network` has a layer that is not among those `framework` lowers."""
    for node in network.nodes:
        own = node.layer.own if isinstance(node.layer, Opaque) else None
        runs_in = "pytorch" if own is None else own.framework
        if isinstance(node.layer, Opaque) and (Opaque not in lowered or framework != runs_in):
            why = "" if own is None else f" ({own.untraced})"
            raise Unsupported(
                f"{framework} cannot run {network.name}: it is no graph of layers{why} and runs "
                f"as it is, in {RUNS_IN[runs_in]}."
            )
        if type(node.layer) not in lowered:
            raise Unsupported(
                f"{framework} has no {type(node.layer).__name__} layer, and {network.name} needs "
                "one. Set framework=pytorch, which has every layer."
            )


def check_network(network: Network, lowerings: Container[type[Layer]], framework: str) -> None:
    """Unsupported for a network that `framework`, with these lowerings, cannot run."""
    check_layers(network, lowerings, framework)
    for node in network.nodes:
        layer = node.layer
        if isinstance(layer, LocalResponseNorm) and len(node.shape) != 3:
            raise Unsupported(
                f"{framework} normalizes local responses of images, and '{node.name}' of "
                f"{network.name} is given {node.shape}."
            )
        if isinstance(layer, Convolution) and max(layer.dilation) > 1 and max(layer.stride) > 1:
            raise Unsupported(
                f"{framework} has no convolution with both a stride and a dilation, and "
                f"'{node.name}' of {network.name} has stride {layer.stride} and dilation "
                f"{layer.dilation}. Use framework=pytorch or jax."
            )


def check_values_per_channel(count: int) -> None:
    """`Unsupported` where a batch normalization would take the variance of a single value."""
    if count < 2:
        raise Unsupported(
            "batch normalization in training needs two values or more of a channel, and here a "
            "batch of 1 has an image of a single position. Set a batch of 2 or a larger image_size."
        )
