"""Image set: prepare it, check it, list what it has (`cubemesh prepare`).

Preparation can be stopped at any moment and run again: a shard is written under a temporary name
and renamed, then an entry in `.unfinished/` says what it has. The next run plans the same shards
and makes those without an entry. At the end the entries become the manifest, and the folder is
removed. One process at a time prepares a set (a lock in the same folder).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from cubemesh.data.images.decode import Skipped
from cubemesh.data.images.files import read_regular, regular_size
from cubemesh.data.images.prepared_set import (
    FOLDERS,
    FORMAT,
    MANIFEST,
    MANIFEST_BYTES,
    UNFINISHED,
    VERSION,
    SetManifest,
    Shard,
    check_prepared,
    local_manifest,
    read_index,
    read_manifest,
)
from cubemesh.data.prepare.conversion import Conversion, Converter
from cubemesh.data.prepare.originals import Originals, evenly, open_originals, open_readers
from cubemesh.data.prepare.processes import shared
from cubemesh.data.prepare.shard_plan import OVERHEAD_BYTES, PlannedShard, plan_shards
from cubemesh.data.prepare.shard_writer import PART, WrittenShard, write_shard
from cubemesh.data.remote.folder import is_url
from cubemesh.data.remote.protocols import open_folder
from cubemesh.durable_files import sync_to_disk, write_durably
from cubemesh.errors import BusyError, DataError, UsageError
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.units import format_bytes, parse_size
from cubemesh.untrusted import parse_json

SHARD_SIZE = "256MB"
"""Default size of a shard."""
LEAST_SHARD, MOST_SHARD = 1 << 16, 64 << 30
VALIDATION = 0.1
"""Default share for validation, where the source has no split."""
SKIPPED = "skipped.tsv"
"""File in a set: reason and name of each image that could not be used."""
_CONVERTED = 32
"""Images that are converted to estimate the size of the others."""
_PLAN = "plan.json"
_SHARD_FILE = re.compile(rf"\d{{6,9}}\.(tar|npy)|\.\d{{6,9}}\.(tar|npy){re.escape(PART)}")
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PrepareProgress:
    """How far a preparation is."""

    shards: int
    all_shards: int
    samples: int
    skipped: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """What a set has."""

    place: str
    """Folder, or URL."""
    classes: tuple[str, ...]
    counts: Mapping[str, tuple[int, ...]]
    """Split → images of each class; `images` of data without a split."""
    manifest: SetManifest | None = None
    """None: the set was not prepared by cubemesh."""
    made: int = 0
    """Shards that this call made."""
    problems: tuple[str, ...] = ()
    """Of `check_image_set`."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Reason → images that are not in the set, because they could not be used."""

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def prepare_images(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    resize: int | None = None,
    quality: int = 90,
    shard_size: str | int = SHARD_SIZE,
    validation: float | None = None,
    validation_labels: str | os.PathLike[str] | None = None,
    seed: int = 0,
    size: str | int | None = None,
    processes: int | None = None,
    observer: Callable[[PrepareProgress], None] | None = None,
) -> ImageSet:
    """Make tar shards with a manifest from the images of `source`, in the folder `target`.

    `source` is a folder of images or tar shards, ImageNet's archives, or `made-images` of a `size`.
    Images whose shorter side is longer than `resize` pixels become JPEG of that side. `validation`
    is the share of each class for validation where the source has no split. Finished shards of an
    interrupted preparation stay. UsageError, DataError or BusyError with what is wrong.
    """
    conversion = Conversion(resize=resize, quality=quality)
    shard_bytes = _size("--shard-size", shard_size)
    if not LEAST_SHARD <= shard_bytes <= MOST_SHARD:
        raise UsageError(
            f"--shard-size {shard_size}: a shard must have {format_bytes(LEAST_SHARD)} to "
            f"{format_bytes(MOST_SHARD)}."
        )
    if validation is not None and not 0 <= validation <= 0.9:
        raise UsageError(f"--validation {validation:g}: the share must be 0 to 0.9, such as 0.1.")
    if seed < 0:
        raise UsageError(f"--seed {seed}: a seed must be 0 or more.")
    count = _processes(processes)
    text = os.fspath(source)
    if is_url(text):
        raise UsageError(f"{text} is a URL, and preparing reads local files. Copy the set first.")
    labels = None if validation_labels is None else Path(validation_labels).expanduser()
    root = Path(target).expanduser()
    _check_places(Path(text).expanduser(), root)
    try:
        converter = Converter(conversion)
        originals = open_originals(text, None if size is None else _made_size(size, root), labels)
    except Unsupported as error:
        raise UsageError(str(error)) from error
    if originals.is_validation is not None and validation is not None:
        raise UsageError(
            f"{text} has its own images for validation. Leave --validation out, or name the "
            "folder of its training images as the source."
        )
    share = VALIDATION if validation is None else validation
    settings = {
        "source": originals.identity(),
        "resize": resize,
        "quality": quality if resize is not None else None,
        "shard_bytes": shard_bytes,
        "validation": None if originals.is_validation is not None else share,
        "seed": seed,
    }
    preparation = _Preparation(root, settings, Path(text).name or text, originals, converter)
    if (complete := preparation.complete()) is not None:
        return _described(str(root), complete)
    with preparation.locked():
        planned = plan_shards(
            originals.labels,
            originals.is_validation,
            share=share,
            seed=seed,
            image_bytes=preparation.image_bytes,
            shard_bytes=shard_bytes,
        )
        return preparation.run(planned, count, observer or (lambda _: None))


