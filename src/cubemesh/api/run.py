"""Experiments and suites: run their measurements and return records and answers. `train` is the
experiment of that name, one run to a number of epochs or an accuracy."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from typing import Any

from cubemesh.api.arguments import (
    AnyStore,
    Settings,
    host_lines,
    open_store,
    scale_of,
    setting_lines,
)
from cubemesh.audit.marking import marked
from cubemesh.errors import TARGET_MISSED, CubemeshError, UsageError
from cubemesh.experiments.acceptance.checks import AcceptanceVerdict
from cubemesh.experiments.acceptance.report import verdict_of
from cubemesh.experiments.analysis.comparison import (
    INCONCLUSIVE,
    Gate,
    baseline_answer,
    gate_of,
)
from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.experiments.runner import ExperimentResult
from cubemesh.experiments.session import replay_papers, run_names
from cubemesh.runs import Observer, Silent
from cubemesh.schema import Answer, Ceiling, Machine, RunRecord
from cubemesh.store.compare import StoredComparison, compare_with_baseline
from cubemesh.units import parse_duration


@dataclass(frozen=True, kw_only=True, repr=False)
class RunResult:
    """The records and answers of one call."""

    experiments: tuple[ExperimentResult, ...]
    """Each experiment with its records and its answer, in the order they ran."""
    claims: tuple[Answer, ...] = ()
    """For each paper that was replayed, the verdicts on its claims."""
    gate: Gate | None = None
    """Result of `fail_below`; None where it was not given."""
    comparisons: tuple[StoredComparison, ...] = ()
    """Each workload compared with `baseline`."""
    compared: Answer | None = None
    """The answer about `baseline`; None where it was not given."""
    machine: Machine | None = None
    """The machine that was measured."""
    unsaved: CubemeshError | None = None
    """Why records still wait in the spool (docs/store.md); None if all are in the store."""

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Those of the experiments, then the papers' claims, then the baseline's."""
        compared = () if self.compared is None else (self.compared,)
        return (*(one.answer for one in self.experiments), *self.claims, *compared)

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
        """Whether something besides ceilings was measured, if it was planned, and no run crashed,
        was killed or timed out."""
        if not any(EXPERIMENTS[one.experiment_run.experiment].measures for one in self.experiments):
            return True  # computed, not measured
        expected = all(r.outcome.status.expected for r in self.records)
        of_work = [r for r in self.records if not isinstance(r.spec.work, Ceiling)]
        return expected and any(r.ok for r in of_work or self.records)

    @property
    def targets(self) -> dict[str, tuple[str, ...]]:
        """Each requested `target_accuracy`, as `train target_accuracy=0.95` → a sentence for each
        time that it was not reached."""
        found: dict[str, tuple[str, ...]] = {}
        for one in self.experiments:
            run = one.experiment_run
            target = {**run.settings, **run.overrides}.get("target_accuracy")
            if target is not None:
                name = f"{run.experiment} target_accuracy={target}"
                missed = (f.text for f in one.answer.findings if f.code == "target-missed")
                found[name] = (*found.get(name, ()), *missed)
        return found

    @property
    def missed_targets(self) -> tuple[str, ...]:
        """Sentences about each requested `target_accuracy` that was not reached."""
        return tuple(sentence for missed in self.targets.values() for sentence in missed)

    @property
    def exit_code(self) -> int:
        """Of the command, by `exit_code_if`."""
        return self.exit_code_if(self.ok)

    def exit_code_if(self, ok: bool) -> int:
        """1 if not `ok`, 1 or 75 where records wait in the spool, 99 where `fail_below` is
        breached or a target was missed."""
        if not ok:
            return 1
        if self.unsaved is not None:
            return self.unsaved.exit_code
        code = 0 if self.gate is None else self.gate.exit_code
        return code or (TARGET_MISSED if self.missed_targets else 0)

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
    baseline: AnyStore = None,
    fail_below: float | None = None,
    hosts: str | Iterable[str] = (),
    pythons: Settings = (),
    wait: str | float = 0.0,
    wait_quiet: str | float = 0.0,
    within: str | float | None = None,
    observer: Observer | None = None,
    **more_settings: Any,
) -> RunResult:
    """Run experiments or suites (`list_experiments` lists them). Stored runs are reused.

    Settings are given by name, `run("minibatch", networks=["resnet-18"], batch_sizes=[8, 16])`, or
    as `settings`. `against` alternates each program with one that differs in these fields;
    `baseline` is a store with whose runs of the same workloads these are compared; `fail_below` is
    the threshold for both ratios of throughputs. `no_cache` measures again what
    is stored. `pythons` maps a framework to the interpreter of its workers. `wait`, such as "10m",
    is the longest time to wait for a device that another run uses, `wait_quiet` for other programs
    to end. `within`, such as "5m", is a time after which no run starts: each experiment gets an
    equal share of what is left of it, and an answer of the runs that it made.

    What contradicts other figures has the caveat `inconsistent` and no verdict (docs/audit.md).

    UsageError before the first run for an unknown name, setting or combination.
    """
    scale, other = scale_of(quick=quick, full=full), setting_lines(against)
    if fail_below is not None and not other and baseline is None:
        raise UsageError(
            "--fail-below needs a comparison: add --against KEY=VALUE or --baseline STORE, or "
            "compare stored runs with `cubemesh compare A B --fail-below RATIO`."
        )
    within_s = None if within is None else parse_duration(str(within))
    if within_s is not None and within_s <= 0:
        raise UsageError(f"--within {within} leaves no time: write a duration, such as 5m.")
    lines = [*setting_lines(settings), *setting_lines(more_settings), *host_lines(hosts)]
    with ExitStack() as stack:
        before = None
        if baseline is not None:
            before = stack.enter_context(open_store(baseline, reading=True))
        opened = stack.enter_context(open_store(store))
        answered = run_names(
            names,
            lines,
            scale=scale,
            store=opened,
            observer=observer or Silent(),
            no_cache=no_cache,
            pythons=setting_lines(pythons),
            wait_s=parse_duration(str(wait)),
            own_code=True,
            against=other,
            wait_quiet_s=parse_duration(str(wait_quiet)),
            within_s=within_s,
        )
        unsaved = opened.settle()
        answers = marked([(one.answer, one.records) for one in answered])
        answered = [replace(o, answer=a) for o, a in zip(answered, answers, strict=True)]
        claims = replay_papers(answered, opened)
        records = [r for one in answered for r in one.records]
        found = [] if before is None else compare_with_baseline(records, before, opened)
        machine = opened.machine(answered[0].experiment_run.machine_id) if answered else None
    gate = None
    if fail_below is not None:
        interleaved = gate_of(fail_below, records).ratios
        gate = Gate(below=fail_below, ratios=(*interleaved, *(one.ratio for one in found)))
    return RunResult(
        experiments=tuple(answered),
        claims=tuple(claims),
        gate=gate,
        comparisons=tuple(found),
        compared=None if before is None else baseline_answer(found, records, gate),
        machine=machine,
        unsaved=unsaved,
    )


