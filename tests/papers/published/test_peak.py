"""MFU of published rows, or the reason why there is none."""

from collections import Counter

import pytest

from cubemesh.machines.catalogue import find, forms
from cubemesh.networks import build
from cubemesh.networks.cost import totals
from cubemesh.papers.published import figures, peak_share
from cubemesh.papers.published.names import precision_of
from cubemesh.schema import PublishedFigure


def figure(**changed):
    row = {
        "source": "s",
        "url": "u",
        "system": "a",
        "device": "GTX 1080",
        "devices": 1,
        "framework": "f",
        "network": "VGG-16",
        "canonical": "vgg16",
        "precision": "fp32",
        "batch_per_device": 16,
        "metric": "throughput",
        "unit": "images/s",
        "value": 50.0,
    }
    return PublishedFigure(**(row | changed))


@pytest.fixture(scope="module")
def judged():
    return [(f, peak_share(f)) for f in figures()]


def test_a_throughput_by_hand():
    flops = totals(build("vgg16")).total.matrix_flops
    found = peak_share(figure())
    assert found.share == pytest.approx(50 * flops / 9e12)
    assert found.peak.source == find("GTX 1080").figures["fp32"].source
    assert not found.at_least
    assert peak_share(figure(devices=4)).share == pytest.approx(found.share / 4)


def test_times_count_the_passes_that_ran():
    cost = totals(build("vgg16"), 16)
    for metric, flops in (
        ("forward time", cost.forward.matrix_flops),
        ("backward time", cost.backward.matrix_flops),
        ("forward+backward time", cost.total.matrix_flops),
    ):
        found = peak_share(figure(metric=metric, unit="ms", value=500.0))
        assert found.share == pytest.approx(flops / 0.5 / 9e12), metric


def test_a_single_convolution_by_hand():
    note = "L1 3->96 11x11@128; L2 64->128 9x9@64"
    layer = figure(
        network="conv layer L2", canonical=None, metric="backward time", note=note, value=10.0
    )
    flops = 2 * (2 * 16 * 64 * 128 * 81 * 56 * 56)
    assert peak_share(layer).share == pytest.approx(flops / 0.01 / 9e12)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"device": "Abacus"}, "the catalogue does not know Abacus"),
        ({"canonical": None, "network": "gnmt"}, "no such network"),
        ({"metric": "all-reduce time"}, "not a time or rate of training"),
        ({"devices": None}, "number of devices"),
        ({"precision": ""}, "the precision is not stated"),
        ({"metric": "forward time", "batch_per_device": None}, "batch size is not stated"),
        ({"precision": "bf16"}, "no peak in bf16"),
    ],
)
def test_figures_without_an_mfu_have_a_reason(changed, why):
    found = peak_share(figure(**changed))
    assert (found.share, found.warning) == (None, None)
    assert why in found.why_not


def test_a_model_without_its_form_reached_at_least_so_much():
    open_form = peak_share(figure(device="P100"))
    assert open_form.at_least
    assert open_form.peak.flops_per_s == 10.6e12
    placed = peak_share(figure(device="P100", system="NVIDIA DGX-1"))
    assert not placed.at_least
    assert placed.share == open_form.share


def test_spellings_of_precision():
    spelled = {f.precision for f in figures()}
    assert {precision_of(s) for s in spelled if s} == {"fp32", "tf32", "fp16", "bf16"}
    assert precision_of("pseudo fp16") == "fp32"
    assert precision_of("fp32/TF32") == "tf32"
    assert precision_of("") is None


def test_every_row_has_an_mfu_or_a_reason(judged):
    for row, found in judged:
        assert (found.share is None) == bool(found.why_not), row
        assert found.share is None or found.share > 0 or row.value == 0, row
    assert sum(found.share is not None for _, found in judged) == 1820


def test_few_rows_are_of_unknown_devices():
    unknown = Counter(
        row.device
        for row in figures()
        if not forms(row.device) and find(f"{row.device} {row.system}") is None
    )
    assert unknown == {
        "unstated": 64,
        "Pascal": 3,  # an architecture
        "Pascal (unstated)": 1,
        "TPU": 3,  # its generation is only in the name of the system
        "CPU 2x E5-2690v4 (Intel-Caffe)": 1,  # a host
        "Intel(R) Xeon(R) Platinum 8480+ @ 2.00GHz": 4,  # 16 hosts, processors not counted
        "Intel(R) Xeon(R) code named Sapphire Rapids": 2,
    }


def test_every_row_above_its_peak_is_a_warning_that_a_fast_algorithm_explains(judged):
    above = [(row, found) for row, found in judged if found.share is not None and found.share > 1]
    warned = [(row, found) for row, found in judged if found.warning is not None]
    assert above == warned
    assert len(warned) == 152
    assert all("Winograd" in found.warning.cause for _, found in warned)
    assert all(found.warning.code == "above-peak" for _, found in warned)
    networks = Counter(row.canonical for row, _ in warned)
    assert set(networks) == {"vgg11", "vgg16", "vgg19", "alexnet", "overfeat", None}


def test_nothing_on_tensor_cores_comes_near_its_peak(judged):
    narrow = [
        found.share
        for row, found in judged
        if found.share is not None and found.peak.computed_in in ("fp16", "bf16", "tf32")
    ]
    assert len(narrow) > 250
    assert max(narrow) < 1
