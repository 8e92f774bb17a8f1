"""What would be otherwise: every key does something, and documents' comparisons come out right."""

import dataclasses
import re
from pathlib import Path

import pytest

from cubemesh import networks
from cubemesh.errors import CubemeshError, UsageError
from cubemesh.forecast.calibration import Sweep, defaults
from cubemesh.forecast.request import Forecast, ForecastRequest
from cubemesh.forecast.step import predict
from cubemesh.forecast.what_if import KEYS, apply_changes, read_changes
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.networks.graph import Network


def ask(
    network: str | Network,
    machine: str,
    devices: int,
    *changes: str,
    batch: int = 64,
    sync: str = "all-reduce",
    **more: object,
) -> Forecast:
    request = ForecastRequest(
        network=networks.build(network) if isinstance(network, str) else network,
        system=load_system(machine),
        batch_per_device=batch,
        sync=sync,  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )
    return predict(request, [devices], defaults(), None, read_changes(changes))


def gain(*asked: object, **more: object) -> float:
    """How many times as fast without the change as with it."""
    found = ask(*asked, **more)  # type: ignore[arg-type]
    return found.before[0].samples_per_s / found.points[0].samples_per_s


EVERY = {
    "machine": "dgx1-v100",
    "device": "v100-sxm2-16gb",
    "link": "pcie",
    "network": "10gbe",
    "network_gbit_per_s": "1",
    "network_latency_us": "500",
    "ports": "1",
    "sync": "parameter-server",
    "precision": "fp64",
    "batch_per_device": "8",
    "device_speed": "2",
    "straggler": "1.5",
    "gradient_bytes": "2",
    "bucket_mib": "100",
    "average_every": "64",
    "launch_us": "5000",
}


@pytest.mark.parametrize("key", KEYS)
def test_every_key_changes_the_forecast(key: str) -> None:
    machine, devices = "dgx1-v100-edr", 16
    if key in ("machine", "device"):
        machine, devices = "dgx1-p100", 8
    sync = "local-sgd" if key == "average_every" else "all-reduce"
    found = ask("alexnet", machine, devices, f"{key}={EVERY[key]}", sync=sync)
    assert found.points[0].samples_per_s != pytest.approx(found.before[0].samples_per_s, rel=1e-4)


def test_twice_the_speed_is_twice_the_rate_on_one_device() -> None:
    request = ForecastRequest(
        network=networks.build("resnet-50"), system=load_system("dgx1-p100"), batch_per_device=64
    )
    found = predict(request, [1], defaults(), {1: 219}, read_changes(["device_speed=2"]))
    assert found.before[0].samples_per_s == pytest.approx(219)
    assert found.points[0].samples_per_s == pytest.approx(438, rel=1e-3)


def test_nvlink_against_pcie() -> None:
    """Document 002: about 15 % on Inception-v3 (figure 5), 30 % on the translator (figure 6), and
    much more with wider vectors (figure 7)."""
    image = gain("inception-v3", "dgx1-v100", 8, "link=pcie", batch=128, precision="fp16")
    assert 1.05 < image < 1.6
    made = networks.entry("translator").make
    narrow = gain(made(50, 32000, 512), "dgx1-v100", 8, "link=pcie", batch=256)
    wide = gain(made(50, 32000, 2048), "dgx1-v100", 8, "link=pcie", batch=64)
    assert 1.1 < narrow < wide


def test_without_peer_access_nvlink_is_of_no_use() -> None:
    """Lambda's eight A100 with NCCL_P2P_DISABLE=1 lost more than with PCIe only."""
    through_host = gain("vgg16", "dgx-a100", 8, "link=host")
    over_pcie = gain("vgg16", "dgx-a100", 8, "link=pcie")
    assert through_host > over_pcie > 1


