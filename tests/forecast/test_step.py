"""Throughput of several devices: parts that sum up, measured points that are met, limits."""

import dataclasses

import pytest

from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.request import Forecast, ForecastRequest, ScalingMode
from cubemesh.forecast.step import predict, slowest
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.catalogue.systems import load_system, system
from cubemesh.machines.topology import Topology
from cubemesh.machines.topology.speeds import smp

CLUSTER = """\
name = "many"
title = "many systems of eight"
sources = ["made up"]
system = "hgx-h100"
[cluster]
systems = 512
technology = "ndr"
ports = 8
switch_ports = 64
"""


def asked(
    network: str = "resnet-50",
    machine: str = "dgx1-p100",
    batch: int = 64,
    mode: ScalingMode = "weak",
) -> ForecastRequest:
    return ForecastRequest(
        network=networks.build(network),
        system=load_system(machine),
        batch_per_device=batch,
        mode=mode,
    )


def forecast(request: ForecastRequest, devices: list[int], **measured: float) -> Forecast:
    points = {int(name[1:]): rate for name, rate in measured.items()}
    return predict(request, devices, defaults(), points)


def test_parts_sum_to_the_step_and_the_step_gives_the_rate() -> None:
    for point in forecast(asked(), [1, 2, 4, 8]).points:
        assert sum(point.parts_s.values()) == pytest.approx(point.step_s)
        assert point.samples_per_s == pytest.approx(64 * point.devices / point.step_s)
        assert point.low < point.samples_per_s < point.high
        assert min(point.parts_s.values()) >= 0


def test_a_measured_device_is_met_and_others_lose_something() -> None:
    points = forecast(asked(), [1, 2, 8], _1=219).points
    assert points[0].samples_per_s == pytest.approx(219)
    assert points[0].efficiency == 1
    assert all(0.9 < point.efficiency < 1 for point in points[1:])
    assert points[0].exchanged_bytes == 0
    assert points[1].exchanged_bytes == 4 * networks.build("resnet-50").parameter_count


def test_a_measured_number_of_devices_is_met_too_and_said_to_be_fitted() -> None:
    found = forecast(asked(), [1, 4, 8], _1=219, _8=1500)
    one, four, eight = found.points
    assert (one.samples_per_s, eight.samples_per_s) == pytest.approx((219, 1500))
    assert 4 * 219 > four.samples_per_s > 1500 / 2
    assert found.calibration.factors["overhead_scale"].origin == "fitted"
    refitted = forecast(asked(), [8], _8=1500)
    assert refitted.points[0].samples_per_s == pytest.approx(1500)
    assert "fitted" in refitted.device_source


def test_losses_inside_and_between_systems_are_fitted_apart() -> None:
    request = asked("vgg16", "c4130-g-edr", 32)
    plain = {p.devices: p.samples_per_s for p in forecast(request, [1, 4, 16], _1=100).points}
    known = defaults()
    for name, value in (("overhead_scale", 1.5), ("overhead_between", 3.0)):
        known = known.with_factor(name, value, "assumed", "planted")
    made = {
        p.devices: p.samples_per_s for p in predict(request, [4, 8, 16], known, {1: 100}).points
    }
    assert made[4] < plain[4]
    assert made[16] / made[4] < plain[16] / plain[4]
    found = forecast(request, [4, 8, 16], _1=100, _4=made[4], _16=made[16])
    factors = found.calibration.factors
    for name, value in (("overhead_scale", 1.5), ("overhead_between", 3.0)):
        assert factors[name].value == pytest.approx(value)
        assert (factors[name].low or 0) < value < (factors[name].high or 0)
        assert factors[name].origin == "fitted"
    assert [p.samples_per_s for p in found.points] == pytest.approx([*made.values()])
    for point in (found.points[0], found.points[2]):
        assert point.high / point.samples_per_s == pytest.approx(known["band_one_device"])


def test_a_fitted_loss_is_as_uncertain_as_the_rate() -> None:
    """Of a small loss little is known: 3 % of a step are more than it."""
    small, large = (
        forecast(asked(), [8], _1=219, _8=rate).calibration.factors["overhead_scale"]
        for rate in (1700, 900)
    )
    assert (small.low or 0) < 0.1
    assert (small.high or 0) > 1.5 * small.value
    assert (large.high or 0) < 1.1 * large.value


def test_one_rate_of_several_systems_fits_all_losses_at_once() -> None:
    found = forecast(asked("vgg16", "c4130-g-edr", 32), [16], _1=100, _16=1000)
    assert found.points[0].samples_per_s == pytest.approx(1000)
    assert found.calibration.factors["overhead_between"].origin == "assumed"
    assert found.calibration.factors["overhead_scale"].origin == "fitted"


