import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
from typer.main import get_command

from answers import codes, finding, table, texts, values
from cubemesh.cli.main import app
from cubemesh.data.images.generated_jpegs import NAME as JPEG_FILES
from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import request, split
from cubemesh.experiments.performance_check.analysis import PerformanceCheck
from cubemesh.experiments.performance_check.experiment import EXPERIMENT, Settings
from cubemesh.experiments.registry import Context, entry
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.measure.timing.interleaved_ab import SECOND_PROGRAM
from cubemesh.schema import Figure, Gpu, Part, Rank, RunSpec, Status, TrainSteps, Window, warn
from cubemesh.schema.comparison import RATIO
from cubemesh.schema.record import AGAINST
from cubemesh.statistics import student_t
from cubemesh.store.spread_prior import PRIORS, SpreadKind

approx = partial(pytest.approx, rel=0.01)
SPEEDS = {"pytorch-captured": 2.0, "pytorch": 1.0, "pytorch-compiled": 1.5, "jax": 2.0}
"""Steps a second, for a step of 64 samples."""


class Clock:
    """A clock that a run advances."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def context(machine, clock):
    return Context(machine=machine, clock=clock)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Only PyTorch, whatever this environment has."""
    for name, line in FRAMEWORKS.items():
        own = name if line.requires == "torch" else None
        monkeypatch.setitem(
            FRAMEWORKS, name, replace(line, requires="json" if own else "no_such_module")
        )


@pytest.fixture
def measure(record_of, clock):
    """Records in which each framework has its speed, files half of it, and double batches 1.1."""

    def made(spec: RunSpec, speeds=SPEEDS, seconds=10.0):
        clock.now += seconds
        if not isinstance(spec.work, TrainSteps):
            return record_of(spec)
        rate = speeds[spec.program.framework]
        if spec.work.data != "synthetic":
            rate *= 0.9 if spec.program.cache_decoded else 0.5
        record = replace(record_of(spec, step_s=1 / rate), elapsed_s=seconds)
        if spec.other is None:
            return record
        other = speeds[spec.other.program.framework]
        if spec.other.batch_per_device != spec.batch_per_device:
            other *= 1.1
        return with_other(record, rate, other)

    return made


def with_other(record, first, second):
    """`record` as an interleaved run in which the other program makes `second` steps a second."""
    windows = []
    for block in range(6):
        for side in (0, 1, 1, 0):
            rate = second * (1 + 0.001 * block) if side else first
            windows.append(
                Window(
                    phase=AGAINST if side else "measure",
                    marks=(f"instance-{block % 3}", f"block-{block}"),
                    start_s=float(block),
                    elapsed_s=1 / rate,
                    steps=1,
                    samples=64,
                )
            )
    rate = Figure(value=64 * second, unit="samples/s", low=63.5 * second, high=64.5 * second, n=12)
    ratio = Figure(value=second / first, unit="×")
    figures = {**record.figures, "against_throughput_per_s": rate, RATIO: ratio}
    return replace(record, windows=tuple(windows), figures=figures)


def run(play, context, measure, settings=None):
    settings = settings or Settings(networks=("resnet-18",), batch_sizes=(64,))
    planned, records = play(EXPERIMENT.plan(settings, context), measure)
    return planned, EXPERIMENT.answer(settings, records)


def test_a_cpu_trains_a_small_and_a_large_network_in_fp32(context, play, measure):
    planned, _ = run(play, context, measure, Settings(trials=False))
    steps = [s for s in planned if isinstance(s.work, TrainSteps)]
    assert {s.work.network for s in steps} == {"little-cnn", "resnet-18"}
    assert {s.program.precision for s in steps} == {"fp32"}
    assert {s.program.data_location for s in steps} == {"device"}


def test_each_stock_program_is_interleaved_with_the_fastest_known(context, play, measure):
    planned, _ = run(play, context, measure)
    compared = [
        (s.program.framework, s.other.program.framework)
        for s in planned
        if s.other and s.other.batch_per_device == s.batch_per_device
    ]
    assert compared == [
        ("pytorch-captured", "pytorch"),
        ("pytorch-captured", "pytorch-compiled"),
    ]
    for spec in planned:
        if spec.other is not None:
            assert spec.other.program.precision == spec.program.precision
            assert spec.other.program.layout == spec.program.layout


