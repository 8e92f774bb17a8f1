"""Strategies and links, from simulated records."""

import dataclasses

import pytest

from answers import codes, column, finding, findings, in_order, texts, values
from cubemesh.experiments import strategies
from cubemesh.experiments.interconnect import experiment as interconnect
from cubemesh.experiments.registry import Context, Scale
from cubemesh.schema import Figure, Gpu, Part, Rank, Status

STRATEGIES, INTERCONNECT = strategies.EXPERIMENT, interconnect.EXPERIMENT
SPEEDS = {"all-reduce": 0.010, "all-reduce-16": 0.008, "asynchronous": 0.0101, "none": 0.006}


@pytest.fixture
def measured(record_of):
    """A record of two ranks whose step takes what its exchange or link takes."""

    def make(spec, step_s=None, transport="", handed=0):
        step_s = step_s or SPEEDS.get(spec.program.sync, 0.011)
        record = record_of(spec, step_s=step_s)
        parts = {"compute": 0.006, "exposed_communication": step_s - 0.006}
        told = tuple(Part(name=n, seconds=s, method="") for n, s in parts.items())
        figures = dict(record.figures)
        if spec.program.sync.startswith("asynchronous"):
            figures["staleness"] = Figure(value=0.97, unit="")
        if handed:
            figures["exchanged_bytes"] = Figure(value=handed, unit="B")
        ranks = tuple(
            Rank(rank=n, host="h", device="cpu", outcome=record.outcome, transport=transport)
            for n in range(spec.placement.devices)
        )
        return dataclasses.replace(
            record,
            figures=figures,
            ranks=ranks,
            parts=told if spec.budget.attribution else (),
            rank_parts=(told,) * spec.placement.devices if spec.budget.attribution else (),
            windows=tuple(
                dataclasses.replace(w, rank=n)
                for n in range(spec.placement.devices)
                for w in record.windows
            ),
        )

    return make


def test_strategies_are_compared_with_all_reduce_on_the_same_devices(machine, play, measured):
    names = ("all-reduce", "all-reduce-16", "asynchronous")
    settings = strategies.Settings(strategies=names, batch_sizes=(32,))
    planned, sent = play(STRATEGIES.plan(settings, Context(machine=machine)), measured)
    assert [(s.placement.devices, s.program.sync) for s in planned] == [
        (1, "none"),
        *((2, sync) for sync in names),
        (2, "none"),
    ]
    apart = {s.program.sync: s.budget.attribution for s in planned if s.placement.devices == 2}
    assert apart == {
        "all-reduce": True,
        "all-reduce-16": True,
        "asynchronous": False,
        "none": False,
    }
    answer = STRATEGIES.answer(settings, sent)
    assert codes(answer) == ["fastest-strategy", "strategy-ratios", "longest-wait", "staleness"]
    card, ratios, waits, stale = answer.findings
    assert card.unit.endswith("all-reduce-16")
    assert card.value == pytest.approx(75, abs=1)
    assert in_order(ratios.text, "all-reduce-16", "faster", "1.25 ± 0.02×")
    assert in_order(ratios.text, "asynchronous", "0.99 ± 0.01×")
    assert "all-reduce" in waits.text
    assert waits.value == pytest.approx(40, abs=0.1)
    assert stale.value == pytest.approx(0.97)
    rows = {name: n for n, name in enumerate(texts(answer.tables[0], "strategy"))}
    found = column(answer.tables[0], "vs all-reduce")[rows["all-reduce-16"]]
    assert found.value == pytest.approx(1.25)
    assert column(answer.tables[0], "communication wait")[rows["asynchronous"]].text == "–"
    assert values(answer.tables[0], "staleness")[rows["asynchronous"]] == pytest.approx(0.97)
    compared = column(answer.tables[0], "vs slowest device without sync")
    assert compared[rows["no sync"]].text == "–"


def test_a_failed_strategy_has_its_reason(machine, play, measured, record_of):
    def refused(spec):
        if spec.program.sync == "model-parallel":
            return record_of(spec, status=Status.UNSUPPORTED, message="no chain of segments")
        return measured(spec)

    settings = strategies.Settings(strategies=("all-reduce", "model-parallel"), independent=False)
    _, sent = play(STRATEGIES.plan(settings, Context(machine=machine)), refused)
    (failed,) = findings(STRATEGIES.answer(settings, sent), "failed-run")
    assert in_order(failed.text, "model-parallel", "not supported", "no chain of segments")


