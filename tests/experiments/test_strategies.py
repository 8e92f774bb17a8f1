"""Exchanges side by side, and links side by side, from records made up to differ."""

import dataclasses

import pytest

from cubemesh.experiments import interconnect, strategies
from cubemesh.experiments.registry import Context
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


def by_column(table, row):
    return {c.name: cell for c, cell in zip(table.columns, row, strict=True)}


def test_strategies_are_held_against_all_reduce_on_the_same_devices(machine, play, measured):
    exchanges = ("all-reduce", "all-reduce-16", "asynchronous")
    settings = strategies.Settings(strategies=exchanges, batch_sizes=(32,))
    asked, sent = play(STRATEGIES.plan(settings, Context(machine=machine)), measured)
    assert [(s.placement.devices, s.program.sync) for s in asked] == [
        (1, "none"),
        *((2, sync) for sync in exchanges),
        (2, "none"),
    ]
    apart = {s.program.sync: s.budget.attribution for s in asked if s.placement.devices == 2}
    assert apart == {
        "all-reduce": True,
        "all-reduce-16": True,
        "asynchronous": False,
        "none": False,
    }
    answer = STRATEGIES.answer(settings, sent)
    card, against, waits, stale = answer.findings
    assert "all-reduce-16 is fastest" in card.text
    assert card.value == pytest.approx(75, abs=1)
    assert "all-reduce-16 is faster than it, 1.25×" in against.text
    assert "asynchronous is level with it" in against.text
    assert "longest under all-reduce, 40.0 % of its time" in waits.text
    assert "0.97 versions old" in stale.text
    rows = {row[2].text: by_column(answer.tables[0], row) for row in answer.tables[0].rows}
    assert rows["all-reduce-16"]["of all-reduce"].value == pytest.approx(1.25)
    assert rows["asynchronous"]["waits for exchange"].text == "–"
    assert rows["asynchronous"]["staleness"].value == pytest.approx(0.97)
    assert rows["each alone"]["of slowest alone"].text == "–"


def test_an_exchange_that_did_not_run_says_why(machine, play, measured, record_of):
    def refused(spec):
        if spec.program.sync == "model-parallel":
            return record_of(spec, status=Status.UNSUPPORTED, message="no chain of segments")
        return measured(spec)

    settings = strategies.Settings(strategies=("all-reduce", "model-parallel"), independent=False)
    _, sent = play(STRATEGIES.plan(settings, Context(machine=machine)), refused)
    texts = [f.text for f in STRATEGIES.answer(settings, sent).findings]
    refusals = [text for text in texts if "not supported" in text]
    assert refusals == [
        "little-cnn, 64 on 2 devices, model-parallel: not supported: no chain of segments."
    ]


def test_links_are_compared_network_by_network_on_gpus(machine, play, measured):
    gpus = tuple(Gpu(index=n, name="NVIDIA H200", uuid=f"GPU-{n}") for n in range(2))
    large = dataclasses.replace(machine, gpus=gpus)
    slow = {"alexnet": 0.030, "googlenet": 0.011}

    def run(spec):
        fast = spec.placement.link == "auto"
        step_s = 0.010 if fast else slow[spec.work.network]
        return measured(spec, step_s, "NCCL P2P/CUMEM" if fast else "NCCL SHM/direct", 2**28)

    settings = interconnect.Settings(networks=("googlenet", "alexnet"), links=("auto", "network"))
    asked, sent = play(INTERCONNECT.plan(settings, Context(machine=large)), run)
    assert [(s.work.network, s.placement.link) for s in asked] == [
        ("googlenet", "auto"),
        ("googlenet", "network"),
        ("alexnet", "auto"),
        ("alexnet", "network"),
    ]
    assert {s.placement.devices for s in asked} == {2}
    answer = INTERCONNECT.answer(settings, sent)
    (finding,) = answer.findings
    assert finding.value == pytest.approx(3)
    assert "alexnet, 256 gains most." in finding.text
    rows = [by_column(answer.tables[0], row) for row in answer.tables[0].rows]
    assert rows[0]["went over"].text == "NCCL P2P/CUMEM"
    assert rows[3]["of the first link"].value == pytest.approx(1 / 3)
    assert rows[3]["waits for exchange"].value == pytest.approx(80)
    assert rows[3]["of a sample"].value == pytest.approx(1)
    throughput, waits = answer.charts
    assert {line.name for line in throughput.lines} == {"auto", "network"}
    assert waits.y.unit == "%"


def test_translators_are_compared_by_width_and_one_link_compares_nothing(machine, play, measured):
    settings = interconnect.Settings(
        networks=("translator",), hidden_sizes=(64, 128), batch_sizes=(4,)
    )
    asked, sent = play(INTERCONNECT.plan(settings, Context(machine=machine)), measured)
    assert [(s.work.hidden, s.batch_per_device, s.placement.link) for s in asked] == [
        (64, 4, "auto"),
        (128, 4, "auto"),
    ]
    (finding,) = INTERCONNECT.answer(settings, sent).findings
    assert "nothing is compared" in finding.text