@pytest.mark.parametrize(
    ("capability", "precision"), [("9.0", "bf16"), ("7.0", "fp16"), (None, "bf16")]
)
def test_a_gpu_trains_in_its_16_bit_precision(machine, play, measure, capability, precision):
    gpu = Gpu(index=0, name="GPU", uuid="u", compute_capability=capability)
    context = Context(machine=replace(machine, gpus=(gpu,)))
    planned, _ = run(play, context, measure, Settings(trials=False))
    steps = [s for s in planned if isinstance(s.work, TrainSteps)]
    assert {s.program.precision for s in steps} == {precision}
    assert {s.work.network for s in steps} == {"resnet-50", "gpt2"}
    assert {s.program.framework for s in steps} == {"pytorch-captured"}


def test_a_small_gpu_gets_a_batch_size_that_fits_six_programs(machine, play, measure):
    def batch(memory_bytes):
        gpu = Gpu(index=0, name="GPU", uuid="u", memory_bytes=memory_bytes)
        context = Context(machine=replace(machine, gpus=(gpu,)))
        settings = Settings(networks=("resnet-50",), trials=False)
        return run(play, context, measure, settings)[0][-1].batch_per_device

    assert batch(140 << 30) == 256
    assert batch(24 << 30) < batch(48 << 30) < 256


def test_the_throughput_is_that_of_the_fastest_program(context, play, measure):
    _, answer = run(play, context, measure)
    own = finding(answer, "throughput")
    assert own.value == pytest.approx(128, rel=0.01)
    assert own.unit == "images/s"
    programs = table(answer, "fastest / this")
    assert programs.columns[2].unit == "images/s"
    assert texts(programs, "program") == ["pytorch-captured", "PyTorch eager", "torch.compile"]
    assert values(programs, "fastest / this") == [None, approx(2.0), approx(2.0 / 1.5)]


def on_cpu(record):
    rank = Rank(rank=0, host="bench", device="cpu", device_name="Model T", outcome=record.outcome)
    return replace(record, ranks=(rank,))


def on_gpu(record):
    """`record` as of a GPU that was always busy."""
    rank = Rank(rank=0, host="bench", device="cuda:0", device_name="G", outcome=record.outcome)
    busy = {"gpu_utilization_percent": Figure(value=99.0, unit="%")}
    return replace(record, ranks=(rank,), figures={**record.figures, **busy})


def interval_notes(answer):
    return [note for note in answer.notes if note.startswith("±")]


@pytest.mark.parametrize("programs", [1, 2])
def test_a_gpu_has_the_spread_between_processes_of_earlier_runs(
    machine, clock, play, measure, programs
):
    context = Context(machine=replace(machine, gpus=(Gpu(index=0, name="G", uuid="u"),)))
    settings = Settings(
        networks=("resnet-18",),
        batch_sizes=(64,),
        frameworks=("pytorch-captured", "pytorch", "pytorch-compiled")[: programs + 1],
        trials=False,
        minutes=0.5,
    )
    _, answer = run(play, context, lambda spec: on_gpu(measure(spec)), settings)
    own = finding(answer, "throughput")
    prior = PRIORS[SpreadKind.GPU_BOUND]
    freedom = prior.freedom + programs - 1
    spread = math.sqrt(prior.variance * prior.freedom / freedom / programs)
    assert math.log(own.high / own.value) == approx(student_t(0.95, freedom) * spread)
    assert table(answer, "fastest / this").rows[0][2].low == own.low
    (note,) = interval_notes(answer)
    assert f"resnet-18 ({programs} process" in note
    assert "from earlier ones as well" in note
    assert any("17 earlier pairs of runs" in one for one in answer.notes if one != note)


