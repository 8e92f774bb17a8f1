"""Description of a network in plain values: a row of a list, or a table of layers.

Operations are per sample, a multiply-add is two. `forward_flops` and `backward_flops` are those of
convolutions and matrix products, as in papers and framework counters; all others are separate, as
`…_other_flops`.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from typing import Any

from cubemesh.networks import build, canonical_name, entry
from cubemesh.networks.cost import costs, totals
from cubemesh.networks.graph import Network
from cubemesh.networks.imagenet_errors import PublishedError, published_errors
from cubemesh.networks.layers import ALL_LAYERS, AveragePool, Layer, MaxPool, Shape
from cubemesh.networks.opaque import Opaque


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One node of a network. Operations and bytes are those of one sample, in fp32."""

    name: str
    layer: str
    """Its type, as `ALL_LAYERS` calls it."""
    settings: str
    """Those that are not the layer's usual ones: `3×3, 64, stride 2`."""
    inputs: tuple[str, ...]
    """Names of the layers, or of the inputs of the network, that it reads."""
    output_shape: Shape
    parameters: int
    """A shared parameter counts at the first node that uses it."""
    forward_flops: int
    forward_other_flops: int
    forward_moved_bytes: int
    """Read and written, weights included."""
    saved_bytes: int
    """Saved for the backward pass, except what an earlier node saves."""
    segment: str


@dataclass(frozen=True, kw_only=True)
class NetworkSummary:
    """The size of a network. Operations and bytes are those of one sample, in fp32."""

    name: str
    parameters: int
    evaluation_parameters: int
    """Without the auxiliary heads, which only training has."""
    active_parameters: int
    """Of a mixture of experts, with the experts alone that one position chooses."""
    forward_flops: int
    forward_other_flops: int
    backward_flops: int
    backward_other_flops: int
    saved_bytes: int
    input_shape: Shape
    classes: int | None
    layers: int
    smallest_image_size: int | None
    source: str
    differs: str
    """From its source."""
    imagenet_errors: tuple[PublishedError, ...]
    """As others published them; none for a network that is not for ImageNet."""


def summary(name: str, image_size: int | None = None, classes: int | None = None) -> NetworkSummary:
    """The size of one network, by default for its own images and classes.

    Raises UsageError as `build` does.
    """
    name = canonical_name(name)
    line = entry(name)
    network = build(name, image_size, classes)
    cost = totals(network)
    return NetworkSummary(
        name=name,
        parameters=network.parameter_count,
        evaluation_parameters=network.evaluation_parameter_count,
        active_parameters=network.active_parameter_count,
        forward_flops=cost.forward.matrix_flops,
        forward_other_flops=cost.forward.other_flops,
        backward_flops=cost.backward.matrix_flops,
        backward_other_flops=cost.backward.other_flops,
        saved_bytes=cost.forward.saved_bytes,
        input_shape=network.inputs[0].shape,
        classes=network.targets[0].classes,
        layers=len(network.nodes),
        smallest_image_size=line.smallest_image_size or None,
        source=line.source,
        differs=line.differs,
        imagenet_errors=published_errors(name),
    )


def layer_rows(network: Network) -> list[LayerRow]:
    """Every node of `network`, in the order they run. The loss is not among them."""
    cost = costs(network)
    kinds = {kind: name for name, kind in ALL_LAYERS.items()}
    counted: set[str] = set()
    rows = []
    for node in network.nodes:
        new = set(node.parameters.values()) - counted
        counted |= new
        forward = cost[node.name].forward
        rows.append(
            LayerRow(
                name=node.name,
                layer=kinds.get(type(node.layer), "module"),
                settings=settings(node.layer),
                inputs=node.inputs,
                output_shape=node.shape,
                parameters=sum(math.prod(network.parameters[p].shape) for p in new),
                forward_flops=forward.matrix_flops,
                forward_other_flops=forward.other_flops,
                forward_moved_bytes=forward.moved_bytes,
                saved_bytes=forward.saved_bytes,
                segment=node.segment,
            )
        )
    return rows


def settings(layer: Layer) -> str:
    """A layer's settings in short: the kernel first, defaults omitted.

    For any layer type: a number without a default (`filters`, `features`) is shown without its
    name, others with it, and initializers are omitted.
    """
    if isinstance(layer, Opaque):
        return "as it is"
    shown: list[str] = []
    for field in fields(layer):
        value = getattr(layer, field.name)
        usual = value == field.default and field.name != "rate"
        if usual or field.name.endswith("initializer"):
            continue
        if field.name == "kernel":
            shown.insert(0, "×".join(map(str, value)))
        elif field.name == "stride" and _side_by_side(layer):
            continue
        elif field.default is MISSING and isinstance(value, int):
            shown.append(str(value))
        else:
            shown.append(_named(field.name.replace("_", " "), value))
    return ", ".join(shown)


def _side_by_side(layer: Layer) -> bool:
    """Whether it is a pool whose windows neither overlap nor leave gaps, as is usual."""
    return isinstance(layer, (MaxPool, AveragePool)) and layer.stride == layer.kernel


def _named(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if isinstance(value, tuple):
        same = len(set(value)) == 1
        if len(value) > 4 and not same:
            return f"{len(value)} {name}, {min(value)} to {max(value)}"
        return f"{name} {value[0] if same else '×'.join(map(str, value))}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
