"""Claims about one device, on simulated records that meet them or not."""

import dataclasses

import pytest

from cubemesh.schema import (
    Breakdown,
    ClaimState,
    Figure,
    Gpu,
    ProgramSettings,
    Rank,
    RunSpec,
    Status,
    TimeRow,
    Train,
    TrainSteps,
)

HOLDS, FAILS, UNTESTED = (
    ClaimState.HOLDS,
    ClaimState.DOES_NOT_HOLD,
    ClaimState.CANNOT_BE_TESTED_HERE,
)


def on_v100(machine, records):
    return on_gpu(machine, records, "Tesla V100-SXM2-16GB")


def on_gpu(machine, records, name):
    gpu = Gpu(index=0, name=name, uuid="GPU-0")
    ran = Rank(rank=0, host="h", device="cuda:0", outcome=records[0].outcome)
    return (
        tuple(dataclasses.replace(r, ranks=(ran,)) for r in records),
        dataclasses.replace(machine, gpus=(gpu,)),
    )


@pytest.mark.parametrize(("ratio", "state"), [(2.8, HOLDS), (2.6, HOLDS), (1.2, FAILS)])
def test_a_ratio_holds_within_a_tenth_on_any_machine(verdict, steps, ratio, state):
    found = verdict("001-3", steps("little-cnn", {16: 0.016, 64: 0.064 / ratio}))
    assert found.state is state
    assert found.measured.value == pytest.approx(ratio)
    assert found.measured.low < ratio < found.measured.high


def test_a_ratio_whose_interval_reaches_the_tenth_holds(verdict, steps):
    records = steps("little-cnn", {16: 0.016, 64: 0.064 / 2.4}, spread=0.1)
    assert verdict("001-3", records).state is HOLDS


def test_an_absolute_figure_belongs_to_its_device(verdict, steps, machine):
    records = steps("little-cnn", {16: 16 / 3000})
    elsewhere = verdict("001-1", records, machine)
    assert elsewhere.state is UNTESTED
    assert elsewhere.code == "other-device"
    assert elsewhere.measured.value == pytest.approx(3000)
    assert verdict("001-1", *on_v100(machine, records)).state is HOLDS
    slow = steps("little-cnn", {16: 16 / 2000})
    assert verdict("001-1", *on_v100(machine, slow)).state is FAILS


def test_runs_on_the_cpu_of_the_papers_machine_settle_nothing(verdict, steps, machine):
    records, with_gpu = on_v100(machine, steps("little-cnn", {16: 0.01}))
    (rank,) = records[0].ranks
    on_cpu = dataclasses.replace(records[0], ranks=(dataclasses.replace(rank, device="cpu"),))
    assert verdict("001-1", (on_cpu,), with_gpu).state is UNTESTED


def test_step_times_of_other_devices_are_shown(verdict, steps, machine):
    found = verdict("000-1", steps("vgg16", {64: 0.5}), machine)
    assert found.state is UNTESTED
    assert found.measured.value == pytest.approx(500)
    assert found.measured.unit == "ms"
    assert found.measured.low < 500 < found.measured.high


@pytest.mark.parametrize(
    ("after", "spread", "state"),
    [(0.89986, 0.001, HOLDS), (0.8, 0.001, FAILS), (0.845, 0.05, UNTESTED)],
)
def test_a_superlinear_doubling(verdict, steps, after, spread, state):
    records = steps("vgg16", {64: 0.42028, 128: after}, spread=spread)
    found = verdict("000-3", records)
    assert found.state is state
    assert found.measured.value == pytest.approx(after / 0.42028)


def sample_times(steps, network, times_s, **more):
    return steps(network, {b: b * t for b, t in times_s.items()}, **more)


def test_larger_batch_sizes_take_less_time_for_every_network(verdict, steps):
    falls = sample_times(steps, "alexnet", {8: 0.02, 64: 0.01})
    rises = sample_times(steps, "vgg16", {8: 0.02, 64: 0.03})
    assert verdict("000-6", falls).state is HOLDS
    both = verdict("000-6", falls + rises)
    assert both.state is FAILS
    assert "vgg16" in both.reason
    assert verdict("000-6", sample_times(steps, "vgg16", {8: 0.02})).state is UNTESTED
    assert verdict("000-6", ()).state is UNTESTED


@pytest.mark.parametrize(
    ("gpu", "claim", "sign"), [("Tesla K40m", "000-4", -1), ("TITAN X (Pascal)", "000-5", 1)]
)
def test_the_sign_of_curvature_on_the_papers_device(verdict, steps, machine, gpu, claim, sign):
    hollow = sample_times(steps, "alexnet", {4: 0.04, 8: 0.02, 16: 0.01})
    humped = sample_times(steps, "alexnet", {4: 0.04, 8: 0.035, 16: 0.01})
    right, wrong = (hollow, humped) if sign > 0 else (humped, hollow)
    assert verdict(claim, *on_gpu(machine, right, gpu)).state is HOLDS
    assert verdict(claim, *on_gpu(machine, wrong, gpu)).state is FAILS
    straight = sample_times(steps, "alexnet", {4: 0.03, 8: 0.02, 16: 0.0101})
    assert verdict(claim, *on_gpu(machine, straight, gpu)).state is UNTESTED
    elsewhere = verdict(claim, wrong, machine)
    assert elsewhere.code == "other-device"
    assert sign * elsewhere.measured.value < 0
    assert verdict(claim, hollow[1:], machine).code == "not-measured"
    other = sample_times(steps, "vgg16", {4: 0.04, 8: 0.02, 16: 0.01})
    if claim == "000-5":
        assert verdict(claim, *on_gpu(machine, other, gpu)).code == "not-measured"