def test_a_cpu_has_the_spread_of_its_own_processes_alone(context, play, measure):
    settings = Settings(networks=("resnet-18",), batch_sizes=(64,), trials=False)
    _, answer = run(play, context, measure, settings)
    (note,) = interval_notes(answer)
    assert "resnet-18 (2 processes): how far it differs between processes; more" in note
    assert "--set repeats=6" in note
    settings = replace(settings, frameworks=("pytorch-captured", "pytorch"))
    _, answer = run(play, context, measure, settings)
    (note,) = interval_notes(answer)
    assert "resnet-18 (1 process): how far it differs between windows" in note
    settings = replace(settings, frameworks=("pytorch-captured", "pytorch"))
    _, records = play(EXPERIMENT.plan(settings, context), measure)
    again = [
        replace(r, spec=replace(r.spec, budget=replace(r.spec.budget, repeats=3))) for r in records
    ]
    (note,) = interval_notes(EXPERIMENT.answer(settings, again))
    assert "--set repeats=9" in note, "what was used does not narrow it"


def test_the_verdict_begins_with_eager_and_says_what_is_left(context, play, measure):
    settings = Settings(networks=("resnet-18",), batch_sizes=(64,), trials=False)
    _, answer = run(play, context, measure, settings)
    assert answer.findings[0].code == "verdict"
    text = answer.findings[0].text
    assert text.startswith("resnet-18: PyTorch eager 64.16 → 128 images/s (2.00")
    assert "with pytorch-captured (cubemesh's training step with fused kernels" in text
    left = finding(answer, "no-further-gain")
    assert left.text == "The time did not allow a trial of larger batch sizes and input from files."
    assert text.endswith("In your own code, torch.compile makes resnet-18 1.50 ± 0.01× as fast.")
    assert sum(f.text.count("(cubemesh's") for f in answer.findings) == 1
    assert sum(f.text.count("framework=pytorch-compiled") for f in answer.findings) == 1
    _, answer = run(play, context, measure)
    assert "cache_decoded=true would make resnet-18 1.8" in finding(answer, "verdict").text


def test_a_wide_interval_is_a_caveat_with_a_remedy(context, play, measure):
    speeds = itertools.cycle((0.8, 1.0, 1.2))

    def noisy(spec):
        record, speed = measure(spec), next(speeds)
        rate = record.figures.get("throughput_per_s")
        if rate is None:
            return record
        wide = replace(rate, low=0.8 * rate.value, high=1.2 * rate.value)
        windows = tuple(replace(w, elapsed_s=w.elapsed_s / speed) for w in record.windows)
        figures = {**record.figures, "throughput_per_s": wide}
        return replace(record, windows=windows, figures=figures)

    settings = Settings(
        networks=("resnet-18",),
        batch_sizes=(64,),
        frameworks=("pytorch-captured", "pytorch"),
        trials=False,
    )
    _, answer = run(play, context, noisy, settings)
    assert finding(answer, "throughput").caveats == ("wide-interval",)
    (warning,) = (w for w in answer.warnings if w.code == "wide-interval")
    assert "from 3 processes" in warning.cause
    assert "--set repeats=9" in warning.remedy
    _, answer = run(play, context, measure, settings)
    assert finding(answer, "throughput").caveats == ()


def test_a_cpu_has_the_spread_of_its_other_network_too(context, play, measure):
    speeds = itertools.cycle((0.9, 1.0, 1.1))

    def noisy(spec):
        record, speed = measure(spec), next(speeds)
        windows = tuple(replace(w, elapsed_s=w.elapsed_s / speed) for w in record.windows)
        return replace(record, windows=windows)

    _, records = play(EXPERIMENT.plan(Settings(trials=False), context), noisy)
    small, large = PerformanceCheck.of(records).workloads
    assert large.lent == small.spread
    assert small.lent == large.spread
    own, lent = large.spread, large.lent
    variance = (own.variance * own.freedom + lent.variance * lent.freedom) / (
        own.freedom + lent.freedom
    )
    half = student_t(0.95, own.freedom + lent.freedom) * math.sqrt(variance / large.processes)
    assert math.log(large.throughput.high / large.throughput.value) == approx(half)
    (one,) = PerformanceCheck.of(large.records).workloads
    assert one.prior is None
    notes = interval_notes(EXPERIMENT.answer(Settings(), records))
    assert any("from the other network's as well" in note for note in notes)


