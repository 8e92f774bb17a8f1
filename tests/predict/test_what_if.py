"""What would be otherwise: every key does something, and documents' comparisons come out right."""

from pathlib import Path

import pytest

from cubemesh import networks
from cubemesh.errors import CubemeshError
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.networks.graph import Network
from cubemesh.predict.calibration import Sweep, defaults
from cubemesh.predict.question import Forecast, Question
from cubemesh.predict.step import predict
from cubemesh.predict.what_if import KEYS, read_changes


def ask(
    network: str | Network,
    machine: str,
    devices: int,
    *changes: str,
    batch: int = 64,
    exchange: str = "all-reduce",
    **more: object,
) -> Forecast:
    question = Question(
        network=networks.build(network) if isinstance(network, str) else network,
        system=load_system(machine),
        batch_per_device=batch,
        exchange=exchange,  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )
    return predict(question, [devices], defaults(), None, read_changes(changes))


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
    "exchange": "parameter-server",
    "precision": "fp64",
    "batch_per_device": "8",
    "device_speed": "2",
    "straggler": "1.5",
    "gradient_bytes": "2",
    "bucket_mib": "1",
    "average_every": "64",
    "launch_us": "5000",
}


@pytest.mark.parametrize("key", KEYS)
def test_every_key_changes_the_forecast(key: str) -> None:
    machine, devices = "dgx1-v100-edr", 16
    if key in ("machine", "device"):
        machine, devices = "dgx1-p100", 8
    exchange = "local-sgd" if key == "average_every" else "all-reduce"
    found = ask("alexnet", machine, devices, f"{key}={EVERY[key]}", exchange=exchange)
    assert found.points[0].samples_per_s != pytest.approx(found.before[0].samples_per_s, rel=1e-4)


def test_twice_the_speed_is_twice_the_rate_on_one_device() -> None:
    question = Question(
        network=networks.build("resnet-50"), system=load_system("dgx1-p100"), batch_per_device=64
    )
    found = predict(question, [1], defaults(), {1: 219}, read_changes(["device_speed=2"]))
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
    """Lambda's eight A100 with NCCL_P2P_DISABLE=1 lost more than PCIe alone would have taken."""
    assert gain("vgg16", "dgx-a100", 8, "link=host") > 1.2
    assert 1 < gain("vgg16", "dgx-a100", 8, "link=pcie") < 1.1


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
    question = Question(
        network=networks.build("vgg16"), system=load_system("dgx-a100"), batch_per_device=64
    )
    for changes in (["link=host"], ["link=pcie"], ["machine=hgx-h100"]):
        asked = read_changes(changes)
        found = predict(question, [8], measured, {1: 1000}, asked)
        without = predict(question, [8], defaults(), {1: 1000}, asked)
        assert found.points[0].samples_per_s == without.points[0].samples_per_s
        assert found.before[0].samples_per_s != without.before[0].samples_per_s
    kept = predict(question, [8], measured, {1: 1000}, read_changes(["device_speed=2"]))
    assert kept.points[0].communication_s == pytest.approx(kept.before[0].communication_s)


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
        (["exchange=gossip"], "all-reduce"),
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
