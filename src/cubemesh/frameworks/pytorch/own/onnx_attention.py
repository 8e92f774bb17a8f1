"""Attention in ONNX: a product, a scale, a mask, a softmax and a product, found as one operator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from cubemesh.batches import Array
from cubemesh.onnx.graph import Graph, Operator


class Lookup(Protocol):
    """A graph and its constants."""

    graph: Graph

    def constant(self, name: str) -> Array | None:
        """The array of a constant."""

    def scalar(self, name: str) -> float | None:
        """A constant of one element."""

    def sole(self, name: str, *kinds: str) -> Operator | None:
        """The operator of one of `kinds` that computes a value which one operator alone reads."""


@dataclass(frozen=True)
class Attention:
    """Softmax(factor · query · keys + mask) · values, written out."""

    query: str
    keys: str
    """Transposed: (batch, heads, width, length)."""
    values: str
    mask: Array | None
    factor: float

    def call(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """(batch, heads, length, width)."""
        return F.scaled_dot_product_attention(
            query, keys.transpose(-2, -1), values, attn_mask=mask, scale=self.factor
        )


def find_attentions(b: Lookup) -> tuple[dict[str, Attention], set[str]]:
    """Product of shares and values → the attention that it ends; and the operators before it that
    are part of one."""
    found: dict[str, Attention] = {}
    merged: set[str] = set()
    for operator in b.graph.operators:
        if operator.kind != "MatMul" or b.constant(operator.inputs[1]) is not None:
            continue
        softmax, around = _softmax(b, operator.inputs[0])
        if softmax is not None and (made := _attention(b, softmax)) is not None:
            parts, inner = made
            found[operator.name] = replace(parts, values=operator.inputs[1])
            merged |= inner | around
    return found, merged


def _softmax(b: Lookup, name: str) -> tuple[Operator | None, set[str]]:
    """The softmax whose result this is, and what comes after it: an exporter replaces the NaN of a
    position that sees none."""
    where = b.sole(name, "Where")
    if where is None:
        return b.sole(name, "Softmax"), set()
    nan, number, shares = where.inputs
    test, softmax = b.sole(nan, "IsNaN"), b.graph.producers.get(shares)
    if test is None or test.inputs != (shares,) or b.scalar(number) is None or softmax is None:
        return None, set()
    readers = b.graph.consumers[shares]
    found = softmax if softmax.kind == "Softmax" and len(readers) == 2 else None
    return found, {where.name, test.name}


def _attention(b: Lookup, softmax: Operator) -> tuple[Attention, set[str]] | None:
    """The attention before a softmax, and the operators of it; None where it is another product."""
    if softmax.attributes.get("axis", -1) not in (-1, 3):
        return None
    merged, mask, factor = {softmax.name}, None, 1.0
    name, scale, scaling = _scaled(b, softmax.inputs[0])
    while (inner := b.sole(name, "Add", "Where", "MatMul")) is not None:
        factor *= scale
        merged |= {inner.name} | scaling
        if inner.kind == "MatMul":
            names = []
            for side in inner.inputs:
                own, scale, scaling = _scaled(b, side)
                names.append(own)
                factor *= scale
                merged |= scaling
            return Attention(names[0], names[1], "", mask, factor), merged
        given = _mask(b, inner)
        if given is None or mask is not None or factor != 1:
            return None
        name, mask = given
        name, scale, scaling = _scaled(b, name)
    return None


def _mask(b: Lookup, operator: Operator) -> tuple[str, Array] | None:
    """The scores that a mask is added to or chosen by, and the mask as what is added."""
    if operator.kind == "Add":
        one, two = operator.inputs
        for value, other in ((one, two), (two, one)):
            if (array := b.constant(other)) is not None:
                return value, array
        return None
    seen, yes, no = operator.inputs
    where = b.constant(seen)
    if where is None or where.dtype != np.bool_:
        return None
    for value, other, shown in ((yes, no, where), (no, yes, ~where)):
        hidden = b.scalar(other)
        if hidden is not None and hidden < -1e4:
            return value, np.where(shown, 0.0, -np.inf).astype(np.float32)
    return None


def _scaled(b: Lookup, name: str) -> tuple[str, float, set[str]]:
    """A value without the number that it was multiplied by, that number, and those operators."""
    inner = b.sole(name, "Mul", "Div")
    if inner is None:
        return name, 1.0, set()
    one, two = inner.inputs
    number = b.scalar(two)
    if number is None and inner.kind == "Mul":
        one, number = two, b.scalar(inner.inputs[0])
    if number is None or (number == 0 and inner.kind == "Div"):
        return name, 1.0, set()
    own, factor, more = _scaled(b, one)
    factor *= number if inner.kind == "Mul" else 1 / number
    return own, factor, more | {inner.name}
