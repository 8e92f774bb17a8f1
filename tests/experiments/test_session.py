"""Experiments of a suite at a scale, a suite of which a scale would leave out every one, and the
time that experiments share."""

from types import SimpleNamespace

import pytest

import cubemesh
from cubemesh.errors import UsageError
from cubemesh.experiments import session
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.registry import EXPERIMENTS, SUITES, Context, Scale
from cubemesh.experiments.runner import run_experiment, stored_result
from cubemesh.experiments.session import resolve
from cubemesh.experiments.suites import Suite, SuiteEntry
from cubemesh.machines import probe
from cubemesh.runs import Executor, Silent
from cubemesh.store import Store


def planned(name, scale):
    return [one.experiment.name for one in resolve([name], [], scale)]


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_runs_something_or_says_why_not(name):
    assert len(planned(name, Scale.DEFAULT)) == len(SUITES[name].entries)
    if any(e.quick for e in SUITES[name].entries):
        assert planned(name, Scale.QUICK)
    else:
        with pytest.raises(UsageError, match=f"leaves out every experiment of {name}"):
            planned(name, Scale.QUICK)


def test_a_suite_without_a_short_experiment_is_refused_with_quick(monkeypatch):
    entries = (SuiteEntry("weak-scaling", quick=False), SuiteEntry("interconnect", quick=False))
    monkeypatch.setitem(SUITES, "long", Suite(summary="long", entries=entries))
    assert planned("long", Scale.DEFAULT) == ["weak-scaling", "interconnect"]
    with pytest.raises(UsageError, match=r"long: weak-scaling and interconnect\. Leave"):
        planned("long", Scale.QUICK)


def test_no_run_starts_after_the_time_of_an_experiment(tmp_path):
    machine, ticks = probe(), iter(range(99))
    texts = {
        "framework": "null",
        "script": "step=0.01",
        "batch_sizes": "8,16,32",
        "ceiling": "false",
    }
    experiment = EXPERIMENTS["minibatch"]
    with (
        Store.open(str(tmp_path / "s.sqlite")) as store,
        Executor(store, machine=machine, runs_folder=tmp_path / "runs") as executor,
    ):

        def ask(ends_s, texts=texts):
            context = Context(
                machine=machine, scale=Scale.QUICK, clock=lambda: float(next(ticks)), ends_s=ends_s
            )
            asked = request(experiment, texts)
            return run_experiment(experiment, asked, context, executor, store)

        found = ask(2.0)  # asked for the third time it is over
        assert [r.spec.batch_per_device for r in found.records] == [8, 16]
        assert not found.experiment_run.complete
        assert found.answer.notes[0].startswith("Incomplete: the time for its runs ended")
        assert "reduced" not in {w.code for w in found.answer.warnings}, "the time was the reason"
        later = stored_result(experiment, found.experiment_run, store).answer
        assert later.notes[0].startswith("Incomplete: not all of its runs have been made")
        none = ask(0.0, texts | {"batch_sizes": "64"})
        assert none.answer.findings[0].text.startswith("No result yet: not all of its runs")
        assert len(store.experiment_runs()) == 1, "what made no run is not stored"
        again = ask(0.0)
        assert [r.run_id for r in again.records] == [r.run_id for r in found.records], "stored ones"
        whole = ask(None)
        assert (len(whole.records), whole.experiment_run.complete) == (3, True)


def test_experiments_share_the_time_equally(monkeypatch, tmp_path):
    now, ends, messages = [100.0], [], []
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def run(experiment, asked, context, executor, store, **names):
        ends.append(context.ends_s)
        now[0] += {"minibatch": 10.0, "precision": 60.0}[experiment.name]
        complete = experiment.name == "minibatch"
        return SimpleNamespace(records=(), experiment_run=SimpleNamespace(complete=complete))

    monkeypatch.setattr(session, "run_experiment", run)
    observer = Silent()
    monkeypatch.setattr(observer, "message", messages.append)
    with Store.open(str(tmp_path / "s.sqlite")) as store:
        results = session.run_names(
            ["minibatch", "precision", "minibatch"],
            [],
            scale=Scale.QUICK,
            store=store,
            observer=observer,
            within_s=90.0,
        )
    assert ends == [130.0, 150.0, 190.0], "what one leaves, the others share"
    assert len(results) == 2
    assert messages[-1] == "precision: no time for a run."


def test_no_time_at_all_is_refused(tmp_path):
    for text in ("0", "-1s"):
        with pytest.raises(UsageError, match=r"--within|duration"):
            cubemesh.run("minibatch", within=text, store=str(tmp_path / "s.sqlite"))