def check_image_set(folder: str | os.PathLike[str], *, processes: int | None = None) -> ImageSet:
    """Read a prepared set and compare it with its manifest: sizes, SHA-256 of shards and indexes,
    checksum of each image, files that do not belong to it. DataError where it is no prepared set.
    """
    text = os.fspath(folder)
    if is_url(text):
        raise UsageError(
            f"{text} is a URL, and a check reads every byte. Check the set on the machine that has "
            "its files; in training each image is compared with its checksum."
        )
    root = Path(text).expanduser()
    manifest = _manifest_in(root)

    def check(shard: Shard) -> list[str]:
        return list(_problems(root, shard, len(manifest.classes)))

    found = [p for each in shared(check, manifest.shards, _processes(processes)) for p in each]
    known = {shard.file for shard in manifest.shards}
    for name in FOLDERS.values():
        for tar in (root / name).glob("*.tar"):
            if f"{name}/{tar.name}" not in known:
                found.append(f"{name}/{tar.name}: not in the manifest")
    return _described(str(root), manifest, problems=tuple(sorted(found)))


def list_image_set(place: str | os.PathLike[str]) -> ImageSet:
    """The classes of a set and how many images of each are for training and validation: of a
    prepared set, in a folder or at a URL, or of a folder of images or shards."""
    text = os.fspath(place)
    if is_url(text):
        try:
            folder = open_folder(text)
        except Unsupported as error:
            raise UsageError(str(error)) from error
        return _described(text, read_manifest(folder.read_file(MANIFEST, MANIFEST_BYTES), text))
    root = Path(text).expanduser()
    if os.path.isdir(root) and (manifest := local_manifest(root)) is not None:
        return _described(text, manifest)
    readers = open_readers(root)
    classes = readers[0].classes
    names = ("train", "validation") if len(readers) > 1 else ("images",)
    counts = {
        name: tuple(np.bincount(reader.labels, minlength=len(classes)).tolist())
        for name, reader in zip(names, readers, strict=True)
    }
    return ImageSet(place=text, classes=classes, counts=counts)


