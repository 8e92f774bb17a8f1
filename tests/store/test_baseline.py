"""Comparison of measured runs with a baseline store: the runs that are selected, the verdict."""

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from cubemesh.experiments.analysis.comparison import Gate, baseline_answer
from cubemesh.schema import Budget, Figure, Rank, RunRecord, RunSpec, Status, TrainSteps
from cubemesh.schema.comparison import Difference
from cubemesh.store import Store
from cubemesh.store.compare import SettingDifference, compare_with_baseline, stored_spread

SPEC = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8))
STEPS_S = (0.0100, 0.01002, 0.00998)


@pytest.fixture
def runs(record_of) -> Callable[..., list[RunRecord]]:
    """Three repeats of a spec whose steps take `factor` times 10 ms."""

    def make(prefix: str, factor: float = 1.0, spec: RunSpec = SPEC, **key: str) -> list[RunRecord]:
        return [
            dataclasses.replace(
                record := record_of(spec, step_s=factor * step_s, spread=0.001),
                run_id=f"{prefix}{number}",
                key=dataclasses.replace(record.key, repeat=number, **key),
            )
            for number, step_s in enumerate(STEPS_S)
        ]

    return make


@pytest.fixture
def stores(new_location: Callable[[str], str]) -> Iterator[tuple[Store, Store]]:
    with Store.open(new_location("a")) as a, Store.open(new_location("b")) as b:
        yield a, b


def saved(store: Store, records: list[RunRecord]) -> list[RunRecord]:
    for record in records:
        store.save(record)
    return records


@pytest.mark.parametrize(("factor", "verdict"), [(1.2, "SLOWER"), (1.02, "NOT_SIGNIFICANT")])
def test_single_runs_of_a_busy_gpu_have_the_spread_of_earlier_runs(stores, runs, factor, verdict):
    def on_gpu(record):
        rank = Rank(rank=0, host="h", device="cuda:0", outcome=record.outcome)
        busy = {"gpu_utilization_percent": Figure(value=99.0, unit="%")}
        return dataclasses.replace(record, ranks=(rank,), figures={**record.figures, **busy})

    saved(stores[0], [on_gpu(runs("base")[0])])
    now = saved(stores[1], [on_gpu(runs("now", factor)[0])])
    (found,) = compare_with_baseline(now, *stores)
    assert found.ratio.verdict is Difference[verdict]
    assert "17 earlier pairs of runs" in found.ratio.method
    assert found.ratio.high / found.ratio.value == pytest.approx(1.055, abs=0.002)


def test_single_runs_without_a_prior_are_not_compared(stores, runs):
    saved(stores[0], runs("base")[:1])
    (found,) = compare_with_baseline(saved(stores[1], runs("now", 1.2)[:1]), *stores)
    assert found.ratio.verdict is Difference.NOT_ENOUGH_DATA


def test_a_slower_workload_breaches_the_threshold(stores, runs):
    saved(stores[0], runs("base"))
    now = saved(stores[1], runs("now", 1.2))
    (found,) = compare_with_baseline(now, *stores)
    assert found.ratio.value == pytest.approx(1 / 1.2, rel=1e-6)
    assert found.ratio.verdict is Difference.SLOWER
    assert [r.run_id for r in found.first.records] == ["base0", "base1", "base2"]
    gate = Gate(below=0.95, ratios=(found.ratio,))
    assert gate.exit_code == 99
    answer = baseline_answer([found], now, gate)
    (finding,) = answer.findings
    assert finding.text.startswith(
        "little-cnn, batch size 8: this run is 16.7 % slower than the baseline"
    )
    assert answer.notes[-1] == gate.sentence


def test_a_reduced_run_compares_with_a_full_one(stores, runs):
    full = dataclasses.replace(SPEC, budget=Budget(seconds=30.0))
    saved(stores[0], runs("base", spec=full))
    (found,) = compare_with_baseline(saved(stores[1], runs("now")), *stores)
    assert found.ratio.verdict is Difference.NOT_SIGNIFICANT


def test_the_same_machine_is_preferred_and_another_is_named(stores, runs):
    saved(stores[0], runs("other", 2.0, machine_id="other"))
    now = saved(stores[1], runs("now"))
    (found,) = compare_with_baseline(now, *stores)
    assert found.ratio.value == pytest.approx(2.0, rel=1e-6)
    assert "machine" in {d.what for d in found.differences}
    saved(stores[0], runs("base"))
    (found,) = compare_with_baseline(now, *stores)
    assert found.ratio.value == pytest.approx(1.0, rel=1e-6)
    assert "machine" not in {d.what for d in found.differences}


def test_other_data_of_the_same_path_are_named(stores, runs):
    saved(stores[0], runs("base", data_id="a"))
    (found,) = compare_with_baseline(saved(stores[1], runs("now", data_id="b")), *stores)
    assert [d for d in found.differences if d.what.startswith("data")] == [
        SettingDifference(what="data files (digest)", first="a", second="b")
    ]
    (found,) = compare_with_baseline(saved(stores[1], runs("again", data_id="a")), *stores)
    assert not [d for d in found.differences if d.what.startswith("data")]


def test_runs_on_other_data_are_no_repeats(stores, runs):
    (first, second, _) = runs("base", data_id="a")
    second = dataclasses.replace(second, key=dataclasses.replace(second.key, data_id="b"))
    saved(stores[0], [first, second])
    assert stored_spread(stores[0], first) is None
    saved(stores[0], runs("more", data_id="a"))
    assert "4 stored runs" in stored_spread(stores[0], first).source


def test_what_the_baseline_does_not_have_is_listed(stores, runs, record_of):
    saved(stores[0], [record_of(SPEC, status=Status.OOM)])
    now = saved(stores[1], runs("now"))
    assert compare_with_baseline(now, *stores) == []
    answer = baseline_answer([], now, Gate(below=0.95, ratios=()))
    assert answer.notes[0] == "Not in the baseline: little-cnn, batch size 8."
    assert Gate(below=0.95, ratios=()).exit_code == 1


def test_a_run_is_not_its_own_baseline(stores, runs):
    now = saved(stores[0], runs("now"))
    assert compare_with_baseline(now, stores[0], stores[0]) == []