@pytest.mark.parametrize(
    ("data", "epochs", "accuracy", "state"),
    [
        ("cifar-10", 30, 0.74, HOLDS),
        ("cifar-10", 30, 0.40, FAILS),
        ("cifar-10", 4, 0.74, UNTESTED),
        ("digits", 30, 0.74, UNTESTED),
    ],
)
def test_an_accuracy_needs_the_papers_data_and_epochs(
    verdict, record_of, data, epochs, accuracy, state
):
    work = Train(network="little-cnn", batch_per_device=16, data=data, epochs=epochs)
    found = verdict("001-5", (record_of(RunSpec(work=work), accuracy=accuracy),))
    assert found.state is state
    assert found.measured.value == pytest.approx(100 * accuracy)


def test_failed_runs_are_not_measured(verdict, record_of):
    spec = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=16))
    found = verdict("001-1", (record_of(spec, status=Status.OOM, message="needs more"),))
    assert found.state is UNTESTED
    assert found.code == "not-measured"


def at_224(record_of, network, step_s, on="host", **more):
    return tuple(
        record_of(
            RunSpec(
                work=TrainSteps(network=network, batch_per_device=b, image_size=224),
                program=ProgramSettings(data_location=on),
            ),
            step_s=t,
            **more,
        )
        for b, t in step_s.items()
    )


def test_claims_on_large_images_need_large_images(verdict, steps, record_of):
    small = steps("little-cnn", {16: 0.016, 64: 0.064 / 2.8})
    found = verdict("001-6", small)
    assert found.state is UNTESTED
    assert found.code == "not-measured"
    assert "images of 32 pixels" in found.reason
    large = at_224(record_of, "little-cnn", {16: 0.016, 64: 0.064 / 1.3})
    assert verdict("001-6", large).state is HOLDS
    assert verdict("001-3", large).state is UNTESTED
    assert verdict("001-3", small + large).state is HOLDS


def test_steps_with_data_on_the_host_are_used_if_both_were_measured(verdict, record_of):
    host = at_224(record_of, "little-cnn", {16: 0.016, 64: 0.064 / 1.3})
    device = at_224(record_of, "little-cnn", {16: 0.001, 64: 0.001}, on="device")
    assert verdict("001-6", host + device).measured.value == pytest.approx(1.3)


@pytest.mark.parametrize(("percent", "state"), [(75.0, HOLDS), (60.0, FAILS)])
def test_a_utilization_bound_at_every_batch_size(verdict, record_of, percent, state):
    batches = dict.fromkeys((16, 32, 64, 128, 256), 0.01)
    busy = at_224(record_of, "little-cnn", batches, gpu_percent=90.0)
    lowest = at_224(record_of, "little-cnn", {16: 0.01}, gpu_percent=percent)
    found = verdict("001-7", lowest + busy[1:])
    assert found.state is state
    assert found.measured.value == percent
    assert verdict("001-7", busy[1:]).state is UNTESTED
    assert verdict("001-7", at_224(record_of, "little-cnn", batches)).state is UNTESTED


def test_utilization_figures_belong_to_their_device(verdict, record_of, machine):
    records = at_224(record_of, "vgg16", {32: 0.2}, gpu_percent=95.0)
    elsewhere = verdict("001-13", records, machine)
    assert elsewhere.state is UNTESTED
    assert elsewhere.measured.value == 95.0
    assert verdict("001-13", *on_v100(machine, records)).state is HOLDS
    assert verdict("001-10", *on_v100(machine, records)).state is HOLDS


def test_time_breakdown_claims_of_gawande_et_al(verdict, record_of, machine):
    def profiled(network, batch, busy):
        spec = RunSpec(work=TrainSteps(network=network, batch_per_device=batch))
        rows = (
            TimeRow(name="synchronize", seconds=0.094, calls=1),
            TimeRow(name="launch", seconds=0.006, calls=9),
        )
        record = record_of(spec)
        return dataclasses.replace(
            record,
            figures={**record.figures, "device_busy_percent": Figure(value=busy, unit="%")},
            breakdowns=(Breakdown(name="runtime call", rows=rows, method=""),),
            ranks=(Rank(rank=0, host="a", device="cuda:0", outcome=record.outcome),),
        )

    records = (profiled("alexnet", 256, 90.0), profiled("resnet-50", 32, 97.0))
    waiting, busy, missing = (verdict(f"004-{n}", records) for n in (7, 8, 9))
    assert (waiting.state, busy.state, missing.state) == (UNTESTED, UNTESTED, UNTESTED)
    assert waiting.measured.value == pytest.approx(94)
    assert busy.measured.value == pytest.approx(97)
    assert (waiting.code, missing.code) == ("other-device", "not-measured")
    p100 = dataclasses.replace(
        machine, gpus=(Gpu(index=0, name="Tesla P100-SXM2-16GB", uuid="GPU-0"),)
    )
    assert verdict("004-7", records, p100).state is HOLDS
    assert verdict("004-8", records, p100).state is HOLDS
