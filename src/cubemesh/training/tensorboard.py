"""A training as TensorBoard shows it: curves as they grow, and the network's graph.

An event file is a row of records (TFRecord), each an `Event` message:

    8 bytes   length, little-endian        Event: wall_time = 1 (double), step = 2 (int64),
    4 bytes   masked CRC-32C of it                file_version = 3 | graph_def = 4 | summary = 5
    …         the message                  Summary: value = 1 { tag = 1, simple_value = 2 (float) }
    4 bytes   masked CRC-32C of it

(tensorflow/core/util/event.proto, framework/summary.proto, lib/io/record_writer.h.) It is written
here because the packages that write it bring a framework along and there is little to it; the tests
read it back by TensorBoard's own reader where that is installed.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

from cubemesh.networks.graph import Network
from cubemesh.training import protobuf
from cubemesh.training.tensorboard_graph import graph_def

_VERSION = "brain.Event:2"
_BEGINS = "events.out.tfevents"
"""The name of every event file does."""
_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, bits reversed."""
_MASK = 0xA282EAD8


def event_files(folder: Path) -> list[Path]:
    """Those in a folder; none where there is no folder."""
    return sorted(folder.glob(f"{_BEGINS}.*"))


class EventFile:
    """An event file of its own in `folder`, growing with every call. OSError where it cannot be
    written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{_BEGINS}.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.0"
        self.path = folder / name
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (held until close)
        self._event(protobuf.text(3, _VERSION))

    def scalar(self, tag: str, value: float, step: int) -> None:
        """A point of the curve `tag`."""
        shown = protobuf.text(1, tag) + protobuf.single(2, value)
        self._event(protobuf.varint(2, step) + protobuf.message(5, protobuf.message(1, shown)))

    def graph(self, network: Network) -> None:
        """The network, layer by layer."""
        self._event(protobuf.message(4, graph_def(network)))

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def _event(self, content: bytes) -> None:
        event = protobuf.double(1, time.time()) + content
        length = struct.pack("<Q", len(event))
        self._file.write(length + _check(length) + event + _check(event))


def _check(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc(data))


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted, as TFRecord has it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_entry, range(256)))
