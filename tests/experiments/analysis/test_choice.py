"""Choice among runs: ties are named, the cheapest of the tied is taken, and the Pareto front."""

from __future__ import annotations

import base64
import dataclasses
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

import report_sample
from cubemesh.experiments.analysis.choice import (
    MCNEMAR,
    NEWCOMBE,
    TIED,
    UNDECIDED,
    WORSE,
    choose,
    matched_pairs,
    pareto_front,
)
from cubemesh.schema import Figure, RunRecord, Train
from cubemesh.schema.comparison import Ratio, classify_ratio
from cubemesh.schema.record import ScoredSamples
from cubemesh.statistics.matched_pairs import MatchedPairs
from cubemesh.training.evaluation import accuracy_figure

SAMPLES = 1000


def trained(
    place: int, hits: int, *, wall_s: float = 10.0, data: str = "digits", joules: float = 0.0
) -> RunRecord:
    one = report_sample.record(8)
    work = Train(network="little-cnn", batch_per_device=8, data=data)
    figures = {"accuracy": accuracy_figure(hits, SAMPLES), "wall_s": Figure(value=wall_s, unit="s")}
    if joules:
        energy = Figure(value=joules, unit="J", method="GPU board")
        figures["energy_joules_per_sample"] = energy
    spec = dataclasses.replace(one.spec, work=work)
    return dataclasses.replace(one, run_id=f"{place:012x}", spec=spec, figures=figures)


def measured(place: int, rate: float, memory: float = 1e9) -> RunRecord:
    one = report_sample.record(8)
    figures = {
        "throughput_per_s": Figure(value=rate, unit="samples/s"),
        "peak_memory_bytes": Figure(value=memory, unit="B"),
    }
    return dataclasses.replace(one, run_id=f"{place:012x}", figures=figures)


def none(best: RunRecord, others: Sequence[RunRecord]) -> list[Ratio | None]:
    raise AssertionError("trainings are not compared by throughput")


def ratios(best: RunRecord, others: Sequence[RunRecord]) -> list[Ratio | None]:
    """Each known to ± 5 %."""
    rates = [r.figures["throughput_per_s"].value for r in (best, *others)]
    found: list[Ratio | None] = []
    for rate in rates[1:]:
        value = rate / rates[0]
        low, high = value / 1.05, value * 1.05
        found.append(classify_ratio(value, low, high, n=10, freedom=9.0, method="made up"))
    return found


def test_of_the_tied_the_cheapest_is_chosen() -> None:
    best, tied, worse = trained(1, 944, wall_s=90), trained(2, 941, wall_s=30), trained(3, 800)
    found = choose([best, tied, worse], none)
    assert not isinstance(found, str)
    assert (found.best, found.chosen, found.cost) == (best.run_id, tied.run_id, "time")
    assert found.tied == (best.run_id, tied.run_id)
    assert found.standings[tied.run_id].verdict == TIED
    assert found.standings[worse.run_id].verdict == WORSE


def test_energy_decides_before_time_where_all_of_the_tied_have_it() -> None:
    first = trained(1, 944, wall_s=10, joules=5.0)
    second = trained(2, 941, wall_s=20, joules=1.0)
    found = choose([first, second], none)
    assert not isinstance(found, str)
    assert (found.chosen, found.cost) == (second.run_id, "energy")
    found = choose([first, trained(2, 941, wall_s=20)], none)
    assert not isinstance(found, str)
    assert (found.chosen, found.cost) == (first.run_id, "time")


def test_equal_runs_are_called_tied_and_a_difference_is_found() -> None:
    draw = random.Random(7)

    def hits(probability: float) -> int:
        return sum(draw.random() < probability for _ in range(SAMPLES))

    whole = found = 0
    for _ in range(200):
        equal = choose([trained(i, hits(0.9)) for i in range(5)], none)
        assert not isinstance(equal, str)
        whole += len(equal.tied) == 5
        two = choose([trained(1, hits(0.95)), trained(2, hits(0.88))], none)
        assert not isinstance(two, str)
        found += len(two.tied) == 1
    assert whole >= 0.95 * 200
    assert found >= 0.95 * 200


