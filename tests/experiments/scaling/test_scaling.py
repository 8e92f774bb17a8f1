"""Weak and strong scaling, from simulated records."""

import dataclasses

import pytest

from answers import codes, finding, findings, in_order, table, texts, values
from cubemesh.audit.audit import audit
from cubemesh.audit.evidence import Evidence
from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.core.settings import apply
from cubemesh.experiments.registry import Context, Scale
from cubemesh.experiments.scaling import strong as strong_scaling
from cubemesh.experiments.scaling import weak as weak_scaling
from cubemesh.experiments.scaling.analysis import (
    efficiency,
    efficiency_independent,
    independent_rates,
)
from cubemesh.experiments.scaling.design import (
    ScalingMode,
    batch_per_device,
    constant_batch,
    curves,
)
from cubemesh.experiments.scaling.training_time import epochs
from cubemesh.measure.attribution.bottlenecks import largest_bottleneck
from cubemesh.schema import (
    Budget,
    Figure,
    Gpu,
    Outcome,
    Part,
    Placement,
    ProgramSettings,
    Rank,
    RunSpec,
    Status,
    TrainSteps,
)

WEAK, STRONG = weak_scaling.EXPERIMENT, strong_scaling.EXPERIMENT


@pytest.fixture
def several(record_of):
    """A record of several ranks, each with a step time of its own, and its parts in percent."""

    def make(spec, step_s=0.01, slower=0.0, parts=None, **words):
        record = record_of(spec, step_s=step_s, **words)
        devices = spec.placement.devices
        if not record.ok:
            return record
        ranks = range(devices)
        times = [step_s * (1 + slower * rank) for rank in ranks]
        windows = tuple(
            dataclasses.replace(w, rank=rank, elapsed_s=w.elapsed_s * times[rank] / step_s)
            for rank in ranks
            for w in record.windows
        )
        throughput = record.figures["throughput_per_s"]
        rate = devices * (spec.batch_per_device or 1) / max(times)
        scale = rate / throughput.value
        figure = dataclasses.replace(
            throughput, value=rate, low=throughput.low * scale, high=throughput.high * scale
        )
        own = parts or {"compute": step_s}
        shares = tuple(Part(name=n, seconds=s, method="") for n, s in own.items())
        return dataclasses.replace(
            record,
            windows=windows,
            figures={**record.figures, "throughput_per_s": figure},
            parts=shares if spec.budget.attribution else (),
            rank_parts=(shares,) * devices if spec.budget.attribution and devices > 1 else (),
        )

    return make


def spec(devices=1, sync="none", batch=64):
    return RunSpec(
        work=TrainSteps(network="little-cnn", batch_per_device=batch),
        placement=Placement(devices=devices),
        program=ProgramSettings(sync=sync),
    )


@pytest.mark.parametrize(
    ("mode", "devices", "hosts", "each"),
    [
        (ScalingMode.WEAK, 4, 1, 32),
        (ScalingMode.STRONG, 4, 1, 8),
        (ScalingMode.STRONG, 3, 1, None),
        (ScalingMode.STRONG, 64, 1, None),
        (ScalingMode.CONSTANT_BATCH, 4, 1, 8),
        (ScalingMode.CONSTANT_BATCH, 8, 4, 16),
    ],
)
def test_the_mode_decides_the_batch_size_per_device(mode, devices, hosts, each):
    assert batch_per_device(mode, 32, devices, hosts) == each
    if each is not None:
        assert constant_batch(mode, each, devices, hosts) == 32


def test_efficiency_relative_to_one_device_and_to_the_slowest_without_sync(several):
    one = Group(0, (several(spec(), step_s=0.010),))
    two = Group(0, (several(spec(2, "all-reduce"), step_s=0.0125),))
    independent = Group(0, (several(spec(2), step_s=0.010, slower=0.1),))
    found = efficiency(two, one)
    assert found.value == pytest.approx(80)
    assert found.low < 80 < found.high
    assert found.high - found.low < 2
    rates = independent_rates(independent)
    assert rates == pytest.approx({0: 6400, 1: 6400 / 1.1}, rel=1e-3)
    relative = efficiency_independent(two, independent)
    assert relative.value == pytest.approx(88, abs=0.1)
    assert relative.low < relative.value < relative.high


