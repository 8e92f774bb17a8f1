from dataclasses import replace

import pytest

from answers import codes, column, finding, findings, in_order, table, texts, values
from cubemesh.errors import UsageError
from cubemesh.experiments.minibatch.experiment import EXPERIMENT, PAPER_BATCH_SIZES, Settings
from cubemesh.experiments.registry import Context, Scale
from cubemesh.schema import (
    Breakdown,
    Ceiling,
    Forward,
    ForwardBackward,
    Infer,
    Part,
    Placement,
    ProgramSettings,
    RunSpec,
    Status,
    TimeRow,
    TrainSteps,
    warn,
)


def batch_of(spec: RunSpec) -> int:
    return spec.batch_per_device or 0


@pytest.fixture
def context(machine):
    return Context(machine=machine)


def steps(asked):
    """Batch sizes that are timed."""
    own = (s for s in asked if isinstance(s.work, TrainSteps))
    return [batch_of(s) for s in own if not s.budget.attribution]


def test_given_batch_sizes_are_measured_after_the_ceiling(context, play, record_of):
    asked, _ = play(EXPERIMENT.plan(Settings(batch_sizes=(32, 8, 8)), context), record_of)
    assert isinstance(asked[0].work, Ceiling)
    assert steps(asked) == [8, 32]


def test_no_ceiling_with_ceiling_false(context, play, record_of):
    asked, _ = play(EXPERIMENT.plan(Settings(batch_sizes=(8,), ceiling=False), context), record_of)
    assert [type(s.work) for s in asked] == [TrainSteps]


def test_the_default_sweep_is_the_papers_if_runs_are_short(context, play, record_of):
    asked, _ = play(EXPERIMENT.plan(Settings(), context), record_of)
    assert tuple(steps(asked)) == PAPER_BATCH_SIZES


def test_the_default_sweep_ends_if_a_run_would_take_too_long(machine, play, record_of):
    quick = Context(machine=machine, scale=Scale.QUICK)
    asked, sent = play(
        EXPERIMENT.plan(Settings(), quick),
        lambda spec: record_of(spec, step_s=0.0064 * (spec.batch_per_device or 1)),
    )
    assert steps(asked) == [8, 16, 32, 64]
    answer = EXPERIMENT.answer(Settings(), sent)
    reduced = [w for w in answer.warnings if w.code == "reduced"]
    assert len(reduced) == 1
    assert "64" in reduced[0].cause


def test_min_largest_batch_is_measured_however_long_a_run_takes(machine, play, record_of):
    quick = Context(machine=machine, scale=Scale.QUICK)
    settings = Settings(min_batch_size=4, max_batch_size=64, min_largest_batch=16)
    asked, sent = play(EXPERIMENT.plan(settings, quick), lambda s: record_of(s, step_s=30.0))
    assert steps(asked) == [4, 8, 16]
    (warning,) = [w for w in EXPERIMENT.answer(settings, sent).warnings if w.code == "reduced"]
    assert "16 instead of 64" in warning.cause
    with pytest.raises(UsageError, match="min_batch_size=0"):
        Settings(min_batch_size=0)


def test_the_default_sweep_ends_out_of_memory(context, play, record_of):
    def make(spec):
        full = batch_of(spec) >= 32
        message = "out of memory: needs 27 GiB, 24 GiB here; 16 fits"
        return record_of(spec, status=Status.OOM if full else Status.OK, message=message)

    asked, sent = play(EXPERIMENT.plan(Settings(), context), make)
    assert steps(asked) == [8, 16, 32]
    answer = EXPERIMENT.answer(Settings(), sent)
    missing = answer.charts[0].lines[0].points[-1]
    assert missing.y is None
    assert missing.reason == "out of memory: needs 27 GiB, 24 GiB here; 16 fits"
    assert "32" in finding(answer, "failed-run").text


