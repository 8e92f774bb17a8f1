"""Methods, definitions and wishes of the papers, on simulated records that follow them or not."""

import dataclasses

import pytest

from answers import in_order
from cubemesh.schema import (
    ClaimState,
    Figure,
    Forward,
    Input,
    Placement,
    ProgramSettings,
    Rank,
    RunSpec,
    Status,
    Train,
    TrainSteps,
)

HOLDS, FAILS, UNTESTED = (
    ClaimState.HOLDS,
    ClaimState.DOES_NOT_HOLD,
    ClaimState.CANNOT_BE_TESTED_HERE,
)


def on_gpu(record):
    return dataclasses.replace(
        record, ranks=(Rank(rank=0, host="h", device="cuda:0", outcome=record.outcome),)
    )


def test_a_run_without_a_figure_has_an_outcome(verdict, record_of):
    def run(framework, network, status=Status.OK):
        spec = RunSpec(
            work=TrainSteps(network=network, batch_per_device=64),
            program=ProgramSettings(framework=framework),
        )
        message = "needs 40 GB" if status is Status.OOM else ""
        return record_of(spec, status=status, message=message)

    runs = (run("pytorch", "alexnet"), run("pytorch", "vgg16"), run("jax", "alexnet"))
    found = verdict("000-7", (*runs, run("jax", "vgg16", Status.OOM)))
    assert found.state is HOLDS
    assert in_order(found.reason, "1 of 4 runs", "pytorch")
    assert verdict("000-7", ()).code == "not-measured"
    absent = run("jax", "vgg16", Status.UNSUPPORTED)
    assert verdict("000-7", (*runs, absent)).code == "not-measured", "no bar is missing for memory"
    assert verdict("000-7", runs).code == "not-measured"


def test_means_are_of_as_many_steps_as_the_papers(verdict, record_of):
    def runs(batch, steps):
        for kind in (Forward, TrainSteps):
            record = record_of(RunSpec(work=kind(network="alexnet", batch_per_device=batch)))
            first = dataclasses.replace(record.windows[0], steps=steps, phase="measure")
            yield dataclasses.replace(record, windows=(first,))

    assert verdict("000-8", tuple(runs(64, 100))).state is HOLDS
    few = verdict("000-8", tuple(runs(64, 10)))
    assert (few.state, few.code, few.measured.value) == (UNTESTED, "fewer-runs", 10)
    assert verdict("000-8", tuple(runs(32, 100))).code == "not-measured"
    assert verdict("000-8", tuple(runs(64, 100))[1:]).code == "not-measured"


@pytest.mark.parametrize(("small", "state"), [(2.0, HOLDS), (1.0, FAILS)])
def test_copies_from_the_host_cost_most_at_a_small_batch(verdict, record_of, small, state):
    def run(batch, location, step_s):
        spec = RunSpec(
            work=TrainSteps(network="little-cnn", batch_per_device=batch, image_size=224),
            program=ProgramSettings(data_location=location),
        )
        return on_gpu(record_of(spec, step_s=step_s, spread=0.0001))

    runs = (
        *(run(16, "device", 0.01), run(16, "host", 0.01 * small)),
        *(run(256, "device", 0.1), run(256, "host", 0.12)),
    )
    assert verdict("001-23", runs).state is state
    assert verdict("001-23", runs[:2]).code == "not-measured"
    cpu = tuple(dataclasses.replace(r, ranks=()) for r in runs)
    assert verdict("001-23", cpu).code == "no-gpu"


def test_frameworks_each_at_the_fastest_of_several_batch_sizes(verdict, record_of):
    def run(framework, batch, devices=1, network="resnet-50", rate=None):
        record = record_of(
            RunSpec(
                work=TrainSteps(network=network, batch_per_device=batch),
                placement=Placement(devices=devices),
                program=ProgramSettings(framework=framework, sync="all-reduce"),
            )
        )
        figure = Figure(value=rate or batch * devices, unit="images/s")
        return dataclasses.replace(record, figures={"throughput_per_s": figure})

    pytorch = (run("pytorch", 64), run("pytorch", 128), run("pytorch", 128, 2))
    jax = (run("jax", 32, rate=90.0), run("jax", 64, rate=80.0))
    found = verdict("002-17", (*pytorch, *jax, run("jax", 32, 2)))
    assert found.state is HOLDS
    assert in_order(found.reason, "pytorch", "128 of 64", "jax", "32 of 32")
    for others in (
        (),
        jax,
        (*jax, run("jax", 64, 2)),
        (run("jax", 32), run("jax", 32, 2)),
        (*jax, run("jax", 32, 2, network="vgg16")),
    ):
        assert verdict("002-17", (*pytorch, *others)).code == "not-measured"


def test_throughput_is_recomputed_from_the_windows(verdict, record_of):
    record = record_of(RunSpec(work=TrainSteps(network="googlenet", batch_per_device=64)))
    assert verdict("003-11", (record,)).state is HOLDS
    figure = record.figures["throughput_per_s"]
    wrong = dataclasses.replace(figure, value=1.1 * figure.value)
    off = dataclasses.replace(record, figures={"throughput_per_s": wrong})
    assert verdict("003-11", (record, off)).state is FAILS
    assert verdict("003-11", ()).code == "not-measured"


def test_batch_size_and_learning_rate_change_the_accuracy(verdict, record_of):
    def run(batch, rate, accuracy):
        work = Train(network="little-cnn", batch_per_device=batch, epochs=2, learning_rate=rate)
        return record_of(RunSpec(work=work), accuracy=accuracy)

    grid = (run(16, 1e-4, 0.9), run(64, 1e-4, 0.8), run(16, 1e-3, 0.95), run(64, 1e-3, 0.85))
    found = verdict("003-12", grid)
    assert found.state is HOLDS
    assert found.measured.value == pytest.approx(15)
    assert verdict("003-12", grid[:2]).code == "not-measured"


def test_power_is_of_named_parts(verdict, record_of):
    def run(network, parts="GPU board (NVML)"):
        record = record_of(RunSpec(work=TrainSteps(network=network, batch_per_device=96)))
        power = Figure(value=300, unit="W", method=f"{parts}; not included: network")
        figures = {**record.figures, "mean_power_watts": power}
        return dataclasses.replace(record, figures=figures if parts else record.figures)

    networks = ("alexnet", "googlenet", "resnet-50", "vgg16")
    assert verdict("004-17", (run("alexnet", parts=""),)).code == "no-power-sensor"
    assert verdict("004-17", tuple(map(run, networks[1:]))).code == "not-measured"
    found = verdict("004-17", tuple(map(run, networks)))
    assert found.state is HOLDS
    assert in_order(found.reason, "GPU board", "network")
    mixed = run("alexnet", parts="GPU board (NVML) + CPU package (RAPL)")
    assert verdict("004-17", (*map(run, networks), mixed)).state is FAILS


def test_the_reader_is_compared_with_the_papers(verdict, record_of):
    def decoded(per_s, network="alexnet"):
        work = Input(network=network, batch_per_device=128, stage="decode")
        return record_of(RunSpec(work=work), step_s=128 / per_s, spread=0.0001)

    assert verdict("002-18", (decoded(20_000),)).state is HOLDS
    assert verdict("002-18", (decoded(900), decoded(3_000))).state is FAILS
    assert verdict("002-18", (decoded(20_000, "resnet-50"),)).code == "not-measured"