def test_repeats_count_all_ranks_of_each_run_together(several):
    runs = tuple(several(spec(2, "all-reduce"), step_s=s) for s in (0.0125, 0.0130, 0.0120))
    pooled = Group(0, runs).throughput
    assert pooled.value == pytest.approx(2 * 64 / 0.0125, rel=0.01)
    found = efficiency(Group(0, runs), Group(0, (several(spec()),)))
    assert found.value == pytest.approx(80, abs=1)
    assert found.high - found.low > 3, "runs differ by more than windows, and are few"


def test_too_few_windows_give_no_interval(several):
    two = several(spec(2, "all-reduce"))
    few = dataclasses.replace(two, windows=tuple(w for w in two.windows if w.start_s < 3))
    found = efficiency(Group(0, (few,)), Group(0, (several(spec()),)))
    assert found.low is None
    assert found.high is None


def test_weak_scaling_measures_one_device_and_several_with_and_without_sync(machine, play, several):
    settings = weak_scaling.Settings(devices=(2,), batch_sizes=(32,))
    asked, _ = play(WEAK.plan(settings, Context(machine=machine)), several)
    planned = [(s.placement.devices, s.program.sync, s.batch_per_device) for s in asked]
    assert planned == [(1, "none", 32), (2, "all-reduce", 32), (2, "none", 32)]
    assert [s.placement.threads for s in asked] == [1, 1, 1], "a device is as many cores"
    assert [s.placement.pinning for s in asked] == ["cores", "none", "none"]
    assert [s.budget.attribution for s in asked] == [True, True, False]


def test_strong_scaling_divides_the_global_batch_size_if_it_divides_evenly(machine, play, several):
    settings = strong_scaling.Settings(
        devices=(2, 3, 4), global_batch_sizes=(64,), independent=False
    )
    asked, _ = play(STRONG.plan(settings, Context(machine=machine)), several)
    assert [(s.placement.devices, s.batch_per_device) for s in asked] == [(1, 64), (2, 32), (4, 16)]
    assert {s.global_batch for s in asked} == {64}


def test_every_host_has_the_same_number_of_devices(machine, play, several):
    hosts = {"hosts": ("a", "b")}

    def on_hosts(spec):
        return apply(spec, hosts, plans_devices=WEAK.plans_devices)

    def make(spec):
        return several(on_hosts(spec))

    settings = weak_scaling.Settings(
        devices=(2, 4), batch_sizes=(32,), mode="constant-batch", independent=False
    )
    asked, records = play(WEAK.plan(settings, Context(machine=machine, hosts=2)), make)
    specs = [record.spec for record in records]
    planned = [(s.placement.devices, s.placement.hosts, s.batch_per_device) for s in specs]
    assert planned == [(1, (), 32), (2, ("a", "b"), 32), (4, ("a", "b"), 16)]
    (curve,) = curves(records, ScalingMode.CONSTANT_BATCH)
    assert curve.key.batch == 32, "of a host"
    assert curve.one is not None
    usual = weak_scaling.Settings(batch_sizes=(32,), independent=False)
    asked, _ = play(WEAK.plan(usual, Context(machine=machine, hosts=3)), several)
    assert [s.placement.devices for s in asked] == [1, 3, 6], "this one has two cores"


def test_on_gpus_the_papers_networks_run_on_doubling_numbers_of_devices(machine, play, several):
    gpus = tuple(Gpu(index=n, name="NVIDIA H200", uuid=f"GPU-{n}") for n in range(8))
    cpu = dataclasses.replace(machine.cpu, usable_cores=32)
    large = dataclasses.replace(machine, gpus=gpus, cpu=cpu)
    asked, _ = play(WEAK.plan(weak_scaling.Settings(), Context(machine=large)), several)
    points = {(s.work.network, s.batch_per_device, s.work.image_size) for s in asked}
    assert points == set(weak_scaling.PUBLISHED)
    assert {s.placement.devices for s in asked} == {1, 2, 4, 8}
    assert {s.placement.threads for s in asked} == {None}
    quick = Context(machine=large, scale=Scale.QUICK)
    asked, _ = play(STRONG.plan(strong_scaling.Settings(), quick), several)
    assert {(s.work.network, s.placement.devices) for s in asked} == {
        ("little-cnn", 1),
        ("little-cnn", 2),
    }