def answer_for(record_of, step_s, **settings):
    """The answer when batch size `b` takes `step_s[b]` seconds a step."""
    wanted = Settings(batch_sizes=tuple(step_s), **settings)
    specs = [
        RunSpec(work=TrainSteps(network=wanted.networks[0], batch_per_device=b)) for b in step_s
    ]
    return EXPERIMENT.answer(wanted, [record_of(s, step_s=step_s[batch_of(s)]) for s in specs])


def test_the_knee_of_the_throughput(record_of):
    answer = answer_for(record_of, {8: 0.02, 16: 0.02, 32: 0.02, 64: 0.0397, 128: 0.079})
    assert finding(answer, "throughput-knee").value == 32
    assert finding(answer, "small-batch-cost").value == pytest.approx(4.0)


@pytest.mark.parametrize(("network", "unit"), [("resnet-18", "images/s"), ("gpt2", "sequences/s")])
def test_throughput_has_the_unit_of_the_samples_of_the_network(record_of, network, unit):
    seconds = {8: 0.02, 16: 0.02, 32: 0.021, 64: 0.042}
    answer = answer_for(record_of, seconds, networks=(network,))
    assert f" {unit}, at batch size" in finding(answer, "throughput").text
    assert finding(answer, "throughput").unit == unit
    assert f" {unit}, " in finding(answer, "throughput-knee").text
    units = {c.unit for t in answer.tables for c in t.columns if c.name == "throughput"}
    assert units == {unit}
    assert answer.charts[0].y.unit == unit


def test_throughput_that_still_increases_has_a_remedy(record_of):
    answer = answer_for(record_of, {8: 0.02, 16: 0.021, 32: 0.022})
    assert finding(answer, "throughput-rising").value == 32
    assert "batch_sizes=64,128" in finding(answer, "throughput-rising").remedy


def test_throughput_that_does_not_increase(record_of):
    answer = answer_for(record_of, {8: 0.02, 16: 0.041})
    assert "throughput-flat" in codes(answer)


def test_a_doubling_that_more_than_doubles_the_time(record_of):
    answer = answer_for(record_of, {64: 0.42028, 128: 0.89986})
    assert finding(answer, "superlinear-doubling").value == pytest.approx(2.14, abs=0.005)


def test_a_doubling_within_its_interval_is_not_significant(record_of):
    specs = [RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=b)) for b in (64, 128)]
    records = [record_of(s, step_s=t, spread=0.2) for s, t in zip(specs, (0.42, 0.90), strict=True)]
    answer = EXPERIMENT.answer(Settings(batch_sizes=(64, 128)), records)
    assert "superlinear-doubling" not in codes(answer)


def test_matrix_use_is_flops_per_second_over_the_ceiling(record_of):
    from cubemesh.networks import build
    from cubemesh.networks.cost import totals

    cost = totals(build("little-cnn"))
    flops = (cost.forward + cost.data_gradient + cost.weight_gradient).matrix_flops
    records = [
        record_of(RunSpec(work=Ceiling()), rate=flops * 1600),
        record_of(RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8)), step_s=0.01),
    ]
    answer = EXPERIMENT.answer(Settings(batch_sizes=(8,)), records)
    assert finding(answer, "matmul-use").value == pytest.approx(50.0)
    assert values(answer.tables[0], "matmul use") == [pytest.approx(50.0)]


def test_every_failure_leaves_a_reason(record_of):
    specs = [RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=b)) for b in (8, 16)]
    records = [record_of(s, status=Status.CRASHED, message="segmentation fault") for s in specs]
    answer = EXPERIMENT.answer(Settings(batch_sizes=(8, 16)), records)
    assert codes(answer) == ["no-measurement"]
    reasons = [c.reason for c in column(answer.tables[0], "throughput")]
    assert reasons == ["crashed: segmentation fault"] * 2


def test_repeats_are_pooled_into_one_point(record_of):
    spec = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8))
    records = [record_of(spec, step_s=0.01), record_of(spec, step_s=0.02)]
    answer = EXPERIMENT.answer(Settings(batch_sizes=(8,)), records)
    (cell,) = column(answer.tables[0], "throughput")
    assert cell.value == pytest.approx(2 * 8 / 0.03, rel=0.02)
    assert cell.low < cell.value < cell.high
    assert cell.high - cell.low > 0.3 * cell.value


