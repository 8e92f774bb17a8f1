"""Replay of a paper: its experiment runs, and the verdicts of its claims."""

from dataclasses import replace

import pytest

from answers import in_order
from cubemesh.experiments.registry import EXPERIMENTS, SUITES, Scale
from cubemesh.experiments.session import resolve
from cubemesh.papers.published import claims
from cubemesh.papers.replay import documents, replay, replayed
from cubemesh.schema import ExperimentRun, ProgramSettings

pytestmark = pytest.mark.usefixtures("forked_servers")


def test_the_answer_of_a_replay(steps, machine):
    records = steps("little-cnn", {16: 0.016, 64: 0.064 / 1.2})
    answer = replay("doc-001", [("minibatch", records), ("minibatch", records)], machine)
    assert answer.experiment == "doc-001"
    total, failed = answer.findings
    assert (total.code, total.value, total.unit) == ("claims", 0, "of 24 claims")
    assert in_order(total.text, "24", "0 hold here", "1 does not", "forecast")
    assert (failed.code, failed.value) == ("failed-claim", pytest.approx(1.2))
    assert failed.text.startswith("001-3")
    (table,) = answer.tables
    assert len(table.rows) == 24
    assert [row[0].text for row in table.rows[:14]] == [f"001-{i}" for i in range(1, 15)]
    assert all(len(row) == len(table.columns) for row in table.rows)
    basis = {row[0].text: (row[1].text, row[2].text) for row in table.rows}
    assert basis["001-3"] == ("does not hold", "measured")
    assert basis["001-14"] == ("holds", "published")
    assert basis["001-9"] == ("holds", "forecast")
    assert basis["001-4"] == ("cannot be tested here", "–")
    assert answer.run_ids == tuple(r.run_id for r in records)


def test_claims_of_simulated_runs_are_marked(steps, machine):
    records = steps("little-cnn", {16: 0.016, 64: 0.064 / 1.2})
    null = ProgramSettings(framework="null")
    simulated = [replace(r, spec=replace(r.spec, program=null)) for r in records]
    assert not replay("doc-001", [("minibatch", records)], machine).simulated
    answer = replay("doc-001", [("minibatch", simulated)], machine)
    assert answer.simulated
    assert all("simulated" in finding.caveats for finding in answer.findings)


def experiment_run(asked, suite="doc-001", **more):
    return ExperimentRun(
        experiment_run_id=f"q{asked}",
        suite=suite,
        started_utc=f"2026-01-{asked:02}",
        **{"experiment": "minibatch", "machine_id": "m", "run_ids": ("r",), **more},
    )


def test_a_replay_uses_the_latest_run_of_each_experiment_and_network():
    old, new = (
        experiment_run(1, settings={"networks": ["a"]}),
        experiment_run(3, settings={"networks": ["a"]}),
    )
    other = experiment_run(2, settings={"networks": ["b"]})
    foreign = [
        experiment_run(4, suite=None),
        experiment_run(5, machine_id="n"),
        experiment_run(6, run_ids=()),
        experiment_run(7, experiment="of-a-later-version"),
    ]
    found = replayed("doc-001", [new, other, *foreign, old], "m")
    assert {q.experiment_run_id for q in found} == {"q3", "q2"}


def test_suites_of_papers_have_claims():
    assert documents() == ["doc-000", "doc-001", "doc-002", "doc-003", "doc-004"]
    for name in documents():
        assert any(c.document == SUITES[name].paper for c in claims())
        assert all(ask.experiment in EXPERIMENTS for ask in SUITES[name].entries)


def test_a_claim_is_tested_on_its_own_experiment(steps, machine):
    records = steps("little-cnn", {16: 0.016, 64: 0.064 / 2.8})
    other = steps("little-cnn", {16: 0.016, 64: 0.064})
    answer = replay("doc-001", [("model-size", other), ("minibatch", records)], machine)
    verdicts = {row[0].text: row[1].text for row in answer.tables[0].rows}
    assert verdicts["001-3"] == "holds"
    assert len(answer.run_ids) == len({r.run_id for r in (*records, *other)})


def test_every_figure_of_a_suite_has_its_number():
    for suite in SUITES.values():
        assert all((f"[{suite.paper}]" in e.reproduces) == bool(suite.paper) for e in suite.entries)
    figures = [e.reproduces.partition(", ")[2] for e in SUITES["doc-001"].entries]
    assert figures == [
        f"figure{n}" for n in (" 1", " 1", " 2", " 3", " 4", " 4", "s 5 and 6", " 4")
    ]
    lines = resolve(["doc-000"], [], Scale.QUICK)
    networks = [one.request.settings.networks[0] for one in lines[1:]]
    assert networks == ["alexnet", "googlenet", "resnet-50"]
    assert len(resolve(["doc-000"], [], None)) == 8