def test_the_answer_has_the_mode_and_the_overhead_of_a_step(machine, play, several):
    parts = {"compute": 0.0102, "exposed_communication": 0.0015, "straggler_wait": 0.0003}

    def measured(asked):
        if asked.placement.devices == 1:
            return several(asked, step_s=0.010)
        if asked.program.sync == "none":
            return several(asked, step_s=0.010, slower=0.05)
        return several(asked, step_s=0.012, parts=parts)

    settings = weak_scaling.Settings(devices=(2,), batch_sizes=(64,))
    _, sent = play(WEAK.plan(settings, Context(machine=machine)), measured)
    answer = WEAK.answer(settings, sent)
    assert codes(answer) == ["scaling-efficiency", "efficiency-without-sync", "scaling-overhead"]
    card, independent, overhead = answer.findings
    assert card.value == pytest.approx(100 * 10 / 12)
    assert card.low < card.value < card.high
    assert in_order(card.text, "64", "128")
    assert "rank 1" in independent.text
    assert independent.value == pytest.approx(100 * 10.5 / 12, abs=0.5)
    assert overhead.value == pytest.approx(12.5)
    assert in_order(overhead.text, "exposed communication", "12.5 %")
    assert "1.5 ms exposed communication" in overhead.text
    assert overhead.remedy
    points, ranks, *_ = answer.tables
    assert texts(points, "mode") == ["weak", "weak", "no sync"]
    assert values(points, "global batch size") == [64, 128, 128]
    assert values(ranks, "rank") == [0, 0, 1]
    throughput, bars, where = answer.charts
    assert [line.role for line in throughput.lines] == ["measured", "measured", "reference"]
    ideal = throughput.lines[-1].points
    assert ideal[1].y == pytest.approx(2 * ideal[0].y)
    assert bars.kind == "bar"
    assert bars.lines[0].points[0].low is not None
    assert where.stacked


def test_the_table_has_the_utilization_of_all_ranks_and_the_summed_power(several):
    def utilized(record, percents):
        ranks = tuple(
            Rank(
                rank=n,
                host="a",
                device=f"cuda:{n}",
                outcome=Outcome(status=Status.OK),
                utilization=None if percent is None else Figure(value=percent, unit="%"),
            )
            for n, percent in enumerate(percents)
        )
        power = {"mean_power_watts": Figure(value=300.0 * len(ranks), unit="W")}
        return dataclasses.replace(record, ranks=ranks, figures={**record.figures, **power})

    records = [
        utilized(several(spec()), [91.4]),
        utilized(several(spec(2, "all-reduce")), [84.4, 91.2]),
        utilized(several(spec(2)), [90.0, None]),
    ]
    answer = WEAK.answer(weak_scaling.Settings(), records)
    assert texts(answer.tables[0], "utilization of the ranks") == ["91", "84–91", "–"]
    assert values(answer.tables[0], "power") == [300.0, 600.0, 600.0]
    before = WEAK.answer(weak_scaling.Settings(), [several(spec()), several(spec(2, "all-reduce"))])
    names = [column.name for column in before.tables[0].columns]
    assert "utilization of the ranks" not in names
    assert "power" not in names


def test_compute_time_that_does_not_shrink_is_overhead_of_strong_scaling(machine, play, several):
    def measured(asked):
        if asked.placement.devices == 1:
            return several(asked, step_s=0.010)
        return several(asked, step_s=0.008, parts={"compute": 0.007, "straggler_wait": 0.001})

    settings = strong_scaling.Settings(devices=(2,), global_batch_sizes=(64,), independent=False)
    _, sent = play(STRONG.plan(settings, Context(machine=machine)), measured)
    answer = STRONG.answer(settings, sent)
    assert finding(answer, "scaling-efficiency").value == pytest.approx(100 * 10 / 16)
    overhead = finding(answer, "scaling-overhead")
    assert overhead.value == pytest.approx(25)
    assert "3 ms longer" in overhead.text
    assert "compute, 25.0 %" in overhead.text


