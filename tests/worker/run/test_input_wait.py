"""The wait for input as a series: percent of the time, from a counter of seconds."""

from types import SimpleNamespace

from cubemesh.measure.telemetry.counter_series import series_of
from cubemesh.worker.run.inputs import InputWaitMeter


def test_the_wait_is_a_share_of_the_time() -> None:
    fed = SimpleNamespace(wait_so_far_s=0.0)
    meter, read = InputWaitMeter(fed), []
    for at, waited_s in ((0.0, 0.0), (0.5, 0.25), (1.0, 0.25), (1.5, 0.75)):
        fed.wait_so_far_s = waited_s
        ((name, value),) = meter.read().items()
        read.append((at, value))
    found = series_of(name, read, 3, device=meter.device, first=0.0, least_s=0.1)
    assert (found.name, found.values) == ("input_wait_percent", (50.0, 0.0, 100.0))
    assert (meter.needs(), meter.missing) == (None, {})
