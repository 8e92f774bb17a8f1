"""Experiments and suites: run their measurements and return records and answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cubemesh.api.arguments import (
    AnyStore,
    Settings,
    host_lines,
    open_store,
    scale_of,
    setting_lines,
)
from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.comparison import Gate, gate_of
from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.experiments.runner import ExperimentResult
from cubemesh.experiments.session import replay_papers, run_names
from cubemesh.runs import Observer, Silent
from cubemesh.schema import Answer, RunRecord


@dataclass(frozen=True, kw_only=True, repr=False)
class RunResult:
    """The records and answers of one call."""

    experiments: tuple[ExperimentResult, ...]
    """Each experiment with its records and its answer, in the order they ran."""
    claims: tuple[Answer, ...] = ()
    """For each paper that was replayed, the verdicts on its claims."""
    gate: Gate | None = None
    """Result of `fail_below`; None where it was not given."""

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Those of the experiments, then the papers' claims."""
        return (*(one.answer for one in self.experiments), *self.claims)

    @property
    def answer(self) -> Answer:
        """The first experiment's."""
        return self.experiments[0].answer

    @property
    def records(self) -> tuple[RunRecord, ...]:
        """Every run once, those of networks before ceilings."""
        found = {r.run_id: r for one in self.experiments for r in one.records}
        return tuple(sorted(found.values(), key=lambda r: r.spec.batch_per_device is None))

    @property
    def ok(self) -> bool:
        """Whether something was measured, and no run crashed, was killed or timed out."""
        if not any(EXPERIMENTS[one.experiment_run.experiment].measures for one in self.experiments):
            return True  # computed, not measured
        expected = all(r.outcome.status.expected for r in self.records)
        return expected and any(r.ok for r in self.records)

    def __repr__(self) -> str:
        lines = [f"RunResult({len(self.records)} runs, ok={self.ok})"]
        for answer in self.answers:
            lines += [f"  {answer.title}", *(f"    - {f.text}" for f in answer.findings)]
        return "\n".join(lines)


def run(
    *names: str,
    settings: Settings = (),
    quick: bool = False,
    full: bool = False,
    store: AnyStore = None,
    no_cache: bool = False,
    against: Settings = (),
    fail_below: float | None = None,
    hosts: str | Iterable[str] = (),
    pythons: Settings = (),
    observer: Observer | None = None,
    **more_settings: Any,
) -> RunResult:
    """Run experiments or suites (`list_experiments` lists them). Stored runs are reused.

    Settings are given by name, `run("minibatch", networks=["resnet-18"], batch_sizes=[8, 16])`, or
    as `settings`. `against` alternates each program with one that differs in these fields, and
    `fail_below` is the threshold for the ratio of their throughputs. `no_cache` measures again what
    is stored. `pythons` maps a framework to the interpreter of its workers.

    UsageError before the first run for an unknown name, setting or combination.
    """
    scale, other = scale_of(quick=quick, full=full), setting_lines(against)
    if fail_below is not None and not other:
        raise UsageError(
            "--fail-below needs a comparison: add --against KEY=VALUE, or compare stored runs "
            "with `cubemesh compare A B --fail-below RATIO`."
        )
    lines = [*setting_lines(settings), *setting_lines(more_settings), *host_lines(hosts)]
    with open_store(store) as opened:
        answered = run_names(
            names,
            lines,
            scale=scale,
            store=opened,
            observer=observer or Silent(),
            no_cache=no_cache,
            pythons=setting_lines(pythons),
            against=other,
        )
        claims = replay_papers(answered, opened)
    gate = None
    if fail_below is not None:
        gate = gate_of(fail_below, (r for one in answered for r in one.records))
    return RunResult(experiments=tuple(answered), claims=tuple(claims), gate=gate)
