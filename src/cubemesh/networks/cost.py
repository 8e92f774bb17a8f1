"""Cost of a network, layer by layer, in FLOPs and bytes, forward and backward.

From the graph and the formulas of `flops.py`. Bytes are counted without
caches and fusion: every operand is read once and every result written once, weights once per batch
and not per sample. The gradient of the network's input is not computed and not counted; if several
nodes read a value, accumulating its gradient is counted at each node but the first to contribute.
"""

from __future__ import annotations

import math

from cubemesh.networks.activation_memory import (
    ELEMENT_BYTES,
    LABEL_BYTES,
    GradientFlow,
    log_probabilities,
    saved_tensors,
)
from cubemesh.networks.flops import COUNTS, LayerCost, Sizes
from cubemesh.networks.graph import BOX_COLUMNS, Head, Network, Node
from cubemesh.networks.opaque import Opaque
from cubemesh.schema.cost import Cost
from cubemesh.schema.spec import Precision


def costs(network: Network, batch: int = 1, precision: Precision = "fp32") -> dict[str, LayerCost]:
    """What every node costs on `batch` samples, by name in order, then each loss, as
    `fc8.loss` for a loss of `fc8`."""
    width = ELEMENT_BYTES[precision]
    flow = GradientFlow(network)
    saved = saved_tensors(flow)
    found = {}
    for node in network.nodes:
        saved_bytes = sum(array.size_bytes(batch, width) for array in saved[node.name])
        found[node.name] = _node_cost(flow, node, batch, width, saved_bytes)
    for head in network.heads:
        found[f"{head.value}.loss"] = _loss_cost(network, head, batch, width)
    return found


def totals(network: Network, batch: int = 1, precision: Precision = "fp32") -> LayerCost:
    """Cost of the whole network on `batch` samples, with losses, without the update."""
    return sum(costs(network, batch, precision).values(), start=LayerCost())


def _node_cost(
    flow: GradientFlow, node: Node, batch: int, element_bytes: int, saved_bytes: int
) -> LayerCost:
    network = flow.network
    shapes = [network.shapes[i] for i in node.inputs]
    owned = {role: network.parameters[name].shape for role, name in node.parameters.items()}
    sizes = Sizes(
        x=batch * sum(math.prod(s) for s in shapes),
        y=batch * math.prod(node.shape),
        parameters=sum(math.prod(s) for s in owned.values()),
        weight_shape=owned.get("weight", ()),
        inputs=tuple(shapes),
        channels=node.shape[0],
        shape=node.shape,
        element_bytes=element_bytes,
    )
    if isinstance(node.layer, Opaque):
        return _opaque_cost(node.layer, sizes, batch, saved_bytes)
    counted = COUNTS[type(node.layer)](node.layer, sizes)
    data_gradient = Cost()
    if not flow.needs_gradient.isdisjoint(node.inputs):
        added = batch * flow.accumulated[node.name]
        data_gradient = counted.data_gradient + sizes.cost(
            other=added, read=2 * added, written=added
        )
    return LayerCost(
        forward=counted.forward + Cost(saved_bytes=saved_bytes),
        data_gradient=data_gradient,
        weight_gradient=counted.weight_gradient,
    )


def _opaque_cost(layer: Opaque, sizes: Sizes, batch: int, saved_bytes: int) -> LayerCost:
    """As counted when the module was described. What moves between its layers is unknown: weights,
    input, saved values and scores are counted once a pass."""
    saved = batch * layer.saved_values
    forward = sizes.cost(
        matrix=batch * layer.forward_flops,
        read=sizes.parameters + sizes.x,
        written=saved + sizes.y,
    )
    return LayerCost(
        forward=forward + Cost(saved_bytes=saved_bytes),
        weight_gradient=sizes.cost(
            matrix=batch * layer.backward_flops,
            read=sizes.parameters + saved + sizes.y,
            written=sizes.parameters,
        ),
    )


def _loss_cost(network: Network, head: Head, batch: int, element_bytes: int) -> LayerCost:
    """Softmax cross-entropy, per class: forward 5 (largest, difference, exponential, sum,
    logarithm's difference), backward 3 (exponential, minus the label, divided by the batch). A mean
    1 a value forward. A detection 4 a value (difference, its size, weight, sum), backward 2."""
    shape = network.shapes[head.value]
    classes = batch * math.prod(shape)
    if head.loss == "mean":
        values = classes * element_bytes
        return LayerCost(
            forward=Cost(other_flops=classes, read_bytes=values),
            data_gradient=Cost(written_bytes=values),
        )
    cells = head.loss == "detection"
    forward, backward = (4, 2) if cells else (5, 3)
    labels = batch * math.prod(shape[:-1]) * (BOX_COLUMNS if cells else 1) * LABEL_BYTES
    saved_bytes = log_probabilities(network, head).size_bytes(batch, element_bytes)
    return LayerCost(
        forward=Cost(
            other_flops=forward * classes,
            read_bytes=classes * element_bytes + labels,
            written_bytes=saved_bytes,
            saved_bytes=saved_bytes,
        ),
        data_gradient=Cost(
            other_flops=backward * classes,
            read_bytes=saved_bytes + labels,
            written_bytes=classes * element_bytes,
        ),
    )
