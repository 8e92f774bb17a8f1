"""Epochs by global batch size: the sources' figures, typed rules, and what they do not cover."""

import pytest

import cubemesh
from cubemesh.errors import UsageError
from cubemesh.forecast.training.epochs import (
    IMAGENET_SAMPLES,
    MLPERF_EPOCHS,
    RULES,
    read_rule,
    training_time,
)


def epochs(rule, batch, network="resnet-50"):
    return read_rule(rule, network).at(batch).epochs


def test_goyal_et_al_need_as_many_up_to_8192():
    assert [epochs("goyal-2017", batch) for batch in (256, 4096, 8192)] == [90, 90, 90]
    beyond = read_rule("goyal-2017", "resnet-101").at(8193)
    assert beyond.epochs is None
    assert "lose accuracy" in beyond.note


def test_mlperf_is_interpolated_between_its_points():
    assert [epochs("mlperf", batch) for batch in MLPERF_EPOCHS] == list(MLPERF_EPOCHS.values())
    assert 42.0 < epochs("mlperf", 10_000) < 45.4
    assert epochs("mlperf", 16_384) == pytest.approx(48.0, abs=0.6)
    found = [epochs("mlperf", batch) for batch in range(1632, 67_840, 500)]
    assert found == sorted(found)  # larger batches never need fewer
    small = read_rule("mlperf", "resnet-50").at(64)
    assert (small.epochs, bool(small.note)) == (35.0, True)
    assert epochs("mlperf", 100_000) is None


def test_a_number_and_a_critical_batch_size():
    assert epochs("90", 1) == epochs("90", 10**6) == 90
    assert epochs("12.5", 7, "vgg16") == 12.5
    assert epochs("90@20000", 20_000) == 180  # twice as many at the critical batch size
    assert epochs("90@20000", 20) == pytest.approx(90, rel=0.01)


@pytest.mark.parametrize("text", ["", "goyal", "-3", "0", "90@0", "90@", "nan", "1e3", "9999999"])
def test_other_texts_are_refused(text):
    with pytest.raises(UsageError, match="epochs"):
        read_rule(text, "resnet-50")


@pytest.mark.parametrize("rule", RULES)
def test_a_source_is_about_its_own_networks(rule):
    with pytest.raises(UsageError, match="not vgg16"):
        read_rule(rule, "vgg16")


def test_hours_follow_from_epochs_and_throughput():
    found = training_time(
        read_rule("90", "resnet-50"),
        devices=8,
        global_batch=256,
        samples_per_epoch=1_000_000,
        samples_per_s=1000.0,
        low=500.0,
        high=2000.0,
    )
    assert (found.hours, found.hours_low, found.hours_high) == (25.0, 12.5, 50.0)
    assert found.published_hours is None


def test_imagenet_in_an_hour_is_forecast_from_29_hours_on_8_gpus():
    rate = 90 * IMAGENET_SAMPLES / (29 * 3600)
    found = cubemesh.predict(
        "resnet-50",
        "big-basin-50gbe",
        devices=(8, 256, 512 // 2),
        batch_per_device=32,
        measured={8: rate},
        epochs="goyal-2017",
    )
    eight, most, _ = found.training
    assert (eight.global_batch, most.global_batch) == (256, 8192)
    assert eight.hours == pytest.approx(29, rel=0.01)
    assert (eight.published_hours, most.published_hours) == (29, 1)
    assert most.hours_low < most.published_hours < most.hours_high
    assert most.hours == pytest.approx(1, rel=0.15)


def test_samples_of_an_epoch_are_imagenets_or_given():
    asked = {"machine": "dgx1-p100", "devices": (1,), "epochs": 3}
    known = cubemesh.predict("resnet-50", **asked)
    assert known.samples_per_epoch == IMAGENET_SAMPLES
    given = cubemesh.predict("little-cnn", samples_per_epoch=50_000, **asked)
    (one,) = given.training
    (point,) = given.points
    assert one.hours == pytest.approx(150_000 / point.point.samples_per_s / 3600)
    with pytest.raises(UsageError, match="--samples-per-epoch"):
        cubemesh.predict("little-cnn", **asked)
    for samples in (0, 10**400):
        with pytest.raises(UsageError, match="--samples-per-epoch is 1 to"):
            cubemesh.predict("resnet-50", samples_per_epoch=samples, **asked)
    with pytest.raises(UsageError, match="needs --epochs"):
        cubemesh.predict("resnet-50", "dgx1-p100", samples_per_epoch=10)