def test_measured_collectives_do_not_hold_over_other_links() -> None:
    measured = defaults().with_sweeps(
        Sweep(
            operation="all-reduce",
            devices=8,
            size_bytes=(1e6, 1e9),
            seconds=(1e-4, 8e-3),
            source="measured",
        )
    )
    request = ForecastRequest(
        network=networks.build("vgg16"), system=load_system("dgx-a100"), batch_per_device=64
    )
    for changes in (["link=host"], ["link=pcie"], ["machine=hgx-h100"]):
        asked = read_changes(changes)
        found = predict(request, [8], measured, {1: 1000}, asked)
        without = predict(request, [8], defaults(), {1: 1000}, asked)
        assert found.points[0].samples_per_s == without.points[0].samples_per_s
        assert found.before[0].samples_per_s != without.before[0].samples_per_s
    unchanged = predict(request, [8], measured, {1: 1000}, read_changes(["device_speed=2"]))
    assert unchanged.points[0].communication_s == pytest.approx(unchanged.before[0].communication_s)


def test_many_parameters_let_the_interconnect_decide() -> None:
    """Document 004, abstract: AlexNet against GoogLeNet."""
    many = gain("alexnet", "dgx1-p100", 8, "link=pcie", batch=256)
    few = gain("googlenet", "dgx1-p100", 8, "link=pcie", batch=256)
    assert many > few > 1


def test_infiniband_against_ethernet() -> None:
    """Document 003: over 10 Gb/s Ethernet slower than over 100 Gb/s InfiniBand."""
    assert gain("googlenet", "c4130-g-edr", 16, "network=10gbe") > 1.02
    named = gain("vgg16", "c4130-g-edr", 16, "network_gbit_per_s=10")
    assert named == pytest.approx(gain("vgg16", "c4130-g-edr", 16, "network=10gbe"), rel=0.1)


def test_one_switch_against_two_pairs() -> None:
    """Document 003, future work: configuration B of the C4130 is never behind G."""
    assert gain("alexnet", "c4130-b", 4, "machine=c4130-g") >= 1


def test_nvlink_where_there_was_pcie_is_quicker() -> None:
    assert gain("vgg16", "c4130-g", 4, "device=p100-sxm2-16gb", "link=nvlink") < 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["speed=2"], "Known keys: average_every, .*straggler"),
        (["straggler"], "give it as straggler=VALUE"),
        (["straggler=0.9"], "a number of 1 or more"),
        (["device_speed=fast"], "a number above 0"),
        (["link=pcie", "link=nvlink"], "given twice"),
        (["link=string"], "Known links: host, nvlink, pcie"),
        (["network=edr"], "single system, without a network"),
        (["device=v100"], "v100-sxm2-16gb"),
        (["ports=1.5"], "single system|whole number"),
        (["sync=gossip"], "all-reduce"),
        (["precision=int4"], "fp32|precision"),
        (["machine=dgx9"], "dgx"),
    ],
)
def test_what_cannot_be_meant_is_said(changes: list[str], says: str) -> None:
    with pytest.raises(CubemeshError, match=says):
        ask("alexnet", "dgx1-p100", 8, *changes)


def test_every_key_is_documented() -> None:
    said = (Path(__file__).parents[2] / "docs" / "prediction.md").read_text("utf-8")
    assert [key for key in KEYS if f"`{key}`" not in said] == []


def measured(
    machine: str, devices: int, *changes: str, rate: float = 219.0, precision: str = "fp32"
) -> Forecast:
    """A forecast of ResNet-50 from what one device of `machine` reached."""
    request = ForecastRequest(
        network=networks.build("resnet-50"),
        system=load_system(machine),
        batch_per_device=64,
        precision=precision,  # type: ignore[arg-type]
    )
    return predict(request, [devices], defaults(), {1: rate}, read_changes(changes))


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        ("machine=hgx-h200", "band_uncalibrated"),
        ("device=v100-sxm2-16gb", "band_uncalibrated"),
        ("precision=fp16", "band_uncalibrated"),
        ("link=pcie", "band_one_system"),
        ("sync=local-sgd", "band_one_system"),
        ("straggler=1.1", "band_one_system"),
    ],
)
def test_a_measured_rate_narrows_the_band_of_its_own_device_and_precision(
    change: str, factor: str
) -> None:
    found = measured("dgx1-p100", 8, change)
    point, before = found.points[0], found.before[0]
    of_system = defaults()["band_one_system"] * defaults()["band_unknown_one_system"]
    expected = of_system if factor == "band_one_system" else defaults()[factor]
    assert before.high / before.samples_per_s == pytest.approx(of_system)
    assert point.high / point.samples_per_s == pytest.approx(expected)
    assert ("carried to" in found.device_source) == (factor == "band_uncalibrated")


