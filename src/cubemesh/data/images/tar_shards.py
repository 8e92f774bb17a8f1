"""Tar shards: images in plain tar files, read sequentially.

Members follow WebDataset's naming: `KEY.jpg` (or .jpeg, .png, .gif, .bmp) with its class in
`KEY.cls`, a number as text, or in `KEY.json` under "label" or "cls"; or else the folder in the
member's name is the class, numbered in the order of the names. `train/*.tar` and `val/*.tar` are
the splits, or else every tenth image is for validation.

Only headers are read when shards are opened (by Python's tarfile, which may read no more than
64 KiB at once here, and no long runs of digits: before Python 3.11.10 its time grows with their
square, CVE-2024-6232). Links, devices and other files are counted and ignored; nothing is unpacked,
so a member's name is never used as a path.

In training, shards come in a random order, each is passed through from front to end, and images are
drawn at random from the next 2,048 of this stream. The kernel is asked to read ahead in the order
of the stream, so the drawing costs no seeks, and its page cache is the buffer.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import tarfile
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.decode import SUFFIXES, Skipped
from cubemesh.data.images.files import MAX_FILE_BYTES, identity_of, pread, readable
from cubemesh.data.images.image_folder import SPLITS
from cubemesh.data.page_cache import Extent
from cubemesh.data.source import Split, in_split
from cubemesh.errors import DataError

MAX_CLASSES = 1 << 20
"""Limit of class numbers: every class up to the largest number has a name in memory."""
BUFFER = 2048
"""Images from which the next one is drawn."""
HEADER_BYTES = 1 << 16
"""Most bytes of a header, and of a member with a class."""
MAX_DIGITS = 64
"""Most digits in a row of a header of several blocks: sizes, times and hashes have fewer."""
AHEAD_BYTES = 8 << 20
"""Bytes that the kernel is asked to read ahead."""
OPEN_SHARDS = 32


@dataclass(frozen=True, slots=True)
class _Member:
    shard: int
    offset: int
    size: int
    name: str


class ShardImages:
    """Images at known places in tar files; see `EncodedImages`."""

    def __init__(
        self,
        files: Sequence[Path],
        classes: tuple[str, ...],
        labels: NDArray[np.int64],
        names: Sequence[str],
        places: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    ) -> None:
        """`places` are the number in `files`, the offset and the size of each image, in the order
        of the files."""
        self.ignored: Counter[str] = Counter()
        self.classes = classes
        self.labels = labels
        self._files = files
        self._names = names
        self._shard, self._offset, self._size = places
        self._open = OpenFiles()

    def read(self, number: int) -> bytes:
        """See `EncodedImages.read`."""
        size = int(self._size[number])
        if size > MAX_FILE_BYTES:
            raise Skipped("file too large")
        path = self._files[self._shard[number]]
        try:
            file = self._open.get(path)
            data = pread(file.descriptor, size, int(self._offset[number]))
        except OSError as error:
            raise Skipped("cannot be read") from error
        if len(data) < size:
            raise Skipped("truncated")
        return data

    def name(self, number: int) -> str:
        """Shard and member."""
        shard = self._files[self._shard[number]].name
        return readable(f"{shard}/{self._names[number]}")

    def order(self, generator: np.random.Generator) -> Iterator[int]:
        """Shards in random order, shuffled in a buffer; the kernel reads ahead."""
        first = np.searchsorted(self._shard, np.arange(len(self._files) + 1))
        shards = generator.permutation(len(self._files))
        stream = (n for s in shards for n in range(int(first[s]), int(first[s + 1])))
        return shuffled(self._reading_ahead(stream), BUFFER, generator)

    def extent(self, number: int) -> Extent:
        """Its part of the shard."""
        path = self._files[self._shard[number]]
        return Extent(path, int(self._offset[number]), int(self._size[number]))

    def identity(self) -> str:
        """By the names, and by the sizes and dates of the shards."""
        return identity_of(self._names, self._files)

    def _reading_ahead(self, stream: Iterable[int]) -> Iterator[int]:
        shard, requested = -1, 0
        for number in stream:
            if self._shard[number] != shard:
                shard, requested = int(self._shard[number]), int(self._offset[number])
            end = int(self._offset[number] + self._size[number])
            if end > requested:
                self._read_ahead(shard, requested, AHEAD_BYTES)
                requested = max(end, requested + AHEAD_BYTES)
            yield number

    def _read_ahead(self, shard: int, offset: int, size: int) -> None:
        """A hint only: a shard that cannot be opened is reported when it is read."""
        try:
            file = self._open.get(self._files[shard])
            os.posix_fadvise(file.descriptor, offset, size, os.POSIX_FADV_WILLNEED)
        except OSError:
            return


class TarShards(ShardImages):
    """The images of one split of tar files, found by their headers."""

    def __init__(self, shards: dict[Split, tuple[Path, ...]], split: Split | None) -> None:
        """DataError if no image has a class. A damaged shard is read up to the damage, and
        counted. Without a split: all images of shards that have none."""
        ignored: Counter[str] = Counter()
        train = _scan(shards["train"], Counter() if split == "validation" else ignored)
        own = train
        if shards["validation"] and split == "validation":
            own = _scan(shards["validation"], ignored)
        files = shards["validation"] if own is not train else shards["train"]
        classes, labels = _labelled(train, own)
        if without := int((labels < 0).sum()):
            ignored["an image without a class"] += without
        members = [m for m, label in zip(own.images, labels, strict=True) if label >= 0]
        labels = labels[labels >= 0]
        if not shards["validation"] and split is not None:
            chosen = [n for n in range(len(members)) if in_split(split, n + 1)]
            members, labels = [members[n] for n in chosen], labels[chosen]
        if not members:
            wanted = "" if split is None else f" for {split}"
            raise DataError(f"{files[0].parent} has no images{wanted} in its tar files.")
        places = (
            np.array([m.shard for m in members], np.int64),
            np.array([m.offset for m in members], np.int64),
            np.array([m.size for m in members], np.int64),
        )
        super().__init__(files, classes, labels, [m.name for m in members], places)
        self.ignored = ignored


def shuffled(stream: Iterable[int], buffer: int, generator: np.random.Generator) -> Iterator[int]:
    """`stream` in random order: each is drawn from the next `buffer` ones."""
    waiting: list[int] = []
    for number in stream:
        if len(waiting) < buffer:
            waiting.append(number)
            continue
        place = int(generator.integers(buffer))
        yield waiting[place]
        waiting[place] = number
    for place in generator.permutation(len(waiting)).tolist():
        yield waiting[place]


def find_shards(root: Path) -> dict[Split, tuple[Path, ...]] | None:
    """The tar files of each split, sorted by name; None if there are none. Those in `root`
    itself have no splits."""
    found: dict[Split, tuple[Path, ...]] = {
        split: tuple(
            sorted(f for name in names for f in (root / name).glob("*.tar") if f.is_file())
        )
        for split, names in SPLITS.items()
    }
    if not found["train"]:
        found = {"train": tuple(sorted(f for f in root.glob("*.tar") if f.is_file()))}
        found["validation"] = ()
    return found if found["train"] else None


@dataclass(frozen=True)
class _Scanned:
    """Contents of shards, from their headers."""

    images: list[_Member]
    classes: dict[tuple[int, str], int]
    """(shard, key) → class in a file of its own."""


def _scan(shards: Sequence[Path], ignored: Counter[str]) -> _Scanned:
    found = _Scanned([], {})
    for number, path in enumerate(shards):
        _scan_one(number, path, found, ignored)
    return found


def _scan_one(number: int, path: Path, found: _Scanned, ignored: Counter[str]) -> None:
    before = len(found.images)
    try:
        with BoundedFile(path) as raw, tarfile.open(fileobj=raw, mode="r:") as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # keeps all headers otherwise
                if archive.offset <= member.offset:
                    raise tarfile.ReadError("a member ends before it begins")
                _sort_in(number, member, raw, found, ignored)
            raw.seek(archive.offset)
            is_whole = not raw.read(tarfile.BLOCKSIZE).strip(b"\0")
    except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError):
        is_whole = False
    if not is_whole:
        some = len(found.images) > before
        ignored["the rest of a damaged tar file" if some else "not a tar file"] += 1


def _sort_in(
    number: int,
    member: tarfile.TarInfo,
    raw: BoundedFile,
    found: _Scanned,
    ignored: Counter[str],
) -> None:
    if member.isdir():
        return
    if not member.isreg() or member.issparse():
        ignored["links and devices in tar files"] += 1
        return
    key, suffix = _key_of(member.name)
    if suffix in SUFFIXES:
        found.images.append(_Member(number, member.offset_data, member.size, member.name))
    elif suffix in (".cls", ".json"):
        if member.size > HEADER_BYTES:
            ignored["a class file that is too large"] += 1
            return
        label = _label_in(pread(raw.fileno(), member.size, member.offset_data), suffix)
        if label is None:
            ignored["a class file without a class"] += 1
        else:
            found.classes[number, key] = label
    else:
        ignored["not an image by its name"] += 1


def _key_of(name: str) -> tuple[str, str]:
    """`train/0001.seg.jpg` → `train/0001.seg`, `.jpg`."""
    stem, dot, suffix = name.rpartition(".")
    return (stem, f".{suffix.lower()}") if dot else (name, "")


def _label_in(data: bytes, suffix: str) -> int | None:
    try:
        if suffix == ".cls":
            label = int(data)
        else:
            named = json.loads(data)
            label = named.get("label", named.get("cls"))
    except (ValueError, AttributeError, RecursionError):
        return None
    is_class = isinstance(label, int) and not isinstance(label, bool) and 0 <= label < 1 << 31
    return label if is_class else None


def _labelled(train: _Scanned, own: _Scanned) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Names of the classes, and the label of each image of `own`: -1 for none."""
    if train.classes:
        count = max(train.classes.values()) + 1
        if count > MAX_CLASSES:
            raise DataError(
                f"A class file has class {count - 1}; the largest allowed is {MAX_CLASSES - 1}. "
                "Number the classes 0, 1, 2, …"
            )
        labels = [own.classes.get((m.shard, _key_of(m.name)[0]), -1) for m in own.images]
        if labels and max(labels) >= count:
            raise DataError(
                f"A validation image has class {max(labels)}, and the training images have only "
                f"{count} classes."
            )
        return tuple(map(str, range(count))), np.array(labels, np.int64)
    folder = functools.cache(lambda name: PurePosixPath(name).parent.name)
    names = sorted({folder(m.name) for m in train.images})
    if not names or "" in names:
        raise DataError(
            "Images in tar files need their class: KEY.cls or KEY.json for KEY.jpg, or a folder "
            "of the class's name in the member's name (docs/data.md)."
        )
    number = {name: label for label, name in enumerate(names)}
    if unknown := {folder(m.name) for m in own.images} - set(names):
        raise DataError(
            f"Validation images have class {readable(min(unknown))}, which no training image has."
        )
    return tuple(names), np.array([number[folder(m.name)] for m in own.images], np.int64)


class BoundedFile(io.FileIO):
    """A file that refuses to read headers that would take long, whatever they claim."""

    def read(self, size: int | None = -1) -> bytes:
        """As of a file; tarfile.ReadError beyond `HEADER_BYTES` and `MAX_DIGITS`."""
        if size is None or not 0 <= size <= HEADER_BYTES:
            raise tarfile.ReadError(f"a header claims {size} bytes")
        data = super().read(size)
        runs = re.findall(rb"\d+", data) if size > tarfile.BLOCKSIZE else []
        if any(len(run) > MAX_DIGITS for run in runs):
            raise tarfile.ReadError(f"a header has more than {MAX_DIGITS} digits in a row")
        return data


class _Open:
    """A descriptor that is closed with its last reference."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        descriptor = getattr(self, "descriptor", None)
        if descriptor is not None:
            os.close(descriptor)


class OpenFiles:
    """The most recently read shards, open."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, _Open] = OrderedDict()
        self._lock = Lock()

    def get(self, path: Path) -> _Open:
        """The open file; OSError if it cannot be opened."""
        with self._lock:
            file = self._files.pop(path, None) or _Open(path)
            self._files[path] = file
            if len(self._files) > OPEN_SHARDS:
                self._files.popitem(last=False)
            return file
