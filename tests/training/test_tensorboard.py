"""Event files are read back: by a reader written here from the format's definition, and by
TensorBoard's own where it is installed."""

import struct

import pytest

from cubemesh.networks import build
from cubemesh.training.tensorboard import EventFile, crc32c, graph_definition, masked_crc


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


def nodes_of(graph):
    """Name → (operation, inputs, attributes) of each node of a GraphDef."""
    found = {}
    for number, node in fields(graph):
        if number == 1:
            parts = list(fields(node))
            attributes = {}
            for _, entry in (part for part in parts if part[0] == 5):
                entry = dict(fields(entry))
                attributes[entry[1].decode()] = dict(fields(entry[2]))
            texts = [(n, v.decode()) for n, v in parts if n in (1, 2, 3)]
            name, operation = texts[0][1], texts[1][1]
            assert name not in found
            found[name] = operation, [v for n, v in texts if n == 3], attributes
    return found


def shape_of(attributes):
    (shape,) = (value for _, value in fields(attributes["_output_shapes"][1]))
    return [dict(fields(size))[1] for _, size in fields(shape)]


@pytest.mark.parametrize("name", ["resnet-18", "googlenet-paper", "translator"])
def test_the_graph_has_every_layer_with_its_inputs_and_shape(tmp_path, name):
    network = build(name)
    events = EventFile(tmp_path)
    events.graph(network)
    events.close()
    _, event = records(events.path)
    nodes = nodes_of(dict(fields(event))[4])
    ends = (*network.inputs, *network.targets, *network.heads)
    assert len(nodes) == len(network.nodes) + len(ends)
    assert all(inputs <= nodes.keys() for inputs in (set(i) for _, i, _ in nodes.values()))
    assert [v for n, v in fields(dict(fields(event))[4]) if n == 4]  # its version
    total = sum(a["parameters"][3] for _, _, a in nodes.values() if "parameters" in a)
    assert total >= network.parameter_count  # shared ones count at each layer


def test_layers_are_named_by_their_scopes():
    network = build("resnet-18")
    nodes = nodes_of(graph_definition(network))
    operation, inputs, attributes = nodes["layer1/0/add"]
    assert (operation, inputs) == ("add", ["layer1/0/bn2", "stem/maxpool"])
    assert shape_of(attributes) == [2**64 - 1, 64, 56, 56]  # -1: any batch
    assert nodes["stem/conv1"][2]["settings"][2] == "7×7, 64, stride 2, padding 3, no bias".encode()
    assert nodes["loss/cross_entropy"][1] == ["classifier/fc", "label"]


def test_tensorboards_own_reader_reads_the_graph(tmp_path):
    loading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader",
        reason="tensorboard is not installed",
    )
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    events = EventFile(tmp_path)
    events.graph(build("little-cnn"))
    events.close()
    loaded = [e for e in loading.EventFileLoader(str(events.path)).Load() if e.graph_def]
    graph = GraphDef.FromString(loaded[0].graph_def)
    assert [n.op for n in graph.node][:3] == ["input", "target", "convolution"]
    assert graph.node[2].attr["_output_shapes"].list.shape[0].dim[0].size == -1
