"""Structure of a serialized ONNX model, checked before an engine reads its bytes.

Engines are large programs in C++ that trust their input: what they do with a damaged model is up to
chance. The model of a plan has the form that `writer.py` gives it, so its protocol buffers are
walked here without a library, without copies, and whatever has another form is refused: fields,
types and operators that the writer never makes, arrays whose content is not as long as their shape
says, values that are used before they are computed (as in a cycle), and shapes that no memory
holds. Weights are skipped: a model of 100 MB takes milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from mmap import mmap
from typing import TypeAlias

import numpy as np

from cubemesh.onnx.graph import Length, Value
from cubemesh.onnx.reader import (
    MOST_AXES,
    MOST_OPERATORS,
    NEWEST_OPSET,
    NUMPY_TYPES,
    OLDEST_OPSET,
    READABLE,
)
from cubemesh.untrusted import clean, quoted

MOST_FIELDS = 1_000_000
"""Most fields of the protocol buffers in all; ResNet-50 has 4,500."""
MOST_CONSTANTS = 100_000
INLINE_BYTES = 1024
"""Larger arrays can be in a file of their own."""
MOST_ELEMENTS = 1 << 28
"""Most elements of an array that a constant asks for, or a sample of an input has."""
MOST_NUMBER = 1 << 16
"""Most of a length in an attribute, such as a padding."""

Field: TypeAlias = tuple[int, int | memoryview]
"""Number, and a number or the bytes of it."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TYPES: dict[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
}
assert _TYPES.keys() == NUMPY_TYPES
_MAKES_SHAPES = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (1,),
    "Resize": (2, 3),
    "Tile": (1,),
}
"""Kind → its inputs that say how large the result is."""
_LENGTHS = frozenset({"pads", "output_shape", "output_padding"})
"""Attributes that make a result larger than the inputs."""


@dataclass(frozen=True, kw_only=True)
class Initializer:
    """An array of a model: where its content is."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Of its first byte in the model."""
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class ModelStructure:
    """What a model has."""

    opset: int
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    operators: int
    initializers: tuple[Initializer, ...]


def check_structure(content: bytes | mmap) -> ModelStructure:
    """What a model has; ValueError, a phrase without its end, where it has another form than the
    writer's."""
    try:
        return Walk(memoryview(content)).model()
    except UnicodeDecodeError:
        raise ValueError("it has a name that is not Unicode") from None


def with_weights_in(location: str, content: bytes | mmap, structure: ModelStructure) -> bytes:
    """The model with arrays above `INLINE_BYTES` in the file `location` of its folder, which has
    the bytes `content` of the whole model. Its structure has been checked."""
    walk = Walk(memoryview(content))
    initializers = iter(structure.initializers)
    model = []
    for number, value in walk.fields(walk.whole, "the model"):
        if number != 7:
            model.append(_encoded(number, value))
            continue
        graph = []
        for inner, part in walk.fields(_bytes(value), "the graph"):
            one = next(initializers) if inner == 5 else None
            if one is not None and one.size_bytes > INLINE_BYTES:
                part = memoryview(_elsewhere(one, location))
            graph.append(_encoded(inner, part))
        model.append(_encoded(7, memoryview(b"".join(graph))))
    return b"".join(model)


def _elsewhere(array: Initializer, location: str) -> bytes:
    """A `TensorProto` whose content is in another file."""
    number = next(number for number, name in _TYPES.items() if name == array.dtype)
    place = {"location": location, "offset": str(array.offset), "length": str(array.size_bytes)}
    return b"".join(
        (
            *(_encoded(1, length) for length in array.shape),
            _encoded(2, number),
            _encoded(8, array.name.encode()),
            *(
                _encoded(13, _encoded(1, key.encode()) + _encoded(2, text.encode()))
                for key, text in place.items()
            ),
            _encoded(14, 1),
        )
    )


def _encoded(number: int, value: int | bytes | memoryview) -> bytes:
    """A field."""
    if isinstance(value, int):
        return _encoded_number(number << 3 | _VARINT) + _encoded_number(value)
    return b"".join((_encoded_number(number << 3 | _BYTES), _encoded_number(len(value)), value))