def test_more_than_the_ceiling_is_a_warning_with_its_cause(record_of):
    spec = RunSpec(work=TrainSteps(network="vgg16", batch_per_device=64))
    records = [record_of(RunSpec(work=Ceiling()), rate=50e12), record_of(spec, step_s=0.05)]
    answer = EXPERIMENT.answer(Settings(networks=("vgg16",), batch_sizes=(64,)), records)
    (warning,) = [w for w in answer.warnings if w.code == "above-ceiling"]
    assert "Winograd" in warning.cause
    assert "batch size 64" in warning.cause


def test_a_noisy_run_has_a_caveat_and_is_not_compared(record_of):
    specs = [RunSpec(work=TrainSteps(network="vgg16", batch_per_device=b)) for b in (64, 128)]
    quiet, noisy = record_of(specs[0], step_s=0.42), record_of(specs[1], step_s=0.90)
    noisy = replace(noisy, warnings=(warn("busy-host", "others", "stop them"),))
    answer = EXPERIMENT.answer(Settings(networks=("vgg16",), batch_sizes=(64, 128)), [quiet, noisy])
    assert "superlinear-doubling" not in codes(answer)
    assert EXPERIMENT.answer(Settings(batch_sizes=(64,)), [quiet]).findings[0].caveats == ()
    single = EXPERIMENT.answer(Settings(batch_sizes=(128,)), [noisy])
    assert single.findings[0].caveats == ("busy-host",)


def test_full_measures_the_forward_pass_too(machine, play, record_of):
    full = Context(machine=machine, scale=Scale.FULL)
    asked, sent = play(EXPERIMENT.plan(Settings(batch_sizes=(8,), ceiling=False), full), record_of)
    assert [type(s.work) for s in asked] == [Forward, TrainSteps]
    answer = EXPERIMENT.answer(Settings(batch_sizes=(8,)), sent)
    assert values(answer.tables[0], "forward pass") == [pytest.approx(10)]
    assert len(answer.charts[0].lines) == 2


def test_other_passes_have_a_column_and_a_curve_of_their_own(machine, play, record_of):
    context = Context(machine=machine)
    settings = Settings(
        batch_sizes=(8,), ceiling=False, passes=("training", "inference", "forward-backward")
    )
    asked, sent = play(EXPERIMENT.plan(settings, context), record_of)
    assert [type(s.work) for s in asked] == [Infer, ForwardBackward, TrainSteps]
    answer = EXPERIMENT.answer(settings, sent)
    for name in ("inference pass", "forward and backward pass"):
        assert values(answer.tables[0], name) == [pytest.approx(10)]
        assert f"little-cnn, {name}" in [line.name for line in answer.charts[0].lines]
    with pytest.raises(UsageError, match="Name training too"):
        Settings(passes=("inference",))


def records_fed(record_of, on, step_s, utilization):
    """Records of a network fed from the host or the device, with the GPU's utilization."""
    return [
        record_of(
            RunSpec(
                work=TrainSteps(network="little-cnn", batch_per_device=b),
                program=ProgramSettings(data_location=on),
            ),
            step_s=t,
            gpu_percent=utilization[b],
        )
        for b, t in step_s.items()
    ]


def test_a_waiting_gpu_is_input_bound(record_of):
    settings = Settings(batch_sizes=(16, 256), data_location="both")
    records = [
        *records_fed(record_of, "host", {16: 0.02, 256: 0.05}, {16: 35.0, 256: 97.0}),
        *records_fed(record_of, "device", {16: 0.01, 256: 0.05}, {16: 90.0, 256: 98.0}),
    ]
    answer = EXPERIMENT.answer(settings, records)
    found = finding(answer, "input-bound")
    assert in_order(found.text, "2.00×", "16", "35 %")
    assert "256" not in found.text
    assert values(answer.tables[0], "utilization") == [35.0, 97.0]
    assert values(answer.tables[0], "data on device")[0] == 1600
    assert [chart.y.name for chart in answer.charts] == ["throughput", "utilization"]


