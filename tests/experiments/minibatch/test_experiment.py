from dataclasses import replace

import pytest

from cubemesh.errors import UsageError
from cubemesh.experiments.minibatch.experiment import DOCUMENT_BATCHES, EXPERIMENT, Settings
from cubemesh.experiments.registry import Context, Scale
from cubemesh.schema import (
    Breakdown,
    Ceiling,
    Forward,
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
    """Minibatches that are timed."""
    own = (s for s in asked if isinstance(s.work, TrainSteps))
    return [batch_of(s) for s in own if not s.budget.attribution]


def test_named_minibatches_are_all_asked_for_after_the_ceiling(context, play, record_of):
    asked, _ = play(EXPERIMENT.plan(Settings(batch_sizes=(32, 8, 8)), context), record_of)
    assert isinstance(asked[0].work, Ceiling)
    assert steps(asked) == [8, 32]


def test_no_ceiling_when_it_is_switched_off(context, play, record_of):
    asked, _ = play(EXPERIMENT.plan(Settings(batch_sizes=(8,), ceiling=False), context), record_of)
    assert [type(s.work) for s in asked] == [TrainSteps]


def test_the_default_list_is_the_documents_where_runs_are_short(context, play, record_of):
    asked, _ = play(EXPERIMENT.plan(Settings(), context), record_of)
    assert tuple(steps(asked)) == DOCUMENT_BATCHES


def test_the_default_list_ends_where_a_run_would_take_too_long(machine, play, record_of):
    quick = Context(machine=machine, scale=Scale.QUICK)
    asked, sent = play(
        EXPERIMENT.plan(Settings(), quick),
        lambda spec: record_of(spec, step_s=0.0064 * (spec.batch_per_device or 1)),
    )
    assert steps(asked) == [8, 16, 32, 64]
    answer = EXPERIMENT.answer(Settings(), sent)
    reduced = [w for w in answer.warnings if w.code == "reduced"]
    assert len(reduced) == 1
    assert "end at 64" in reduced[0].cause


def test_a_list_goes_as_far_as_it_must_however_long_that_takes(machine, play, record_of):
    quick = Context(machine=machine, scale=Scale.QUICK)
    settings = Settings(min_batch_size=4, max_batch_size=64, min_largest_batch=16)
    asked, sent = play(EXPERIMENT.plan(settings, quick), lambda s: record_of(s, step_s=30.0))
    assert steps(asked) == [4, 8, 16]
    (warning,) = [w for w in EXPERIMENT.answer(settings, sent).warnings if w.code == "reduced"]
    assert "end at 16 and were to go on to 64" in warning.cause
    with pytest.raises(UsageError, match="min_batch_size=0"):
        Settings(min_batch_size=0)


def test_the_default_list_ends_where_memory_does(context, play, record_of):
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
    assert any("Minibatch 32: out of memory" in f.text for f in answer.findings)


def answer_for(record_of, step_s, **settings):
    """The answer when minibatch `b` takes `step_s[b]` seconds a step."""
    wanted = Settings(batch_sizes=tuple(step_s), **settings)
    specs = [RunSpec(work=TrainSteps(network=wanted.network, batch_per_device=b)) for b in step_s]
    return EXPERIMENT.answer(wanted, [record_of(s, step_s=step_s[batch_of(s)]) for s in specs])


def test_where_throughput_stops_growing(record_of):
    answer = answer_for(record_of, {8: 0.02, 16: 0.02, 32: 0.02, 64: 0.0397, 128: 0.079})
    texts = [f.text for f in answer.findings]
    assert any("stops growing at minibatch 32" in t and "4× minibatch 8" in t for t in texts)
    loses = next(f for f in answer.findings if f.question == "What does it lose the time to?")
    assert loses.value == pytest.approx(4.0)


def test_throughput_that_still_grows_says_so(record_of):
    answer = answer_for(record_of, {8: 0.02, 16: 0.021, 32: 0.022})
    assert any("still grows at minibatch 32" in f.text for f in answer.findings)


def test_throughput_that_never_grew(record_of):
    answer = answer_for(record_of, {8: 0.02, 16: 0.041})
    assert any("does not grow" in f.text for f in answer.findings)


def test_a_doubling_that_costs_more_than_double_as_document_000_saw(record_of):
    answer = answer_for(record_of, {64: 0.42028, 128: 0.89986})
    found = [f.text for f in answer.findings if "more than double" in f.text]
    assert found == [
        "Doubling the minibatch from 64 to 128 costs 2.14× the time of a step: more than double."
    ]


def test_a_doubling_within_its_interval_is_not_called(record_of):
    specs = [RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=b)) for b in (64, 128)]
    records = [record_of(s, step_s=t, spread=0.2) for s, t in zip(specs, (0.42, 0.90), strict=True)]
    answer = EXPERIMENT.answer(Settings(batch_sizes=(64, 128)), records)
    assert not any("more than double" in f.text for f in answer.findings)


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
    used = next(f for f in answer.findings if f.question == "How much of its matrix rate?")
    assert used.value == pytest.approx(50.0)
    assert answer.tables[0].rows[0][-1].value == pytest.approx(50.0)


