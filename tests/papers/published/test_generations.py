"""The fastest published rate of one GPU of each model, and the ratios between them."""

from dataclasses import replace

import pytest

import cubemesh
from cubemesh.errors import UsageError
from cubemesh.papers.published.generations import generations, rate_of
from cubemesh.schema.published import PublishedFigure

K80 = PublishedFigure(
    source="one",
    url="",
    system="",
    device="K80",
    devices=1,
    framework="x",
    network="ResNet-50",
    canonical="resnet-50",
    precision="fp32",
    batch_per_device=32,
    metric="throughput",
    unit="images/s",
    value=50.0,
)


def of(device, value, **more):
    return replace(K80, device=device, value=value, **more)


def test_oldest_first_with_ratios_to_the_first():
    rows = [
        of("V100", 1000.0, precision="fp16", source="two"),
        of("V100", 350.0),
        of("P100 SXM2", 200.0),
        of("K80", 40.0),
        K80,
    ]
    k80, p100, v100 = generations(rows)
    assert [one.model for one in (k80, p100, v100)] == ["K80", "P100", "V100"]
    assert [one.ratio for one in (k80, p100, v100)] == [1.0, 4.0, 20.0]
    assert (v100.same_source_ratio, v100.same_source) == (7.0, "one, fp32")
    assert k80.same_source_ratio is None
    assert p100.peak_ratio == pytest.approx(10.6 / 4.37, rel=0.01)
    assert v100.peak_ratio == pytest.approx(125 / 4.37, rel=0.01)  # in its own precision
    (only, *_, last) = generations(rows, "fp32")
    assert (only.ratio, last.ratio, last.figure.precision) == (1.0, 7.0, "fp32")


def test_what_is_not_a_rate_of_one_gpu_is_left_out():
    rows = [
        of("K80", 400.0, devices=8),
        of("K80", 80.0, metric="scaling efficiency", unit="%"),
        of("K80", 5.0, metric="forward time", unit="ms"),
        of("K80", 5.0, metric="step time", unit="ms", batch_per_device=None),
        of("a device that nobody knows", 1.0),
    ]
    assert generations(rows) == ()


def test_times_are_rates_and_those_with_an_update_are_preferred():
    passes = of("K80", 400.0, metric="forward+backward time", unit="ms", batch_per_device=32)
    assert rate_of(passes) == 80.0
    (one,) = generations([passes])
    assert one.figure == passes
    (one,) = generations([passes, K80])
    assert one.figure == K80  # slower, and with the update


def test_k80_to_v100_as_the_best_practices_say():
    found = {g.model: g for g in cubemesh.published_generations("resnet-50", precision="fp32")}
    assert next(iter(found)) == "K80"
    assert found["V100"].same_source_ratio == pytest.approx(7.35, abs=0.01)
    assert found["V100"].share.share > found["K80"].share.share


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (("resnet-50", {"device": "abacus"}), "abacus"),
        (("resnet-50", {"precision": "int4"}), "int4"),
        (("resnet-50", {"precision": "fp64"}), "fp64"),
        (("resnet-50", {"device": "unstated"}), "no published rate of one GPU"),
    ],
)
def test_no_figure_has_a_reason(asked, sentence):
    network, options = asked
    with pytest.raises(UsageError, match=sentence):
        cubemesh.published_generations(network, **options)