@pytest.mark.parametrize(("host_s", "expected"), [(0.06, "copy-cost"), (0.05, "no-input-cost")])
def test_a_busy_gpu_is_not_input_bound(record_of, host_s, expected):
    settings = Settings(batch_sizes=(256,), data_location="both")
    records = [
        *records_fed(record_of, "host", {256: host_s}, {256: 95.0}),
        *records_fed(record_of, "device", {256: 0.05}, {256: 98.0}),
    ]
    found = codes(EXPERIMENT.answer(settings, records))
    assert {"input-bound", "copy-cost", "no-input-cost"} & set(found) == {expected}


def test_a_noisy_run_is_not_input_bound(record_of):
    (host,) = records_fed(record_of, "host", {16: 0.02}, {16: 35.0})
    device = records_fed(record_of, "device", {16: 0.01}, {16: 90.0})
    host = replace(host, warnings=(warn("busy-host", "others", "stop them"),))
    answer = EXPERIMENT.answer(Settings(batch_sizes=(16,), data_location="both"), [host, *device])
    assert "input-bound" not in codes(answer)
    assert finding(answer, "input-not-compared").caveats == ("busy-host",)


def curvature_table(answer):
    return table(answer, "throughput is", "time per sample is")


def test_batch_size_and_sign_of_every_curvature(record_of):
    # samples/s: 400, 1600, 2000, 2100 at 8, 16, 32, 64: concave at 16 and at 32.
    rates = {8: 400, 16: 1600, 32: 2000, 64: 2100}
    answer = answer_for(record_of, {b: b / r for b, r in rates.items()})
    found = curvature_table(answer)
    assert texts(found, "batch size") == ["16", "32"]
    assert values(found, "throughput") == pytest.approx([-800, -300])
    assert texts(found, "throughput is") == ["concave", "concave"]
    expected = 1000 / 400 - 2000 / 1600 + 1000 / 2000
    assert values(found, "time per sample")[0] == pytest.approx(expected)
    assert texts(found, "time per sample is")[0] == "convex"
    assert "16 and 32" in finding(answer, "throughput-curvature").text


def test_a_curvature_within_its_interval_is_not_significant(record_of):
    # 32 is concave beyond its interval, 16 is within.
    rates = {8: 1000, 16: 1990, 32: 2980, 64: 3000}
    answer = answer_for(record_of, {b: b / r for b, r in rates.items()})
    assert texts(curvature_table(answer), "throughput is") == ["not significant", "concave"]
    assert in_order(finding(answer, "throughput-curvature").text, "32", "less")
    assert "16" not in finding(answer, "throughput-curvature").text


def test_without_a_significant_curvature_none_is_shown(record_of):
    answer = answer_for(record_of, {8: 0.008, 16: 0.016, 32: 0.032})
    assert not {"throughput-curvature", "sample-time-curvature"} & set(codes(answer))
    assert not any("is" in c.name.split() for t in answer.tables for c in t.columns)
    assert not any("urvature" in note for note in answer.notes)


def test_several_devices_are_compared_with_the_sum_of_their_products(record_of):
    def answer(devices, step_s):
        place = Placement(devices=devices)
        work = TrainSteps(network="little-cnn", batch_per_device=8)
        records = [
            record_of(RunSpec(work=Ceiling(), placement=place), rate=1e12),
            record_of(RunSpec(work=work, placement=place), step_s=step_s),
        ]
        return EXPERIMENT.answer(Settings(batch_sizes=(8,)), records)

    one, two = answer(1, 0.01), answer(2, 0.005)  # twice the samples a second
    found = finding(two, "matmul-use")
    assert found.value == pytest.approx(finding(one, "matmul-use").value)
    assert "2 TFLOP/s" in found.text
    assert len(two.notes) == len(one.notes) + 1