def test_what_a_pipeline_waits_for_is_named_with_the_forecast(machine, play, measured):
    waits = {"pipeline_wait": 30.0, "pipeline_bubble": 20.0, "pipeline_imbalance": 7.0}
    waits |= {"pipeline_transfer": 3.0, "pipeline_bubble_forecast": 11.0}

    def run(spec):
        record = measured(spec)
        if spec.program.sync != "pipeline":
            return record
        own = {name: Figure(value=value, unit="%") for name, value in waits.items()}
        return dataclasses.replace(record, figures=record.figures | own)

    settings = strategies.Settings(strategies=("all-reduce", "pipeline"), independent=False)
    planned, sent = play(STRATEGIES.plan(settings, Context(machine=machine)), run)
    assert {s.program.sync: s.budget.attribution for s in planned}["pipeline"] is False
    answer = STRATEGIES.answer(settings, sent)
    (found,) = findings(answer, "pipeline-wait")
    assert found.value == 30
    assert in_order(found.text, "pipeline", "30.0 %", "20.0 % bubble", "7.0 %", "3.0 %", "11.0 %")
    assert "micro_batches" in found.remedy
    table = answer.tables[-1]
    assert texts(table, "strategy") == ["pipeline"]
    assert values(table, "bubble, forecast") == [11]
    assert texts(table, "gradients of other replicas") == ["–"]


def test_links_are_compared_network_by_network_on_gpus(machine, play, measured):
    gpus = tuple(Gpu(index=n, name="NVIDIA H200", uuid=f"GPU-{n}") for n in range(2))
    large = dataclasses.replace(machine, gpus=gpus)
    slow = {"alexnet": 0.030, "googlenet": 0.011}

    def run(spec):
        fast = spec.placement.link == "auto"
        step_s = 0.010 if fast else slow[spec.work.network]
        return measured(spec, step_s, "NCCL P2P/CUMEM" if fast else "NCCL SHM/direct", 2**28)

    settings = interconnect.Settings(networks=("googlenet", "alexnet"), links=("auto", "network"))
    planned, sent = play(INTERCONNECT.plan(settings, Context(machine=large)), run)
    assert [(s.work.network, s.placement.link) for s in planned] == [
        ("googlenet", "auto"),
        ("googlenet", "network"),
        ("alexnet", "auto"),
        ("alexnet", "network"),
    ]
    assert {s.placement.devices for s in planned} == {2}
    answer = INTERCONNECT.answer(settings, sent)
    cost = finding(answer, "link-cost")
    assert cost.value == pytest.approx(3)
    assert cost.text.startswith("alexnet, 256 trains 3")
    assert " as fast over auto as over network (googlenet, 256 1.1" in cost.text
    found = answer.tables[0]
    assert texts(found, "transport")[0] == "NCCL P2P/CUMEM"
    assert values(found, "vs first link")[3] == pytest.approx(1 / 3)
    assert values(found, "communication wait")[3] == pytest.approx(80)
    assert values(found, "communicated per sample")[3] == pytest.approx(1)
    throughput, waits = answer.charts
    assert {line.name for line in throughput.lines} == {"auto", "network"}
    assert waits.y.unit == "%"


def test_translators_are_compared_by_width_and_one_link_compares_nothing(machine, play, measured):
    settings = interconnect.Settings(
        networks=("translator",), hidden_sizes=(64, 128), batch_sizes=(4,)
    )
    planned, sent = play(INTERCONNECT.plan(settings, Context(machine=machine)), measured)
    assert [(s.work.hidden, s.batch_per_device, s.placement.link) for s in planned] == [
        (64, 4, "auto"),
        (128, 4, "auto"),
    ]
    assert codes(INTERCONNECT.answer(settings, sent)) == ["single-link"]


def test_links_are_compared_for_each_strategy_and_number_of_devices(machine, play, measured):
    settings = interconnect.Settings(
        networks=("little-cnn",),
        strategies=("all-reduce", "local-sgd"),
        devices=(2, 4),
        links=("auto", "network"),
    )
    planned, sent = play(INTERCONNECT.plan(settings, Context(machine=machine)), measured)
    assert len(planned) == 8
    rows = texts(INTERCONNECT.answer(settings, sent).tables[0], "network, batch size")
    assert sorted(set(rows)) == [
        f"little-cnn, 64, {sync}, {devices} devices"
        for sync in ("all-reduce", "local-sgd")
        for devices in (2, 4)
    ]


