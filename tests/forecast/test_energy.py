"""Power of devices that wait is lower, energy of a sample is higher."""

import pytest

from cubemesh import networks
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.energy import busy_power, device_watts, sample_joules
from cubemesh.forecast.request import ForecastRequest
from cubemesh.forecast.step import predict
from cubemesh.machines.catalogue.systems import load_system


def test_waiting_devices_draw_less_and_take_more_for_a_sample() -> None:
    request = ForecastRequest(
        network=networks.build("vgg16"), system=load_system("c4130-g-10gbe"), batch_per_device=16
    )
    one, many = predict(request, [1, 16], defaults()).points
    power = busy_power("p100-pcie-16gb")
    assert power is not None
    assert (power.origin, power.watts) == ("assumed", 250)
    single, together = (device_watts(p, power, defaults()) for p in (one, many))
    assert 50 < together < single <= 250
    assert sample_joules(one, power, defaults()) == pytest.approx(single / one.samples_per_s)
    assert sample_joules(many, power, defaults()) > sample_joules(one, power, defaults())


def test_measured_power_replaces_the_datasheet() -> None:
    power = busy_power("p100-pcie-16gb", 180.0)
    assert power is not None
    assert (power.origin, power.watts, power.limit_watts) == ("measured", 180, 250)
    assert busy_power("") is None
