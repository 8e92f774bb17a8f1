"""Annotations: the boxes of images as label files have them, in pixels of the image file.

They are not trusted: limits of sizes and numbers, names that stay inside their folder. A file that
breaks the format is an error with the file and line, not a skipped image: a detector that is
trained or judged by a part of its boxes learns that the others are background.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.files import read_regular, readable
from cubemesh.detection.labels import ANY_CLASS, LabelledBoxes
from cubemesh.errors import DataError
from cubemesh.networks.graph import MAX_BOXES
from cubemesh.units import format_count
from cubemesh.untrusted import quoted

MOST_CLASSES = 10_000
MOST_NAME = 100
"""Characters of the name of a class."""
MOST_PIXELS = 1e6
"""Largest coordinate, either way."""
CLASSES_FILE = "classes.txt"
DONT_CARE = "dontcare"
"""KITTI's name for regions that do not count."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """A labelled box."""

    name: str
    """Of its class."""
    box: tuple[float, float, float, float]
    """Left, top, right and bottom."""
    ignored: bool = False
    """Whether it is a region in which objects of this class do not count (COCO's crowds)."""


@dataclass(frozen=True)
class Annotations:
    """Those of a split."""

    boxes: Mapping[Path, Sequence[Annotation]]
    """Image file → its boxes, in the order of the images."""
    names: tuple[str, ...]
    """Of the classes, in the order of their numbers."""
    ignored: Mapping[str, int] = field(default_factory=dict)
    """See `EncodedImages.ignored`."""


def class_names(root: Path, train: Callable[[], Annotations]) -> tuple[str, ...]:
    """The lines of `classes.txt` where the data have it, or else the names of the annotations that
    `train` reads, without that of regions. DataError for a file that is not a list of names."""
    path = root / CLASSES_FILE
    if not path.exists():
        return _without_regions(train().names)
    lines = [line.strip() for line in read_text(path, 1 << 20).splitlines()]
    names = tuple(line for line in lines if line)
    folded = [name.casefold() for name in names]
    if not names or len(set(folded)) < len(names) or max(map(len, names)) > MOST_NAME:
        raise DataError(
            f"{path} has to name each class once, one a line, by at most {MOST_NAME} characters."
        )
    return _without_regions(names)


def _without_regions(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name.casefold() != DONT_CARE)


def labelled(found: Sequence[Annotation], names: Sequence[str]) -> LabelledBoxes:
    """The boxes of an image with their classes by the place in `names`, whatever the case. One of
    another name is a region that does not count."""
    places = {name.casefold(): number for number, name in enumerate(names)}
    kinds = [places.get(a.name.casefold(), ANY_CLASS) for a in found]
    ignored = [a.ignored or kind == ANY_CLASS for a, kind in zip(found, kinds, strict=True)]
    boxes: NDArray[np.float64] = np.array([a.box for a in found], np.float64).reshape(-1, 4)
    return LabelledBoxes(boxes, np.array(kinds, np.int64), np.array(ignored, np.bool_))


def annotation(
    where: str, name: str, numbers: Sequence[float], ignored: bool = False
) -> Annotation:
    """A box by its corners. DataError, which names `where`, for a name or a number that none has.
    A box without area is one: it counts as outside of its image."""
    check_name(where, name)
    for number in numbers:
        if not math.isfinite(number) or abs(number) > MOST_PIXELS:
            raise DataError(
                f"{where}: {number} is not a coordinate in pixels, which is finite and at most "
                f"{format_count(int(MOST_PIXELS))}."
            )
    left, top, right, bottom = numbers
    return Annotation(name, (left, top, right, bottom), ignored)


def check_name(where: str, name: str) -> None:
    """DataError, which names `where`, for a text that is no name of a class."""
    if not name or len(name) > MOST_NAME:
        raise DataError(
            f"{where}: a class has a name of 1 to {MOST_NAME} characters, not {quoted(name)}."
        )


def check_count(where: str, boxes: Sequence[Annotation]) -> None:
    """DataError for more boxes than the labels of an image have room for."""
    if len(boxes) > MAX_BOXES:
        raise DataError(
            f"{where} has {format_count(len(boxes))} boxes, and an image may have {MAX_BOXES}. "
            "Divide the image, or leave boxes out."
        )


def read_text(path: Path, most_bytes: int) -> str:
    """A text file of others. DataError where it cannot be read, is too large, or is not UTF-8."""
    try:
        return read_regular(path, most_bytes).decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{readable(str(path))} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{readable(str(path))} is not a text in UTF-8.") from error