def test_each_link_has_a_curve_from_one_device_on(machine, play, measured):
    """Figures 5 and 6 of paper 002."""
    gpus = tuple(Gpu(index=n, name="NVIDIA H200", uuid=f"GPU-{n}") for n in range(4))
    large = dataclasses.replace(
        machine, gpus=gpus, cpu=dataclasses.replace(machine.cpu, usable_cores=8)
    )

    def run(spec):
        devices, slow = spec.placement.devices, spec.placement.link != "auto"
        made = measured(spec, 0.010 if devices == 1 else 0.020 if slow else 0.0125)
        figure = made.figures["throughput_per_s"]
        return dataclasses.replace(
            made,
            figures=made.figures | {"throughput_per_s": figure.scaled(devices, "samples/s")},
        )

    settings = interconnect.Settings(
        networks=("inception-v3",), links=("auto", "shared-memory"), scaling=True
    )
    planned, sent = play(INTERCONNECT.plan(settings, Context(machine=large)), run)
    assert [(s.placement.devices, s.placement.link, s.program.sync) for s in planned] == [
        (1, "auto", "none"),
        *((n, link, "all-reduce") for n in (2, 4) for link in ("auto", "shared-memory")),
    ]
    assert {s.batch_per_device for s in planned} == {128}
    answer = INTERCONNECT.answer(settings, sent)
    found = next(t for t in answer.tables if "by devices" in t.title)
    assert values(found, "devices") == [1, 2, 4, 2, 4]
    assert values(found, "speed-up")[1:] == pytest.approx([1.6, 3.2, 1, 2], rel=0.01)
    assert values(found, "vs first link")[-1] == pytest.approx(0.625, rel=0.01)
    reached = finding(answer, "link-scaling")
    assert in_order(reached.text, "inception-v3, 128", "4 devices", "auto", "shared-memory")
    assert reached.value == pytest.approx(3.2, rel=0.01)
    curve = answer.charts[0]
    assert [line.name for line in curve.lines][:2] == ["auto", "shared-memory"]
    assert [[p.x for p in line.points] for line in curve.lines] == [[1, 2, 4]] * 3
    cost = finding(answer, "link-cost")
    assert cost.value == pytest.approx(1.6, rel=0.01)
    assert "1 device" not in cost.text, "one device uses no link"


def test_curves_are_those_of_each_framework_and_width(machine, play, measured):
    """Figures 7 and 15 of paper 002."""
    settings = interconnect.Settings(
        networks=("translator-plain",),
        frameworks=("pytorch", "jax"),
        hidden_sizes=(64, 512),
        devices=(2,),
        scaling=True,
    )
    planned, sent = play(INTERCONNECT.plan(settings, Context(machine=machine)), measured)
    assert len(planned) == 2 * 2 * 2
    answer = INTERCONNECT.answer(settings, sent)
    names = set(
        texts(next(t for t in answer.tables if "by devices" in t.title), "network, batch size")
    )
    batches = {s.work.hidden: s.batch_per_device for s in planned}
    assert names == {
        f"translator-plain, hidden size {hidden}, {batches[hidden]}, {framework}"
        for hidden in (64, 512)
        for framework in ("pytorch", "jax")
    }
    assert len(findings(answer, "link-scaling")) == 4
    assert len({chart.name for chart in answer.charts}) == len(answer.charts)


def test_a_named_network_is_smaller_on_a_cpu(machine):
    named = interconnect.Settings(networks=("inception-v3", "translator"))
    on_cpu = interconnect.cases(named, Context(machine=machine))
    assert [(c.batch, c.hidden) for c in on_cpu[1:]] == [(32, 128), (16, 256), (8, 512)]
    assert on_cpu[0].batch == 16
    assert on_cpu[0].image_size < 299
    full = interconnect.cases(named, Context(machine=machine, scale=Scale.FULL))
    assert [(c.batch, c.hidden) for c in full[1:]] == [(256, 512), (128, 1024), (64, 2048)]
    width = interconnect.Settings(networks=("translator",), hidden_sizes=(512,))
    (case,) = interconnect.cases(width, Context(machine=machine, scale=Scale.FULL))
    assert case.batch == 256, "that of the width in the paper"
