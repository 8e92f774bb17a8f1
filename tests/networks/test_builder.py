from __future__ import annotations

import pytest

from cubemesh.errors import UsageError
from cubemesh.networks.assembly import of_documents, takes_documents
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import PositionEmbedding


def tied() -> NetworkBuilder:
    net = NetworkBuilder("tied")
    x = net.input("image", (8,))
    x = net.linear(x, 8, name="first")
    x = net.relu(x)
    x = net.linear(x, 8, name="second", share={"weight": "first.weight"})
    net.classify(x)
    return net


def test_nodes_are_numbered_by_their_layer_and_know_their_shape():
    net = NetworkBuilder("net")
    x = net.input("image", (3, 8, 8))
    with net.segment("block"):
        x = net.relu(net.conv(x, 4, kernel=3, padding=1))
        x = net.conv(x, 4, kernel=3, stride=2)
    with net.segment("classifier"):
        x = net.linear(net.flatten(x), 5)
    net.classify(x)
    network = net.build()
    assert [n.name for n in network.nodes] == ["conv1", "relu1", "conv2", "flatten1", "fc1"]
    assert network.shapes["conv2"] == (4, 3, 3)
    assert network.shapes["image"] == (3, 8, 8)
    assert network.shapes["label"] == ()
    assert network.targets[0].classes == 5
    assert network.output == "fc1"
    assert [(s.name, s.nodes) for s in network.segments] == [
        ("block", ("conv1", "relu1", "conv2")),
        ("classifier", ("flatten1", "fc1")),
    ]
    assert list(network.parameters) == [
        "conv1.weight",
        "conv1.bias",
        "conv2.weight",
        "conv2.bias",
        "fc1.weight",
        "fc1.bias",
    ]
    with pytest.raises(KeyError):
        network.shapes["conv3"]


def test_a_shared_parameter_exists_once():
    network = tied().build()
    assert list(network.parameters) == ["first.weight", "first.bias", "second.bias"]
    assert network.parameter_count == 64 + 8 + 8
    assert network.nodes[2].parameters == {"weight": "first.weight", "bias": "second.bias"}


@pytest.mark.parametrize(
    ("share", "message"),
    [
        ({"weight": "third.weight"}, r"'third\.weight'.*\(8, 8\)"),
        ({"weight": "first.bias"}, r"'first\.bias'.*\(8, 8\)"),
        ({"wieght": "first.weight"}, "'wieght'.*weight, bias"),
    ],
)
def test_sharing_what_cannot_be_shared_is_refused(share, message):
    with pytest.raises(UsageError, match=message):
        tied().linear("second", 8, share=share)


def test_mistakes_in_writing_a_network_are_named():
    net = tied()
    with pytest.raises(UsageError, match="'first'"):
        net.linear("image", 8, name="first")
    with pytest.raises(UsageError, match="'nothing'"):
        net.relu("nothing")
    lonely = NetworkBuilder("lonely")
    lonely.linear(lonely.input("image", (8,)), 2)
    with pytest.raises(UsageError, match=r"lonely .*\bclassify\(\)"):
        lonely.build()


def test_a_segment_in_pieces_is_refused():
    net = NetworkBuilder("net")
    x = net.input("image", (8,))
    for segment in ("a", "b", "a"):
        with net.segment(segment):
            x = net.linear(x, 8)
    net.classify(x)
    with pytest.raises(UsageError, match="segment 'a'"):
        net.build()


def test_a_segment_ends_even_when_its_writing_fails():
    net = NetworkBuilder("net")
    x = net.input("image", (8,))
    with pytest.raises(UsageError), net.segment("a"):
        net.relu("nothing")
    net.classify(net.linear(x, 8))
    assert [s.name for s in net.build().segments] == [""]


def test_what_a_value_needs_leaves_the_rest_out():
    net = NetworkBuilder("net")
    x = net.relu(net.input("image", (3, 4, 4)), name="trunk")
    side = net.flatten(net.relu(x, name="side"), name="side_flat")
    main = net.flatten(net.concat(x, x, name="both"), name="main")
    net.classify(side, weight=0.3, train_only=True)
    net.classify(main)
    network = net.build()
    assert network.shapes["both"] == (6, 4, 4)
    assert [n.name for n in network.needed(network.output)] == ["trunk", "both", "main"]
    assert network.needed("side", "main") == tuple(
        n for n in network.nodes if n.name != "side_flat"
    )
    assert network.needed("image") == ()


def test_packing_takes_names_that_no_value_has():
    net = NetworkBuilder("own")
    x = net.embedding(net.token_input("tokens", 6, 9), 16)
    x = net.add_layer(PositionEmbedding(), x, name="positions")
    x = net.attention(net.linear(x, 48, name="document_mask"), 4)
    net.classify(net.linear(x, 9))
    plain = net.build()
    packed = of_documents(plain)
    assert (takes_documents(plain), takes_documents(packed)) == (False, True)
    assert packed.inputs[1].name == "positions_2"
    assert packed.shapes["positions"] == (6, 16)
    assert packed.shapes["document_mask"] == (6, 48)
    assert packed.shapes["document_mask_2"] == (6, 6)
