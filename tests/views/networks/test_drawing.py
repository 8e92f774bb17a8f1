"""Rows, lanes and repeated blocks of a network's drawing, and its files."""

import re
from collections import Counter
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from cubemesh import network_layers
from cubemesh.errors import DataError, UsageError
from cubemesh.networks import NETWORKS
from cubemesh.networks.describe import layer_rows
from cubemesh.networks.zoo.resnet import resnet_18
from cubemesh.views.networks.blocks import folded_rows, grouped
from cubemesh.views.networks.drawing import WIDTH, _lines, draw_network, write_drawing


def test_a_layer_takes_in_what_only_it_feeds():
    rows = {row.name: row for row in folded_rows(layer_rows(resnet_18(32, 10)))}
    assert rows["conv1"].followed_by == ("batch-norm", "relu")
    assert rows["conv1"].value == "relu"
    assert rows["conv1"].parameters == 3 * 64 * 49 + 128
    assert rows["layer1.0.add"].followed_by == ("relu",)
    assert rows["layer1.0.conv2"].followed_by == ("batch-norm",)
    assert "layer1.0.bn2" not in rows


@pytest.mark.parametrize("name", ["resnet-152", "gpt2", "googlenet-paper", "translator", "vgg16"])
def test_every_layer_is_drawn_or_counted(name):
    layers = network_layers(name).layers
    groups = grouped(folded_rows(layers))
    drawn = sum(g.times * sum(1 + len(r.followed_by) for r in g.rows) for g in groups)
    assert drawn == len(layers)
    parameters = sum(g.times * sum(r.parameters for r in g.rows) for g in groups)
    assert parameters == sum(layer.parameters for layer in layers)


def test_equal_blocks_are_drawn_once():
    groups = grouped(folded_rows(network_layers("resnet-152").layers))
    assert [g.times for g in groups if g.times > 1] == [2, 7, 35, 2]
    (blocks,) = (g for g in groups if g.times == 35)
    assert [row.name.rpartition(".")[2] for row in blocks.rows] == [
        *("conv1", "conv2", "conv3", "add")
    ]
    transformer = grouped(folded_rows(network_layers("gpt2").layers))
    assert Counter(g.times for g in transformer)[12] == 1


@pytest.mark.parametrize("name", NETWORKS)
def test_lanes_carry_each_value_to_where_it_is_read(name):
    lines = _lines(network_layers(name))
    for place, (one, following) in enumerate(pairwise(lines), start=1):
        reached = {*following.arriving, *following.passing}
        assert one.lane not in one.passing
        assert set(one.passing) <= reached <= {*one.passing, one.lane}
        if one.lane not in reached:  # scores of an auxiliary head
            assert not any(one.row.value in later.row.inputs for later in lines[place:])
        assert len(following.arriving) == len(set(following.row.inputs))
    assert lines[-1].row.name == "loss"


@pytest.mark.parametrize("name", ["little-cnn", "inception-v3", "resnet-50"])
def test_a_drawing_is_as_wide_as_a_telephone(name):
    found = network_layers(name)
    drawing = ElementTree.fromstring(draw_network(found))
    assert float(drawing.get("width", "0")) == WIDTH == 390
    texts = [e for e in drawing.iter() if e.tag.endswith("text")]
    assert all(0 <= float(e.get("x", "-1")) <= WIDTH for e in texts)
    assert min(float(e.get("font-size", "0")) for e in texts) >= 10
    right = [e.text for e in texts if e.get("text-anchor") == "end"]
    assert "×".join(map(str, found.summary.input_shape)) in right
    assert any("cross-entropy" in (e.text or "") for e in texts)


def test_a_tooltip_has_what_a_line_has_no_room_for():
    svg = draw_network(network_layers("resnet-50"))
    (title,) = re.findall(r"<title>(conv1: [^<]*)</title>", svg)
    assert "convolution 7×7, 64, stride 2, padding 3, no bias + batch-norm + relu" in title
    assert "9,536 parameters" in title


def test_files(tmp_path):
    found = network_layers("little-cnn")
    write_drawing(tmp_path / "net.svg", found)
    assert (tmp_path / "net.svg").read_text().startswith("<svg")
    with pytest.raises(UsageError, match=r"net\.pdf: .*\.svg, \.png"):
        write_drawing(tmp_path / "net.pdf", found)
    with pytest.raises(DataError, match="cannot be written"):
        write_drawing(tmp_path / "none" / "net.svg", found)


def test_a_png(tmp_path):
    pytest.importorskip("vl_convert")
    write_drawing(tmp_path / "net.png", network_layers("little-cnn"))
    assert (tmp_path / "net.png").read_bytes().startswith(b"\x89PNG")