def test_every_failure_leaves_a_reason(record_of):
    specs = [RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=b)) for b in (8, 16)]
    records = [record_of(s, status=Status.CRASHED, message="segmentation fault") for s in specs]
    answer = EXPERIMENT.answer(Settings(batch_sizes=(8, 16)), records)
    assert "ran at no minibatch" in answer.findings[0].text
    assert all(row[1].reason == "crashed: segmentation fault" for row in answer.tables[0].rows)


def test_repeats_are_pooled_into_one_point(record_of):
    spec = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8))
    records = [record_of(spec, step_s=0.01), record_of(spec, step_s=0.02)]
    answer = EXPERIMENT.answer(Settings(batch_sizes=(8,)), records)
    cell = answer.tables[0].rows[0][1]
    assert len(answer.tables[0].rows) == 1
    assert cell.value == pytest.approx(2 * 8 / 0.03, rel=0.02)
    assert cell.low < cell.value < cell.high
    assert cell.high - cell.low > 0.3 * cell.value


def test_more_than_the_ceiling_is_a_warning_with_its_cause(record_of):
    spec = RunSpec(work=TrainSteps(network="vgg16", batch_per_device=64))
    records = [record_of(RunSpec(work=Ceiling()), rate=50e12), record_of(spec, step_s=0.05)]
    answer = EXPERIMENT.answer(Settings(network="vgg16", batch_sizes=(64,)), records)
    (warning,) = [w for w in answer.warnings if w.code == "above-ceiling"]
    assert "Winograd" in warning.cause
    assert "At minibatch 64" in warning.cause


def test_a_disturbed_run_is_marked_and_not_compared(record_of):
    specs = [RunSpec(work=TrainSteps(network="vgg16", batch_per_device=b)) for b in (64, 128)]
    calm, loaded = record_of(specs[0], step_s=0.42), record_of(specs[1], step_s=0.90)
    loaded = replace(loaded, warnings=(warn("busy-host", "others", "stop them"),))
    answer = EXPERIMENT.answer(Settings(network="vgg16", batch_sizes=(64, 128)), [calm, loaded])
    assert not any("more than double" in f.text for f in answer.findings)
    assert EXPERIMENT.answer(Settings(batch_sizes=(64,)), [calm]).findings[0].caveats == ()
    alone = EXPERIMENT.answer(Settings(batch_sizes=(128,)), [loaded])
    assert alone.findings[0].caveats == ("busy-host",)


def test_full_measures_the_forward_pass_too(machine, play, record_of):
    full = Context(machine=machine, scale=Scale.FULL)
    asked, sent = play(EXPERIMENT.plan(Settings(batch_sizes=(8,), ceiling=False), full), record_of)
    assert [type(s.work) for s in asked] == [Forward, TrainSteps]
    answer = EXPERIMENT.answer(Settings(batch_sizes=(8,)), sent)
    names = [c.name for c in answer.tables[0].columns]
    assert answer.tables[0].rows[0][names.index("forward alone")].value == pytest.approx(10)
    assert [line.name for line in answer.charts[0].lines][:2] == [
        "little-cnn",
        "little-cnn, forward alone",
    ]


