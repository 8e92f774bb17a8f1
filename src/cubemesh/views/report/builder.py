"""From a store to a page: which questions a report answers, and with which records.

A report holds the latest question of each experiment and settings that was asked on one machine:
the one named, or else the one that was measured on last. Its answers are computed anew from the
records. What the store holds of other machines is said, with how to report it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from cubemesh import __version__
from cubemesh.errors import CubemeshError, UsageError
from cubemesh.experiments.registry import EXPERIMENTS, entry
from cubemesh.experiments.runner import stored_result
from cubemesh.papers.replay import documents, replay, replayed
from cubemesh.schema import Answer, ExperimentRun, Machine
from cubemesh.schema.serialization import canonical_json
from cubemesh.store import Store
from cubemesh.views.formatting import machine_line
from cubemesh.views.json_output import envelope


@dataclass(frozen=True, kw_only=True)
class Written:
    """The files a report was written to."""

    page: Path
    charts: tuple[Path, ...]
    experiment_runs: tuple[ExperimentRun, ...]
    others: tuple[Machine, ...] = ()
    """Machines the store has answers of too."""

    def plain(self) -> dict[str, Any]:
        """For `--json`."""
        return envelope(
            "report",
            page=str(self.page.resolve()),
            charts=[str(c.resolve()) for c in self.charts],
            experiments=[q.experiment for q in self.experiment_runs],
            other_machines=[m.machine_id for m in self.others],
        )

    def print(self, console: Console) -> None:
        """For people."""
        for chart in self.charts:
            console.print(f"chart   {chart}", highlight=False, soft_wrap=True)
        console.print(f"report  {self.page.resolve()}", highlight=False, soft_wrap=True)
        for machine in self.others:
            console.print(
                f"also kept: {machine_line(machine)} (--machine-id {machine.machine_id})",
                highlight=False,
                soft_wrap=True,
            )


def report(
    store: Store, names: Sequence[str], page: Path, charts: Path | None, machine_id: str = ""
) -> Written:
    """Write the page, and the charts where a folder for them is named. `machine_id` is the
    beginning of the id of the machine it is about; empty for the one measured on last.

    Raises UsageError when the store holds no answer to `names`, or none of that machine, or when
    the file cannot be written.
    """
    from cubemesh.views.charts.files import write_charts
    from cubemesh.views.report.render import Report, write_report

    for name in names:
        if name not in documents():
            entry(name)
    kept = answerable(store.experiment_runs(), names)
    known = {m.machine_id: m for m in store.machines()}
    latest_runs = latest([q for q in kept if q.machine_id.startswith(machine_id.lower())], names)
    if kept and not latest_runs:
        raise UsageError(_unknown_machine(machine_id, kept, known))
    if not latest_runs:
        asked = " or ".join(names) or "any experiment"
        raise UsageError(
            f"nothing is kept of {asked} here. `cubemesh run {names[0] if names else 'quick'}` "
            "measures it."
        )
    machine = known.get(latest_runs[0].machine_id)
    if machine is None:
        raise CubemeshError(f"the store does not know machine {latest_runs[0].machine_id}.")
    answered = [stored_result(EXPERIMENTS[q.experiment], q, store) for q in latest_runs]
    records = {r.run_id: r for a in answered for r in a.records}
    made = Report(
        machine=machine,
        answers=[
            *sorted((a.answer for a in answered), key=lambda answer: answer.simulated),
            *_replays(store, machine, names),
        ],
        records=records,
        series={run_id: store.series(run_id) for run_id in records},
        made_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        version=__version__,
    )
    try:
        write_report(page, made)
        drawn = write_charts(charts, made.answers) if charts is not None else []
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}. Name another place.") from None
    return Written(
        page=page,
        charts=tuple(drawn),
        experiment_runs=tuple(latest_runs),
        others=tuple(
            known[other]
            for other in dict.fromkeys(q.machine_id for q in kept)
            if other in known and other != machine.machine_id
        ),
    )


def _unknown_machine(
    given: str, kept: Sequence[ExperimentRun], known: Mapping[str, Machine]
) -> str:
    """What to say where no answer is of a machine whose id begins with `given`."""
    of = dict.fromkeys(q.machine_id for q in kept)
    listed = "; ".join(f"{i}: {machine_line(known[i])}" if i in known else i for i in of)
    return f"no answer is kept of a machine whose id begins with '{given}'. There are {listed}."


def _replays(store: Store, machine: Machine, names: Sequence[str]) -> list[Answer]:
    """The claims of every document that was replayed on this machine, or of those in `names`."""
    found = []
    for suite in [d for d in documents() if not names or d in names]:
        own = replayed(suite, store.experiment_runs(), machine.machine_id)
        if own:
            asked = [(q.experiment, store.records(q.run_ids)) for q in own]
            found.append(replay(suite, asked, machine))
    return found


def answerable(stored: Sequence[ExperimentRun], names: Sequence[str]) -> list[ExperimentRun]:
    """Those of the experiments, documents or suites `names`, or all, that have records or need
    none."""
    return [
        q
        for q in stored
        if q.experiment in EXPERIMENTS
        and (q.run_ids or not EXPERIMENTS[q.experiment].measures)
        and (not names or q.experiment in names or q.suite in names)
    ]


def latest(stored: Sequence[ExperimentRun], names: Sequence[str]) -> list[ExperimentRun]:
    """Of the machine measured on last, the latest question of each experiment and settings that
    has records or needs none, in the order of the table of experiments, or of the suites where
    only suites are named."""
    asked = answerable(stored, names)
    if not asked:
        return []
    machine_id = max(asked, key=lambda q: q.started_utc).machine_id
    newest: dict[tuple[str, str], ExperimentRun] = {}
    for run in sorted(asked, key=lambda q: q.started_utc):
        if run.machine_id == machine_id:
            key = canonical_json((run.settings, run.overrides))
            newest[run.experiment, key] = run
    if names and all(name in documents() for name in names):
        return list(newest.values())  # as they were asked: in the document's order
    return sorted(newest.values(), key=lambda q: list(EXPERIMENTS).index(q.experiment))
