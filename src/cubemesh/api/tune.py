"""Tuning: search for the fastest setting of a network, within a time budget."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cubemesh.api.arguments import AnyStore, Settings, open_store, setting_lines
from cubemesh.audit.marking import marked
from cubemesh.errors import CubemeshError
from cubemesh.experiments.runner import ExperimentResult
from cubemesh.experiments.session import latest_result, run_names
from cubemesh.experiments.tune import experiment
from cubemesh.experiments.tune.report import StepResult, gain, step_results
from cubemesh.experiments.tune.search import Search
from cubemesh.experiments.tune.search_space import FIELDS
from cubemesh.machines import probe
from cubemesh.runs import Observer, Silent
from cubemesh.schema import Answer, Figure, RunRecord
from cubemesh.schema.serialization import from_plain
from cubemesh.units import parse_duration


@dataclass(frozen=True, kw_only=True, repr=False)
class TuneResult:
    """What a search found."""

    answered: ExperimentResult
    interrupted: bool = False
    """Whether it was ended by Ctrl-C; the result holds the trials that had ended."""
    unsaved: CubemeshError | None = None
    """Why records still wait in the spool; None if all are in the store."""

    @cached_property
    def settings(self) -> experiment.Settings:
        """Of the search."""
        return from_plain(experiment.Settings, self.answered.experiment_run.settings)

    @cached_property
    def search(self) -> Search:
        """The state of the search at its end."""
        return experiment.found(self.settings, self.answered.records)

    @property
    def exit_code(self) -> int:
        """Of the command: 1 where nothing was measured, 1 or 75 where records wait in the spool."""
        if not self.steps:
            return 1
        return 0 if self.unsaved is None else self.unsaved.exit_code

    @property
    def best(self) -> dict[str, Any] | None:
        """The fastest setting that was accepted, by field; None where none was measured."""
        best = self.search.best
        return None if best is None else {name: getattr(best, name) for name in FIELDS}

    @property
    def speedup(self) -> Figure | None:
        """Throughput of the best setting over that of the stock setting."""
        return gain(self.search)

    @property
    def steps(self) -> Sequence[StepResult]:
        """From the stock setting to the best, one change a step."""
        return step_results(self.search)

    @property
    def complete(self) -> bool:
        """Whether every setting was tried."""
        return not self.search.cut_short

    @property
    def answer(self) -> Answer:
        """Findings, tables and charts."""
        return self.answered.answer

    @property
    def records(self) -> tuple[RunRecord, ...]:
        """Every trial."""
        return self.answered.records

    def __repr__(self) -> str:
        lines = [f"TuneResult({len(self.records)} trials, best={self.best})"]
        return "\n".join([*lines, *(f"  - {f.text}" for f in self.answer.findings)])


def tune(
    network: str,
    *,
    settings: Settings = (),
    store: AnyStore = None,
    no_cache: bool = False,
    pythons: Settings = (),
    wait: str | float = 0.0,
    observer: Observer | None = None,
    **more_settings: Any,
) -> TuneResult:
    """Search for the fastest setting of `network` here; `run(…, tuned=True)` then uses it.

    Settings are those of the experiment `tune`: minutes, devices, batch_sizes, … Ctrl-C ends
    the search and returns what was found; it is raised where nothing was measured yet. `wait`,
    such as "10m", is the longest time to wait for a device that another run uses.
    """
    lines = [f"networks={network}", *setting_lines(settings), *setting_lines(more_settings)]
    start_utc = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with open_store(store) as opened:
        try:
            (answered,) = run_names(
                ["tune"],
                lines,
                scale=None,
                store=opened,
                observer=observer or Silent(),
                no_cache=no_cache,
                pythons=setting_lines(pythons),
                wait_s=parse_duration(str(wait)),
                own_code=True,
            )
        except KeyboardInterrupt:
            found = latest_result("tune", opened, since_utc=start_utc)
            if found is None:
                raise
            return TuneResult(answered=_audited(found), interrupted=True, unsaved=opened.settle())
        return TuneResult(answered=_audited(answered), unsaved=opened.settle())


def _audited(result: ExperimentResult) -> ExperimentResult:
    """The result, without verdicts that its figures contradict."""
    (answer,) = marked([(result.answer, result.records)])
    return replace(result, answer=answer)


def budget_s(minutes: float | None = None) -> float:
    """Seconds that a search of `minutes` may take here; None is the default for this machine."""
    return experiment.Settings(minutes=minutes).seconds(bool(probe().gpus))
