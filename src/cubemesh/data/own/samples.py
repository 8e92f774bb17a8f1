"""Samples of own data as rows of a batch, checked against the network.

A sample is a tuple: a value for each input of the network, then the label. Values are arrays,
tensors, PIL images or numbers. What does not fit is a UserCodeError that names the sample and the
field. Nothing is resized or reordered, except that PIL's images get their channels first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cubemesh.batches import PADDING, Array, Batch
from cubemesh.networks.graph import Input, Network
from cubemesh.user_code import UserCodeError

_INTEGERS = "iu"


class SampleFormat:
    """The arrays of a network's batches, and the check of what becomes a row of them."""

    def __init__(self, name: str, network: Network) -> None:
        self._name = name
        self._network = network.name
        self._inputs = network.inputs
        self._label = network.targets[0]

    def empty(self, samples: int) -> Batch:
        """Arrays for `samples` samples."""
        inputs = (
            np.empty((samples, *i.shape), np.float32 if i.dtype == "float" else np.int64)
            for i in self._inputs
        )
        return Batch(*inputs, labels=np.empty((samples, *self._label.shape), np.int64))

    def put(self, sample: Any, number: int, into: Batch, row: int) -> None:
        """Write sample `number` into a row. UserCodeError where it does not fit."""
        where = f"sample {number:,}"
        for field, value in enumerate(self._fields(sample, where)[:-1]):
            wanted = self._inputs[field]
            into.inputs[field][row] = self._input(value, wanted, wanted.shape, where, field)
        into.labels[row] = self._labels(sample[-1], self._label.shape, where, len(sample) - 1)

    def columns(self, batch: Any, number: int) -> Batch:
        """A batch that a DataLoader collated, as arrays. UserCodeError where it does not fit."""
        where = f"batch {number:,}"
        fields = self._fields(batch, where)
        label = _array(fields[-1], self._at(where, len(fields) - 1, "label"))
        rows = label.shape[0] if label.ndim else 0
        inputs = (
            self._input(value, wanted, (rows, *wanted.shape), where, field)
            for field, (value, wanted) in enumerate(zip(fields[:-1], self._inputs, strict=True))
        )
        labels = self._labels(label, (rows, *self._label.shape), where, len(fields) - 1)
        return Batch(*inputs, labels=labels)

    def _fields(self, sample: Any, where: str) -> Any:
        names = [*(i.name for i in self._inputs), "label"]
        if isinstance(sample, (tuple, list)) and len(sample) == len(names):
            return sample
        kind = type(sample).__name__
        has = f"{kind} of {len(sample)}" if isinstance(sample, (tuple, list)) else kind
        raise UserCodeError(
            f"{self._name}: {where} is a {has}; {self._network} takes a tuple of {len(names)}: "
            f"{', '.join(names)}."
        )

    def _at(self, where: str, field: int, name: str) -> str:
        return f"{self._name}: {where}, field {field} ({name})"

    def _input(
        self, value: Any, wanted: Input, shape: tuple[int, ...], where: str, field: int
    ) -> Array:
        at = self._at(where, field, wanted.name)
        array = _array(value, at)
        if array.shape != shape:
            moved = len(shape) >= 3 and array.shape == (*shape[:-3], *shape[-2:], shape[-3])
            hint = " Its channels are last; move them to the front." if moved else ""
            raise UserCodeError(
                f"{at} has the shape {_shape(array.shape)}; {self._network} takes {_shape(shape)}."
                f"{hint}"
            )
        kind = array.dtype.kind
        if wanted.dtype == "float":
            if array.dtype == np.uint8:
                return np.multiply(array, np.float32(1 / 255), dtype=np.float32)
            if kind != "f":
                raise UserCodeError(
                    f"{at} has values of type {array.dtype}; {self._network} takes floating-point "
                    "numbers, or uint8, which is divided by 255."
                )
            return array
        self._counted(array, at, 0, wanted.classes, "tokens")
        if wanted.vocabularies and (beyond := array >= wanted.vocabularies).any():
            place = int(beyond.argmax())
            raise UserCodeError(
                f"{at} has the value {int(array[place])} in place {place}, whose table in "
                f"{self._network} has {wanted.vocabularies[place]:,} rows."
            )
        return array

    def _labels(self, value: Any, shape: tuple[int, ...], where: str, field: int) -> Array:
        at = self._at(where, field, "label")
        array = _array(value, at)
        if array.shape != shape:
            one = "one integer" if not shape else f"the shape {_shape(shape)}"
            raise UserCodeError(
                f"{at} has the shape {_shape(array.shape)}; {self._network} takes {one}."
            )
        lowest = PADDING if self._label.shape else 0
        return self._counted(array, at, lowest, self._label.classes, "classes")

    def _counted(self, array: Array, at: str, lowest: int, count: int | None, what: str) -> Array:
        """`array` if its values are integers from `lowest` to below `count`."""
        if array.dtype.kind not in _INTEGERS:
            raise UserCodeError(
                f"{at} has values of type {array.dtype}; {self._network} takes integers."
            )
        if array.size and count is not None:
            low, high = int(array.min()), int(array.max())
            if low < lowest or high >= count:
                wrong = low if low < lowest else high
                raise UserCodeError(
                    f"{at} has the value {wrong}; {self._network} has {count:,} {what}, so it "
                    f"takes {lowest} to {count - 1:,}."
                )
        return array


def _array(value: Any, at: str) -> Array:
    """A value as an array; that of a PIL image has its channels first."""
    try:
        if hasattr(value, "getbands"):
            pixels = np.asarray(value)
            return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
        if hasattr(value, "detach"):
            value = value.detach()
        array = np.asarray(value)
    except Exception as error:
        raise UserCodeError(
            f"{at} is a {type(value).__name__} that cannot become an array: {error}."
        ) from error
    if array.dtype.kind not in "biuf":
        raise UserCodeError(f"{at} is a {type(value).__name__}; it must be numbers.")
    return array


def _shape(shape: tuple[int, ...]) -> str:
    """`3x32x32`; a single number has the shape `()`."""
    return "x".join(map(str, shape)) or "()"
