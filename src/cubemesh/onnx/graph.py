"""Graph of ONNX operators: what the reader makes of a file, and what the writer makes a file of.

A graph never changes: a pass makes another one (inference/passes/). Values are known by their
names; operators are in an order in which each follows its inputs.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from cubemesh.batches import Array

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Array
Length = int | str
"""Of an axis: a number, or the name of a free length (`batch`)."""


BATCH = "batch"
"""Name of the free length of the first axis."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """Type of an array: name, NumPy data type, length of each axis."""

    name: str
    dtype: str
    shape: tuple[Length, ...]

    @property
    def fixed(self) -> bool:
        """Whether the length of every axis is a number."""
        return all(isinstance(length, int) for length in self.shape)


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator. An input or output that is left out is called ''."""

    kind: str
    """ONNX's name: `Conv`."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    node: str = field(default="", compare=False)
    """Its name in the file that it was read from."""

    @property
    def name(self) -> str:
        """The name of its first output."""
        return next(output for output in self.outputs if output)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Operators in execution order, and the constants that they use."""

    name: str
    opset: int
    """Version of the operators."""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    operators: tuple[Operator, ...]
    constants: Mapping[str, Array]

    @cached_property
    def producers(self) -> Mapping[str, Operator]:
        """Value → the operator that computes it."""
        return {output: o for o in self.operators for output in o.outputs if output}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Operator, ...]]:
        """Value → the operators that use it; one that uses it twice is listed twice."""
        found: dict[str, list[Operator]] = defaultdict(list)
        for operator in self.operators:
            for name in operator.inputs:
                if name:
                    found[name].append(operator)
        return {name: tuple(users) for name, users in found.items()}

    @cached_property
    def output_names(self) -> frozenset[str]:
        """The names of the outputs."""
        return frozenset(output.name for output in self.outputs)

    def sole_consumer(self, value: str) -> Operator | None:
        """The only use of a value; None where it has several, or is an output."""
        users = self.consumers.get(value, ())
        return users[0] if len(users) == 1 and value not in self.output_names else None

    def constant(self, name: str) -> Array | None:
        """The array, where `name` is a constant."""
        return self.constants.get(name)

    def with_operators(
        self, operators: Iterable[Operator], constants: Mapping[str, Array] | None = None
    ) -> Graph:
        """The graph with other operators and further constants. Operators and constants that no
        output needs are left out."""
        every = {**self.constants, **(constants or {})}
        wanted = set(self.output_names)
        needed: list[Operator] = []
        for operator in reversed(tuple(operators)):
            if wanted.intersection(filter(None, operator.outputs)):
                wanted.update(operator.inputs)
                needed.append(operator)
        return replace(
            self,
            operators=tuple(reversed(needed)),
            constants={name: array for name, array in every.items() if name in wanted},
        )

    @property
    def constant_bytes(self) -> int:
        """Bytes of all constants."""
        return sum(array.nbytes for array in self.constants.values())

    def digest(self) -> str:
        """SHA-256 of everything that determines the results."""
        found = hashlib.sha256()
        for value in (*self.inputs, *self.outputs):
            found.update(repr((value.name, value.dtype, value.shape)).encode())
        found.update(str(self.opset).encode())
        for operator in self.operators:
            found.update(repr((operator.kind, operator.inputs, operator.outputs)).encode())
            for name, attribute in sorted(operator.attributes.items()):
                found.update(name.encode())
                found.update(_bytes(attribute))
        for name, array in sorted(self.constants.items()):
            found.update(name.encode())
            found.update(_bytes(array))
        return found.hexdigest()


def _bytes(value: Attribute) -> bytes:
    if isinstance(value, np.ndarray):
        return repr((value.dtype.str, value.shape)).encode() + np.ascontiguousarray(value).tobytes()
    return repr(value).encode()


def in_execution_order(operators: Iterable[Operator], known: Iterable[str]) -> list[Operator]:
    """`operators` so that each follows its inputs, otherwise in their order; `known` are the inputs
    and constants. ValueError naming an operator that needs its own result."""
    waiting = list(operators)
    producers = {output: n for n, o in enumerate(waiting) for output in o.outputs if output}
    have = set(known)
    ordered: list[Operator] = []
    done = [False] * len(waiting)
    for first in range(len(waiting)):
        stack = [first]
        while stack:
            number = stack[-1]
            if done[number]:
                stack.pop()
                continue
            missing = [
                producers[name]
                for name in waiting[number].inputs
                if name and name not in have and name in producers
            ]
            if not missing:
                done[number] = True
                have.update(waiting[number].outputs)
                ordered.append(waiting[stack.pop()])
            elif len(stack) > len(waiting):
                raise ValueError(waiting[number].name)
            else:
                stack.append(missing[0])
    return ordered
