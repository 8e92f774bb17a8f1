"""TensorBoard event files: the scalar curves of a training, written as they grow.

An event file is a sequence of records (TFRecord), each a serialized `Event` protocol buffer:

    8 bytes   length, little-endian        Event: wall_time = 1 (double), step = 2 (int64),
    4 bytes   masked CRC-32C of it                file_version = 3 (string), summary = 5
    …         the message                  Summary: value = 1 { tag = 1, simple_value = 2 (float) }
    4 bytes   masked CRC-32C of it

(tensorflow/core/util/event.proto, framework/summary.proto, lib/io/record_writer.h;
protobuf.dev/programming-guides/encoding.) The packages that write event files depend on a
framework; the tests read these back with TensorBoard's own reader if it is installed.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

_PREFIX = "events.out.tfevents"
"""Prefix of every event file's name."""
_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, bits reversed."""
_MASK = 0xA282EAD8


def event_files(folder: Path) -> list[Path]:
    """The event files in a folder; none if there is no folder."""
    return sorted(folder.glob(f"{_PREFIX}.*"))


class EventFile:
    """A new event file in `folder`. OSError if it cannot be written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{_PREFIX}.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.0"
        self.path = folder / name
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (open until close)
        self._event(encode_field(3, b"brain.Event:2"))

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Append a point of the curve `tag`."""
        point = encode_field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
        self._event(b"\x10" + encode_varint(step) + encode_field(5, encode_field(1, point)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _event(self, content: bytes) -> None:
        event = b"\x09" + struct.pack("<d", time.time()) + content
        length = struct.pack("<Q", len(event))
        self._file.write(length + _check(length) + event + _check(event))


def encode_field(number: int, value: bytes) -> bytes:
    """A length-delimited protobuf field: a string or a message."""
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value


def encode_varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last have the highest bit set."""
    coded = bytearray()
    while value > 0x7F:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*coded, value))


def _check(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc(data))


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted as in TFRecord."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Castagnoli's CRC (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_entry, range(256)))
