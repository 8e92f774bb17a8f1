"""Which sweeps are planned for, and how they are told."""

import dataclasses

import pytest

from answers import finding, in_order
from cubemesh.errors import UsageError
from cubemesh.experiments.collectives.experiment import EXPERIMENT, Settings, sizes_of
from cubemesh.experiments.collectives.report import sweep_tables
from cubemesh.experiments.core.experiment import Context, Scale
from cubemesh.schema import Gpu, Outcome, Status, SweepPoint, TrainSteps
from cubemesh.schema.collective import COLLECTIVES

MIB = 1 << 20


@pytest.fixture
def context(machine):
    return lambda gpus=0, scale=Scale.DEFAULT: Context(
        machine=dataclasses.replace(
            machine, gpus=tuple(Gpu(index=i, name="X", uuid=f"GPU-{i}") for i in range(gpus))
        ),
        scale=scale,
    )


@pytest.fixture
def swept(record_of):
    """A record in which the bus bandwidth of all-reduce is 3 GB/s in place and half out of it."""

    def make(spec, wrong=0, status=Status.OK):
        record = record_of(spec, status=status)
        if status is not Status.OK:
            return record
        points = [
            SweepPoint(
                size_bytes=size,
                count=size // 4,
                in_place=way,
                seconds=(size / 3e9 * (1 if way else 2),) * 6,
                wrong=wrong,
            )
            for size in spec.work.sizes_bytes
            for way in (False, True)
        ]
        if spec.work.collective == "send-receive":
            n = spec.placement.devices
            points += [
                SweepPoint(size_bytes=MIB, count=MIB // 4, pair=(i, j), seconds=(1e-3 / (i + 1),))
                for i in range(n)
                for j in range(n)
                if i != j
            ]
        return dataclasses.replace(record, sweep=tuple(points), library="gloo", figures={})

    return make


def planned(settings, context, play, swept):
    return play(EXPERIMENT.plan(settings, context), swept)


def test_each_operation_is_asked_on_all_gpus_or_two_groups_of_cores(context, play, swept):
    specs, _ = planned(Settings(), context(), play, swept)
    assert [s.work.collective for s in specs] == list(COLLECTIVES)
    assert {s.placement.devices for s in specs} == {2}
    assert (specs[0].work.sizes_bytes[0], specs[0].work.sizes_bytes[-1]) == (1024, 16 * MIB)
    specs, _ = planned(Settings(), context(gpus=4), play, swept)
    assert {s.placement.devices for s in specs} == {4}
    assert specs[0].work.sizes_bytes[-1] == 1 << 30
    assert len(specs[0].work.sizes_bytes) == 21


def test_quick_is_a_tiny_sweep_and_full_takes_powers_of_two(context, play, swept):
    (spec,), _ = planned(Settings(), context(scale=Scale.QUICK), play, swept)
    assert spec.work.collective == "all-reduce"
    assert spec.work.sizes_bytes == (1024, 4096, 16384, 65536, 262144, MIB)
    assert spec.budget.seconds * 2 * 6 < 2
    settings = Settings(operations=("reduce",))
    specs, _ = planned(settings, context(gpus=6, scale=Scale.FULL), play, swept)
    assert [s.placement.devices for s in specs] == [2, 4, 6]


def test_one_device_is_asked_for_two_which_becomes_an_outcome(context, play, swept):
    (spec,), _ = planned(Settings(operations=("reduce",)), context(gpus=1), play, swept)
    assert spec.placement.devices == 2


def test_sizes_grow_by_a_factor_or_a_step(context):
    assert sizes_of(Settings(min_bytes=8, max_bytes=100, factor=3), context()) == (
        8,
        24,
        72,
    )
    by_step = Settings(min_bytes=10, max_bytes=30, step_bytes=10)
    assert sizes_of(by_step, context()) == (10, 20, 30)
    beyond = Settings(min_bytes=64 * MIB)
    assert sizes_of(beyond, context()) == (64 * MIB,)
    with pytest.raises(UsageError, match="more than 1,000 sizes"):
        sizes_of(Settings(min_bytes=1, max_bytes=1 << 30, step_bytes=1), context())


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_bytes": 0},
        {"min_bytes": 8, "max_bytes": 4},
        {"factor": 2, "step_bytes": 8},
        {"factor": 1},
        {"step_bytes": 0},
    ],
)
def test_sizes_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(UsageError):
        Settings(**wrong)


def test_the_answer_tells_bandwidth_latency_and_that_all_was_right(context, play, swept):
    settings = Settings(operations=("all-reduce",), max_bytes=4096)
    _, records = planned(settings, context(), play, swept)
    answer = EXPERIMENT.answer(settings, records)
    assert answer.title.startswith("Collectives of gloo")
    card, right = answer.findings
    assert card.value == pytest.approx(3e9)
    assert (card.code, card.value) == ("bus-bandwidth", pytest.approx(3e9, rel=0.01))
    assert in_order(card.text, "1 KiB", "341 ns")
    assert right.code == "correct-results"
    (table,) = answer.tables
    assert in_order(table.title, "all-reduce", "2", "float", "sum")
    assert [c.name for c in table.columns[2:]] == [
        *("time", "algbw", "busbw", "#wrong"),
        *("time, in place", "algbw, in place", "busbw, in place", "#wrong, in place"),
    ]
    assert len(table.rows) == 3
    bandwidth, time = answer.charts
    assert (bandwidth.x.scale, bandwidth.y.scale) == ("log2", "log10")
    assert [p.y for p in bandwidth.lines[0].points] == pytest.approx([3.0] * 3), "the faster way"
    assert time.lines[0].points[0].y == pytest.approx(1024 / 3e9 * 1e6)


def test_pairs_are_a_matrix_and_a_heat_map(context, play, swept):
    settings = Settings(operations=("send-receive",), devices=(3,))
    _, records = planned(settings, context(gpus=3), play, swept)
    answer = EXPERIMENT.answer(settings, records)
    assert in_order(finding(answer, "pair-bandwidth").text, "2", "0", "3.15 GB/s")
    heat = answer.charts[-1]
    assert heat.kind == "heat"
    assert heat.lines[1].points[1].reason == "same device"
    matrix = answer.tables[1]
    assert matrix.rows[2][1].value == pytest.approx(MIB / (1e-3 / 3))


def test_wrong_elements_and_failures_are_said(context, play, swept):
    settings = Settings(operations=("all-reduce", "reduce"), max_bytes=1024)
    specs, _ = planned(settings, context(), play, swept)
    bad = swept(specs[0], wrong=5)
    refused = dataclasses.replace(
        swept(specs[1], status=Status.UNSUPPORTED),
        outcome=Outcome(status=Status.UNSUPPORTED, message="no gloo here"),
    )
    answer = EXPERIMENT.answer(settings, [bad, refused])
    assert in_order(finding(answer, "failed-run").text, "not supported", "no gloo here")
    assert finding(answer, "wrong-results").value == 10
    assert answer.findings[-1].caveats == ("wrong-results",)


def test_other_works_have_no_sweep(record_of):
    from cubemesh.schema import RunSpec

    spec = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8))
    assert sweep_tables(record_of(spec)) == ()