STEP_S = {8: 0.02, 16: 0.02, 32: 0.03}
"""Seconds a step at each batch size: 2.5, 1.25 and 0.94 ms per sample, convex at 16."""


def timed(record_of, spec):
    return record_of(spec, step_s=STEP_S[batch_of(spec)])


def profiled_run(record_of, spec):
    """18 ms of every step are launch gaps at any batch size; the rest is compute."""
    step_s = STEP_S[batch_of(spec)]
    kernels = (TimeRow(name="convolution", seconds=step_s - 0.018, calls=3.0),)
    return replace(
        record_of(spec, step_s=step_s),
        parts=(
            Part(name="compute", seconds=step_s - 0.018, method="profiled"),
            Part(name="launch_gaps", seconds=0.018, method="profiled"),
        ),
        breakdowns=(Breakdown(name="category", rows=kernels, method="profiled"),),
    )


def test_steps_around_a_curvature_are_profiled_and_its_cause_is_found(machine, record_of):
    wanted = Settings(batch_sizes=(8, 16, 32), ceiling=False)
    plan = EXPERIMENT.plan(wanted, Context(machine=machine))
    records = [timed(record_of, s) for s in next(plan)]
    asked = plan.send(records)
    assert [(batch_of(s), s.budget.attribution) for s in asked] == [
        (8, True),
        (16, True),
        (32, True),
    ]
    profiled = [profiled_run(record_of, s) for s in asked]
    with pytest.raises(StopIteration):
        plan.send(profiled)
    answer = EXPERIMENT.answer(wanted, [*records, *profiled])
    cause = finding(answer, "curvature-cause")
    assert in_order(cause.text, "16", "launch gaps")
    assert in_order(cause.text, "2.25", "1.12", "0.562 ms/sample")
    found = table(answer, "part of a step")
    parts = dict(zip(texts(found, "part of a step"), values(found, "curvature"), strict=True))
    assert parts["launch gaps"] == pytest.approx(2.25 - 2 * 1.125 + 0.5625)
    assert sum(v or 0.0 for v in parts.values()) == pytest.approx(0.9375), "all of the curvature"
    assert len(answer.tables[0].rows) == 3, "profiled runs are not timed"


@pytest.mark.parametrize("settings", [{"profile": False}, {"framework": "jax"}])
def test_nothing_is_profiled_if_switched_off_or_not_possible(machine, record_of, settings):
    framework = settings.get("framework", "pytorch")
    own = {name: value for name, value in settings.items() if name != "framework"}
    wanted = Settings(batch_sizes=(8, 16, 32), ceiling=False, **own)
    plan = EXPERIMENT.plan(wanted, Context(machine=machine))
    asked = [replace(s, program=ProgramSettings(framework=framework)) for s in next(plan)]
    with pytest.raises(StopIteration):
        plan.send([timed(record_of, s) for s in asked])


def test_if_every_run_was_profiled_all_are_timed(record_of):
    specs = [RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=b)) for b in STEP_S]
    specs = [replace(s, budget=replace(s.budget, attribution=True)) for s in specs]
    answer = EXPERIMENT.answer(Settings(), [profiled_run(record_of, s) for s in specs])
    assert len(answer.tables[0].rows) == 3


def test_several_networks_have_a_curve_and_findings_each(context, play, record_of):
    settings = Settings(networks=("little-cnn", "vgg16"), batch_sizes=(8, 16), profile=False)
    asked, sent = play(EXPERIMENT.plan(settings, context), record_of)
    assert [type(s.work) for s in asked] == [Ceiling] + [TrainSteps] * 4
    answer = EXPERIMENT.answer(settings, sent)
    assert [chart.name for chart in answer.charts] == ["minibatch-little-cnn", "minibatch-vgg16"]
    assert len(findings(answer, "throughput")) == 2
    assert sum("vgg16" in f.text for f in answer.findings) == len(answer.findings) / 2
    assert len({t.title for t in answer.tables}) == len(answer.tables)