def test_what_has_no_datasheet_is_not_compared() -> None:
    known, unknown = ("p100-sxm2-16gb", "fp32"), ("p100-sxm2-16gb", "bf16")
    assert named_in_refusal("dgx1-p100", "precision=bf16") == [known, unknown, unknown]
    unknown = ("dual-root-pcie", "fp32")
    assert named_in_refusal("dual-root-pcie", "machine=dgx1-p100") == [unknown, known, unknown]
    other = ("dual-root-pcie", "fp16")
    assert named_in_refusal("dual-root-pcie", "precision=fp16") == [unknown, other, unknown]


def named_in_refusal(machine: str, change: str) -> list[tuple[str, str]]:
    """Device and precision before and after the change, and the one without a datasheet."""
    with pytest.raises(CubemeshError, match="datasheet") as refused:
        measured(machine, 8, change)
    return re.findall(r"([\w-]+) in (\w+)", str(refused.value))


def test_a_small_latency_of_the_network_counts_too() -> None:
    for machine in ("dgx1-v100-edr", "knl-aries"):
        devices = 16 if machine == "dgx1-v100-edr" else 4
        found = [
            ask("alexnet", machine, devices, f"network_latency_us={us}").points[0].communication_s
            for us in (0.5, 1.5, 5)
        ]
        assert found[0] < found[1] < found[2]


def test_launches_come_with_gpus_and_with_who_asks_for_them() -> None:
    """A processor launches nothing; a step shorter than its launches shows that it was captured."""
    on_gpus = measured("knl-7250", 1, "machine=hgx-h200", rate=20.0)
    assert on_gpus.before[0].parts_s["launch"] == 0
    small = ForecastRequest(
        network=networks.build("resnet-50"), system=load_system("hgx-h200"), batch_per_device=1
    )
    captured = {1: 1000.0}
    unchanged = predict(small, [1], defaults(), captured, read_changes(["link=pcie"]))
    asked = predict(small, [1], defaults(), captured, read_changes(["launch_us=200"]))
    assert unchanged.points[0].parts_s["launch"] == unchanged.before[0].parts_s["launch"] == 0
    assert asked.points[0].parts_s["launch"] > 0.01
    from_processor = dataclasses.replace(small, system=load_system("knl-7250"))
    moved = predict(from_processor, [1], defaults(), {1: 0.5}, read_changes(["machine=hgx-h200"]))
    assert moved.points[0].parts_s["launch"] > 0


def test_what_needs_gpus_or_processors_says_so(tmp_path: Path) -> None:
    with pytest.raises(CubemeshError, match=r"launch_us: knl-7250\b.*GPUs"):
        measured("knl-7250", 1, "launch_us=20")
    file = tmp_path / "bare.toml"
    file.write_text(WITHOUT_PROCESSORS)
    with pytest.raises(CubemeshError, match=r"link=host: bare\b.*\[cpus\]"):
        measured(str(file), 2, "link=host")


WITHOUT_PROCESSORS = """\
name = "bare"
title = "GPUs only"
sources = ["made up"]
[gpus]
device = "p100-sxm2-16gb"
count = 2
[nvlink]
generation = 1
pairs = [[0, 1, 4]]
"""


def test_a_hybrid_by_layer_is_a_change_of_strategy() -> None:
    request = ForecastRequest(
        network=networks.build("alexnet"), system=load_system("hgx-h100"), batch_per_device=256
    )
    found = predict(request, [2], defaults(), {1: 20_000.0}, {"sync": "hybrid-by-layer"})
    assert found.points[0].exchanged_bytes < found.before[0].exchanged_bytes
    with pytest.raises(UsageError, match="hybrid-by-layer"):
        apply_changes(request, defaults(), {"sync": "hybrid-by-laye"})
