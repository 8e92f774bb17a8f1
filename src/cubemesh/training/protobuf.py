"""Messages of Protocol Buffers, as much of the wire format as event files need.

A message is its fields one after the other; a field is a key (its number and how it is coded) and a
value: a varint, 8 or 4 bytes, or bytes with their length before them, which hold text, messages and
packed lists (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import struct

_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5


def varint(number: int, value: int) -> bytes:
    """Field `number` as a whole number; negative ones are of 64 bits."""
    return _key(number, _VARINT) + _coded(value)


def double(number: int, value: float) -> bytes:
    """Field `number` in 64 bits."""
    return _key(number, _EIGHT) + struct.pack("<d", value)


def single(number: int, value: float) -> bytes:
    """Field `number` in 32 bits."""
    return _key(number, _FOUR) + struct.pack("<f", value)


def text(number: int, value: str) -> bytes:
    """Field `number` as UTF-8."""
    return message(number, value.encode())


def message(number: int, value: bytes) -> bytes:
    """Field `number` as a message of its own, or as bytes."""
    return _key(number, _LENGTH) + _coded(len(value)) + value


def _key(number: int, coding: int) -> bytes:
    return _coded(number << 3 | coding)


def _coded(value: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last have the highest bit set."""
    value &= (1 << 64) - 1
    coded = bytearray()
    while value > 0x7F:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    coded.append(value)
    return bytes(coded)