class _Preparation:
    """A preparation in a folder."""

    def __init__(
        self,
        root: Path,
        settings: Mapping[str, Any],
        source: str,
        originals: Originals,
        converter: Converter,
    ) -> None:
        self._root = root
        self._settings = settings
        self._source = source
        self._originals = originals
        self._converter = converter
        self._folder = root / UNFINISHED

    def complete(self) -> SetManifest | None:
        """The manifest of a set that has all its files; None where something is to be made.
        UsageError where it has other settings."""
        self._check_settings(self._root / MANIFEST, lambda found: found["made"]["settings"])
        with contextlib.suppress(DataError):
            manifest = local_manifest(self._root)
            if manifest is not None:
                check_prepared(self._root, manifest)
            return manifest
        return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and hold its lock. UsageError where it has shards with other settings;
        BusyError where another process prepares it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{self._root} cannot be made: {error.strerror}. Name a folder that can be written "
                "to."
            ) from error
        with open(self._folder / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BusyError(f"Another process prepares {self._root}. Wait for it.") from error
            except OSError:
                pass  # a file system without locks
            if any(file.name != _PLAN for file in self._folder.glob("*.json")):
                self._check_settings(self._folder / _PLAN, lambda found: found)
            write_durably(self._folder / _PLAN, json.dumps(self._settings, indent=1))
            yield

    def _check_settings(self, file: Path, of: Callable[[Any], Any]) -> None:
        """UsageError where a file has the settings of another preparation."""
        try:
            found = dict(of(parse_json(read_regular(file, MANIFEST_BYTES))))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file} is damaged: {error}. Delete {self._root}.") from error
        other = [
            f"{name} is {value!r} there and {self._settings[name]!r} now"
            for name, value in found.items()
            if name in self._settings and value != self._settings[name]
        ]
        if other:
            raise UsageError(
                f"{self._root} was prepared from other images or with other settings "
                f"({'; '.join(other)}). Give the same ones, or another folder."
            )

    @functools.cached_property
    def image_bytes(self) -> float:
        """Expected mean size of an image in the set."""
        if self._settings["resize"] is None:
            return self._originals.mean_bytes()
        sizes = []
        for number in evenly(len(self._originals.labels), _CONVERTED):
            with contextlib.suppress(Skipped):
                sizes.append(len(self._converter.convert(self._originals.read(number))[0]))
        return float(np.mean(sizes)) if sizes else self._originals.mean_bytes()

    def run(
        self,
        planned: Sequence[PlannedShard],
        processes: int,
        observer: Callable[[PrepareProgress], None],
    ) -> ImageSet:
        """Make the shards that are missing, then the manifest."""
        done = self._finished(planned)
        self._check_room(planned, done)
        missing = [shard for shard in planned if shard.file not in done]

        def tell() -> None:
            written = done.values()
            observer(
                PrepareProgress(
                    shards=len(done),
                    all_shards=len(planned),
                    samples=sum(w.shard.samples for w in written),
                    skipped=sum(len(w.skipped) for w in written),
                    bytes=sum(w.shard.bytes for w in written),
                )
            )

        tell()
        for written in shared(self._make, missing, processes):
            done[written.shard.file] = written
            tell()
        ordered = [done[shard.file] for shard in planned]
        manifest = self._finish(ordered)
        return _described(str(self._root), manifest, made=len(missing))

    def _make(self, planned: PlannedShard) -> WrittenShard:
        (self._root / planned.file).parent.mkdir(exist_ok=True)
        written = write_shard(self._root, planned, self._originals, self._converter.convert)
        write_durably(self._entry(planned.file), json.dumps(_plain(written)))
        return written

    def _entry(self, file: str) -> Path:
        return self._folder / f"{file.replace('/', '-')}.json"

    def _finished(self, planned: Sequence[PlannedShard]) -> dict[str, WrittenShard]:
        """Shards with an entry, whose files are there; all other files of shards are removed. The
        entries of a complete set are made again from its manifest and indexes."""
        self._restore_entries()
        found = {}
        for shard in planned:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                written = _written(parse_json(self._entry(shard.file).read_bytes()))
                is_whole = regular_size(self._root / shard.file) == written.shard.bytes
                if is_whole and (self._root / written.shard.index).is_file():
                    found[shard.file] = written
        whole = {file for w in found.values() for file in (w.shard.file, w.shard.index)}
        for name in FOLDERS.values():
            for file in (self._root / name).glob("*"):
                is_shard = _SHARD_FILE.fullmatch(file.name) is not None
                if is_shard and f"{name}/{file.name}" not in whole:
                    file.unlink()
        return found

    def _restore_entries(self) -> None:
        """Turn a manifest back into the entries from which it was made."""
        try:
            text = read_regular(self._root / MANIFEST, MANIFEST_BYTES)
        except OSError:
            return
        manifest = read_manifest(text, str(self._root))
        skipped: dict[str, list[tuple[str, str]]] = {}
        with contextlib.suppress(OSError, ValueError):
            for line in (self._root / SKIPPED).read_text(encoding="utf-8").splitlines():
                file, reason, name = line.split("\t", 2)
                skipped.setdefault(file, []).append((name, reason))
        for shard in manifest.shards:
            try:
                found = read_regular(self._root / shard.index, shard.index_bytes)
                index = read_index(found, shard, len(manifest.classes))
            except (OSError, DataError):
                continue  # it is made again
            labels = Counter(index["label"].tolist())
            written = WrittenShard(
                shard=shard, counts=dict(labels), skipped=tuple(skipped.get(shard.file, ()))
            )
            write_durably(self._entry(shard.file), json.dumps(_plain(written)))

    def _check_room(self, planned: Sequence[PlannedShard], done: Mapping[str, Any]) -> None:
        """DataError where the disk has less room than the missing shards are expected to need."""
        left = sum(len(shard.images) for shard in planned if shard.file not in done)
        needed = left * (self.image_bytes + OVERHEAD_BYTES)
        free = shutil.disk_usage(self._root).free
        if needed > free:
            raise DataError(
                f"The shards need about {format_bytes(needed)}, and {self._root} has "
                f"{format_bytes(free)} free. Make room, choose another disk, or --resize."
            )

    def _finish(self, written: Sequence[WrittenShard]) -> SetManifest:
        """Write the manifest and remove the folder of entries."""
        classes = self._originals.classes
        counts = {split: [0] * len(classes) for split in FOLDERS}
        skipped: Counter[str] = Counter()
        lines = []
        for one in written:
            for label, images in one.counts.items():
                counts[one.shard.split][label] += images
            for name, reason in one.skipped:
                skipped[reason] += 1
                plain = name.replace("\t", " ").replace("\n", " ")
                lines.append(f"{one.shard.file}\t{reason}\t{plain}\n")
        if not sum(counts["train"]):
            reasons = ", ".join(f"{n} {reason}" for reason, n in skipped.most_common())
            raise DataError(f"No image of {self._source} can be used for training: {reasons}.")
        document = {
            "format": FORMAT,
            "version": VERSION,
            "made": {"from": self._source, "settings": self._settings},
            "classes": list(classes),
            "counts": counts,
            "skipped": dict(skipped),
            "shards": [vars(one.shard) for one in written],
        }
        text = json.dumps(document, indent=1)
        manifest = read_manifest(text.encode(), str(self._root))
        write_durably(self._root / SKIPPED, "".join(lines))
        write_durably(self._root / MANIFEST, text)
        shutil.rmtree(self._folder)
        sync_to_disk(self._root)
        return manifest