def test_a_slow_network_limits_and_is_named() -> None:
    point = forecast(asked("vgg16", "c4130-g-10gbe", 16), [16]).points[0]
    assert point.limit == "exchange: 10 Gb Ethernet"
    assert point.parts_s["exposed"] > point.parts_s["forward"]
    quick = forecast(asked("vgg16", "c4130-g-edr", 16), [16]).points[0]
    assert quick.samples_per_s > 1.5 * point.samples_per_s


def test_strong_scaling_shares_the_minibatch() -> None:
    found = forecast(asked(mode="strong"), [1, 8], _1=219).points
    assert [p.batch_per_device for p in found] == [64, 8]
    weak = forecast(asked(), [8], _1=219).points[0]
    assert found[1].efficiency < weak.efficiency
    with pytest.raises(UsageError, match="multiple of 3"):
        forecast(asked(mode="strong"), [3])


def test_a_device_without_a_datasheet_needs_a_measured_rate() -> None:
    with pytest.raises(UsageError, match="--measured 1="):
        forecast(asked(machine="dual-root-pcie"), [8])
    assert forecast(asked(machine="dual-root-pcie"), [1], _1=40).points[0].samples_per_s == (
        pytest.approx(40)
    )


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_measured_rates_are_above_zero(rate: float) -> None:
    with pytest.raises(UsageError, match="above 0"):
        forecast(asked(), [1], _1=rate)


def test_impossible_rates_are_refused() -> None:
    with pytest.raises(UsageError, match=r"8=2000\b.*\b8 times"):
        forecast(asked(), [8], _1=219, _8=2000)
    with pytest.raises(UsageError, match=r"16=100000\b.*c4130-g-10gbe.*\b16 devices"):
        forecast(asked("vgg16", "c4130-g-10gbe", 16), [16], _16=1e5)


def test_processors_communicate_through_gloo() -> None:
    assert asked(machine="knl-aries").library == "gloo"
    points = forecast(asked(machine="knl-aries"), [1, 16], _1=20).points
    assert points[1].communication_s > 0


def test_four_thousand_devices_are_forecast(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "many.toml"
    file.write_text(CLUSTER)
    points = forecast(asked(machine=str(file)), [8, 4096]).points
    assert points[1].efficiency < points[0].efficiency


def test_the_slowest_of_more_is_slower() -> None:
    # Exact expected maxima of normal values: 0.5642 of 2, 1.4236 of 8 (Harter, 1961).
    assert slowest(1) == 0
    assert slowest(2) == pytest.approx(0.5642, abs=0.03)
    assert slowest(8) == pytest.approx(1.4236, abs=0.02)


def test_every_system_that_has_a_datasheet_is_forecast() -> None:
    for name in ("dgx-a100", "hgx-h200", "knl-7250", "c4130-b"):
        found = predict(
            ForecastRequest(
                network=networks.build("alexnet"), system=system(name), batch_per_device=32
            ),
            [1],
            defaults(),
        )
        assert found.points[0].samples_per_s > 0


def test_asynchronous_processors_communicate_through_tcp_and_can_be_fitted() -> None:
    request = ForecastRequest(
        network=networks.build("alexnet"),
        system=load_system("knl-7250"),
        batch_per_device=64,
        sync="asynchronous",
    )
    two = dataclasses.replace(request, system=_two_of(request.system))
    (point,) = predict(two, [2], defaults(), {1: 100}).points
    assert point.parts_s["exposed"] == pytest.approx(
        2 * 4 * request.network.parameter_count / defaults()["gloo_local_bytes_per_s"]
    )
    (fitted,) = predict(two, [2], defaults(), {1: 100, 2: 150}).points
    assert fitted.samples_per_s == pytest.approx(150)


def _two_of(system: System) -> System:
    (cpu,) = system.topology.devices
    other = dataclasses.replace(cpu, name="cpu1", index=1)
    joined = (smp(cpu.name, "cpu1", "upi-16", 3),)
    topology = Topology(name=system.topology.name, nodes=(cpu, other), links=joined)
    return dataclasses.replace(system, topology=topology)


def test_where_nothing_is_lost_no_loss_is_fitted() -> None:
    request = dataclasses.replace(asked(), sync="asynchronous")
    nothing = defaults().with_factor("gradient_scale", 0.0, "assumed", "test")
    with pytest.raises(UsageError, match=r"8=1500\b.*lose nothing"):
        predict(
            request,
            [8],
            nothing.with_factor("launch_several", 1.0, "assumed", "test"),
            {1: 219, 8: 1500},
        )
