"""`cubemesh tune`: what is seen while it looks, and what it found as JSON.

While it looks, every trial that ends is a line with its speed beside the first one's, and the live
line counts the time down: how many trials are to come nobody knows, how much time there is
everybody.
"""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.text import Text

from cubemesh.experiments.runner import ExperimentResult
from cubemesh.experiments.tune import experiment as tune
from cubemesh.experiments.tune.report import gain, ladder, words
from cubemesh.experiments.tune.search import Search
from cubemesh.experiments.tune.search_space import FIELDS, Configuration
from cubemesh.schema import Figure, RunRecord, RunSpec
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.units import format_seconds
from cubemesh.views import formatting as wording
from cubemesh.views import json_output as plain
from cubemesh.views.progress import TerminalProgress
from cubemesh.views.terminal import outcome_style


class TuningProgress(TerminalProgress):
    """An observer of trials, over at `seconds` from the first of them."""

    def __init__(self, seconds: float, console: Console | None = None) -> None:
        super().__init__(console)
        self._seconds = seconds
        self._began: float | None = None
        self._first: float | None = None
        """Samples per second of the first trial that came to its end."""

    def start(self, spec: RunSpec) -> None:
        """A trial begins."""
        if self._began is None:
            self._began = time.monotonic()
        super().start(spec)

    def finish(self, record: RunRecord, *, reused: bool) -> None:
        """A trial is over; another may follow, so that the live line stays."""
        self._planned = self._finished + 2
        super().finish(record, reused=reused)

    def time_left_s(self) -> float | None:
        """What is left of the budget."""
        if self._began is None:
            return None
        return max(0.0, self._began + self._seconds - time.monotonic())

    def line(self, record: RunRecord, *, reused: bool) -> Text:
        """`  12 s  little-cnn · minibatch 64 · bf16  5,120 ± 30 samples/s  1.31× the first`."""
        left = self.time_left_s()
        spent = 0.0 if left is None else self._seconds - left
        text = Text(f"  {format_seconds(round(spent)):>5}  ", style="dim")
        text.append(f"{wording.run_name(record.spec)}  ", style="not dim")
        result = wording.result_text(record) if record.ok else ""
        text.append(result or self._ending(record), style=f"not dim {outcome_style(record)}")
        text.append(self._beside_the_first(record), style="not dim")
        if reused:
            text.append("  measured before")
        return text

    def _beside_the_first(self, record: RunRecord) -> str:
        rate = record.figure("throughput_per_s") if record.ok else None
        if rate is None or record.spec.against is not None:
            return ""
        if record.spec.budget.seconds == 0:
            return "  for its losses from another seed"
        if self._first is None:
            self._first = rate
            return ""
        return f"  {rate / self._first:.2f}× the first"


def budget_s(minutes: float | None, *, on_gpu: bool) -> float:
    """The seconds a tuning of so many minutes may take, or of the usual ones; UsageError for a time
    that is none."""
    return tune.Settings(minutes=minutes).seconds(on_gpu)


def document(answered: ExperimentResult) -> dict[str, Any]:
    """The JSON of `cubemesh tune`: the best setting, the ladder, and what became of all others."""
    settings = from_plain(tune.Settings, answered.experiment_run.settings)
    search = tune.found(settings, answered.records)
    return plain.envelope(
        "tuning",
        experiment_run_id=answered.experiment_run.experiment_run_id,
        network=settings.network,
        devices=settings.devices[0],
        batch_per_device=settings.batch_per_device,
        complete=not search.cut_short,
        best=None if search.best is None else _configuration(search, search.best),
        to_stock=_figure(gain(search)),
        ladder=[
            {
                "set": list(step.changes),
                "throughput_per_s": _figure(step.rate),
                "to_before": _figure(step.to_before),
                "to_stock": _figure(step.to_stock),
                "run_ids": [r.run_id for r in step.group.records],
            }
            for step in ladder(search)
        ],
        tried=[_tried(search, configuration) for configuration in search.tried],
        untried=[_configuration(search, configuration) for configuration in search.untried],
        answer=plain.answer_json(answered.answer),
    )


def _configuration(search: Search, configuration: Configuration) -> dict[str, Any]:
    return {
        "name": words(search, configuration),
        "settings": {name: getattr(configuration, name) for name in FIELDS},
    }


def _tried(search: Search, configuration: Configuration) -> dict[str, Any]:
    group = search.group(configuration)
    return {
        **_configuration(search, configuration),
        "outcome": group.records[0].outcome.status.value,
        "message": group.records[0].outcome.message,
        "throughput_per_s": _figure(group.throughput),
        "refused": search.refused.get(configuration),
        "run_ids": [r.run_id for r in group.records],
    }


def _figure(figure: Figure | None) -> dict[str, Any] | None:
    return None if figure is None else to_plain(figure)