def _plain(written: WrittenShard) -> dict[str, Any]:
    counts = {str(label): images for label, images in written.counts.items()}
    return {"shard": vars(written.shard), "counts": counts, "skipped": written.skipped}


def _written(found: Any) -> WrittenShard:
    return WrittenShard(
        shard=Shard(**found["shard"]),
        counts={int(label): images for label, images in found["counts"].items()},
        skipped=tuple((name, reason) for name, reason in found["skipped"]),
    )


def _described(
    place: str, manifest: SetManifest, made: int = 0, problems: tuple[str, ...] = ()
) -> ImageSet:
    return ImageSet(
        place=place,
        classes=manifest.classes,
        counts=manifest.counts,
        manifest=manifest,
        made=made,
        problems=problems,
        skipped=manifest.skipped,
    )


def _manifest_in(root: Path) -> SetManifest:
    if not os.path.isdir(root):
        raise DataError(f"{root} is not a folder. Name a set that `cubemesh prepare` has made.")
    manifest = local_manifest(root)
    if manifest is None:
        raise DataError(
            f"{root} has no {MANIFEST} of a prepared set. Make one from it: cubemesh prepare "
            f"{root} TARGET."
        )
    return manifest


def _problems(root: Path, shard: Shard, classes: int) -> Iterator[str]:
    """What is wrong with a shard."""
    try:
        found = read_regular(root / shard.index, shard.index_bytes)
        index = read_index(found, shard, classes)
    except OSError as error:
        yield f"{shard.index}: {error.strerror}"
        index = None
    except DataError as error:
        yield str(error)
        index = None
    try:
        size = regular_size(root / shard.file)
        if size != shard.bytes:
            yield f"{shard.file}: {size} bytes, and {shard.bytes} in the manifest"
            return
        with open(root / shard.file, "rb") as file:
            digest = hashlib.sha256()
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
            if digest.hexdigest() == shard.sha256:
                return
            wrong = 0
            for entry in () if index is None else index:
                file.seek(int(entry["offset"]))
                wrong += crc32(file.read(int(entry["size"]))) != int(entry["crc32"])
    except OSError as error:
        yield f"{shard.file}: {error.strerror}"
        return
    images = "" if index is None else f"; {wrong} of {shard.samples} images are damaged"
    yield f"{shard.file}: another SHA-256 than in the manifest{images}"