def test_the_overhead_of_scaling_is_next_to_the_largest_loss_of_the_step(machine, play, several):
    """Both are means over the ranks, of the run that the finding names."""
    gaps = {"compute": 0.0085, "launch_gaps": 0.0015, "unattributed": 0.0}

    def measured(asked):
        if asked.placement.devices == 1:
            return several(asked, step_s=0.010, parts=gaps)
        parts = {**gaps, "launch_gaps": 0.0016, "straggler_wait": 0.0009}
        return several(asked, step_s=0.011, parts=parts)

    settings = weak_scaling.Settings(devices=(2,), batch_sizes=(64,), independent=False)
    _, sent = play(WEAK.plan(settings, Context(machine=machine)), measured)
    overhead = finding(WEAK.answer(settings, sent), "scaling-overhead")
    run = next(r for r in sent if r.run_id == overhead.run_id)
    assert run.spec.placement.devices == 2
    assert "largest overhead of scaling is straggler wait, 8.2 % of the step" in overhead.text
    assert "largest loss of the step is launch gaps, 15 % of it (15 % on one" in overhead.text
    assert largest_bottleneck(run).text.startswith("15 % launch gaps")
    assert audit([Evidence(WEAK.answer(settings, sent), tuple(sent))]) == ()


def test_failed_runs_have_a_reason_and_one_device_has_no_scaling(machine, play, several):
    def measured(asked):
        if asked.placement.devices > 1:
            return several(asked, status=Status.UNSUPPORTED, message="2 cores. Set devices=2")
        return several(asked)

    settings = weak_scaling.Settings(devices=(4,))
    _, sent = play(WEAK.plan(settings, Context(machine=machine)), measured)
    failed = findings(WEAK.answer(settings, sent), "failed-run")
    assert any(in_order(f.text, "4", "all-reduce", "not supported", "2 cores") for f in failed)
    one = [r for r in sent if r.ok]
    assert codes(WEAK.answer(weak_scaling.Settings(), one)) == ["single-device"]


def test_invalid_settings():
    with pytest.raises(UsageError, match="independent=true"):
        weak_scaling.Settings(strategies=("none",))
    with pytest.raises(UsageError, match="1 or more"):
        strong_scaling.Settings(devices=(0,))


@pytest.fixture
def fixed(several):
    """A record whose measured steps follow one another without a pause."""

    def make(spec, **words):
        record = several(spec, **words)
        windows = []
        for rank in {w.rank for w in record.windows}:
            now = 0.0
            for window in (w for w in record.windows if w.rank == rank):
                windows.append(dataclasses.replace(window, start_s=now))
                now += window.elapsed_s
        return dataclasses.replace(record, windows=tuple(windows))

    return make


def test_every_number_of_devices_trains_the_same_samples(machine, play, fixed):
    """As in paper 003: batch sizes grow, iterations shrink, and the time is reported."""
    settings = weak_scaling.Settings(devices=(2, 4), batch_sizes=(32,), samples=1024)
    planned, sent = play(
        WEAK.plan(settings, Context(machine=machine)),
        # 12 windows of 10 steps, whatever the steps of the budget
        lambda s: fixed(s, step_s=0.012 if s.placement.devices == 1 else 0.007),
    )
    together = [s for s in planned if s.placement.devices == 1 or s.program.sync != "none"]
    assert [(s.placement.devices, s.budget.steps) for s in together] == [(1, 32), (2, 16), (4, 8)]
    assert {s.budget.steps * s.global_batch for s in planned} == {1024}
    assert all(s.budget.exact_steps for s in planned)
    answer = WEAK.answer(settings, sent)
    times = table(answer, "iterations", "training time")
    assert values(times, "iterations") == [32, 16, 8]
    assert values(times, "samples") == [1024] * 3
    assert values(times, "training time") == pytest.approx([1.44, 0.84, 0.84], rel=0.01)
    found = finding(answer, "training-time")
    assert found.value == pytest.approx(12 / 7, rel=0.01)
    assert in_order(found.text, "1,024 samples", "32 iterations", "4 devices", "8 iterations")
    (chart,) = [c for c in answer.charts if c.name == "weak-scaling-training-time"]
    assert [p.x for p in chart.lines[0].points] == [1, 2, 4]


def test_samples_that_are_no_whole_number_of_steps_are_refused(machine, play, fixed):
    context = Context(machine=machine)
    uneven = weak_scaling.Settings(devices=(4,), batch_sizes=(32,), samples=1000)
    with pytest.raises(UsageError, match="samples=1024 or another multiple of 128"):
        play(WEAK.plan(uneven, context), fixed)
    with pytest.raises(UsageError, match="1 or more"):
        weak_scaling.Settings(samples=0)
    with pytest.raises(UsageError, match="strategies=asynchronous"):
        weak_scaling.Settings(samples=64, strategies=("asynchronous",))


