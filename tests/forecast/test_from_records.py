"""Stored runs as calibration: rates of one and several devices, and sweeps of collectives."""

from dataclasses import replace

import pytest

from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.forecast.attained import EAGER
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.from_records import measured_inputs
from cubemesh.forecast.request import ForecastRequest
from cubemesh.forecast.step import predict
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.schema import Collective, Figure, RunRecord, TrainSteps
from cubemesh.schema.collective import SweepPoint
from cubemesh.schema.work import Ceiling
from cubemesh.store import Store
from stored_benchmarks import RECORDS

STORE = RECORDS / "2026-11-21-one-h200.sqlite"
ASKED = ForecastRequest(
    network=networks.build("resnet-50"),
    system=load_system("hgx-h200"),
    batch_per_device=64,
    precision="bf16",
)
SIZES = (1 << 20, 1 << 24, 1 << 28)


@pytest.fixture(scope="module")
def trained() -> RunRecord:
    """ResNet-50, bf16, minibatch 64, on one H200."""
    with Store.open(str(STORE), must_exist=True, read_only=True) as store:
        return store.record("3c7f2ae09e1e")


def several(record: RunRecord, devices: int, sync: str = "all-reduce") -> RunRecord:
    spec = record.spec
    spec = replace(
        spec,
        placement=replace(spec.placement, devices=devices),
        program=replace(spec.program, sync=sync),
    )
    figure = record.figures["throughput_per_s"]
    rate = replace(figure, value=0.9 * devices * figure.value)
    ranks = tuple(replace(record.ranks[0], rank=i) for i in range(devices))
    return replace(
        record, spec=spec, ranks=ranks, figures={**record.figures, "throughput_per_s": rate}
    )


def swept(record: RunRecord, operation: str = "all-reduce", sizes=SIZES) -> RunRecord:  # type: ignore[no-untyped-def]
    work = Collective(collective=operation, sizes_bytes=sizes)  # type: ignore[arg-type]
    points = [
        SweepPoint(size_bytes=size, count=size // 4, seconds=(size / 1e11,), in_place=place)
        for size in sizes
        for place in (False, True)
    ]
    points[0] = replace(points[0], seconds=(1.0,))  # the faster of the two counts
    record = several(record, 8)
    return replace(record, spec=replace(record.spec, work=work), sweep=tuple(points))


def test_runs_on_one_and_several_devices_give_rates(trained: RunRecord) -> None:
    one = measured_inputs(trained, "resnet-50", ASKED, EAGER)
    assert one.rates == {1: pytest.approx(3894.97, abs=0.01)}
    assert one.sweeps == ()
    eight = measured_inputs(several(trained, 8), "resnet-50", ASKED, EAGER)
    assert eight.rates == {8: pytest.approx(0.9 * 8 * 3894.97, rel=1e-4)}
    found = predict(ASKED, [8], defaults(), one.rates | eight.rates)
    assert found.points[0].efficiency == pytest.approx(0.9, rel=1e-3)


def test_a_run_with_another_strategy_is_refused(trained: RunRecord) -> None:
    with pytest.raises(UsageError, match=r"\bsync\b.*local-sgd"):
        measured_inputs(several(trained, 8, "local-sgd"), "resnet-50", ASKED, EAGER)


def test_a_sweep_of_a_collective_becomes_a_measured_sweep(trained: RunRecord) -> None:
    (sweep,) = measured_inputs(swept(trained), "resnet-50", ASKED, EAGER).sweeps
    assert (sweep.operation, sweep.devices, sweep.size_bytes) == ("all-reduce", 8, SIZES)
    assert sweep.seconds == pytest.approx([size / 1e11 for size in SIZES])
    known = defaults().with_sweeps(sweep)
    slow = predict(ASKED, [8], known, {1: 3894.97}).points[0]
    assert (
        slow.communication_s
        > predict(ASKED, [8], defaults(), {1: 3894.97}).points[0].communication_s
    )


def test_what_a_forecast_cannot_use_is_refused(trained: RunRecord) -> None:
    with pytest.raises(UsageError, match=r"all-to-all.*all-reduce"):
        measured_inputs(swept(trained, "all-to-all"), "resnet-50", ASKED, EAGER)
    with pytest.raises(UsageError, match=rf"{trained.run_id}.*\btwo sizes"):
        measured_inputs(swept(trained, sizes=(1 << 20,)), "resnet-50", ASKED, EAGER)


def test_steps_that_accumulate_or_compute_again_are_no_evidence(trained: RunRecord) -> None:
    spec = trained.spec
    assert isinstance(spec.work, TrainSteps)
    work = replace(spec.work, accumulation_steps=4)
    program = replace(spec.program, checkpoint_activations="segments")
    for other, word in (
        (replace(spec, work=work), "accumulation_steps is 4"),
        (replace(spec, program=program), "checkpoint_activations is segments"),
    ):
        with pytest.raises(UsageError, match=word):
            measured_inputs(replace(trained, spec=other), "resnet-50", ASKED, EAGER)


def test_a_run_of_another_batch_size_or_network_is_a_rate_of_another(trained: RunRecord) -> None:
    for asked, network in (
        (replace(ASKED, batch_per_device=256), "resnet-50"),
        (replace(ASKED, network=networks.build("vgg16")), "vgg16"),
    ):
        found = measured_inputs(trained, network, asked, EAGER)
        assert (found.rates, found.sweeps) == ({}, ())
        (other,) = found.others
        assert (other.name, other.network.name) == ("resnet-50@64", "resnet-50")
        assert other.samples_per_s == pytest.approx(3894.97, abs=0.01)
    asked = replace(ASKED, batch_per_device=256)
    with pytest.raises(UsageError, match="batch_per_device"):
        measured_inputs(several(trained, 8), "resnet-50", asked, EAGER)


def ceiling(record: RunRecord, operation: str, device: str) -> RunRecord:
    work = Ceiling(operation=operation)  # type: ignore[arg-type]
    rank = replace(record.ranks[0], device=device, device_name="")
    figures = {"rate_bytes_per_s": Figure(value=40e9, unit="B/s")}
    figures["rate_flops_per_s"] = Figure(value=1e12, unit="FLOP/s")
    return replace(
        record, spec=replace(record.spec, work=work), ranks=(rank,), figures=figures, sweep=()
    )


def test_a_copy_by_the_host_is_used_for_a_server_on_the_cpu(trained: RunRecord) -> None:
    for asked in (
        replace(ASKED, sync="parameter-server-cpu"),
        replace(ASKED, style="tensorflow-parameter-server"),
    ):
        found = measured_inputs(ceiling(trained, "copy", "cpu"), "resnet-50", asked, EAGER)
        assert (found.host_copy, found.ceiling, found.rates) == (40e9, None, {})
    for asked, operation, device in (
        (ASKED, "copy", "cpu"),
        (replace(ASKED, sync="parameter-server-cpu"), "matrix_product", "cpu"),
        (replace(ASKED, sync="parameter-server-cpu"), "copy", "cuda:0"),
    ):
        with pytest.raises(UsageError, match="ceilings are for processors"):
            measured_inputs(ceiling(trained, operation, device), "resnet-50", asked, EAGER)
