"""Labels in KITTI's format, which DIGITS reads: a text file for each image, a line for each box.

    type truncated occluded alpha left top right bottom …

`train/images/NAME.png` with `train/labels/NAME.txt`, and the same below `val`; or `images` and
`labels` alone, with every tenth image for validation. Corners are in pixels; what follows them (the
object in space, a score) is not read. An image without objects has an empty file. Boxes of the type
`DontCare` are regions that do not count (A. Geiger et al., The KITTI Vision Benchmark Suite, 2012).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from cubemesh.data.boxes.annotations import (
    Annotation,
    Annotations,
    annotation,
    check_count,
    read_text,
)
from cubemesh.data.images.decode import SUFFIXES
from cubemesh.data.images.files import readable
from cubemesh.data.images.image_folder import split_folder
from cubemesh.data.source import Split, in_split
from cubemesh.errors import DataError
from cubemesh.units import format_count
from cubemesh.untrusted import quoted

IMAGES, LABELS = "images", "labels"
FIELDS = 8
"""Of a line, at least."""
MOST_FILE_BYTES = 1 << 20


def read_kitti(root: Path, split: Split) -> Annotations:
    """The boxes of the images of a split, and the names of their classes, sorted. DataError if
    there is no image, one has no label file, or a file breaks the format."""
    own = split_folder(root, split)
    folder = own or root
    images = sorted(
        (n for n in listed(folder / IMAGES) if os.path.splitext(n)[1].lower() in SUFFIXES),
        key=os.fsencode,
    )
    if own is None:
        images = [name for n, name in enumerate(images, 1) if in_split(split, n)]
    if not images:
        raise DataError(f"{folder / IMAGES} has no images for {split}.")
    labels = set(listed(folder / LABELS))
    lacking = [name for name in images if _label_of(name) not in labels]
    if lacking:
        raise DataError(
            f"{format_count(len(lacking))} of {format_count(len(images))} images of "
            f"{folder / IMAGES} have no labels, such as {readable(lacking[0])}, whose file is "
            f"{readable(f'{LABELS}/{_label_of(lacking[0])}')}. An image without objects has an "
            "empty one."
        )
    found = {
        folder / IMAGES / name: read_file(folder / LABELS / _label_of(name)) for name in images
    }
    names = {a.name.casefold(): a.name for boxes in found.values() for a in boxes}
    return Annotations(found, tuple(sorted(names.values())))


def read_file(path: Path) -> Sequence[Annotation]:
    """The boxes in a label file; DataError with the line that breaks the format."""
    found = list(_lines(path, read_text(path, MOST_FILE_BYTES)))
    check_count(readable(str(path)), found)
    return found


def _lines(path: Path, text: str) -> Iterator[Annotation]:
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        if not fields:
            continue
        where = f"Line {number} of {readable(str(path))}"
        if len(fields) < FIELDS:
            raise DataError(
                f"{where} has {len(fields)} fields, and KITTI's format has {FIELDS} or more: type, "
                "truncated, occluded, alpha, left, top, right, bottom."
            )
        try:
            corners = [float(field) for field in fields[4:8]]
        except ValueError:
            raise DataError(
                f"{where}: fields 5 to 8 are left, top, right and bottom in pixels, not "
                f"{quoted(' '.join(fields[4:8]))}."
            ) from None
        yield annotation(where, fields[0], corners)


def _label_of(image: str) -> str:
    return f"{os.path.splitext(image)[0]}.txt"


def listed(folder: Path) -> list[str]:
    """The names in a folder, without hidden ones; DataError where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}.") from error
