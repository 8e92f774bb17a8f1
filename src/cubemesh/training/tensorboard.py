"""TensorBoard event files: the graph of the network and the scalar curves of a training, written
as they grow.

An event file is a sequence of records (TFRecord), each a serialized `Event` protocol buffer:

    8 bytes   length, little-endian        Event: wall_time = 1 (double), step = 2 (int64),
    4 bytes   masked CRC-32C of it                file_version = 3 (string), graph_def = 4 (bytes),
    …         the message                         summary = 5
    4 bytes   masked CRC-32C of it         Summary: value = 1 { tag = 1, simple_value = 2 (float) }

    GraphDef: node = 1 { name = 1, op = 2, input = 3, attr = 5 }, versions = 4 { producer = 1 }
    AttrValue: list = 1 { shape = 7 }, s = 2 (bytes), i = 3 (int64); shape: dim = 2 { size = 1 }

(tensorflow/core/util/event.proto, framework/summary.proto, framework/graph.proto,
framework/attr_value.proto, lib/io/record_writer.h; protobuf.dev/programming-guides/encoding.) The
packages that write event files depend on a framework; the tests read these back with TensorBoard's
own reader if it is installed.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from cubemesh.networks.describe import settings
from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers import ALL_LAYERS, Shape

_PREFIX = "events.out.tfevents"
"""Prefix of every event file's name."""
_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, bits reversed."""
_MASK = 0xA282EAD8
_PRODUCER = 22
"""Version of the format of graphs (tensorflow/core/public/version.h) that has what is used here."""
_ANY_SIZE = b"\xff" * 9 + b"\x01"
"""-1 as a varint of 64 bits: a length that is not known."""


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

    def graph(self, network: Network) -> None:
        """Append the graph of a network, which TensorBoard draws under *Graphs*."""
        self._event(encode_field(4, graph_definition(network)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _event(self, content: bytes) -> None:
        event = b"\x09" + struct.pack("<d", time.time()) + content
        length = struct.pack("<Q", len(event))
        self._file.write(length + _check(length) + event + _check(event))


def graph_definition(network: Network) -> bytes:
    """A serialized `GraphDef`: a node for each input, layer and loss. Segments and the parts of a
    name between points are scopes, which TensorBoard opens and closes."""
    names = {given.name: given.name for given in (*network.inputs, *network.targets)}
    for node in network.nodes:
        scope = node.segment.replace(".", "/")
        path = node.name.replace(".", "/")
        inside = not scope or path == scope or path.startswith(f"{scope}/")
        names[node.name] = path if inside else f"{scope}/{path}"
    kinds = {kind: name for name, kind in ALL_LAYERS.items()}
    nodes = [_node(given.name, "input", (), given.shape) for given in network.inputs]
    nodes += [_node(given.name, "target", (), given.shape) for given in network.targets]
    for node in network.nodes:
        more = {
            "settings": encode_field(2, settings(node.layer).encode()),
            "parameters": b"\x18" + encode_varint(_values(network, node)),
        }
        nodes.append(
            _node(
                names[node.name],
                kinds.get(type(node.layer), "module"),
                [names[name] for name in node.inputs],
                node.shape,
                more,
            )
        )
    for number, head in enumerate(network.heads):
        inputs = (names[head.value], names[head.target])
        nodes.append(_node(f"loss/{head.loss}{number or ''}", head.loss, inputs, ()))
    versions = encode_field(4, b"\x08" + encode_varint(_PRODUCER))
    return b"".join(encode_field(1, node) for node in nodes) + versions


def _values(network: Network, node: Node) -> int:
    return sum(math.prod(network.parameters[name].shape) for name in node.parameters.values())


def _node(
    name: str,
    operation: str,
    inputs: Iterable[str],
    shape: Shape,
    more: Mapping[str, bytes] | None = None,
) -> bytes:
    """A serialized `NodeDef` with the shape of its result for a batch of any size."""
    sizes = (_ANY_SIZE, *map(encode_varint, shape))
    dimensions = b"".join(encode_field(2, b"\x08" + size) for size in sizes)
    attributes = {"_output_shapes": encode_field(1, encode_field(7, dimensions)), **(more or {})}
    return b"".join(
        (
            encode_field(1, name.encode()),
            encode_field(2, operation.encode()),
            *(encode_field(3, each.encode()) for each in inputs),
            *(
                encode_field(5, encode_field(1, key.encode()) + encode_field(2, value))
                for key, value in attributes.items()
            ),
        )
    )


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
