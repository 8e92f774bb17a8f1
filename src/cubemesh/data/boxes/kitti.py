"""Labels in KITTI's format, which DIGITS reads: a text file for each image, a line for each box.

    type truncated occluded alpha left top right bottom …

`train/images/NAME.png` with `train/labels/NAME.txt`, and the same below `val`; or `images` and
`labels` alone, with every tenth image for validation. Corners are in pixels; what follows them (the
object in space, a score) is not read. An image without objects has an empty file. Boxes of the type
`DontCare` are regions that do not count (A. Geiger et al., The KITTI Vision Benchmark Suite, 2012).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cubemesh.data.boxes.annotations import (
    Annotation,
    Annotations,
    annotation,
    check_count,
    read_text,
)
from cubemesh.data.images.files import readable
from cubemesh.data.labelled_images import label_files
from cubemesh.data.source import Split
from cubemesh.errors import DataError
from cubemesh.untrusted import quoted

LABELS = "labels"
FIELDS = 8
"""Of a line, at least."""
MOST_FILE_BYTES = 1 << 20


def read_kitti(root: Path, split: Split) -> Annotations:
    """The boxes of the images of a split, and the names of their classes, sorted. DataError as in
    `label_files`, and for a file that breaks the format."""
    advice = " An image without objects has an empty one."
    found = label_files(root, split, LABELS, ".txt", advice=advice)
    boxes = {image: read_file(labels) for image, labels in found.files.items()}
    names = {a.name.casefold(): a.name for own in boxes.values() for a in own}
    return Annotations(boxes, tuple(sorted(names.values())), found.ignored)


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
