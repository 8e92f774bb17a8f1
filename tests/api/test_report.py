"""Reports of a store with several machines: the machine measured last, or the one named."""

import dataclasses

import pytest

from cubemesh import report
from cubemesh.errors import StoreError, UsageError
from cubemesh.experiments.core.experiment import Context
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.experiments.runner import run_experiment
from cubemesh.machines import probe
from cubemesh.runs import Executor
from cubemesh.schema import Machine
from cubemesh.store import Store

pytestmark = pytest.mark.usefixtures("forked_servers")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory):
    """One experiment that needs no run, on two machines, on `second` last."""
    with Store.open(str(tmp_path_factory.mktemp("report") / "s.sqlite")) as opened:
        for machine in machines():
            executor = Executor(opened, machine=machine)
            cluster = EXPERIMENTS["cluster"]
            run_experiment(
                cluster,
                request(cluster, {"system_counts": "128"}),
                Context(machine=machine),
                executor,
                opened,
            )
        yield opened


def machines() -> tuple[Machine, Machine]:
    """Two that differ in their name alone."""
    here = probe()
    return dataclasses.replace(here, hostname="first"), dataclasses.replace(here, hostname="second")


def test_the_machine_measured_last_is_reported_and_the_other_named(store):
    first, second = machines()
    found = report(store=store)
    assert found.machine.hostname == "second"
    assert {q.machine_id for q in found.experiment_runs} == {second.machine_id}
    assert [m.machine_id for m in found.other_machines] == [first.machine_id]
    assert [answer.experiment for answer in found.answers] == ["cluster"]


def test_another_machine_is_chosen_by_a_prefix_of_its_id(store):
    first, _ = machines()
    found = report("cluster", machine_id=first.machine_id[:8].upper(), store=store)
    assert found.machine.machine_id == first.machine_id
    assert [m.hostname for m in found.other_machines] == ["second"]


@pytest.mark.parametrize(
    ("names", "machine_id", "named"),
    [
        ((), "xyz", [m.machine_id for m in machines()]),
        (("minibatch",), "", ["minibatch"]),
        (("minibtach",), "", ["minibatch"]),
    ],
)
def test_what_is_not_stored_is_a_usage_error(store, names, machine_id, named):
    with pytest.raises(UsageError) as refused:
        report(*names, machine_id=machine_id, store=store)
    assert all(name in str(refused.value) for name in named)


def test_another_store_is_put_next_to_it(store, tmp_path):
    found = report(store=store, against=store)
    assert found.against is not None
    assert [answer.experiment for answer in found.answers] == ["machine-comparison", "cluster"]
    assert [(a.experiment, b.experiment) for a, b in found.partners] == [("cluster", "cluster")]
    assert found.answers[1] is found.partners[0][0]
    with pytest.raises(StoreError, match=r"absent\.sqlite"):
        report(store=store, against=tmp_path / "absent.sqlite")