def fed(record_of, on, step_s, utilisation):
    """Records of a network fed from the host or the device, with the GPU's utilisation."""
    return [
        record_of(
            RunSpec(
                work=TrainSteps(network="little-cnn", batch_per_device=b),
                program=ProgramSettings(data_location=on),
            ),
            step_s=t,
            gpu_percent=utilisation[b],
        )
        for b, t in step_s.items()
    ]


def test_a_starving_gpu_is_said_to_starve(record_of):
    settings = Settings(batch_sizes=(16, 256), data_location="both")
    records = [
        *fed(record_of, "host", {16: 0.02, 256: 0.05}, {16: 35.0, 256: 97.0}),
        *fed(record_of, "device", {16: 0.01, 256: 0.05}, {16: 90.0, 256: 98.0}),
    ]
    answer = EXPERIMENT.answer(settings, records)
    (starves,) = [f.text for f in answer.findings if "starves" in f.text]
    assert starves == (
        "The GPU starves when fed from the host: with its data on the device, little-cnn trains "
        "2.00× as fast at minibatch 16 (35 % utilisation)."
    )
    names = [c.name for c in answer.tables[0].columns]
    assert answer.tables[0].rows[0][names.index("utilisation")].value == 35.0
    assert answer.tables[0].rows[0][names.index("data on the device")].value == 1600
    assert answer.charts[1].title == "little-cnn: utilisation by minibatch"


def test_a_busy_gpu_pays_for_the_copy_and_does_not_starve(record_of):
    settings = Settings(batch_sizes=(256,), data_location="both")
    records = [
        *fed(record_of, "host", {256: 0.06}, {256: 95.0}),
        *fed(record_of, "device", {256: 0.05}, {256: 98.0}),
    ]
    texts = [f.text for f in EXPERIMENT.answer(settings, records).findings]
    assert any("has a price" in t for t in texts)
    assert not any("starves" in t for t in texts)
    alike = [
        *fed(record_of, "host", {256: 0.05}, {256: 95.0}),
        *fed(record_of, "device", {256: 0.05}, {256: 98.0}),
    ]
    texts = [f.text for f in EXPERIMENT.answer(settings, alike).findings]
    assert any("no slower fed from the host" in t for t in texts)


def test_a_disturbed_run_starves_nobody(record_of):
    (host,) = fed(record_of, "host", {16: 0.02}, {16: 35.0})
    device = fed(record_of, "device", {16: 0.01}, {16: 90.0})
    host = replace(host, warnings=(warn("busy-host", "others", "stop them"),))
    answer = EXPERIMENT.answer(Settings(batch_sizes=(16,), data_location="both"), [host, *device])
    assert not any("starves" in f.text for f in answer.findings)
    (said,) = [f for f in answer.findings if "was disturbed" in f.text]
    assert "at minibatch 16" in said.text
    assert said.caveats == ("busy-host",)


def test_place_and_sign_of_every_bend(record_of):
    # samples/s: 400, 1600, 2000, 2100 at 8, 16, 32, 64: down at 16 and at 32.
    rates = {8: 400, 16: 1600, 32: 2000, 64: 2100}
    answer = answer_for(record_of, {b: b / r for b, r in rates.items()})
    bends = next(t for t in answer.tables if t.title == "Bends")
    assert [row[0].text for row in bends.rows] == ["16", "32"]
    assert [row[1].value for row in bends.rows] == pytest.approx([-800, -300])
    assert [row[2].text for row in bends.rows] == ["down", "down"]
    assert bends.rows[0][3].value == pytest.approx(1000 / 400 - 2000 / 1600 + 1000 / 2000)
    assert bends.rows[0][4].text == "up"
    texts = [f.text for f in answer.findings]
    assert "Throughput over doublings of the minibatch bends down at 16 and 32." in texts


