"""Event files are read back: by a reader written here from the format's definition, and by
TensorBoard's own where it is installed."""

import struct

import pytest

from cubemesh.training.tensorboard import EventFile, crc32c, masked_crc


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, value) of each field of a message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size, at = (8, at) if key & 7 == 1 else (4, at) if key & 7 == 5 else varint(data, at)
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def records(path):
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = data[12 : 12 + length]
        assert struct.unpack("<I", data[8:12])[0] == masked_crc(data[:8])
        assert struct.unpack("<I", data[12 + length : 16 + length])[0] == masked_crc(event)
        yield event
        data = data[16 + length :]


@pytest.fixture
def board(tmp_path):
    board = EventFile(tmp_path / "tb")
    for step in (1, 300):
        board.scalar("loss/training", 2.5 / step, step)
    yield board
    board.close()


def test_the_checksum_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of RFC 3720's polynomial
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4


def test_curves_are_read_back(board):
    version, *points = records(board.path)
    assert dict(fields(version))[3] == b"brain.Event:2"
    found = []
    for point in points:
        event = dict(fields(point))
        ((_, value),) = fields(event[5])
        value = dict(fields(value))
        found.append((event[2], value[1], struct.unpack("<f", value[2])[0]))
    assert found == [
        (1, b"loss/training", 2.5),
        (300, b"loss/training", pytest.approx(2.5 / 300)),
    ]


def test_tensorboards_own_reader_reads_the_file(board):
    loading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader",
        reason="tensorboard is not installed",
    )
    events = list(loading.EventFileLoader(str(board.path)).Load())
    assert events[0].file_version == "brain.Event:2"
    values = [(e.step, v.tag, v) for e in events for v in e.summary.value]
    assert [(step, tag) for step, tag, _ in values] == [
        (1, "loss/training"),
        (300, "loss/training"),
    ]
