"""JPEG header parser: whether a device can decode a file.

A JPEG is a row of segments: FF, a byte that names the segment, two bytes of length, content (ITU-T
T.81, annex B). Size and kind are in the frame header, before the first scan. Parsing it takes some
microseconds; opening the image with Pillow takes many times as long, and the GIL.

*Plain* files are those that all decoders read alike: baseline, extended or progressive Huffman
coding (SOF0 to SOF2), 8 bits, grey or YCbCr, one frame, and an end marker. All others, and those
that look damaged, are decoded on the host. So are files with markers without a length (D0 to D9)
before the scan: what a decoder skips must not look like a frame here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_PROGRESSIVE = 0xC2
_HUFFMAN_FRAMES = (0xC0, 0xC1, _PROGRESSIVE)
_OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Lossless, hierarchical and arithmetic ones; the three left out are tables."""
_WITHOUT_LENGTH = frozenset(range(0xD0, 0xDA))
"""Restarts, and the start and the end of an image: none belongs between the tables."""
_REFUSED = _OTHER_FRAMES | _WITHOUT_LENGTH | frozenset(range(0xC0)) | {0xFF}
_START_OF_SCAN = 0xDA
_ADOBE = 0xEE


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """The frame header of a plain JPEG."""

    width: int
    height: int
    """In pixels."""
    colours: int
    """1, or 3."""
    progressive: bool = False
    """Whether it has several scans, which hardware decoders do not support."""

    @property
    def pixels(self) -> int:
        """Of the whole image."""
        return self.width * self.height

    @property
    def mode(self) -> str:
        """As Pillow calls it."""
        return "L" if self.colours == 1 else "RGB"


def plain_header(data: bytes) -> JpegHeader | None:
    """The header of a plain JPEG; None for other data."""
    if data[:2] != b"\xff\xd8" or data[-2:] != b"\xff\xd9":
        return None
    at = 2
    found: JpegHeader | None = None
    while at + 4 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:  # any number of them may fill the space between segments
            at += 1
            continue
        if kind == _START_OF_SCAN:
            return found
        if kind in _REFUSED:
            return None
        length = data[at + 2] << 8 | data[at + 3]  # its own two bytes among them
        if kind in _HUFFMAN_FRAMES:
            frame = _frame(data[at + 4 : at + 2 + length], kind == _PROGRESSIVE)
            if found is not None or frame is None:
                return None
            found = frame
        elif kind == _ADOBE and _is_adobe_rgb(data[at + 4 : at + 16]):
            return None
        at += 2 + length
    return None


def _frame(content: bytes, progressive: bool) -> JpegHeader | None:
    """The frame header, if it has 8 bits and one or three colours."""
    if len(content) < 6:
        return None
    bits, height, width, colours = struct.unpack(">BHHB", content[:6])
    is_rgb = content[6::3] == b"RGB"  # components with these names are RGB
    if bits != 8 or colours not in (1, 3) or is_rgb or not width or not height:
        return None
    if len(content) != 6 + 3 * colours:
        return None
    return JpegHeader(width, height, colours, progressive)


def _is_adobe_rgb(content: bytes) -> bool:
    """Whether Adobe's segment states that three colours are not YCbCr."""
    return content[:5] == b"Adobe" and content[11:] == b"\0"
