"""Generated JPEG photographs of realistic size, for input benchmarks.

1,024 files of 500 × 375 pixels and about 110 kB, as ImageNet's are in the mean, in ten classes.
They are 128 different pictures, large soft shapes with grain, written eight times each: the files
are all different, so disk, page cache and decoder work as with a real set of that size. They are
for speed only. They are generated once, in some seconds, in the cache folder (113 MB); the folder
is renamed when it is complete.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from cubemesh.data.images.decode import load_decoder
from cubemesh.data.images.open_images import ImageOptions, open_images
from cubemesh.data.source import Shape, Source, Split
from cubemesh.errors import DataError
from cubemesh.user_folders import cache_folder

NAME = "made-images"
FILES = 1024
DIFFERENT = 128
CLASSES = 10
WIDTH, HEIGHT = 500, 375
QUALITY = 90
GRAIN = 20.0
"""Standard deviation, of values 0 to 255; with `QUALITY` it gives files of 110 kB."""
_SEED = 0
VERSION = 1
"""Version of the images; each has its own folder."""


def open_generated(split: Split, shape: Shape, classes: int, options: ImageOptions) -> Source:
    """The images of `split`, generated if necessary; otherwise as `open_images`."""
    source = open_images(folder(), split, shape, classes, options)
    source.name = NAME
    return source


def folder() -> Path:
    """Their folder, generated if necessary; DataError if there is no space."""
    place = cache_folder() / f"{NAME}-{VERSION}-{FILES}"
    if place.is_dir():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=place.parent))
        try:
            _make(made)
            _take_name(made, place)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"The images of data={NAME} cannot be generated in {place.parent}: "
            f"{error.strerror}. Make room there (113 MB), or set XDG_CACHE_HOME to another folder."
        ) from error
    return place


def _take_name(made: Path, place: Path) -> None:
    """Rename the folder, unless another process was first."""
    try:
        made.rename(place)
    except OSError:
        if not place.is_dir():
            raise


def _make(root: Path) -> None:
    made = pictures()
    for number in range(FILES):
        place = root / f"class-{number % CLASSES}"
        place.mkdir(exist_ok=True)
        (place / f"{number:05}.jpg").write_bytes(made[number % DIFFERENT])
    for path in root.rglob("*.jpg"):  # dirty pages cannot be dropped from the page cache
        with open(path, "rb") as file:
            os.fdatasync(file.fileno())


def pictures(count: int = DIFFERENT) -> list[bytes]:
    """The first pictures of the `DIFFERENT` ones, as JPEG."""
    return [_picture(np.random.default_rng((_SEED, n))) for n in range(min(count, DIFFERENT))]


def _picture(generator: np.random.Generator) -> bytes:
    image = load_decoder()
    shapes = (generator.random((HEIGHT // 25, WIDTH // 25, 3)) * 255).astype(np.uint8)
    soft = image.fromarray(shapes).resize((WIDTH, HEIGHT), image.Resampling.BICUBIC)
    grain = generator.standard_normal((HEIGHT, WIDTH, 3), np.float32) * GRAIN
    file = io.BytesIO()
    pixels = (np.asarray(soft) + grain).clip(0, 255).astype(np.uint8)
    image.fromarray(pixels).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
