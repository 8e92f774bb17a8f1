"""Products and sums of several operators as one expression, whatever their order.

Exporters write one formula in many orders: 0.5 · x · (1 + e), x · (0.5 · (1 + e)). Patterns compare
factors and terms instead of operators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cubemesh.inference.passes.rewrite import Inferred, scalar
from cubemesh.onnx.graph import Graph, Operator

TOLERANCE = {"float32": 1e-6, "float64": 1e-14}
"""Relative difference up to which a constant of a formula is the one that the pattern has."""


@dataclass(frozen=True)
class Product:
    """coefficient · product of the values named."""

    coefficient: float
    factors: tuple[str, ...]


@dataclass(frozen=True)
class Sum:
    """constant + sum of the values named."""

    constant: float
    terms: tuple[str, ...]


MOST_LEVELS = 5
"""Operators on the way from a product to a factor. No formula needs more; files of other people
have chains of any length."""


def product_of(graph: Graph, value: str, levels: int = MOST_LEVELS) -> Product:
    """The factors of `value`. A product that has another use is a factor itself."""
    producer = graph.producers.get(value)
    found = _own_product(graph, producer, levels) if producer and levels else None
    return found or Product(1.0, (value,))


def _own_product(graph: Graph, operator: Operator, levels: int) -> Product | None:
    def inner_product(value: str) -> Product:
        constant = scalar(graph, value)
        if constant is not None:
            return Product(constant, ())
        alone = graph.sole_consumer(value) is not None
        return product_of(graph, value, levels - 1) if alone else Product(1.0, (value,))

    if operator.kind == "Mul":
        one, other = (inner_product(name) for name in operator.inputs)
        return Product(one.coefficient * other.coefficient, one.factors + other.factors)
    constant = scalar(graph, operator.inputs[1]) if len(operator.inputs) == 2 else None
    if operator.kind == "Div" and constant:
        one = inner_product(operator.inputs[0])
        return Product(one.coefficient / constant, one.factors)
    if operator.kind == "Pow" and constant in (2.0, 3.0):
        one = inner_product(operator.inputs[0])
        power = int(constant)
        return Product(one.coefficient**power, one.factors * power)
    return None


def sum_of(graph: Graph, value: str) -> Sum:
    """The terms of `value`, the result of one `Add`, or itself."""
    producer = graph.producers.get(value)
    if producer is None or producer.kind != "Add":
        return Sum(0.0, (value,))
    constants = [scalar(graph, name) for name in producer.inputs]
    terms = [n for n, c in zip(producer.inputs, constants, strict=True) if c is None]
    return Sum(sum(c for c in constants if c is not None), tuple(terms))


def inner(graph: Graph, value: str, kind: str) -> Operator | None:
    """The operator of a kind that computes `value`, where only one operator uses it."""
    producer = graph.producers.get(value)
    alone = graph.sole_consumer(value) is not None
    return producer if producer is not None and producer.kind == kind and alone else None


def close(found: float, wanted: float, dtype: str) -> bool:
    """Whether a constant of a formula is `wanted`."""
    return math.isclose(found, wanted, rel_tol=TOLERANCE[dtype])


def of_one_type(inferred: Inferred, result: str, x: str) -> str | None:
    """The data type of a formula of `x`, where its result has the type and axes of `x`, and
    patterns apply to that data type. Constants of one element can add axes."""
    dtype = inferred.dtype(x)
    same = dtype == inferred.dtype(result) and inferred.rank(x) == inferred.rank(result)
    return dtype if same and dtype in TOLERANCE else None
