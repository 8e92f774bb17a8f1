"""Image decoding to the size a network takes; files are not trusted.

Pillow decodes (its C code releases the GIL, so threads help). The header decides whether a file is
decoded at all, by its format and number of pixels; an image that the decoder rejects is skipped.
Convertible images are converted and counted: grey, CMYK, palettes, transparency (dropped), 16 bits
(the upper 8), the first frame of an animation, a wrong extension. EXIF and colour profiles are not
read, as in common training programs.

A crop is resized directly from the decoded image, with Pillow's bilinear filter, which averages
when the image shrinks. JPEG is decoded at 1/2, 1/4 or 1/8 if the crop allows.

- Training: a crop of 8 to 100 % of the area and of sides 3:4 to 4:3, both drawn at random, ten
  tries, mirrored half the time (C. Szegedy et al., Going Deeper with Convolutions, CVPR 2015).
- Evaluation: the shorter side is resized to 8/7 of the network's (256 for 224), the middle is
  cropped (A. Krizhevsky et al., ImageNet Classification, NIPS 2012).
"""

from __future__ import annotations

import io
import itertools
import math
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Box, Pixels
from cubemesh.frameworks.contract.program import NotInstalled

FORMATS = ("JPEG", "PNG", "GIF", "BMP")
"""Formats that are decoded."""
JPEGS = ("JPEG", "MPO")
"""MPO: a JPEG followed by a second image, as some cameras write it."""
SUFFIXES = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".gif": "GIF", ".bmp": "BMP"}
"""File name extensions of images → format."""
LARGE_PIXELS = 1 << 23
"""Larger images are decoded one at a time, so that memory does not grow with the threads."""
PILLOW_PIXELS = 89_478_485
"""Pillow's own warning limit, and the maximum of `max_image_pixels`."""
EVALUATED_FRACTION = 224 / 256
"""Side of the crop for evaluation, as a fraction of the shorter side."""
AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
_LOG_RATIO = math.log(RATIO[0]), math.log(RATIO[1])


class Skipped(Exception):
    """An image that cannot be used; the message is the reason, the same for all of its kind."""


@dataclass(frozen=True)
class Decoded:
    """An image of the network's size."""

    pixels: Pixels
    converted: tuple[str, ...]
    """Conversions that were made; empty for an ordinary image."""


@dataclass(frozen=True)
class Augmentation:
    """Data augmentation of one epoch: crops and mirroring, by seed and epoch."""

    seed: int
    epoch: int

    def box(self, number: int, width: int, height: int) -> tuple[Box, bool]:
        """The crop of image `number`, and whether it is mirrored."""
        draws = uniform_numbers(f"{self.seed} {self.epoch} {number}").__next__
        return random_crop(draws, width, height), draws() < 0.5


def uniform_numbers(name: str) -> Iterator[float]:
    """Endless numbers from 0 to 1, reproducible by name. A hash gives eight of them, in a third
    of the time that seeding a generator takes; thousands of images per second need some each."""
    for block in itertools.count():
        digest = blake2b(name.encode(), salt=block.to_bytes(blake2b.SALT_SIZE)).digest()
        for number in struct.unpack("<8Q", digest):
            yield (number >> 11) * 2.0**-53


def load_decoder() -> ModuleType:
    """Pillow's `Image`; `NotInstalled` with the command that installs it where it is missing."""
    try:
        from PIL import Image
    except ImportError as error:
        raise NotInstalled(
            f"Images are decoded by Pillow, which is not installed ({error}). Install it with: "
            "pip install 'cubemesh[images]'"
        ) from error
    Image.preinit()  # now, because it is not thread-safe
    return Image


