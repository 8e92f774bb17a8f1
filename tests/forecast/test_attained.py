"""Steps of one device from its datasheet: what decides them, and what other networks correct."""

import math

import pytest

from cubemesh import networks
from cubemesh.forecast.attained import (
    EAGER,
    FACTORS,
    FITTED,
    LAUNCH,
    IdealStep,
    Software,
    correction,
    datasheet_step,
    ideal_step,
    is_judged,
)
from cubemesh.machines.catalogue import datasheets
from cubemesh.schema.spec import Precision

KNOWN = {name: value for name, (value, _) in FITTED.items()}
NHWC = Software(layout="nhwc")


def ideal(
    device: str,
    network: str = "resnet-50",
    batch: int = 64,
    precision: Precision = "fp32",
    software: Software = EAGER,
    *,
    update: bool = True,
) -> IdealStep:
    sheet = datasheets()[device]
    found = ideal_step(networks.build(network), batch, precision, sheet, software, update=update)
    assert found is not None
    return found


def test_every_factor_has_a_value_and_a_meaning() -> None:
    assert set(FITTED) == set(FACTORS)
    assert all(value > 0 and what for value, what in FITTED.values())


def test_operations_are_counted_once_at_the_peak() -> None:
    """VGG-16 on 64 images: 3 × 2 × 15.47 billion operations each, without the first layer's data
    gradient."""
    amounts = ideal("v100-sxm2-16gb", "vgg16").amounts
    shares = ("conv_share", "winograd_share", "few_channels_share", "product_share")
    flops = sum(amounts.get(name, 0.0) for name in shares) * datasheets()["v100-sxm2-16gb"].value(
        "fp32"
    )
    assert flops == pytest.approx(64 * 3 * 2 * 15.47e9, rel=0.01)
    assert amounts["winograd_share"] > 10 * amounts["few_channels_share"]


def test_winograd_tensor_cores_and_kepler_need_their_year_and_architecture() -> None:
    assert "winograd_share" in ideal("p100-sxm2-16gb").amounts
    assert "winograd_share" not in ideal("p100-sxm2-16gb", software=Software(year=2015)).amounts
    assert "wide_winograd_share" in ideal("h200-sxm-141gb").amounts
    assert {"kepler_share", "kepler_winograd_share"} <= set(ideal("k80").amounts)
    volta = {
        year: ideal("v100-sxm2-16gb", precision="fp16", software=Software(year=year)).amounts
        for year in (2017, 2020)
    }
    assert "first_tensor_share" in volta[2017]
    assert "tensor_conv_share" in volta[2020]
    pascal = ideal("p100-sxm2-16gb", precision="fp16").amounts
    assert not any(name.startswith(("tensor", "first")) for name in pascal)


def test_images_in_nchw_are_transposed_for_tensor_cores_at_16_bits() -> None:
    assert "transpose_share" in ideal("h200-sxm-141gb", precision="bf16").amounts
    for precision, software in (("tf32", EAGER), ("bf16", NHWC), ("fp32", EAGER)):
        amounts = ideal("h200-sxm-141gb", precision=precision, software=software).amounts
        assert "transpose_share" not in amounts


def test_an_update_moves_five_values_for_each_parameter() -> None:
    sheet = datasheets()["v100-sxm2-16gb"]
    more = ideal("v100-sxm2-16gb").amounts["memory_share"]
    more -= ideal("v100-sxm2-16gb", update=False).amounts["memory_share"]
    assert more * sheet.value("memory_bytes_per_s") == pytest.approx(5 * 4 * 25_557_032)


def test_a_captured_step_is_not_launched_and_a_small_one_waits_for_its_host() -> None:
    eager = datasheet_step(ideal("h200-sxm-141gb", batch=1, software=NHWC), KNOWN, 1.5, "")
    assert eager.step_s == eager.host_s > eager.device_s
    captured = Software(layout="nhwc", captured=True)
    alone = datasheet_step(ideal("h200-sxm-141gb", batch=1, software=captured), KNOWN, 1.5, "")
    assert alone.step_s == alone.device_s == eager.device_s


def test_composition_sums_to_one_and_is_the_host_where_it_decides() -> None:
    assert sum(ideal("k80").composition(KNOWN).values()) == pytest.approx(1)
    assert ideal("h200-sxm-141gb", batch=1).composition(KNOWN) == {LAUNCH: 1.0}


def test_a_network_that_is_alike_corrects_more_and_leaves_less_uncertainty() -> None:
    asked = ideal("v100-sxm2-16gb", "resnet-152")
    found = {}
    for network in ("resnet-101", "vgg16"):
        other = ideal("v100-sxm2-16gb", network)
        seconds = 2 * sum(other.parts_s(KNOWN).values())
        found[network] = correction(asked, KNOWN, [(other, seconds)])
    alike, unlike = found["resnet-101"], found["vgg16"]
    assert 0 < unlike[0] < math.log(2)
    assert 0 < alike[0] < math.log(2)
    assert 0 < alike[1] < unlike[1] < correction(asked, KNOWN, [])[1]
    assert correction(asked, KNOWN, [])[0] == 0


def test_the_same_measured_several_times_is_nearly_met() -> None:
    asked = ideal("v100-sxm2-16gb")
    seconds = 2 * sum(asked.parts_s(KNOWN).values())
    step = datasheet_step(asked, KNOWN, 1.5, "", [(asked, seconds)] * 50)
    assert step.step_s == pytest.approx(seconds, rel=0.01)
    assert 1 < step.band < 1.5


def test_only_convolutional_networks_on_known_architectures_were_judged() -> None:
    resnet, gpt = networks.build("resnet-50"), networks.build("gpt2")
    assert is_judged(datasheets()["v100-sxm2-16gb"], resnet)
    assert not is_judged(datasheets()["v100-sxm2-16gb"], gpt)
    unjudged = [s for s in datasheets().values() if s.kind == "gpu" and not is_judged(s, resnet)]
    assert any(sheet.architecture == "Blackwell" for sheet in unjudged)