def test_a_program_that_did_not_run_is_a_missing_bar(context, play, measure):
    def failing(spec):
        record = measure(spec)
        if spec.other is None or spec.other.program.framework != "pytorch-compiled":
            return record
        ended = replace(record.outcome, status=Status.OOM, message="needs 9 GiB")
        return replace(record, outcome=ended, windows=(), figures={})

    networks = Settings(networks=("resnet-18", "little-cnn"), batch_sizes=(64,), trials=False)
    planned, records = play(EXPERIMENT.plan(networks, context), measure)

    def bars(found):
        (chart,) = EXPERIMENT.answer(networks, found).charts
        return {(ln.name, p.x): p.reason for ln in chart.lines for p in ln.points if p.y is None}

    second = [s.other and s.other.program.framework for s in planned]
    compiled = [i for i, name in enumerate(second) if name == "pytorch-compiled"]
    left_out = [r for i, r in enumerate(records) if i != compiled[0]]
    network = planned[compiled[0]].work.network
    assert bars(records) == {}
    assert bars(left_out) == {("torch.compile", network): "not run"}
    failed = [failing(s) if i == compiled[0] else records[i] for i, s in enumerate(planned)]
    assert bars(failed) == {("torch.compile", network): "failed: out of memory: needs 9 GiB"}


def test_a_stock_program_that_is_faster_is_the_headline(context, play, measure):
    fast = {**SPEEDS, "pytorch-compiled": 4.0}
    _, answer = run(play, context, lambda spec: measure(spec, fast))
    own = finding(answer, "throughput")
    assert own.value == pytest.approx(256, rel=0.01)
    programs = table(answer, "fastest / this")
    assert values(programs, "fastest / this") == [approx(2.0), approx(4.0), None]


def test_the_largest_loss_has_the_gain_of_the_remedy_that_was_tried(context, play, measure):
    _, answer = run(play, context, measure)
    loss = finding(answer, "largest-loss")
    assert loss.value == pytest.approx(2.0, rel=0.01)
    assert "framework=pytorch-captured" in loss.remedy
    left = [f for f in answer.findings if f.code == "further-gain"]
    assert [f.value for f in left] == pytest.approx([1.8, 1.1], rel=0.01)
    assert "--set cache_decoded=true" in left[0].remedy
    assert "--batch-per-device 128" in left[1].remedy
    assert "no-further-gain" not in codes(answer)


@pytest.mark.parametrize(
    ("compiled", "gaps", "cause"),
    [
        (0.96, None, ""),
        (1.1, None, ""),  # explains 9 of 50 %
        (1.5, None, "unfused kernels or launch gaps"),
        (1.5, 0.01, "unfused kernels"),
        (1.5, 0.2, "launch gaps and unfused kernels"),
        (0.96, 0.3, "launch gaps"),
        (0.96, 0.1, ""),
        (0.96, 0.0, ""),
    ],
)
def test_a_loss_has_a_cause_that_was_measured(context, play, measure, compiled, gaps, cause):
    settings = Settings(networks=("resnet-18",), batch_sizes=(64,), trials=False)
    speeds = {**SPEEDS, "pytorch-compiled": compiled}
    planned, records = play(EXPERIMENT.plan(settings, context), lambda s: measure(s, speeds))
    if gaps is not None:
        known = next(s for s in planned if isinstance(s.work, TrainSteps))
        eager = replace(
            known,
            against=None,
            program=replace(known.program, framework="pytorch"),
            budget=replace(known.budget, attribution=True),
        )
        shares = {"compute": 1 - gaps, "launch_gaps": gaps, "unattributed": 0.0}
        parts = tuple(Part(name=n, seconds=share, method="") for n, share in shares.items())
        records = [*records, replace(measure(eager, speeds), parts=parts)]
    text = losing(EXPERIMENT.answer(settings, records)).text
    words = f" to {cause}." if cause else "; the cause was not measured."
    assert f"loses 50 % of the throughput of resnet-18{words}" in text


def losing(answer):
    """The finding about what PyTorch eager loses."""
    lost = (f for f in answer.findings if f.code in ("largest-loss", "throughput-loss"))
    return next(f for f in lost if f.text.startswith("PyTorch eager"))


def test_remedies_that_are_one_change_are_one_finding(context, play, measure):
    _, answer = run(play, context, measure, Settings(trials=False))
    losses = [f for f in answer.findings if f.code in ("largest-loss", "throughput-loss")]
    assert [f.code for f in losses] == ["largest-loss"]
    assert "little-cnn" in losses[0].text
    assert "resnet-18" in losses[0].text
    assert texts(table(answer, "gain"), "in the figure of this machine") == ["yes", "yes"]
    assert "no-further-gain" in codes(answer), "what the figures do not include was not tried"


