"""Precision of each layer, where a spec sets it by layer (`precision_of`).

`precision_of` holds lines `name=precision`, or `name=forward/backward` where the two passes differ.
A name stands for a node (`fc8`, `layer1.0.conv1`), for the nodes of a segment, or for those under a
part of their names (`layer1` for `layer1.0.conv1`); `*` and `?` stand for any characters, as in a
shell. Of several lines that fit a layer the last one counts: `*=fp32,conv1=bf16`. Only convolutions
and matrix products are affected; other layers compute in the precision of their inputs. `fp8` is
for both passes of matrix products whose widths are multiples of 16: `*=fp8` leaves all other layers
as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import cast

from cubemesh.errors import UsageError, unknown_name
from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers import Convolution, Linear
from cubemesh.schema.spec import ProductPrecision

FP8_MULTIPLE = 16
"""Of which both widths of a product in FP8 are multiples, as its hardware needs."""


@dataclass(frozen=True)
class LayerPrecision:
    """What a product is computed in, and the gradients of its input and its parameters."""

    forward: ProductPrecision
    backward: ProductPrecision

    @property
    def is_one(self) -> bool:
        """Whether both passes have the same."""
        return self.forward == self.backward


def layer_precisions(network: Network, lines: Sequence[str]) -> dict[str, LayerPrecision]:
    """Node → the precision its product is computed in, for every node that `lines` names.

    Raises UsageError for a name that fits nothing in `network`, naming the nearest, or that fits
    only layers without a product, or without one that the precision is possible for.
    """
    found: dict[str, LayerPrecision] = {}
    for line in lines:
        pattern, _, precision = line.partition("=")
        fitting = [n for n in network.nodes if any(fnmatchcase(x, pattern) for x in _names(n))]
        if not fitting:
            known = (name for node in network.nodes for name in _names(node))
            what, hint = "layer or segment", f"`cubemesh networks {network.name}` lists them."
            raise unknown_name(
                f"{what} of {network.name}", pattern, known, hint, "layers and segments"
            )
        products = [n for n in fitting if isinstance(n.layer, (Convolution, Linear))]
        if not products:
            raise UsageError(
                f"precision_of={line}: '{pattern}' of {network.name} holds no convolution and no "
                "matrix product, and only these have a precision of their own. Name one that does."
            )
        if precision == "fp8":
            products = [n for n in products if _has_fp8(network, n)]
            if not products:
                raise UsageError(
                    f"precision_of={line}: '{pattern}' of {network.name} holds no matrix product "
                    f"whose widths are multiples of {FP8_MULTIPLE}, as fp8 needs. Use bf16 there."
                )
        forward, _, backward = precision.partition("/")
        both = LayerPrecision(
            cast(ProductPrecision, forward), cast(ProductPrecision, backward or forward)
        )
        found.update((node.name, both) for node in products)
    return found


def _has_fp8(network: Network, node: Node) -> bool:
    """Whether a node's product can be computed in FP8."""
    if not isinstance(node.layer, Linear):
        return False
    widths = node.layer.features, network.shapes[node.inputs[0]][-1]
    return all(width % FP8_MULTIPLE == 0 for width in widths)


def _names(node: Node) -> Iterable[str]:
    """What a line may call `node`: its name, its beginnings up to each dot, its segment."""
    parts = node.name.split(".")
    yield from (".".join(parts[: i + 1]) for i in reversed(range(len(parts))))
    if node.segment:
        yield node.segment
