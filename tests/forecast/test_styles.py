"""Gradient styles, the input limit, and what is said where they are unknown."""

from math import inf

import pytest

from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.request import ForecastRequest, Point
from cubemesh.forecast.step import predict
from cubemesh.forecast.styles import STYLES
from cubemesh.machines.catalogue.systems import load_system


def point(style: str = "", devices: int = 16, **changes) -> Point:  # type: ignore[no-untyped-def]
    settings = {"network": "vgg16", "machine": "p2-8xlarge-10gbe", "precision": "fp32", **changes}
    request = ForecastRequest(
        network=networks.build(settings["network"]),
        system=load_system(settings["machine"]),
        batch_per_device=32,
        precision=settings["precision"],
        sync=settings.get("sync", "all-reduce"),
        style=style,
        input_limit=settings.get("input_limit"),
    )
    known = settings.get("known", defaults())
    return predict(request, [devices], known, {1: settings.get("rate", 36)}).points[0]


@pytest.mark.parametrize("style", STYLES)
def test_every_style_costs_time_in_one_system_and_beyond(style: str) -> None:
    one, two = point(style, 8), point(style, 16)
    assert 0 < one.efficiency < 1
    assert one.communication_s > 0
    assert 0 < two.efficiency < 1
    assert two.limit
    assert point(style, 1).communication_s == 0


def test_ddp_is_the_all_reduce_of_buckets() -> None:
    assert point("ddp").parts_s == pytest.approx(point().parts_s)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(("style", "narrow"), [("ddp", False), ("apex-delayed", True)])
def test_gradients_of_16_bit_training(style: str, narrow: bool, precision: str) -> None:
    gradients = 4 * networks.build("vgg16").parameter_count
    found = point(style, 8, machine="dgx1-v100", precision=precision).exchanged_bytes
    assert found == gradients / (2 if narrow and precision == "fp16" else 1)


def test_a_flat_buffer_hides_nothing() -> None:
    flat, buckets = point("apex-delayed"), point("ddp")
    assert flat.parts_s["slowdown"] == 0
    assert flat.parts_s["exposed"] == pytest.approx(flat.communication_s)
    assert buckets.parts_s["exposed"] < buckets.communication_s


def test_a_whole_array_on_one_gpu_takes_as_long_as_the_largest() -> None:
    """Most parameters of VGG-16 are in one layer, those of ResNet-50 in many."""
    seconds = {
        name: point("mxnet-device", 8, network=name).communication_s
        / networks.build(name).parameter_count
        for name in ("vgg16", "resnet-50")
    }
    assert seconds["vgg16"] > 2 * seconds["resnet-50"]


def test_servers_have_a_ceiling_of_their_own() -> None:
    slow = defaults().with_factor("server_sum_bytes_per_s", 2e8, "assumed", "test")
    crossed = point("mxnet-dist-sync", known=slow)
    assert crossed.limit == "exchange: summing by the parameter servers"
    assert crossed.samples_per_s < 0.5 * point("mxnet-dist-sync").samples_per_s
    assert point("ddp", known=slow).parts_s == point("ddp").parts_s


def test_input_limits_each_system() -> None:
    limited = point("ddp", 16, input_limit=100)
    assert limited.samples_per_s == pytest.approx(200)
    assert limited.limit.startswith("input")
    assert sum(limited.parts_s.values()) == pytest.approx(limited.step_s)
    assert point("ddp", 16, input_limit=inf).parts_s["input"] == 0


def test_a_rate_above_the_input_is_refused() -> None:
    with pytest.raises(UsageError, match=r"36.*30"):
        point(input_limit=30)


def test_devices_are_the_limit_only_where_style_and_input_are_known() -> None:
    on = {"machine": "dgx1-p100", "network": "resnet-50", "devices": 8, "rate": 219}
    assert point(**on).limit.startswith("unknown")
    assert point("ddp", **on).limit.startswith("unknown")
    assert point(**on, input_limit=inf).limit.startswith("unknown")
    assert point("ddp", **on, input_limit=inf).limit == "operations of a device"
    assert point(**on | {"devices": 1}).limit == "operations of a device"


def test_what_is_unknown_widens_the_band_most_between_systems() -> None:
    def band(found: Point) -> float:
        return found.high / found.samples_per_s

    for devices, factor in ((8, "band_unknown_one_system"), (16, "band_unknown_systems")):
        known = point("ddp", devices, input_limit=inf)
        wider = defaults()[factor] * band(known)
        assert band(point(devices=devices)) == pytest.approx(wider)
        assert band(point("ddp", devices)) == pytest.approx(wider)
    assert defaults()["band_unknown_systems"] > defaults()["band_unknown_one_system"] > 1


def test_nccl_1_has_one_ring_over_one_link() -> None:
    on = {"machine": "dgx1-p100", "network": "vgg16", "devices": 8, "rate": 148}
    found = point("tensorflow-replicated-nccl", **on)
    size = 4 * networks.build("vgg16").parameter_count
    rate = defaults()["one_ring_bytes_per_s"]
    assert found.communication_s == pytest.approx(2 * 7 / 8 * size / rate)
    assert found.parts_s["exposed"] == pytest.approx(found.communication_s)


def test_horovod_sends_every_5_ms() -> None:
    on = {"machine": "dgx1-v100", "network": "resnet-50", "devices": 8, "rate": 360}
    gone = point("horovod", **on).communication_s
    assert gone > 2 * 5e-3  # 102 MB in buckets of 64 MiB


def test_a_style_may_have_the_transfers_of_a_strategy() -> None:
    for devices in (8, 16):
        style = point("tensorflow-servers", devices)
        assert style.parts_s == point(devices=devices, sync="parameter-server-spread").parts_s


def test_a_server_on_the_cpu_adds_no_faster_than_its_memory() -> None:
    """One process adds up the arrays of all devices while they are copied."""
    fast = defaults().with_factor("host_memory_bytes_per_s", 1e12, "measured", "test")
    slow = defaults().with_factor("host_memory_bytes_per_s", 5e9, "measured", "test")
    free, bound = (point("tensorflow-parameter-server", 8, known=known) for known in (fast, slow))
    assert free.communication_s < bound.communication_s
    assert free.parts_s["exposed"] < bound.parts_s["exposed"]
    assert bound.limit == "exchange: sum and update on the CPU"
    size = 4 * networks.build("vgg16").parameter_count
    assert bound.communication_s == pytest.approx((8 + 1 + 5) * size / 5e9)