def _check_places(source: Path, target: Path) -> None:
    """UsageError where the set would be in its own source, or among other files."""
    if os.path.exists(target) and not os.path.isdir(target):
        raise UsageError(f"{target} is not a folder. Name a new folder for the set.")
    if os.path.isdir(source) and target.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"{target} is in {source}, the source. Name a folder elsewhere.")
    known = {MANIFEST, UNFINISHED, SKIPPED, *FOLDERS.values()}
    if not os.path.isdir(target) or (target / UNFINISHED).is_dir() or (target / MANIFEST).is_file():
        return
    if others := sorted(file.name for file in target.iterdir() if file.name not in known):
        raise UsageError(f"{target} has other files, such as {others[0]}. Name a new folder.")
    if any((target / name).exists() for name in FOLDERS.values()):
        raise UsageError(f"{target} has images, and no {MANIFEST}. Name a new folder.")


def _size(option: str, given: str | int) -> int:
    try:
        size = parse_size(given) if isinstance(given, str) else given
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from error
    if size < 1:
        raise UsageError(f"{option} {given}: it must be more than nothing, such as 256MB.")
    return size


def _made_size(given: str | int, root: Path) -> int:
    """The size of a set of `made-images`; UsageError where the disk of `root` is smaller, before
    as many images are numbered."""
    size = _size("--size", given)
    place = next(p for p in (root, *root.absolute().parents) if p.is_dir())
    if size > (disk := shutil.disk_usage(place).total):
        raise UsageError(
            f"--size {given}: the disk of {root} has {format_bytes(disk)} in all. Give a smaller "
            "size, or a folder on another disk."
        )
    return size


def _processes(given: int | None) -> int:
    if given is not None and given < 1:
        raise UsageError(f"--processes {given}: it must be 1 or more.")
    return given or len(os.sched_getaffinity(0))