class Decoder:
    """Decodes images for a network that takes `channels` (1 or 3) × `height` × `width`."""

    def __init__(self, channels: int, height: int, width: int, max_pixels: int) -> None:
        self._image = load_decoder()
        self._mode = {1: "L", 3: "RGB"}[channels]
        self._size = (width, height)
        self._max_pixels = max_pixels
        self._large = threading.Lock()

    def decode(
        self, data: bytes, name: str, number: int = 0, draw: Augmentation | None = None
    ) -> Decoded:
        """The image in `data`, cropped by `draw` for image `number`, or for evaluation.

        Skipped with the reason if it cannot be used; MemoryError is left to the caller.
        """
        if not data:
            raise Skipped("empty file")
        with reasons(), self._image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > self._max_pixels:
                raise Skipped("too many pixels")
            box, mirrored = self.crop(number, width, height, draw)
            format_ = "JPEG" if image.format in JPEGS else image.format
            animated = format_ in ("GIF", "PNG") and getattr(image, "is_animated", False)
            converted = tuple(conversions(format_, image.mode, name, animated=animated))
            if width * height > LARGE_PIXELS:
                with self._large:
                    pixels = self._pixels(image, box)
            else:
                pixels = self._pixels(image, box)
        if mirrored:
            pixels = pixels[:, :, ::-1]
        return Decoded(pixels, converted)

    def crop(
        self, number: int, width: int, height: int, draw: Augmentation | None
    ) -> tuple[Box, bool]:
        """The crop of image `number` by `draw`, or for evaluation; and whether it is mirrored."""
        if draw is None:
            return centre_crop(width, height, *self._size), False
        return draw.box(number, width, height)

    def whole(self, data: bytes) -> Pixels:
        """All of the image in `data`, in its own size; Skipped with the reason."""
        with reasons(), self._image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.size[0] * image.size[1] > self._max_pixels:
                raise Skipped("too many pixels")
            return _channels_first(self.plain(image))

    def _pixels(self, image: Any, box: Box) -> Pixels:
        width, height = image.size
        across, down = box[2] - box[0], box[3] - box[1]
        wanted = (
            math.ceil(width * self._size[0] / across),
            math.ceil(height * self._size[1] / down),
        )
        if image.format in JPEGS and image.mode in ("RGB", "L"):
            image.draft(self._mode, wanted)
            scale_x, scale_y = image.size[0] / width, image.size[1] / height
            box = (box[0] * scale_x, box[1] * scale_y, box[2] * scale_x, box[3] * scale_y)
        plain = self.plain(image)
        # Pillow refuses a box that rounding has moved beyond the edge.
        box = (box[0], box[1], min(box[2], plain.size[0]), min(box[3], plain.size[1]))
        resized = plain.resize(self._size, self._image.Resampling.BILINEAR, box=box)
        return _channels_first(resized)

    def plain(self, image: Any) -> Any:
        """The image in 8 bits a channel and in the channels the network takes."""
        if image.mode.startswith("I"):
            upper = np.asarray(image).clip(0, 65535) >> 8
            image = self._image.fromarray(upper.astype(np.uint8))
        elif image.mode == "P":
            image = image.convert("RGBA")  # a palette may have transparency
        if image.mode != self._mode:
            return image.convert(self._mode)
        image.load()
        return image


_MODES = {
    **dict.fromkeys(("1", "L"), "grey"),
    **dict.fromkeys(("LA", "RGBA"), "transparent"),
    **dict.fromkeys(("P", "PA"), "palette"),
}


def conversions(found: str, mode: str, name: str, *, animated: bool = False) -> Iterator[str]:
    """The conversions needed by an image in the format `found`."""
    named = SUFFIXES.get(os.path.splitext(name)[1].lower())
    if named is not None and named != found:
        yield f"{found} named as {named}"
    if animated:
        yield "animated (first frame)"
    if mode.startswith("I"):
        yield "16 bits"
    elif mode != "RGB":
        yield _MODES.get(mode, mode)


def _channels_first(image: Any) -> Pixels:
    pixels: NDArray[np.uint8] = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


@contextmanager
def reasons() -> Iterator[None]:
    """Turn every error of the decoder into `Skipped` with a reason."""
    try:
        yield
    except (Skipped, MemoryError):
        raise
    except Exception as error:
        raise Skipped(_reason(error)) from error


def _reason(error: Exception) -> str:
    kind = type(error).__name__
    if kind == "UnidentifiedImageError":
        return "not an image that is read"
    if kind == "DecompressionBombError":
        return "too many pixels"
    if "truncated" in str(error).lower() or isinstance(error, EOFError):
        return "truncated"
    return "damaged"


def _between(ends: tuple[float, float], share: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * share


def centre_crop(width: int, height: int, to_width: int, to_height: int) -> Box:
    """The crop for evaluation: 7/8 of the largest centre crop in this shape."""
    scale = EVALUATED_FRACTION * min(width / to_width, height / to_height)
    return _centred(width, height, to_width * scale, to_height * scale)


def random_crop(draw: Callable[[], float], width: int, height: int) -> Box:
    """A training crop by random numbers from 0 to 1 (`draw`); after ten failed tries, the
    largest allowed crop from the middle."""
    for _ in range(TRIES):
        area = width * height * _between(AREA, draw())
        ratio = math.exp(_between(_LOG_RATIO, draw()))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left = int(draw() * (width - across + 1))
            top = int(draw() * (height - down + 1))
            return left, top, left + across, top + down
    shape = min(max(width / height, RATIO[0]), RATIO[1])
    return _centred(width, height, min(width, height * shape), min(height, width / shape))


def _centred(width: int, height: int, across: float, down: float) -> Box:
    left, top = (width - across) / 2, (height - down) / 2
    return left, top, left + across, top + down