def train(network: str, **arguments: Any) -> RunResult:
    """Train `network`; the result has one record. Takes the arguments of `run` and the settings of
    the experiment `train`: epochs, devices, batch_per_device, learning_rate, target_accuracy,
    checkpoints, … (`experiment_settings("train")`)."""
    return run("train", networks=[network], **arguments)


@dataclass(frozen=True, kw_only=True, repr=False)
class AcceptResult(RunResult):
    """The result of an acceptance test."""

    @property
    def verdict(self) -> AcceptanceVerdict:
        """Pass, fail, or not judged."""
        return verdict_of(self.answer)

    @property
    def exit_code(self) -> int:
        """Of the command: 0 for pass, 99 for fail, 1 if not judged, 1 or 75 where
        records wait in the spool."""
        if self.verdict is AcceptanceVerdict.FAIL:
            return TARGET_MISSED
        if self.unsaved is not None:
            return self.unsaved.exit_code
        return 0 if self.verdict is AcceptanceVerdict.PASS else INCONCLUSIVE


def accept(
    *,
    burn_in: str | float | None = None,
    folder: str | os.PathLike[str] | None = None,
    stores: str | Iterable[str] = (),
    settings: Settings = (),
    quick: bool = False,
    full: bool = False,
    store: AnyStore = None,
    pythons: Settings = (),
    wait: str | float = 0.0,
    wait_quiet: str | float = 0.0,
    observer: Observer | None = None,
    **more_settings: Any,
) -> AcceptResult:
    """Test whether this machine is as fast as it should be, evenly, steadily and correctly: the
    experiment `acceptance`, whose settings it takes too.

    `burn_in` is the length of the burn-in in minutes, `folder` a folder on the disk to read,
    `stores` are stores of machines of the same model. Everything is measured anew.

    UsageError before the first run for an unknown setting or value.
    """
    lines = [*setting_lines(settings), *setting_lines(more_settings)]
    if burn_in is not None:
        lines.append(f"burn_in_minutes={burn_in}")
    if folder is not None:
        lines.append(f"folder={os.fspath(folder)}")
    if where := (stores,) if isinstance(stores, str) else tuple(stores):
        lines.append(f"stores={','.join(where)}")
    found = run(
        "acceptance",
        settings=lines,
        quick=quick,
        full=full,
        store=store,
        pythons=pythons,
        wait=wait,
        wait_quiet=wait_quiet,
        observer=observer,
    )
    return AcceptResult(**{field.name: getattr(found, field.name) for field in fields(found)})
