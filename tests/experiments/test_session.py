"""Experiments of a suite at a scale, and a suite of which a scale would leave out every one."""

import pytest

from cubemesh.errors import UsageError
from cubemesh.experiments.registry import SUITES, Scale
from cubemesh.experiments.session import resolve
from cubemesh.experiments.suites import Suite, SuiteEntry


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
