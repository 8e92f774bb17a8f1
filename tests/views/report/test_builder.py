"""Which machine a report of a store with several is about, and what it says of the others."""

import dataclasses
import io
import time
from pathlib import Path

import pytest
from cubemesh.views.report.builder import report
from rich.console import Console

from cubemesh.errors import UsageError
from cubemesh.experiments.core.experiment import Context
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.experiments.runner import run_experiment
from cubemesh.machines import probe
from cubemesh.runs import Executor
from cubemesh.schema import Machine
from cubemesh.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory):
    """One question that needs no run, asked on two machines, on `second` last."""
    with Store.open(str(tmp_path_factory.mktemp("kept") / "s.sqlite")) as opened:
        for machine in machines():
            executor = Executor(opened, machine=machine)
            cluster = EXPERIMENTS["cluster"]
            run_experiment(
                cluster,
                request(cluster, {"systems": "128"}),
                Context(machine=machine),
                executor,
                opened,
            )
            time.sleep(1.1)  # a question is dated by the second
        yield opened


def machines() -> tuple[Machine, Machine]:
    """Two that differ in their name alone."""
    here = probe()
    return dataclasses.replace(here, hostname="first"), dataclasses.replace(here, hostname="second")


def printed(written) -> str:
    """What people see of it."""
    console = Console(file=io.StringIO(), width=200)
    written.print(console)
    return console.file.getvalue()


def test_it_is_about_the_machine_measured_on_last_and_names_the_other(store, tmp_path: Path):
    first, second = machines()
    written = report(store, [], tmp_path / "p.html", None)
    assert {q.machine_id for q in written.experiment_runs} == {second.machine_id}
    assert [m.hostname for m in written.others] == ["first"]
    assert f"first · {first.cpu.usable_cores} core" in printed(written)
    assert f"--machine-id {first.machine_id}" in printed(written)
    assert written.plain()["other_machines"] == [first.machine_id]


def test_another_machine_is_named_by_the_beginning_of_its_id(store, tmp_path: Path):
    first, _ = machines()
    written = report(store, [], tmp_path / "p.html", None, first.machine_id[:8].upper())
    assert {q.machine_id for q in written.experiment_runs} == {first.machine_id}
    assert [m.hostname for m in written.others] == ["second"]
    assert "first" in (tmp_path / "p.html").read_text()


def test_an_unknown_machine_is_refused_with_those_there_are(store, tmp_path: Path):
    with pytest.raises(UsageError, match="begins with 'xyz'") as refused:
        report(store, [], tmp_path / "p.html", None, "xyz")
    for machine in machines():
        assert machine.machine_id in str(refused.value)
    assert not (tmp_path / "p.html").exists()