def test_the_commands_of_remedies_are_valid(context, play, measure):
    _, answer = run(play, context, measure)
    commands = [f.remedy.partition("cubemesh ")[2].split() for f in answer.findings if f.remedy]
    assert len(commands) == 4
    for verb, *arguments in commands:
        parsed = get_command(app).commands[verb].make_context(verb, arguments)
        given = request(entry(verb), split(parsed.params["settings"]))
        assert given.overrides["framework"] == "pytorch-captured"


def test_a_larger_loss_than_that_of_eager_is_the_largest(context, play, measure):
    close = {**SPEEDS, "pytorch": 1.9, "pytorch-compiled": 1.9}
    _, answer = run(play, context, lambda spec: measure(spec, close))
    loss = finding(answer, "largest-loss")
    assert loss.value == pytest.approx(1.8, rel=0.01)
    assert finding(answer, "throughput-loss").value == pytest.approx(2.0 / 1.9, rel=0.01)
    assert [f.value for f in answer.findings if f.code == "further-gain"] == [approx(1.1)]


def test_a_program_without_an_interval_is_not_compared(context, play, measure):
    def short(spec):
        record = measure(spec)
        if spec.other is None or spec.other.program.framework != "pytorch-compiled":
            return record
        return replace(record, windows=record.windows[:4])

    settings = Settings(networks=("resnet-18",), batch_sizes=(64,), minutes=0.5)
    _, answer = run(play, context, short, settings)
    programs = table(answer, "fastest / this")
    assert texts(programs, "fastest / this") == ["fastest", "", "not compared"]


def test_warnings_of_the_program_compared_with_do_not_mark_the_throughput(context, play, measure):
    def drifting(spec, side):
        cause = f"{side}Steps became 3 % slower."
        record = measure(spec)
        return replace(record, warnings=(warn("drift", cause, ""),)) if spec.other else record

    settings = Settings(networks=("resnet-18",), batch_sizes=(64,), trials=False)
    _, answer = run(play, context, lambda spec: drifting(spec, SECOND_PROGRAM), settings)
    assert finding(answer, "throughput").caveats == ()
    assert finding(answer, "largest-loss").caveats == ("drift",)
    _, answer = run(play, context, lambda spec: drifting(spec, ""), settings)
    assert finding(answer, "throughput").caveats == ("drift",)


def test_the_use_of_the_fastest_matrix_product_has_both_rates(context, play, measure):
    def used(spec):
        record = measure(spec)
        rates = {
            "model_flops_per_s": Figure(value=2e12, unit="FLOP/s"),
            "ceiling_mfu_percent": Figure(value=40.0, unit="%"),
        }
        return replace(record, figures={**record.figures, **rates})

    settings = Settings(networks=("resnet-18",), batch_sizes=(64,), trials=False)
    _, answer = run(play, context, used, settings)
    text = finding(answer, "throughput").text
    assert "40 % of the fastest matrix product measured on this device (2 of 5 TFLOP/s)" in text
    _, answer = run(play, context, measure, settings)
    assert "matrix product" not in finding(answer, "throughput").text


def test_a_published_result_of_several_gpus_names_them(machine, clock, play, measure):
    gpu = Gpu(index=0, name="NVIDIA H200", uuid="u")
    context = Context(machine=replace(machine, gpus=(gpu,)), clock=clock)

    def on_h200(spec):
        record = on_gpu(measure(spec))
        (rank,) = record.ranks
        return replace(record, ranks=(replace(rank, device_name="NVIDIA H200"),))

    settings = Settings(networks=("resnet-50",), batch_sizes=(64,), trials=False)
    _, answer = run(play, context, on_h200, settings)
    text = finding(answer, "published-ratio").text
    assert "images/s (per GPU of 8, mixed fp16, batch size 400, real" in text
    assert "; here 1 GPU, bf16, batch size 64, synthetic input)" in text