def _encoded_number(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


class Walk:
    """One walk over the bytes of a model."""

    def __init__(self, content: memoryview) -> None:
        self.whole = content
        self.left = MOST_FIELDS
        self.initializers: dict[str, Initializer] = {}
        self.known: set[str] = set()
        """Values that were computed so far, inputs and arrays."""
        self.operators = 0
        self.name = ""

    def model(self) -> ModelStructure:
        """The structure of the whole."""
        graph: memoryview | None = None
        opset = 0
        for number, value in self.fields(self.whole, "the model"):
            if number == 7 and graph is None:
                graph = _bytes(value)
            elif number == 8:
                opset = self.opset(_bytes(value))
            elif number == 25:
                raise ValueError("it defines functions, which no plan has")
            elif number not in (1, 2, 3):
                raise _unknown("the model", number)
        if graph is None:
            raise ValueError("it has no graph")
        if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
            raise ValueError(f"its operators are of opset {opset}")
        return self.graph(graph, opset)

    def opset(self, content: memoryview) -> int:
        """The version of ONNX's operators."""
        found = 0
        for number, value in self.fields(content, "the opset"):
            if number == 1 and _text(value) in ("", "ai.onnx"):
                continue
            if number != 2:
                raise ValueError("its operators are of a domain that is not ONNX's")
            found = _number(value)
        return found

    def graph(self, content: memoryview, opset: int) -> ModelStructure:
        """The structure of the graph."""
        nodes: list[memoryview] = []
        inputs: list[Value] = []
        outputs: list[Value] = []
        for number, value in self.fields(content, "the graph"):
            if number == 1:
                nodes.append(_bytes(value))
                if len(nodes) > MOST_OPERATORS:
                    raise ValueError(f"it has more than {MOST_OPERATORS:,} operators")
            elif number == 5:
                one = self.tensor(_bytes(value))
                self.define(one.name)
                self.initializers[one.name] = one
                if len(self.initializers) > MOST_CONSTANTS:
                    raise ValueError(f"it has more than {MOST_CONSTANTS:,} arrays")
            elif number == 11:
                inputs.append(self.value(_bytes(value)))
            elif number == 12:
                outputs.append(self.value(_bytes(value)))
            elif number == 2:
                self.name = _text(value)
            else:
                raise _unknown("the graph", number)
        for declared in inputs:
            self.define(declared.name)
        for node in nodes:
            self.operator(node)
        if not outputs:
            raise ValueError("it has no output")
        for declared in outputs:
            if declared.name not in self.known:
                raise ValueError(f"nothing computes its output {quoted(declared.name)}")
        return ModelStructure(
            opset=opset,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            operators=len(nodes),
            initializers=tuple(self.initializers.values()),
        )

    def define(self, name: str) -> None:
        """Take note of a value; ValueError for one that is known."""
        if not name or name in self.known:
            raise ValueError(f"the value {quoted(name)} is computed twice, or has no name")
        self.known.add(name)

    def operator(self, content: memoryview) -> None:
        """Check an operator."""
        inputs: list[str] = []
        outputs: list[str] = []
        attributes: list[memoryview] = []
        kind = ""
        for number, value in self.fields(content, "an operator"):
            if number == 1:
                inputs.append(_text(value))
            elif number == 2:
                outputs.append(_text(value))
            elif number == 4:
                kind = _text(value)
            elif number == 5:
                attributes.append(_bytes(value))
            elif number == 7 and _text(value) in ("", "ai.onnx"):
                continue
            elif number == 3:
                _text(value)
            else:
                raise _unknown("an operator", number)
        if kind not in READABLE:
            raise ValueError(f"it has the operator {quoted(kind)}, which is not supported")
        for name in inputs:
            if name and name not in self.known:
                raise ValueError(
                    f"an operator {kind} uses {quoted(name)}, which nothing before it computes "
                    "(a cycle, or a missing operator)"
                )
        for content in attributes:
            self.attribute(content, kind)
        for position in _MAKES_SHAPES.get(kind, ()):
            if position < len(inputs):
                self.result_size(kind, inputs[position])
        if not any(outputs):
            raise ValueError(f"an operator {kind} has no output")
        for name in filter(None, outputs):
            self.define(name)

    def result_size(self, kind: str, name: str) -> None:
        """ValueError where a constant asks for a result that no memory holds."""
        found = self.initializers.get(name)
        if found is None or found.size_bytes > 8 * 2 * MOST_AXES:
            return
        content = self.whole[found.offset : found.offset + found.size_bytes]
        lengths = np.abs(np.frombuffer(content, found.dtype).astype(np.float64))
        if not np.maximum(lengths, 1).prod() <= MOST_ELEMENTS:
            raise ValueError(
                f"an operator {kind} makes an array of more than {MOST_ELEMENTS:,} elements"
            )

    def attribute(self, content: memoryview, kind: str) -> None:
        """Check an attribute of an operator."""
        name, numbers = "", []
        for number, value in self.fields(content, "an attribute"):
            if number == 1:
                name = _text(value)
            elif number == 5:
                self.tensor(_bytes(value))
            elif number in (6, 11):
                raise ValueError(f"an operator {kind} contains a graph, which no plan has")
            elif number in (3, 8):
                numbers += [value] if isinstance(value, int) else packed(value)
            elif number not in (2, 4, 7, 9, 20):
                raise _unknown("an attribute", number)
        if name in _LENGTHS and any(min(n, (1 << 64) - n) > MOST_NUMBER for n in numbers):
            raise ValueError(f"{name} of an operator {kind} is beyond {MOST_NUMBER:,}")

    def tensor(self, content: memoryview) -> Initializer:
        """An array, whose content is as long as its shape says."""
        name, lengths, kind = "", [], 0
        raw: memoryview | None = None
        for number, value in self.fields(content, "an array"):
            if number == 1:
                lengths += [value] if isinstance(value, int) else packed(value)
            elif number == 2:
                kind = _number(value)
            elif number == 8:
                name = _text(value)
            elif number == 9:
                raw = _bytes(value)
            elif number in (13, 14):
                raise ValueError("it has arrays in another file, which no plan has")
            else:
                raise _unknown("an array", number)
        shown = quoted(name)
        if kind not in _TYPES:
            raise ValueError(f"the array {shown} is of an unsupported type")
        if len(lengths) > MOST_AXES or any(length >= 1 << 63 for length in lengths):
            raise ValueError(f"the array {shown} has an impossible shape")
        size_bytes = 0 if raw is None else len(raw)
        if size_bytes != math.prod(lengths) * np.dtype(_TYPES[kind]).itemsize:
            raise ValueError(f"the array {shown} does not have as many bytes as its shape says")
        return Initializer(
            name=name,
            dtype=_TYPES[kind],
            shape=tuple(lengths),
            offset=0 if raw is None else self.offset_of(raw),
            size_bytes=size_bytes,
        )

    def fixed(self, content: memoryview) -> int | memoryview:
        """What a field of fixed length is read as: its value is no matter here."""
        return 0

    def offset_of(self, part: memoryview) -> int:
        """Where a part of the model begins."""
        return _address(part) - _address(self.whole) if len(part) else 0

    def value(self, content: memoryview) -> Value:
        """Name and type of an input or output."""
        name, dtype, shape = "", "", None
        for number, value in self.fields(content, "a value"):
            if number == 1:
                name = _text(value)
            elif number == 2:
                dtype, shape = self.type(_bytes(value))
            else:
                raise _unknown("a value", number)
        if not name or shape is None:
            raise ValueError(f"{quoted(name)} has no type")
        fixed = [length for length in shape if isinstance(length, int)]
        if len(shape) > MOST_AXES or math.prod(fixed) > MOST_ELEMENTS or 0 in fixed:
            raise ValueError(f"{quoted(name)} has an impossible shape")
        return Value(name=name, dtype=dtype, shape=shape)

    def type(self, content: memoryview) -> tuple[str, tuple[Length, ...]]:
        """A data type and the lengths of the axes."""
        kind = 0
        shape: list[Length] = []
        for number, value in self.fields(content, "a type"):
            if number != 1:
                raise _unknown("a type", number)
            for inner, part in self.fields(_bytes(value), "a type"):
                if inner == 1:
                    kind = _number(part)
                elif inner == 2:
                    shape += [
                        self.axis(_bytes(axis), len(shape) + place)
                        for place, (_, axis) in enumerate(self.fields(_bytes(part), "a shape"))
                    ]
                else:
                    raise _unknown("a type", inner)
        if kind not in _TYPES:
            raise ValueError("a value is of an unsupported type")
        return _TYPES[kind], tuple(shape)

    def axis(self, content: memoryview, place: int) -> Length:
        """The length of an axis."""
        found: Length = f"axis {place}"
        for number, value in self.fields(content, "an axis"):
            if number == 1:
                found = _number(value)
            elif number == 2:
                found = _text(value)
            else:
                raise _unknown("an axis", number)
        return found

    def fields(self, content: memoryview, shown: str) -> Iterator[Field]:
        """The fields of a message; ValueError where it is damaged."""
        at, end = 0, len(content)
        while at < end:
            self.left -= 1
            if self.left < 0:
                raise ValueError(f"it has more than {MOST_FIELDS:,} fields")
            key, at = _varint(content, at)
            number, kind = key >> 3, key & 7
            if kind == _BYTES:
                size, at = _varint(content, at)
                if size > end - at:
                    raise ValueError(f"{shown} is truncated")
                yield number, content[at : at + size]
                at += size
            elif kind == _VARINT:
                value, at = _varint(content, at)
                yield number, value
            elif kind in (_FIXED32, _FIXED64):
                start, at = at, at + (4 if kind == _FIXED32 else 8)
                if at > end:
                    raise ValueError(f"{shown} is truncated")
                yield number, self.fixed(content[start:at])
            else:
                raise ValueError(f"{shown} is damaged")


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """A number and where the next field begins."""
    value = shift = 0
    try:
        while True:
            byte = content[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise ValueError("a number is longer than 64 bits")
    except IndexError:
        raise ValueError("a number is truncated") from None
    if value >= 1 << 64:
        raise ValueError("a number is longer than 64 bits")
    return value, at


def packed(content: memoryview) -> list[int]:
    """The numbers of a packed field: few, as attributes and shapes have."""
    found, at = [], 0
    while at < len(content):
        value, at = _varint(content, at)
        found.append(value)
        if len(found) > MOST_NUMBER:
            raise ValueError(f"a list has more than {MOST_NUMBER:,} numbers")
    return found


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a field is of another type")
    return value


def _number(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ValueError("a field is of another type")
    return value


def _text(value: int | memoryview) -> str:
    return str(_bytes(value), "utf-8")


def _address(part: memoryview) -> int:
    found: int = np.frombuffer(part, np.uint8).__array_interface__["data"][0]
    return found


def _unknown(shown: str, number: int) -> ValueError:
    return ValueError(f"{shown} has a field that no plan has (number {number})")


def check_models(
    models: Mapping[str, bytes | mmap], inputs: tuple[Value, ...], outputs: tuple[str, ...]
) -> dict[str, ModelStructure]:
    """What each model has; ValueError where one has another form, or not the inputs and outputs of
    its plan."""
    structures = {}
    for name, content in models.items():
        try:
            found = check_structure(content)
        except ValueError as error:
            raise ValueError(f"its model {clean(name, 40)} cannot be used: {error}") from error
        if found.inputs != inputs:
            raise ValueError(f"its model {clean(name, 40)} has other inputs than it says")
        if tuple(value.name for value in found.outputs) != outputs:
            raise ValueError(f"its model {clean(name, 40)} has other outputs than it says")
        structures[name] = found
    return structures
