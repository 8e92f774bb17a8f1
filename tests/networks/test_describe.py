from __future__ import annotations

import math

import pytest

from cubemesh.errors import UsageError
from cubemesh.networks import NETWORKS, build
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.describe import layer_rows, settings, summary
from cubemesh.networks.layers import Convolution, Dropout, Linear, LocalResponseNorm, MaxPool, ReLU


def test_a_summary_has_the_reference_counts():
    found = summary("ResNet50")
    assert found.name == "resnet-50"
    assert found.parameters == 25_557_032
    assert found.input_shape == (3, 224, 224)
    assert found.classes == 1000
    assert found.forward_flops == 8_178_368_512
    # Twice forward, but for the first convolution's data gradient: 2 · 64 · 112² · 147.
    assert found.backward_flops == 2 * 8_178_368_512 - 2 * 64 * 112**2 * 147
    assert "He et al." in found.source


def test_a_summary_has_the_parameters_of_an_evaluation():
    assert summary("resnet-18").evaluation_parameters == 11_689_512
    found = summary("inception-v3")
    assert (found.parameters, found.evaluation_parameters) == (27_161_264, 23_834_568)


def test_a_summary_at_another_size():
    found = summary("vgg16", image_size=32, classes=10)
    assert found.input_shape == (3, 32, 32)
    assert found.classes == 10
    assert found.parameters == 33_638_218
    with pytest.raises(UsageError, match="smallest"):
        summary("vgg16", image_size=31)


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_add_up_to_the_summary(name):
    network, whole = build(name), summary(name)
    rows = layer_rows(network)
    assert len(rows) == whole.layers
    assert sum(r.parameters for r in rows) == whole.parameters
    assert sum(r.forward_flops for r in rows) == whole.forward_flops
    flops = {"cross_entropy": 5, "detection": 4, "mean": 1}
    loss_flops = sum(
        flops[head.loss] * math.prod(network.shapes[head.value]) for head in network.heads
    )
    assert sum(r.forward_other_flops for r in rows) + loss_flops == whole.forward_other_flops


def test_a_row():
    row = layer_rows(build("resnet-50"))[0]
    assert (row.name, row.layer, row.segment) == ("conv1", "convolution", "stem")
    assert row.settings == "7×7, 64, stride 2, padding 3, no bias"
    assert row.output_shape == (64, 112, 112)
    assert row.parameters == 9408
    assert row.forward_moved_bytes == 4 * (3 * 224**2 + 9408 + 64 * 112**2)


def test_a_shared_parameter_counts_at_its_first_node():
    net = NetworkBuilder("tied")
    x = net.linear(net.input("image", (8,)), 8, name="first", bias=False)
    net.classify(net.linear(x, 8, bias=False, share={"weight": "first.weight"}))
    assert [r.parameters for r in layer_rows(net.build())] == [64, 0]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (Convolution(filters=8, kernel=(1, 7), padding=(0, 3)), "1×7, 8, padding 0×3"),
        (Convolution(filters=8, kernel=(2, 2), stride=(2, 2)), "2×2, 8, stride 2"),
        (MaxPool(kernel=(2, 2), stride=(2, 2)), "2×2"),
        (MaxPool(kernel=(3, 3), stride=(2, 2), ceil_mode=True), "3×3, stride 2, ceil mode"),
        (Linear(features=10, bias=False), "10, no bias"),
        (Dropout(rate=0.5), "rate 0.5"),
        (
            LocalResponseNorm(size=3, alpha=5e-5, region="within"),
            "size 3, alpha 5e-05, region within",
        ),
        (ReLU(), ""),
    ],
)
def test_settings_in_a_few_words(layer, expected):
    assert settings(layer) == expected