def test_epochs_are_those_of_the_training_set(record_of):
    def passes(network, steps, **fields):
        work = TrainSteps(network=network, batch_per_device=64, **fields)
        return epochs(record_of(RunSpec(work=work, budget=Budget(steps=steps))))

    assert passes("resnet-50", 2000) == pytest.approx(128_000 / 1_281_167)
    assert passes("little-cnn", 100, data="cifar-10") == pytest.approx(6400 / 50_000)
    assert passes("resnet-50", 2000, image_size=64) is None


def test_devices_are_compared_with_the_whole_cpu(machine, play, several):
    """Figure 2 of paper 003: a CPU server, one GPU and four."""
    gpus = tuple(Gpu(index=n, name="NVIDIA H200", uuid=f"GPU-{n}") for n in range(4))
    settings = weak_scaling.Settings(
        networks=("googlenet",), devices=(4,), batch_sizes=(64,), cpu=True, independent=False
    )

    def run(spec):
        if spec.placement.device == "cpu":
            return several(spec, step_s=0.53)
        return several(spec, step_s=0.1 if spec.placement.devices == 1 else 0.1076)

    planned, sent = play(
        WEAK.plan(settings, Context(machine=dataclasses.replace(machine, gpus=gpus))), run
    )
    assert [(s.placement.device, s.placement.devices) for s in planned] == [
        ("auto", 1),
        ("auto", 4),
        ("cpu", 1),
    ]
    assert planned[-1].placement.threads is None
    answer = WEAK.answer(settings, sent)
    compared = table(answer, "trained on", "vs CPU")
    assert texts(compared, "trained on") == ["CPU, all cores", "1 device", "4 devices (all-reduce)"]
    assert values(compared, "vs CPU")[1:] == pytest.approx([5.3, 19.7], rel=0.01)
    found = finding(answer, "cpu-speed-up")
    assert found.value == pytest.approx(19.7, rel=0.01)
    assert in_order(found.text, "googlenet", "1 device", "5.30", "4 devices", "19.70", "CPU")
    assert len(table(answer, "speed-up", "efficiency").rows) == 2, "the CPU is no point of a curve"


def test_a_cpu_that_did_not_train_has_its_reason(machine, play, several):
    def run(spec):
        if spec.placement.device == "cpu":
            return several(spec, status=Status.OOM, message="out of memory")
        return several(spec)

    settings = strong_scaling.Settings(devices=(2,), global_batch_sizes=(64,), cpu=True)
    _, sent = play(STRONG.plan(settings, Context(machine=machine)), run)
    failed = findings(STRONG.answer(settings, sent), "failed-run")
    assert any(in_order(f.text, "little-cnn", "on the CPU", "out of memory") for f in failed)
    assert not findings(STRONG.answer(settings, sent), "cpu-speed-up")


def test_forecasts_are_compared_with_measurements(several):
    one = several(spec())
    rank = Rank(rank=0, host="here", device="cpu", outcome=one.outcome)
    one = dataclasses.replace(one, ranks=(rank,))
    records = [one, several(spec(2, "all-reduce"), step_s=0.0125)]
    found = WEAK.answer(WEAK.settings(), records)
    forecasts = table(found, "forecast", "forecast error")
    (row,) = forecasts.rows
    assert not any(cell.reason for cell in row)
    measured, forecast, off = (cell.value for cell in row[3:6])
    assert measured == pytest.approx(2 * 64 / 0.0125, rel=0.05)
    # Two devices of the one's speed, less what exchanging takes.
    assert measured / 2 < forecast <= 2 * 64 / 0.010 * 1.01
    assert off == pytest.approx(100 * (forecast / measured - 1))
    assert "forecast-error" in codes(found)
    assert any(line.role == "forecast" for chart in found.charts for line in chart.lines)


def test_each_number_of_threads_has_its_own_curve(machine, play, several):
    settings = weak_scaling.Settings(devices=(2,), threads=(1, 2), batch_sizes=(32,))
    asked, sent = play(WEAK.plan(settings, Context(machine=machine)), several)
    assert [s.placement.threads for s in asked] == [1, 1, 1, 2, 2, 2]
    answer = WEAK.answer(settings, sent)
    assert len(findings(answer, "scaling-efficiency")) == 2
    names = [chart.name for chart in answer.charts]
    assert len(set(names)) == len(names)
