"""Training with broken images: it completes, their count is exact, memory stays bounded.

200 broken or unusual images of 20 kinds are mixed with 1,000 good ones, in folders of classes, and
a worker trains LittleCNN on all of them for an epoch under a real limit (`memory_limit_bytes`,
enforced by the kernel). The numbers of skipped and converted images in the record are compared with
the generated ones, kind by kind.

    python benchmarks/hostile_images.py                       # on the CPU, under 1 GiB
    python benchmarks/hostile_images.py --threads 8 --limit 2GiB --json hostile.json

Exit code 1 if training does not complete or a count differs.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import struct
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from cubemesh.machines import probe
from cubemesh.runs import Executor
from cubemesh.schema import Budget, Placement, ProgramSettings, RunSpec, Train
from cubemesh.schema.serialization import to_plain
from cubemesh.store import Store
from cubemesh.units import parse_size
from cubemesh.worker.run.inputs import by_kind

GOOD, BROKEN, CLASSES = 1000, 200, 10
BATCH = 40


def pixels(seed: int, width: int = 160, height: int = 120) -> Image.Image:
    """A photograph made of chance: large shapes, and grain on them."""
    generator = np.random.default_rng(seed)
    shapes = (generator.random((height // 16 + 2, width // 16 + 2, 3)) * 255).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(shapes).resize((width, height), Image.Resampling.BICUBIC))
    grain = generator.normal(0, 12, smooth.shape)
    return Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    """An image as a file's bytes."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpeg(seed: int) -> bytes:
    """A good one."""
    return encoded(pixels(seed), quality=88)


