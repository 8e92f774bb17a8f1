"""Reading a model that the writer wrote, without the package onnx: what a runtime needs.

Its structure is checked as it is read (`structure.py`); arrays are views of the content.
"""

from __future__ import annotations

from mmap import mmap

import numpy as np

from cubemesh.batches import Array
from cubemesh.onnx.graph import Attribute, Graph, Operator
from cubemesh.onnx.structure import Field, Walk, packed
from cubemesh.untrusted import quoted

_INTEGER, _TEXT, _FLOAT, _FLOATS, _INTEGERS = 3, 4, 2, 7, 8
"""Numbers of the fields of an attribute."""
_FLOATS_TYPE, _INTEGERS_TYPE = 6, 7
"""Of `AttributeProto.AttributeType`."""
_ZEROS: dict[int, Attribute] = {1: 0.0, 2: 0, 3: ""}
"""Type → what is not written."""


def graph_of_model(content: bytes | mmap) -> Graph:
    """The graph of a model; ValueError, a phrase without its end, where it has another form than
    the writer's."""
    try:
        walk = _GraphWalk(memoryview(content))
        structure = walk.model()
    except UnicodeDecodeError:
        raise ValueError("it has a name that is not Unicode") from None
    constants: dict[str, Array] = {}
    for one in structure.initializers:
        part = walk.whole[one.offset : one.offset + one.size_bytes]
        constants[one.name] = np.frombuffer(part, one.dtype).reshape(one.shape)
    return Graph(
        name=walk.name,
        opset=structure.opset,
        inputs=structure.inputs,
        outputs=structure.outputs,
        operators=tuple(walk.nodes),
        constants=constants,
    )


class _GraphWalk(Walk):
    """A walk that collects operators and their attributes."""

    def __init__(self, content: memoryview) -> None:
        super().__init__(content)
        self.nodes: list[Operator] = []

    def operator(self, content: memoryview) -> None:
        """Check an operator, and collect it."""
        super().operator(content)
        kind = ""
        inputs: list[str] = []
        outputs: list[str] = []
        attributes: dict[str, Attribute] = {}
        for number, value in self.fields(content, "an operator"):
            if isinstance(value, int):
                continue
            if number == 1:
                inputs.append(str(value, "utf-8"))
            elif number == 2:
                outputs.append(str(value, "utf-8"))
            elif number == 4:
                kind = str(value, "utf-8")
            elif number == 5:
                name, found = _attribute(list(self.fields(value, "an attribute")))
                if found is not None:
                    attributes[name] = found
        self.nodes.append(
            Operator(kind=kind, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes)
        )

    def fixed(self, content: memoryview) -> int | memoryview:
        """The bytes of a float."""
        return content


def _attribute(fields: list[Field]) -> tuple[str, Attribute | None]:
    """Name and value; None for an array, which only operators without a kernel have."""
    name, kind = "", 0
    single: Attribute | None = None
    integers: list[int] = []
    floats: list[float] = []
    for number, value in fields:
        if isinstance(value, int):
            if number == 20:
                kind = value
            elif number == _INTEGER:
                single = _signed(value)
            elif number == _INTEGERS:
                integers.append(_signed(value))
        elif number == 1:
            name = str(value, "utf-8")
        elif number == _TEXT:
            single = str(value, "utf-8")
        elif number == _FLOAT:
            if len(value) != 4:
                raise ValueError(f"the attribute {quoted(name)} is damaged")
            single = float(np.frombuffer(value, np.float32)[0])
        elif number == _FLOATS:
            floats += np.frombuffer(value, np.float32).tolist()
        elif number == _INTEGERS:
            integers += [_signed(n) for n in packed(value)]
    if kind == _INTEGERS_TYPE:
        return name, tuple(integers)
    if kind == _FLOATS_TYPE:
        return name, tuple(floats)
    return name, _ZEROS.get(kind) if single is None else single


def _signed(value: int) -> int:
    """A number of 64 bits with its sign."""
    return value - (1 << 64) if value >= 1 << 63 else value