def test_the_first_command_trains_the_network_of_the_headline(context, play, measure):
    _, answer = run(play, context, lambda s: on_cpu(measure(s)), Settings(trials=False))
    headline = next(f for f in answer.findings if f.code == "throughput").text.split()[0]
    remedies = [f.remedy for f in answer.findings if f.remedy]
    assert remedies[0].startswith(f"First, train {headline} at this speed: cubemesh train ")
    assert remedies[1].startswith("To train little-cnn with pytorch-captured: cubemesh train ")
    assert remedies[2] == (
        "To try larger batch sizes and input from files: cubemesh run quick --set minutes=10"
    )


@pytest.mark.parametrize("networks", [("alexnet",), ("resnet-18",), ("resnet-50", "gpt2")])
def test_a_command_that_continues_names_the_networks_that_were_chosen(
    context, play, measure, networks
):
    """Also one of the usual two, and those that are usual on a GPU."""
    settings = Settings(networks=networks, batch_sizes=(64,), trials=False)
    _, answer = run(play, context, lambda spec: on_cpu(measure(spec)), settings)
    remedy = finding(answer, "no-further-gain").remedy
    named = ",".join(networks)
    assert remedy.endswith(f": cubemesh run quick --set networks={named} --set minutes=10")


def test_sequences_have_their_unit_and_their_data(context, play, measure):
    settings = Settings(networks=("gpt2",), batch_sizes=(64,), trials=False)
    _, answer = run(play, context, measure, settings)
    own = finding(answer, "throughput")
    assert own.unit == "sequences/s"
    assert "sequences of 1,024 tokens" in own.text
    assert own.value == 128.0
    assert "): 131,100 ± 0 tokens/s, 2.00" in own.text
    assert "--data synthetic" in finding(answer, "largest-loss").remedy


def test_without_a_significant_gain_there_is_no_loss(context, play, measure):
    equal = dict.fromkeys(SPEEDS, 2.0)
    settings = Settings(networks=("gpt2",), batch_sizes=(64,), trials=False)
    _, answer = run(play, context, lambda spec: measure(spec, equal), settings)
    assert "no-loss" in codes(answer)
    assert "×" not in finding(answer, "verdict").text
    assert "largest-loss" not in codes(answer)


def test_trials_stop_when_the_time_is_used_up(context, play, measure):
    settings = Settings(networks=("resnet-18",), batch_sizes=(64,), minutes=1)
    planned, _ = run(play, context, lambda spec: measure(spec, seconds=20.0), settings)
    assert all(s.work.data == "synthetic" for s in planned if isinstance(s.work, TrainSteps))


def noisy(record, number):
    """`record`, whose first program was slowed in every other window, by `number` percent more."""
    windows = (
        replace(w, elapsed_s=w.elapsed_s * (1.3 + number / 100)) if place % 3 == 0 else w
        for place, w in enumerate(record.windows)
    )
    return replace(record, run_id=f"{record.run_id}-{number}", windows=tuple(windows))


def comparisons(planned):
    """Network and framework that is compared with, of each comparison of programs."""
    return [
        (s.work.network, s.other.program.framework)
        for s in planned
        if s.other and s.other.batch_per_device == s.batch_per_device
    ]


def test_every_program_is_compared_before_anything_is_repeated(context, play, measure):
    """A CPU on which ResNet-18 takes 25 s, and 60 s where it is compiled."""

    def slow(spec):
        compiled = spec.other is not None and spec.other.program.framework == "pytorch-compiled"
        small = isinstance(spec.work, TrainSteps) and spec.work.network == "little-cnn"
        seconds = (15.0 if compiled else 10.0) if small else (60.0 if compiled else 25.0)
        if not isinstance(spec.work, TrainSteps):
            seconds = 5.0
        return measure(spec, seconds=seconds)

    planned, answer = run(play, context, slow, Settings())
    programs = ("pytorch", "pytorch-compiled")
    networks = ("little-cnn", "resnet-18")
    assert set(comparisons(planned)[:4]) == {(n, p) for n in networks for p in programs}
    assert all(len(line.points) == 2 for line in answer.charts[0].lines)
    assert context.clock() <= 2.75 * 60