@functools.cache
def png_bomb(side: int = 30_000) -> bytes:
    """900 million pixels in a hundred kilobytes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        check = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    packer, row = zlib.compressobj(9), bytes(1 + -(-side // 8))
    body = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", body), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def jpeg_bomb(seed: int) -> bytes:
    """A small JPEG whose header claims 65,000 × 65,000."""
    data = bytearray(jpeg(seed))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 65_000, 65_000)
    return bytes(data)


def with_segment(data: bytes, marker: int, content: bytes) -> bytes:
    """A JPEG with one more segment behind its first two bytes."""
    segment = bytes((0xFF, marker)) + struct.pack(">H", len(content) + 2) + content
    return data[:2] + segment + data[2:]


def damaged_png(seed: int) -> bytes:
    """A PNG of which bytes in the middle are turned over."""
    data = bytearray(encoded(pixels(seed), "PNG"))
    middle = len(data) // 2
    data[middle : middle + 40] = bytes(255 - b for b in data[middle : middle + 40])
    return bytes(data)


def animated(seed: int) -> bytes:
    """A GIF of three frames."""
    frames = [pixels(seed + n) for n in range(3)]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])


def sixteen_bits(seed: int) -> bytes:
    """A grey PNG of 16 bits."""
    grey = np.asarray(pixels(seed).convert("L")).astype(np.uint16) * 257
    return encoded(Image.fromarray(grey), "PNG")


def write(content: Callable[[int], bytes]) -> Callable[[Path, int], None]:
    """A file of these bytes."""

    def make(path: Path, seed: int) -> None:
        path.write_bytes(content(seed))

    return make


def locked(path: Path, seed: int) -> None:
    """A good image that may not be read (by root it may)."""
    path.write_bytes(jpeg(seed))
    path.chmod(0)


@dataclass(frozen=True)
class Kind:
    """A way in which a file can be other than expected, and what is to come of it."""

    make: Callable[[Path, int], None]
    aside: str = ""
    """The reason it is set aside for; empty where it is used."""
    converted: tuple[str, ...] = ()
    suffix: str = ".jpg"


ROOT = os.geteuid() == 0
KINDS = {
    "truncated": Kind(write(lambda s: jpeg(s)[: 600 + s % 900]), "truncated"),
    "empty": Kind(lambda path, seed: path.touch(), "empty file"),
    "zeros": Kind(write(lambda s: bytes(4096)), "not an image that is read"),
    "text": Kind(write(lambda s: b"<html>404 not found</html>"), "not an image that is read"),
    "TIFF": Kind(write(lambda s: encoded(pixels(s), "TIFF")), "not an image that is read"),
    "PNG bomb": Kind(write(lambda s: png_bomb()), "too many pixels", suffix=".png"),
    "JPEG bomb": Kind(write(jpeg_bomb), "too many pixels"),
    "damaged PNG": Kind(write(damaged_png), "damaged", suffix=".png"),
    "folder": Kind(lambda path, seed: path.mkdir(), "a folder, not a file"),
    "pipe": Kind(lambda path, seed: os.mkfifo(path), "not a file"),
    "circular link": Kind(lambda path, seed: path.symlink_to(path.name), "link in a circle"),
    "dangling link": Kind(lambda path, seed: path.symlink_to("nothing"), "missing"),
    "locked": Kind(locked, "" if ROOT else "no permission to read"),
    "mislabelled": Kind(
        write(lambda s: encoded(pixels(s), "PNG")), converted=("PNG named as JPEG",)
    ),
    "CMYK": Kind(write(lambda s: encoded(pixels(s).convert("CMYK"))), converted=("CMYK",)),
    "16 bits": Kind(write(sixteen_bits), converted=("16 bits",), suffix=".png"),
    "animated": Kind(
        write(animated), converted=("animated (first frame)", "palette"), suffix=".gif"
    ),
    "grey": Kind(write(lambda s: encoded(pixels(s).convert("L"))), converted=("grey",)),
    "transparent": Kind(
        write(lambda s: encoded(pixels(s).convert("RGBA"), "PNG")),
        converted=("transparent",),
        suffix=".png",
    ),
    "invalid EXIF and ICC": Kind(
        write(
            lambda s: with_segment(
                with_segment(jpeg(s), 0xE1, b"Exif\0\0II*\0" + b"\xff" * 64),
                0xE2,
                b"ICC_PROFILE\0\x01\x01" + b"\xff" * 64,
            )
        )
    ),
}


def make_set(root: Path, good: int, broken: int) -> dict[str, Counter[str]]:
    """Write the images under `root`/train and a few good ones under `root`/val; what is to be set
    aside ("aside") and converted ("converted"), by reason and way, and how many of each ("any")."""
    expected = {name: Counter[str]() for name in ("aside", "converted", "any")}
    for number in range(good):
        _place(root, "train", number, ".jpg").write_bytes(jpeg(number % 50))
    for number, (_, kind) in zip(range(broken), _in_turn(), strict=False):
        kind.make(_place(root, "train", good + number, kind.suffix), number)
        expected["aside"].update([kind.aside] if kind.aside else [])
        expected["converted"].update(kind.converted)
        if kind.aside or kind.converted:
            expected["any"]["aside" if kind.aside else "converted"] += 1
    for number in range(2 * CLASSES):
        _place(root, "val", number, ".jpg").write_bytes(jpeg(number))
    return expected


def _in_turn() -> Iterator[tuple[str, Kind]]:
    while True:
        yield from KINDS.items()


def _place(root: Path, split: str, number: int, suffix: str) -> Path:
    folder = root / split / f"class-{number % CLASSES}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{number:05}{suffix}"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--good", type=int, default=GOOD)
    parser.add_argument("--broken", type=int, default=BROKEN)
    parser.add_argument("--threads", type=int, help="input threads; the default where left out")
    parser.add_argument("--limit", default="1GiB", help="memory the worker may take (default 1GiB)")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    return parser.parse_args()


def main() -> int:
    """Make the set, train on it, and compare."""
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        expected = make_set(root / "set", given.good, given.broken)
        spec = RunSpec(
            work=Train(
                network="little-cnn",
                image_size=64,
                batch_per_device=BATCH,
                data="images",
                data_path=str(root / "set"),
            ),
            placement=Placement(device="cpu"),
            program=ProgramSettings(input_threads=given.threads),
            budget=Budget(memory_limit_bytes=parse_size(given.limit)),
        )
        with Executor(Store.open(str(root / "store.sqlite")), machine=probe()) as executor:
            (record,) = executor.run([spec])
    print(f"outcome: {record.outcome.status.value} {record.outcome.message}")
    lines = {
        "images_skipped": expected["aside"],
        "images_converted": expected["converted"],
    }
    exact = record.ok
    for name, counts in lines.items():
        figure = record.figures.get(name)
        wanted = expected["any"]["aside" if name == "images_skipped" else "converted"]
        found = figure is not None and (figure.value, figure.method) == (wanted, by_kind(counts))
        exact = exact and found
        print(
            f"{name}: {figure.value:.0f} of {figure.n} tried" if figure else f"{name}: not reported"
        )
        print(f"  made:  {wanted}: {by_kind(counts)}")
        print(f"  record:{figure.method if figure else '-'}")
    peak = record.figure("peak_memory_bytes")
    if peak is not None:
        print(f"peak memory: {peak / 2**20:.0f} MiB under a limit of {given.limit}")
    print("the counts are exact" if exact else "the counts differ, or the training did not end")
    if given.json:
        given.json.write_text(json.dumps(to_plain(record), indent=2))
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
