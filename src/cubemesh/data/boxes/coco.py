"""Labels in COCO's format: a JSON file for each split, with images, annotations and categories.

`annotations/instances_train2017.json` with the images in `train2017`, and `…val2017`; `instances_`
and the year may be missing. The images are in the folder of the split's name, that name below
`images`, or `images` itself. A box is left, top, width and height in pixels; `iscrowd` marks one
that does not count. Other fields, such as polygons, are not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from cubemesh.data.boxes.annotations import (
    MOST_CLASSES,
    Annotation,
    Annotations,
    annotation,
    check_count,
    check_name,
    read_text,
)
from cubemesh.data.labelled_images import IMAGES, listed
from cubemesh.data.source import Split
from cubemesh.errors import DataError
from cubemesh.untrusted import parse_json, quoted

ANNOTATIONS = "annotations"
MOST_FILE_BYTES = 512 << 20
_FILE = re.compile(r"(?:instances_)?((train|val)(?:idation)?\d*)\.json")
_SPLITS: Mapping[Split, str] = {"train": "train", "validation": "val"}


def find_file(root: Path, split: Split) -> tuple[Path, Path]:
    """The annotations of a split, and the folder of its images. DataError without or with several
    such files, or without the folder."""
    found = [
        match for name in sorted(listed(root / ANNOTATIONS)) if (match := _FILE.fullmatch(name))
    ]
    own = [match for match in found if match[2] == _SPLITS[split]]
    if len(own) != 1:
        names = ", ".join(match[0] for match in own) or "none"
        raise DataError(
            f"{root / ANNOTATIONS} has to have one file of annotations for {split}, such as "
            f"instances_{_SPLITS[split]}2017.json; it has {names}."
        )
    folders = [root / own[0][1], root / IMAGES / own[0][1], root / IMAGES]
    images = next((folder for folder in folders if folder.is_dir()), None)
    if images is None:
        raise DataError(
            f"The images of {root / ANNOTATIONS / own[0][0]} are missing: there is no folder "
            f"{own[0][1]}, {IMAGES}/{own[0][1]} or {IMAGES} in {root}."
        )
    return root / ANNOTATIONS / own[0][0], images


def read_coco(root: Path, split: Split) -> Annotations:
    """The boxes of the images of a split, in the order of the file, and the names of its
    categories, in the order of their ids. DataError if there is no image, or the file breaks the
    format."""
    path, folder = find_file(root, split)
    try:
        changed_ns = path.stat().st_mtime_ns
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    return _read(path, folder, changed_ns)


@lru_cache(maxsize=2)
def _read(path: Path, folder: Path, changed_ns: int) -> Annotations:
    """Those in a file of this state: it is large, and read for both splits."""
    try:
        content = parse_json(read_text(path, MOST_FILE_BYTES))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}.") from None
    names = _names(path, _rows(path, content, "categories"))
    files: dict[int, Path] = {}
    numbers: dict[Path, int] = {}
    for number, row in enumerate(_rows(path, content, "images")):
        key = _integer(path, "images", number, row, "id")
        if key in files:
            raise DataError(f"{path}: images[{number}] has the id {key} of an earlier image.")
        files[key] = folder / _inside(path, number, row.get("file_name"))
        earlier = numbers.setdefault(files[key], number)
        if earlier != number:
            raise DataError(
                f"{path}: images[{number}] has the file_name of images[{earlier}]. Give all boxes "
                "of a file to one image."
            )
    if not files:
        raise DataError(f"{path} has no images.")
    boxes: dict[int, list[Annotation]] = {key: [] for key in files}
    for number, row in enumerate(_rows(path, content, "annotations")):
        image = _integer(path, "annotations", number, row, "image_id")
        kind = _integer(path, "annotations", number, row, "category_id")
        where = f"{path}: annotations[{number}]"
        if image not in boxes or kind not in names:
            what = f"category {kind}" if image in boxes else f"image {image}"
            raise DataError(f"{where} is of {what}, which the file does not have.")
        boxes[image].append(_box(where, names[kind], row))
    for key, own in boxes.items():
        check_count(f"Image {files[key].name} of {path}", own)
    found = {files[key]: own for key, own in boxes.items()}
    return Annotations(found, tuple(names[key] for key in sorted(names)))


def _rows(path: Path, content: Any, name: str) -> Sequence[Mapping[str, Any]]:
    """A list of tables of the file."""
    rows = content.get(name) if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(
            f"{path} has no list '{name}' of tables. COCO's format has images, annotations and "
            "categories."
        )
    return rows


def _names(path: Path, rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Id of a category → its name, which no other has."""
    if len(rows) > MOST_CLASSES:
        raise DataError(f"{path} has {len(rows)} categories, and {MOST_CLASSES} are read at most.")
    names: dict[int, str] = {}
    folded: dict[str, str] = {}
    for number, row in enumerate(rows):
        name = row.get("name")
        where = f"{path}: categories[{number}]"
        if not isinstance(name, str):
            raise DataError(f"{where} has no name.")
        check_name(where, name)
        key = _integer(path, "categories", number, row, "id")
        if key in names:
            raise DataError(f"{where} has the id {key} of an earlier category.")
        if earlier := folded.get(name.casefold()):
            raise DataError(
                f"{where} has the name {quoted(name)}, and an earlier one {quoted(earlier)}; case "
                "does not count. Give each category a name of its own, or merge them."
            )
        names[key] = folded[name.casefold()] = name
    return names


def _integer(path: Path, table: str, number: int, row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError(f"{path}: {table}[{number}] has {key}={quoted(value)}, not an integer.")
    return value


def _inside(path: Path, number: int, name: Any) -> PurePosixPath:
    """The name of an image below the folder of images."""
    inside = PurePosixPath(name) if isinstance(name, str) and "\0" not in name else None
    if inside is None or not inside.parts or inside.is_absolute() or ".." in inside.parts:
        raise DataError(
            f"{path}: images[{number}] has file_name={quoted(name)}, which is not a file below "
            "the folder of images."
        )
    return inside


def _box(where: str, name: str, row: Mapping[str, Any]) -> Annotation:
    box = row.get("bbox")
    numbers = box if isinstance(box, list) else []
    if len(numbers) != 4 or any(
        isinstance(n, bool) or not isinstance(n, int | float) for n in numbers
    ):
        raise DataError(
            f"{where} has bbox={quoted(box)}, not left, top, width and height in pixels."
        )
    left, top, width, height = (float(number) for number in numbers)
    corners = [left, top, left + width, top + height]
    return annotation(where, name, corners, row.get("iscrowd") in (1, True))