@pytest.mark.parametrize("wide", ["little-cnn", "resnet-18"])
def test_the_widest_interval_is_repeated_before_trials(context, play, measure, wide):
    count = []

    def one_noisy(spec):
        record = measure(spec)
        if not isinstance(spec.work, TrainSteps) or spec.other is None:
            return record
        if (spec.work.network, spec.other.program.framework) != (wide, "pytorch-compiled"):
            return record
        count.append(spec)
        return noisy(record, len(count))

    planned, answer = run(play, context, one_noisy, Settings(minutes=10))
    repeated = comparisons(planned)[4:]
    assert repeated == [(wide, "pytorch-compiled")] * 2
    again = [n for n, spec in enumerate(planned) if spec == count[-1]]
    trials = [n for n, s in enumerate(planned) if getattr(s.work, "data", "") == JPEG_FILES]
    assert len(again) == 3
    assert trials
    assert all(again[-1] < trial for trial in trials)
    sample = next(note for note in answer.notes if note.startswith("±"))
    assert f"{wide} (5 processes)" in sample, "of two comparisons, two repeats and a trial"


def test_narrow_intervals_are_not_repeated(context, play, measure):
    planned, _ = run(play, context, measure, Settings(minutes=100))
    assert len(planned) == len(set(planned))


def test_what_was_stored_is_planned_as_before(machine, play, measure):
    """Runs that are reused take no time, and count as long as they took."""
    context = Context(machine=machine, clock=lambda: 0.0)
    planned, _ = run(play, context, lambda spec: measure(spec, seconds=30.0), Settings())
    assert len(planned) <= 6


def test_the_time_to_train_is_for_imagenet_networks_only(context, play, measure):
    _, answer = run(play, context, measure, Settings(trials=False))
    own = [f for f in answer.findings if f.code == "training-time"]
    assert len(own) == 1
    assert "resnet-18" in own[0].text
    rate = {f.text.split()[0]: f.value for f in answer.findings if f.code == "throughput"}
    assert own[0].value == pytest.approx(90 * 1_281_167 / rate["resnet-18"])


def test_published_results_on_a_cpu_are_compared_at_the_same_precision(machine, play, measure):
    context = Context(machine=machine)

    _, answer = run(play, context, lambda spec: on_cpu(measure(spec)))
    other = finding(answer, "published-other-device")
    assert other.value > 0
    assert other.question is None, "it has no card"
    assert "No published result is of this class of device" in finding(answer, "verdict").text
    assert "published-ratio" not in codes(answer), "its processor is of another class"


def test_frameworks_that_cannot_share_a_process_are_refused(context):
    settings = Settings(frameworks=("pytorch", "jax"))
    for start in (lambda: next(EXPERIMENT.plan(settings, context)), announced(settings, context)):
        with pytest.raises(UsageError, match=r"pytorch and jax cannot share a process"):
            start()


def announced(settings, context):
    return lambda: EXPERIMENT.announce(settings, context)


def test_a_tuning_of_another_library_is_compared_with_nothing(machine, clock, play, measure):
    def tuned(spec):
        return replace(spec, program=replace(spec.program, framework="jax"))

    context = Context(machine=machine, clock=clock, tuned=tuned)
    settings = Settings(networks=("resnet-18",), trials=False)
    planned, answer = run(play, context, measure, settings)
    assert all(spec.other is None for spec in planned)
    assert "torch.compile" not in EXPERIMENT.announce(settings, context)
    assert finding(answer, "throughput").value is not None


def test_no_framework_is_one_error_with_the_command(monkeypatch, context):
    for name, line in FRAMEWORKS.items():
        monkeypatch.setitem(FRAMEWORKS, name, replace(line, requires="no_such_module"))
    with pytest.raises(UsageError, match=r"pip install 'cubemesh\[torch\]'"):
        next(EXPERIMENT.plan(Settings(), context))


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan")])
def test_minutes_must_be_positive(minutes):
    with pytest.raises(UsageError, match=f"minutes={minutes:g}"):
        Settings(minutes=minutes)


def test_the_announcement_names_networks_programs_and_minutes(context):
    assert EXPERIMENT.announce is not None
    text = EXPERIMENT.announce(Settings(minutes=2), context)
    parts = ("little-cnn", "resnet-18", "pytorch-captured", "torch.compile", "2 min")
    for part in (*parts, "repeats the figures with the widest intervals"):
        assert part in text
