"""Classification of image files: decoded as for a validation, the largest scores with their names;
of a detector the boxes with the highest coverage.

An image of exactly the network's size is taken as it is; of others the shorter side is resized to
8/7 of the network's, and the middle is cropped (data/images/decode.py). A detector takes the whole
image, stretched to its square.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cubemesh.batches import Array
from cubemesh.data.boxes.source import WholeDecoder
from cubemesh.data.images.decode import Decoder, Skipped
from cubemesh.data.images.files import read_whole
from cubemesh.data.images.image_source import DECODED
from cubemesh.data.images.open_images import ImageOptions
from cubemesh.detection.labels import Grid, detections
from cubemesh.errors import DataError, UsageError
from cubemesh.frameworks.contract.program import NotInstalled
from cubemesh.onnx.graph import Value
from cubemesh.untrusted import clean, shown_path

TOP = 5
MOST_NAMES = 1_000_000
_MOST_LETTERS = 200
"""Of a name."""


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    """One class of an image."""

    index: int
    name: str
    """`class 7` where the classes have no names."""
    probability: float
    """Of the softmax over all classes; of a detector the coverage of the cell."""
    box: tuple[float, float, float, float] | None = None
    """Of a detector: left, top, right and bottom in pixels of the image file."""


@dataclass(frozen=True, kw_only=True)
class ClassifiedImage:
    """An image with its most probable classes or boxes, the first one first."""

    file: str
    classes: tuple[ClassScore, ...] = ()
    reason: str = ""
    """Why it was not classified."""


def image_shape(inputs: Sequence[Value], network: str) -> tuple[int, int, int]:
    """Channels, height and width of the images that a network takes; UsageError for a network that
    takes none."""
    shape = inputs[0].shape[1:] if len(inputs) == 1 else ()
    if len(shape) != 3 or not all(isinstance(n, int) for n in shape) or shape[0] not in (1, 3):
        raise UsageError(
            f"{network} does not take images of one or three channels: --image is for those. "
            "Compute the scores of arrays with --samples FILE.npz."
        )
    channels, height, width = (int(length) for length in shape)
    return channels, height, width


def classify(
    files: Sequence[str | Path],
    shape: tuple[int, int, int],
    scores_of: Callable[[Array], Array],
    names: Sequence[str],
    top: int = TOP,
    grid: Grid | None = None,
) -> tuple[ClassifiedImage, ...]:
    """The `top` classes of each image file, of a network that takes images of `shape` and returns
    scores by `scores_of`; with the `grid` of a detector its boxes. UsageError without the decoder
    or for scores of another form; a file that is no image has its reason."""
    try:
        decoder = (Decoder if grid is None else WholeDecoder)(*shape, ImageOptions().max_pixels)
    except NotInstalled as error:
        raise UsageError(str(error)) from error
    read = [_read(decoder, shape, file) for file in files]
    images = [image for image in read if not isinstance(image, str)]
    found: list[tuple[ClassScore, ...]] = []
    if images:
        batch = np.divide(np.stack([i.pixels for i in images]), DECODED, dtype=np.float32)
        scores = scores_of(batch)
        if grid is None:
            found = [_largest(row, names, top) for row in probabilities(scores)]
        else:
            found = [
                _boxes(grid, row, image.size, names, top)
                for row, image in zip(scores, images, strict=True)
            ]
    classes = iter(found)
    return tuple(
        ClassifiedImage(file=str(file), reason=image)
        if isinstance(image, str)
        else ClassifiedImage(file=str(file), classes=next(classes))
        for file, image in zip(files, read, strict=True)
    )


def probabilities(scores: Array) -> Array:
    """The softmax of scores (images, classes); of a network that ends in one, its results."""
    if scores.ndim != 2:
        shown = "×".join(map(str, scores.shape))
        raise UsageError(f"The scores have the shape {shown}, and one row for an image is needed.")
    values = scores.astype(np.float64)
    if values.min() >= 0 and np.abs(values.sum(axis=1) - 1).max() < 1e-3:
        return values
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    found: Array = powers / powers.sum(axis=1, keepdims=True)
    return found


def read_names(path: str | Path) -> tuple[str, ...]:
    """The names of a text file, a line for each class in the order of the labels. UsageError where
    it cannot be read, DataError where it is no such text."""
    shown = shown_path(path)
    try:
        text = read_whole(path).decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{shown} is not a text: a line for each class, in UTF-8.") from None
    except (Skipped, ValueError) as error:  # ValueError: a path with a null character
        raise UsageError(f"{shown} cannot be read: {error}.") from error
    names = tuple(clean(line.strip(), _MOST_LETTERS) for line in text.splitlines())
    if not names or len(names) > MOST_NAMES or not all(names):
        raise DataError(f"{shown} needs a name on each line, at least one of at most {MOST_NAMES}.")
    return names


@dataclass(frozen=True)
class _Image:
    pixels: Array
    size: tuple[int, int]
    """Width and height of the file."""


def _read(decoder: Decoder, shape: tuple[int, int, int], file: str | Path) -> _Image | str:
    """The pixels of an image, or why there are none."""
    if "\0" in str(file):
        return "a path has no null character"
    try:
        data = read_whole(file)
        whole = decoder.whole(data)
        size = whole.shape[2], whole.shape[1]
        if whole.shape == shape:
            return _Image(np.asarray(whole), size)
        return _Image(np.asarray(decoder.decode(data, str(file)).pixels), size)
    except Skipped as error:
        return str(error)
    except MemoryError:
        return "not enough memory to decode it"


def _boxes(
    grid: Grid, scores: Array, size: tuple[int, int], names: Sequence[str], top: int
) -> tuple[ClassScore, ...]:
    found = detections(grid, scores, most=top)
    boxes = found.boxes * np.tile(np.array(size) / grid.size, 2)
    return tuple(
        _score(index, coverage, names, (left, top_, right, bottom))
        for index, coverage, (left, top_, right, bottom) in zip(
            found.classes.tolist(), found.coverage.tolist(), boxes.tolist(), strict=True
        )
    )


def _largest(row: Array, names: Sequence[str], top: int) -> tuple[ClassScore, ...]:
    order = np.argsort(-row, kind="stable")[:top]
    return tuple(_score(int(index), float(row[index]), names) for index in order)


def _score(
    index: int,
    value: float,
    names: Sequence[str],
    box: tuple[float, float, float, float] | None = None,
) -> ClassScore:
    name = names[index] if index < len(names) else f"class {index}"
    return ClassScore(index=index, name=name, probability=value, box=box)