def test_throughput_decides_for_runs_of_one_network() -> None:
    fast, near, slow = measured(1, 100.0, 9e9), measured(2, 99.0, 1e9), measured(3, 50.0, 1e8)
    found = choose([slow, near, fast], ratios)
    assert not isinstance(found, str)
    assert (found.criterion, found.best, found.chosen) == ("throughput", fast.run_id, near.run_id)
    assert found.cost == "memory"
    assert found.standings[slow.run_id].verdict == WORSE
    unknown = choose([fast, slow], lambda best, others: [None for _ in others])
    assert not isinstance(unknown, str)
    assert unknown.standings[slow.run_id].verdict == UNDECIDED
    assert unknown.chosen == fast.run_id


@pytest.mark.parametrize(
    "records",
    [
        [trained(1, 900)],
        [trained(1, 900), trained(2, 900, data="synthetic")],
        [trained(1, 900), measured(2, 10.0)],
    ],
)
def test_what_does_not_compare_is_not_chosen(records: list[RunRecord]) -> None:
    assert isinstance(choose(records, none), str)
    assert pareto_front(records) is None


def test_the_front_has_what_nothing_dominates() -> None:
    runs = [
        trained(1, 950, wall_s=90),
        trained(2, 940, wall_s=30),
        trained(3, 930, wall_s=40),
        trained(4, 900, wall_s=10),
    ]
    found = pareto_front(runs)
    assert found is not None
    assert found.axes == ("accuracy", "time")
    assert found.front == tuple(runs[i].run_id for i in (0, 1, 3))
    assert found.dominated == {runs[2].run_id: runs[1].run_id}
    assert not any(math.isnan(v) for values in found.values.values() for v in values)


def answered(record: RunRecord, right: Sequence[bool], samples_id: str = "a") -> RunRecord:
    """The same training with its answers to single samples."""
    bits = base64.b64encode(np.packbits(np.array(right, bool)).tobytes()).decode()
    scored = ScoredSamples(samples_id=samples_id, count=len(right), right=bits)
    return dataclasses.replace(record, scored_samples=scored)


def answers(wrong: range) -> list[bool]:
    return [place not in wrong for place in range(SAMPLES)]


def test_a_difference_on_the_same_samples_is_seen_where_intervals_overlap() -> None:
    """The worse one answers 12 samples wrongly that the best answers, and none the other way."""
    best = answered(trained(1, 950), answers(range(50)))
    worse = answered(trained(2, 938), answers(range(62)))
    found = choose([best, worse], none)
    standing = found.standings[worse.run_id]
    assert (standing.verdict, standing.test) == (WORSE, MCNEMAR)
    assert (standing.only_best, standing.only_own) == (12, 0)
    assert standing.difference == pytest.approx(-0.012)
    assert standing.high < 0
    assert standing.smallest == pytest.approx(0.008)  # 10 of 12
    unpaired = choose([trained(1, 950), trained(2, 938)], none).standings[worse.run_id]
    assert (unpaired.verdict, unpaired.test, unpaired.only_best) == (TIED, NEWCOMBE, None)
    assert unpaired.smallest > standing.smallest


def test_only_equal_samples_are_paired() -> None:
    best, right = answered(trained(1, 950), answers(range(50))), answers(range(62))
    own = answered(trained(2, 938), right)
    key = dataclasses.replace(own.key, data_id="other files")
    damaged = dataclasses.replace(own.scored_samples, right="!")
    for other in (
        answered(trained(2, 938), right, samples_id="b"),
        answered(trained(2, 938), right[:-1]),
        dataclasses.replace(own, key=key),
        dataclasses.replace(own, scored_samples=damaged),
        trained(2, 938),
    ):
        assert matched_pairs(best, other) is None
    assert matched_pairs(best, own) == MatchedPairs(samples=SAMPLES, lost=12, gained=0)


def test_pairs_are_corrected_for_their_number() -> None:
    """Ten samples of difference: p = 0.002, significant of two runs, not of ten."""
    best = answered(trained(1, 950), answers(range(50)))
    others = [answered(trained(n, 940), answers(range(60))) for n in range(2, 11)]
    assert choose([best, others[0]], none).standings[others[0].run_id].verdict == WORSE
    of_ten = choose([best, *others], none).standings
    assert {of_ten[r.run_id].verdict for r in others} == {TIED}
