import re
import time
from pathlib import Path

import pytest

from cubemesh.errors import DataError
from cubemesh.measure.telemetry.telemetry import Telemetry, open_meters
from in_memory_log import InMemoryLog
from trace_replay import ReplayedMeter, load, record


def test_a_recording_is_replayed(tmp_path: Path) -> None:
    values = [{"gpu_power_watts": 100.0 + n, "gpu_utilization_percent": 90.0} for n in range(4)]
    gpu = ReplayedMeter(values, device="gpu", name="A", generation="hopper", power="instant")
    file = tmp_path / "run.jsonl"
    record(file, [gpu, *open_meters(None)], readings=4, every_s=0.01)
    reader, meters = load(file)
    assert (meters[0].name, meters[0].generation, meters[0].power) == ("A", "hopper", "instant")
    assert meters[1].missing == open_meters(None)[0].missing
    log = InMemoryLog()
    with Telemetry(log, 1, every_s=0.002, reader=reader, meters=meters) as telemetry:
        while len(telemetry.readings) < 4:
            time.sleep(0.001)
    assert log.joined("gpu_power_watts").values[:4] == (100.0, 101.0, 102.0, 103.0)
    assert log.joined("memory_used_bytes").values[0] > 0
    assert log.joined("resident_bytes").values[0] > 0


@pytest.mark.parametrize("text", ["", "no JSON", '{"schema": 2}', '{"schema": 1, "cores": 1}'])
def test_an_invalid_recording_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(text)
    with pytest.raises(DataError, match=re.escape(str(file))):
        load(file)
