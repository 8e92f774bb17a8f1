"""Conversion of an image for a shard: its shorter side, and its quality as JPEG.

An image that is not larger stays as it is, byte for byte. It is decoded nevertheless, at an eighth
of its size, so that an image that cannot be read is found now and not in a training.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from cubemesh.data.images.decode import (
    FORMATS,
    JPEGS,
    PILLOW_PIXELS,
    Decoder,
    Skipped,
    load_decoder,
    reasons,
)
from cubemesh.errors import UsageError

LEAST_SIDE, MOST_SIDE = 8, 8192
LEAST_QUALITY, MOST_QUALITY = 1, 95
"""Pillow's own advice: above 95 a file grows and the image does not improve."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """How images are changed."""

    resize: int | None = None
    """Pixels of the shorter side of images that are larger; None: images stay as they are."""
    quality: int = 90
    """Of JPEG, where an image is resized."""

    def __post_init__(self) -> None:
        if self.resize is not None and not LEAST_SIDE <= self.resize <= MOST_SIDE:
            raise UsageError(
                f"--resize {self.resize}: the shorter side must have {LEAST_SIDE} to {MOST_SIDE} "
                "pixels."
            )
        if not LEAST_QUALITY <= self.quality <= MOST_QUALITY:
            raise UsageError(
                f"--quality {self.quality}: JPEG's must be {LEAST_QUALITY} to {MOST_QUALITY}."
            )


class Converter:
    """Converts images; NotInstalled without Pillow."""

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion
        self._image = load_decoder()
        self._decoder = Decoder(3, 1, 1, PILLOW_PIXELS)

    def convert(self, data: bytes) -> tuple[bytes, str]:
        """The file for the shard, and its format. Skipped with the reason if it cannot be used."""
        if not data:
            raise Skipped("empty file")
        side = self._conversion.resize
        with reasons(), self._image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > PILLOW_PIXELS:
                raise Skipped("too many pixels")
            format_ = "JPEG" if image.format in JPEGS else str(image.format)
            short = min(width, height)
            if side is None or short <= side:
                if format_ == "JPEG":
                    image.draft(None, (1, 1))
                image.load()
                return data, format_
            size = (round(width * side / short), round(height * side / short))
            if format_ == "JPEG":  # decoded at 1/2, 1/4 or 1/8, still of twice the size
                image.draft(None, (2 * size[0], 2 * size[1]))
            return self._encoded(self._decoder.plain(image), size), "JPEG"

    def _encoded(self, image: Any, size: tuple[int, int]) -> bytes:
        file = io.BytesIO()
        resized = image.resize(size, self._image.Resampling.BILINEAR)
        resized.save(file, "JPEG", quality=self._conversion.quality)
        return file.getvalue()
