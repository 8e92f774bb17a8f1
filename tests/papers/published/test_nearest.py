import pytest

from cubemesh.papers.published import figures, nearest, same_device, sweep
from cubemesh.papers.published.nearest import precision_distance
from cubemesh.schema import PublishedFigure


def figure(**changed):
    row = {
        "source": "s",
        "url": "u",
        "system": "a",
        "device": "V100",
        "devices": 1,
        "framework": "f",
        "network": "ResNet-50",
        "canonical": "resnet-50",
        "precision": "fp32",
        "batch_per_device": 64,
        "metric": "throughput",
        "unit": "images/s",
        "value": 1.0,
    }
    return PublishedFigure(**(row | changed))


def test_other_networks_and_metrics_are_no_comparison():
    rows = [figure(canonical="vgg16"), figure(canonical=None), figure(metric="forward time")]
    assert nearest(rows, network="resnet-50") == []


def test_order_is_device_count_precision_minibatch():
    far_batch = figure(system="far batch", batch_per_device=512)
    half = figure(system="half", precision="AMP fp16")
    eight = figure(system="eight", devices=8)
    other = figure(system="other", device="P100")
    exact = figure(system="exact")
    unstated = figure(system="unstated", devices=None, batch_per_device=None, precision="")
    found = nearest(
        [unstated, other, eight, half, far_batch, exact],
        network="resnet-50",
        device="Tesla V100-SXM2-16GB",
        precision="fp32",
        batch_per_device=64,
        limit=9,
    )
    assert [f.system for f in found] == [
        *("exact", "far batch", "half", "eight", "unstated", "other"),
    ]
    assert nearest([other, exact], network="resnet-50", limit=1) == [other]


def test_a_sweep_of_one_system_is_one_row_at_the_nearest_minibatch():
    rows = [figure(batch_per_device=b, value=b) for b in (1, 16, 100, 128)]
    (found,) = nearest(rows, network="resnet-50", batch_per_device=90)
    assert found.batch_per_device == 100


def test_on_the_record_itself():
    found = nearest(figures(), network="resnet-50", precision="bf16", batch_per_device=256)
    assert len(found) == 5
    assert {(f.canonical, f.devices, f.metric) for f in found} == {("resnet-50", 1, "throughput")}
    assert all(f.batch_per_device == 256 for f in found)
    assert nearest(figures(), network="little-cnn") == []


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 40GB", True),
        ("Tesla V100-SXM2-16GB", "V100 (DGX-1)", True),
        ("NVIDIA H200", "NVIDIA H200-SXM5-141GB", True),
        ("NVIDIA H200", "H200 141GB, count not stated", True),
        ("NVIDIA GeForce GTX 1080", "GTX 1080 Ti", False),
        ("Maxwell Titan X", "GTX Titan X (Maxwell)", True),
        ("Pascal Titan X", "Maxwell Titan X", False),
        ("NVIDIA", "Tesla", False),
    ],
)
def test_one_model_by_two_names(first, second, same):
    assert same_device(first, second) is same


def test_classes_of_precision():
    assert precision_distance("bf16", "mixed fp16") == 0
    assert precision_distance("fp16", "AMP") == 0
    assert precision_distance("tf32", "fp32/TF32") == 0
    assert precision_distance("fp32", "TF32") == 1
    assert precision_distance("fp32", "AMP fp16") == 2
    assert precision_distance("fp32", "") == 3


def test_a_sweep_is_one_system_at_several_minibatches():
    rows = [
        *(figure(system="two", batch_per_device=b) for b in (32, 64)),
        *(figure(system="three", batch_per_device=b) for b in (128, 32, 64)),
        *(figure(system="four", batch_per_device=b, precision="fp16") for b in (8, 16, 32, 64)),
    ]
    found = sweep(rows, network="resnet-50", precision="fp32", batches=(8, 256))
    assert [(f.system, f.batch_per_device) for f in found] == [
        *(("three", 32), ("three", 64), ("three", 128)),
    ]
    assert sweep(rows, network="resnet-50", precision="fp32", batches=(48, 64)) == ()


def test_the_published_sweep_of_resnet_50():
    found = sweep(figures(), network="resnet-50", precision="fp32", batches=(8, 64))
    assert {f.device for f in found} == {"V100"}
    assert [f.batch_per_device for f in found] == [8, 16, 32, 64]


def test_numbers_in_a_note_do_not_break_a_sweep_and_words_do():
    rows = [
        *(figure(batch_per_device=b, note=f"memory {b} MiB") for b in (8, 16, 32)),
        figure(batch_per_device=32, note="memory 9 MiB", value=2.0),
        figure(batch_per_device=64, note="real images"),
    ]
    found = sweep(rows, network="resnet-50", precision="fp32", batches=(8, 64))
    assert [(f.batch_per_device, f.value) for f in found] == [(8, 1.0), (16, 1.0), (32, 2.0)]


def test_half_precision_is_held_against_half_precision():
    found = sweep(figures(), network="resnet-50", precision="bf16", batches=(8, 512))
    assert {(f.device, f.precision) for f in found} == {("H100 80GB", "AMP fp16")}
