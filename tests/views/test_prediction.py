"""`cubemesh predict` as it is typed: what it prints, and what it says to what cannot be meant."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cubemesh.cli import app
from cubemesh.errors import CubemeshError

P100 = ("predict", "resnet-50", "--machine", "dgx1-p100")


def typed(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    if isinstance(result.exception, CubemeshError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_json_has_every_point_with_its_parts() -> None:
    found = json.loads(typed(*P100, "--measured", "1=219", "--json"))
    assert (found["schema"], found["kind"], found["machine"]) == (1, "prediction", "dgx1-p100")
    assert [p["devices"] for p in found["points"]] == [1, 2, 4, 8]
    first = found["points"][0]
    assert first["samples_per_s"] == pytest.approx(219)
    assert first["low"] < 219 < first["high"]
    assert set(first["parts_s"]) == {
        *("forward", "backward", "slowdown", "exposed", "update", "waiting")
    }
    assert first["memory_bytes"] > 1 << 30
    assert first["fits"] is True
    factors = found["calibration"]["factors"]
    assert {f["origin"] for f in factors.values()} == {"assumed"}


def test_people_get_the_same_and_what_it_rests_on() -> None:
    said = typed(*P100, "--measured", "1=219", "--devices", "1,8")
    assert "resnet-50 on dgx1-p100, fp32, weak scaling" in said
    assert "219" in said
    assert "measured on one device" in said
    assert "assumed latencies (nccl)" in said


def test_a_minibatch_that_does_not_fit_is_said() -> None:
    said = typed(*P100, "--devices", "1", "--batch-per-device", "512")
    assert "too little on 1 devices" in said


def test_measured_collectives_are_taken_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"
    file.write_text("operation,devices,bytes,seconds\nall-reduce,8,1e6,1\nall-reduce,8,1e8,2\n")
    found = json.loads(
        typed(*P100, "--devices", "8", "--measured", "1=219", "--calibrate", str(file), "--json")
    )
    assert found["points"][0]["communication_s"] > 3
    assert found["calibration"]["sweeps"][0]["origin"] == "measured"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--devices", "0"), "--devices 0"),
        (("--devices", "1,two"), "whole numbers of 1 or more"),
        (("--devices", "16"), "1 to 8 are possible"),
        (("--precision", "fp23"), "Nearest: fp32"),
        (("--regime", "week"), "Nearest: weak"),
        (("--measured", "219"), "DEVICES=SAMPLES_PER_S"),
        (("--measured", "1=0"), "a rate above 0"),
        (("--measured", "1=fast"), "such as 1=219"),
        (("--calibrate", "none.csv"), "none.csv cannot be read"),
        (("--machine", "dgx1-p10"), "Nearest: dgx1-p100"),
    ],
)
def test_what_cannot_be_meant_is_said(options: tuple[str, ...], says: str) -> None:
    with pytest.raises(CubemeshError, match=says):
        typed(*P100, *options)
