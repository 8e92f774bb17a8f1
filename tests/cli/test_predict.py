"""`cubemesh predict` as it is typed: what it prints, and what it named to what cannot be meant."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cubemesh import predict
from cubemesh.cli import app
from cubemesh.errors import CubemeshError, UsageError
from cubemesh.forecast.styles import STYLES
from cubemesh.forecast.what_if import KEYS
from cubemesh.store import Store
from stored_benchmarks import RECORDS

P100 = ("predict", "resnet-50", "--machine", "dgx1-p100")

STORE = RECORDS / "2026-11-21-one-h200.sqlite"
H200 = (
    *("predict", "resnet-50", "--machine", "hgx-h200", "--precision", "bf16"),
    *("--batch-per-device", "64", "--calibrate", "3c7f2ae09e1e", "--store", str(STORE)),
)


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
        *("forward", "backward", "launch", "slowdown", "exposed", "update", "sharing", "waiting"),
        "input",
    }
    assert first["memory_bytes"] > 1 << 30
    assert first["fits"] is True
    assert 200 < first["power_watts"] <= 300
    assert first["joules_per_sample"] == pytest.approx(first["power_watts"] / 219)
    assert found["power"]["origin"] == "assumed"
    assert (found["sync"], found["what_if"], found["before"]) == ("all-reduce", {}, [])
    factors = found["calibration"]["factors"]
    assert {f["origin"] for f in factors.values()} == {"assumed", "fitted"}


def test_the_cost_of_a_training_by_number_of_devices() -> None:
    options = ("--measured", "1=219", "--devices", "1,8", "--cost", "purchase_price=8760")
    arguments = (*P100, *options, "--cost", "depreciation_years=1", "--cost", "power_price=0.3")
    found = json.loads(typed(*arguments, "--json"))
    assert found["priced_training"] == "90 epochs of 1,280,000 samples"
    for point in found["points"]:
        cost = point["cost"]
        assert cost["hours"] == pytest.approx(90 * 1.28e6 / point["samples_per_s"] / 3600)
        assert cost["energy_kwh"] == pytest.approx(point["power_watts"] * cost["hours"] / 1000)
        own = point["devices"] * cost["hours"] + 0.3 * cost["energy_kwh"]
        assert cost["owned"] == pytest.approx(own)
        assert cost["rented"] is None
    assert "Cost of 90 epochs" in typed(*arguments)
    with pytest.raises(UsageError, match="no tokens"):
        typed(*P100, "--cost", "tokens=1e9")


def test_the_cost_is_that_of_the_time_to_train() -> None:
    options = ("--devices", "1,8", "--batch-per-device", "2048", "--cost", "price_per_hour=2")
    arguments = (*P100, *options, "--epochs", "90@16384")
    found = json.loads(typed(*arguments, "--json"))
    assert [one["epochs"] for one in found["training"]] == [101.25, 180]
    for point, training in zip(found["points"], found["training"], strict=True):
        assert point["cost"]["hours"] == pytest.approx(training["hours"])
        assert point["cost"]["rented"] == pytest.approx(2 * point["devices"] * training["hours"])
    assert "Cost of the epochs of --epochs 90@16384, of 1,281,167 samples" in typed(*arguments)
    unknown = json.loads(typed(*P100, *options, "--epochs", "goyal-2017", "--json"))
    assert [point["cost"] is None for point in unknown["points"]] == [False, True]
    for line in ("epochs=3", "samples=5", "tokens=1e9"):
        with pytest.raises(UsageError, match="both say how long the training is"):
            typed(*P100, "--epochs", "90", "--cost", line)


def test_the_time_to_train_is_beside_the_published_one() -> None:
    options = ("--devices", "1,8", "--batch-per-device", "32", "--epochs", "goyal-2017")
    found = json.loads(typed(*P100, *options, "--json"))
    assert found["epochs"]["rule"] == "goyal-2017"
    assert "1706.02677" in found["epochs"]["source"]
    assert [one["published_hours"] for one in found["training"]] == [None, 29.0]
    other = json.loads(typed(*P100, "--epochs", "goyal-2017", "--json"))  # 64 images a GPU
    assert all(one["published_hours"] is None for one in other["training"])
    assert found["training"][1]["epochs"] == 90
    page = typed(*P100, *options)
    assert "Time to train, --epochs goyal-2017" in page
    assert "Assumed epochs" in page
    with pytest.raises(UsageError, match="--epochs is not for a transformer"):
        typed("predict", "gpt3-175b", "--machine", "selene", "--layout", "tp=8", "--epochs", "9")


def test_what_was_changed_is_in_json_and_on_the_terminal() -> None:
    options = ("--measured", "1=219", "--devices", "8", "--sync", "parameter-server")
    arguments = (*P100, *options, "--what-if", "link=pcie", "--what-if", "straggler=1.1")
    found = json.loads(typed(*arguments, "--json"))
    assert found["sync"] == "parameter-server"
    assert found["what_if"] == {"link": "pcie", "straggler": "1.1"}
    assert found["points"][0]["samples_per_s"] < found["before"][0]["samples_per_s"]
    printed = typed(*arguments)
    assert "link=pcie, straggler=1.1" in printed
    assert found["power"]["origin"] == "assumed"
    (power,) = (line for line in printed.splitlines() if "NVIDIA Tesla P100" in line)
    assert "(assumed: " in power


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--style", "dpd"), "ddp"),
        (("--style", "ddp", "--sync", "local-sgd"), "local-sgd"),
        (("--input-limit", "0"), "above 0"),
        (("--input-limit", "nan"), "above 0"),
        (("--style", "ddp", "--what-if", "bucket_mib=1"), "bucket_mib"),
    ],
)
def test_styles_and_input_that_cannot_be(options: tuple[str, ...], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        typed(*P100, "--measured", "1=219", *options)


def test_help_names_every_style() -> None:
    printed = re.sub(r"[\s│]+", "", typed("predict", "--help"))
    for name in STYLES:
        assert name in printed, name


def test_help_names_every_key_of_what_if() -> None:
    printed = re.sub(r"[\s│]+", " ", typed("predict", "--help"))
    listed = printed.replace("- ", "-")
    for name in KEYS:
        assert name in listed or name.replace("_", "_ ") in listed, name


def test_the_page(golden) -> None:
    golden.check("measured.txt", typed(*P100, "--measured", "1=219", "--devices", "1,8"))


def test_a_batch_that_does_not_fit() -> None:
    found = predict("resnet-50", "dgx1-p100", devices=[1], batch_per_device=512)
    assert found.points[0].fits is False
    assert found.points[0].memory_bytes > found.device_memory_bytes


def test_measured_collectives_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"
    file.write_text("operation,devices,bytes,seconds\nall-reduce,8,1e6,1\nall-reduce,8,1e8,2\n")
    found = json.loads(
        typed(*P100, "--devices", "8", "--measured", "1=219", "--calibrate", str(file), "--json")
    )
    assert found["points"][0]["communication_s"] > 3
    assert found["calibration"]["sweeps"][0]["origin"] == "measured"


def test_a_stored_run_of_the_same_work_calibrates() -> None:
    found = json.loads(typed(*H200, "--json"))
    # The run in this store: ResNet-50, bf16, minibatch 64, on one H200.
    assert found["points"][0]["samples_per_s"] == pytest.approx(3894.97, abs=0.01)
    assert found["measured"] == {"1": pytest.approx(3894.97, abs=0.01)}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--precision", "fp32"), "precision.*bf16.*fp32"),
        (("--calibrate", "82015a72e308"), "82015a72e308"),
    ],
)
def test_a_stored_run_of_other_work_does_not(options: tuple[str, ...], named: str) -> None:
    with pytest.raises(CubemeshError, match=named):
        typed(*H200, *options)


def test_another_network_corrects_a_forecast_from_a_datasheet() -> None:
    options = ("--batch-per-device", "32", "--devices", "1", "--json")
    found = json.loads(typed(*H200, *options))
    assert (found["measured"], list(found["measured_others"])) == ({}, ["resnet-50@64"])
    assert "resnet-50@64" in found["device_source"]
    alone, corrected = (
        json.loads(typed(*P100, *given, "--devices", "1", "--json"))["points"][0]
        for given in ((), ("--measured", "resnet-101@64=100"))
    )
    band, narrow = (p["high"] / p["samples_per_s"] for p in (alone, corrected))
    assert 1 < narrow < band
    assert corrected["samples_per_s"] < alone["samples_per_s"]  # a rate below its forecast


CPU_STORE = STORE.with_name("2026-11-21-cpu-breakdown-power.sqlite")
PRODUCT, COPY = "93f537628a71", "feafb71363b5"
CPU = """\
name = "my-server"
title = "my server"
sources = ["measured"]
[cpus]
count = 1
"""


def test_a_processor_is_forecast_from_its_measured_ceilings(tmp_path: Path) -> None:
    """97.8 GFLOP/s and 11.2 GB/s of one thread, of which training attains 0.59."""
    machine = tmp_path / "cpu.toml"
    machine.write_text(CPU)
    asked = ("predict", "resnet-50", "--machine", str(machine), "--devices", "1")
    asked = (*asked, "--batch-per-device", "8", "--store", str(CPU_STORE))
    both = (*asked, "--calibrate", PRODUCT, "--calibrate", COPY)
    found = json.loads(typed(*both, "--json"))
    (point,) = found["points"]
    least_s = 8 * 3 * 2 * 4.1e9 / 97.8e9
    assert least_s / 0.59 < point["step_s"] < 2 * least_s / 0.59
    assert point["high"] / point["samples_per_s"] == pytest.approx(2)
    assert PRODUCT in found["device_source"]
    for options, named in (
        ((*asked, "--calibrate", PRODUCT), "copy"),
        ((*both, "--precision", "bf16"), "precision"),
        ((*both, "--measured", "vgg16@4=6"), "vgg16@4"),
        ((*both, "--what-if", "machine=knl-7250"), "do not hold for"),
        ((*P100, *both[-6:]), "has GPUs"),
        (asked, "Unknown: how fast"),
    ):
        with pytest.raises(UsageError, match=named):
            typed(*options)


def test_a_framework_that_fuses_and_captures_is_faster() -> None:
    asked = ("--machine", "hgx-h200", "--precision", "bf16", "--batch-per-device", "512")
    points = [
        json.loads(
            typed("predict", "resnet-50", *asked, "--framework", name, "--devices", "1", "--json")
        )["points"][0]
        for name in ("pytorch", "pytorch-compiled", "pytorch-captured")
    ]
    eager, compiled, captured = (point["samples_per_s"] for point in points)
    assert eager < compiled < captured
    assert points[0]["parts_s"]["launch"] > 0 == points[2]["parts_s"]["launch"]


def test_a_run_of_another_device_does_not() -> None:
    with Store.open(str(STORE), must_exist=True, read_only=True) as store:
        record = store.record("3c7f2ae09e1e")
    ranks = tuple(replace(rank, device_name="NVIDIA H200") for rank in record.ranks)
    known = replace(record, ranks=ranks)
    options = {"devices": (1, 8), "precision": "bf16", "calibrate": [known]}
    found = predict("resnet-50", "hgx-h200", **options)
    assert found.points[0].point.samples_per_s == pytest.approx(3894.97, abs=0.01)
    with pytest.raises(UsageError, match=r"h200-sxm-141gb.* a100-sxm4-80gb"):
        predict("resnet-50", "dgx-a100", **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--devices", "0"), "devices: 0"),
        (("--devices", "1,two"), "two"),
        (("--devices", "16"), "8"),
        (("--precision", "fp23"), "fp32"),
        (("--mode", "week"), "weak"),
        (("--measured", "219"), "DEVICES=SAMPLES_PER_S"),
        (("--measured", "1=0"), "measured: 0.0"),
        (("--measured", "1=fast"), "1=fast"),
        (("--calibrate", "none.csv"), "none.csv"),
        (("--machine", "dgx1-p10"), "dgx1-p100"),
        (("--sync", "all-reduc"), "all-reduce"),
        (("--what-if", "speed=2"), "average_every"),
    ],
)
def test_impossible_options_are_errors(options: tuple[str, ...], named: str) -> None:
    with pytest.raises(CubemeshError, match=named):
        typed(*P100, *options)