def test_a_bend_within_its_interval_is_straight(record_of):
    answer = answer_for(record_of, {8: 0.008, 16: 0.0081, 32: 0.0108})
    bends = next(t for t in answer.tables if t.title == "Bends")
    assert bends.rows[0][2].text == "straight"
    assert any("bends at no minibatch" in f.text for f in answer.findings)


def test_several_devices_are_held_against_all_their_products(record_of):
    def answer(devices, step_s):
        place = Placement(devices=devices)
        work = TrainSteps(network="little-cnn", batch_per_device=8)
        records = [
            record_of(RunSpec(work=Ceiling(), placement=place), rate=1e11),
            record_of(RunSpec(work=work, placement=place), step_s=step_s),
        ]
        return EXPERIMENT.answer(Settings(batch_sizes=(8,)), records)

    def share(shown):
        (found,) = [f for f in shown.findings if f.question == "How much of its matrix rate?"]
        return found

    one, two = answer(1, 0.01), answer(2, 0.005)  # twice the samples a second
    assert share(two).value == pytest.approx(share(one).value)
    assert "of the 200 GFLOP/s that these 2 devices' fastest matrix product" in share(two).text
    assert any("global one is 2 times that" in note for note in two.notes)
    assert not any("global" in note for note in one.notes)


STEP_S = {8: 0.02, 16: 0.02, 32: 0.03}
"""Seconds a step at each minibatch: a sample takes 2.5, 1.25 and 0.94 ms, which bends up at 16."""


def timed(record_of, spec):
    return record_of(spec, step_s=STEP_S[batch_of(spec)])


def taken_apart(record_of, spec):
    """18 ms of every step launch, whatever the minibatch; the rest computes."""
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


def test_the_sides_of_a_bend_are_taken_apart_and_it_is_divided(machine, record_of):
    wanted = Settings(batch_sizes=(8, 16, 32), ceiling=False)
    plan = EXPERIMENT.plan(wanted, Context(machine=machine))
    records = [timed(record_of, s) for s in next(plan)]
    asked = plan.send(records)
    assert [(batch_of(s), s.budget.attribution) for s in asked] == [
        (8, True),
        (16, True),
        (32, True),
    ]
    apart = [taken_apart(record_of, s) for s in asked]
    with pytest.raises(StopIteration):
        plan.send(apart)
    answer = EXPERIMENT.answer(wanted, [*records, *apart])
    (told,) = [f.text for f in answer.findings if "that bends the time per sample" in f.text]
    assert "At minibatch 16 it is launch gaps" in told
    assert "2.25, 1.12 and 0.562 ms a sample" in told
    table = next(t for t in answer.tables if t.title == "Both sides of the bends")
    bent = {row[1].text: row[5].value for row in table.rows}
    assert bent["launch gaps"] == pytest.approx(2.25 - 2 * 1.125 + 0.5625)
    assert sum(v or 0.0 for v in bent.values()) == pytest.approx(0.9375), "the whole bend"
    assert len(answer.tables[0].rows) == 3, "what was taken apart is not timed as well"


@pytest.mark.parametrize("settings", [{"profile": False}, {"framework": "jax"}])
def test_sides_are_left_alone_where_it_is_not_wanted_or_not_possible(machine, record_of, settings):
    framework = settings.get("framework", "pytorch")
    own = {name: value for name, value in settings.items() if name != "framework"}
    wanted = Settings(batch_sizes=(8, 16, 32), ceiling=False, **own)
    plan = EXPERIMENT.plan(wanted, Context(machine=machine))
    asked = [replace(s, program=ProgramSettings(framework=framework)) for s in next(plan)]
    with pytest.raises(StopIteration):
        plan.send([timed(record_of, s) for s in asked])


def test_where_every_run_was_taken_apart_all_are_timed(record_of):
    specs = [RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=b)) for b in STEP_S]
    specs = [replace(s, budget=replace(s.budget, attribution=True)) for s in specs]
    answer = EXPERIMENT.answer(Settings(), [taken_apart(record_of, s) for s in specs])
    assert len(answer.tables[0].rows) == 3
