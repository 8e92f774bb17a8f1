"""Encoded images, passed on undecoded for a device to decode.

The host reads them, parses their headers and chooses the crops; bytes and boxes go to the device.
Files that a device's decoder does not support (see `jpeg_header.py`) or rejects are decoded on the
host and counted, so the same images are skipped, for the same reasons, wherever they are decoded.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from cubemesh.batches import PADDING, Batch, EncodedBatch, EncodedImage, Pixels
from cubemesh.data.images.decode import LARGE_PIXELS, Augmentation, Skipped, conversions
from cubemesh.data.images.image_source import ImageSource
from cubemesh.data.images.jpeg_header import plain_header

NOT_PLAIN, LARGE, REFUSED = "no plain JPEG", "large", "refused by the device's decoder"
"""Why the host decodes an image in place of the device."""


class EncodedSource(ImageSource):
    """An image source with batches of `EncodedBatch`: plain JPEG files are left to the device."""

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`."""
        return EncodedBatch(np.empty(samples, object), labels=np.empty(samples, np.int64))

    def made(self, number: int, draw: Augmentation | None) -> Pixels | EncodedImage | None:
        """The file, or pixels where the device cannot decode it."""
        if self.ledger.is_left_to_host(number):
            return self.decoded(number, draw)
        if self.ledger.reason(number) is not None:
            return None
        try:
            data = self.encoded.read(number)
        except Skipped as reason:
            self.ledger.skip(number, str(reason))
            return None
        header = plain_header(data)
        if header is None or header.pixels > min(self.max_pixels, LARGE_PIXELS):
            return self._left_to_host(number, draw, NOT_PLAIN if header is None else LARGE)
        if converted := tuple(conversions("JPEG", header.mode, self.encoded.name(number))):
            self.ledger.convert(number, converted)
        box, mirrored = self.decoder.crop(number, header.width, header.height, draw)
        return EncodedImage(
            data=data,
            size=(header.width, header.height),
            box=box,
            mirrored=mirrored,
            whole=partial(self._whole, data),
            by_host=partial(self._by_host, number, draw),
            progressive=header.progressive,
        )

    def put(self, made: Pixels | EncodedImage | None, into: Batch, row: int) -> None:
        """See `ImageSource.put`."""
        into.images[row] = np.zeros(self.shape, np.uint8) if made is None else made

    def _whole(self, data: bytes) -> Pixels | None:
        try:
            return self.decoder.whole(data)
        except Skipped:
            return None  # `_by_host` finds the reason

    def _by_host(self, number: int, draw: Augmentation | None) -> tuple[Pixels, int]:
        pixels = self._left_to_host(number, draw, REFUSED)
        if pixels is not None:
            return pixels, int(self.encoded.labels[number])
        used, pixels = self.usable(number, partial(self.decoded, draw=draw))
        if used is None or pixels is None:
            return np.zeros(self.shape, np.uint8), PADDING
        return pixels, int(self.encoded.labels[used])

    def _left_to_host(self, number: int, draw: Augmentation | None, reason: str) -> Pixels | None:
        pixels = self.decoded(number, draw)
        if pixels is not None:
            self.ledger.leave_to_host(number, reason)
        return pixels
