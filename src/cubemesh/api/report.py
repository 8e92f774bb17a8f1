"""Reports: the latest answers on one machine, computed from stored records.

`cubemesh.views.report.render.write_report` writes a report as an HTML page.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cubemesh import __version__
from cubemesh.api.arguments import AnyStore, open_store
from cubemesh.audit.marking import marked
from cubemesh.errors import CubemeshError, UsageError
from cubemesh.experiments.analysis.machine_comparison import (
    Side,
    labels,
    machine_comparison,
    pairs,
)
from cubemesh.experiments.registry import EXPERIMENTS, entry
from cubemesh.experiments.runner import stored_results
from cubemesh.papers.replay import documents, reduced_experiments, replay, replayed
from cubemesh.schema import Answer, ExperimentRun, Machine, RunRecord, Series
from cubemesh.schema.serialization import canonical_json
from cubemesh.store.stored_series import StoredSeries

if TYPE_CHECKING:
    from cubemesh.store import Store


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """Answers of one machine with their records."""

    machine: Machine
    answers: Sequence[Answer] = ()
    records: Mapping[str, RunRecord] = field(default_factory=dict)
    """By run id, in the order they are listed."""
    series: Mapping[str, Sequence[Series]] = field(default_factory=dict)
    """Telemetry of the runs, by run id; read from the store when it is asked for."""
    made_utc: str
    """ISO 8601, UTC."""
    version: str
    """Of cubemesh."""
    experiment_runs: Sequence[ExperimentRun] = ()
    """The experiment runs that it holds."""
    other_machines: Sequence[Machine] = ()
    """Machines that the store has answers of, too."""
    answer_of: Mapping[str, Answer] = field(default_factory=dict)
    """Answers by the id of their experiment run."""
    against: Report | None = None
    """The report of another machine, with which this one is compared; the comparison is the first
    of the answers."""
    partners: Sequence[tuple[Answer, Answer]] = ()
    """Answers to the same question on this and on the other machine."""
    names: tuple[str, ...] = ()
    """Of two machines: the names by which they differ, this one first."""

    def __repr__(self) -> str:
        lines = [f"Report({self.machine.hostname}, {len(self.records)} runs)"]
        return "\n".join([*lines, *(f"  {answer.title}" for answer in self.answers)])


def report(
    *names: str, machine_id: str = "", store: AnyStore = None, against: AnyStore = None
) -> Report:
    """The latest answer of each experiment on one machine: the one with this id or unique prefix,
    or the one measured last. `names` restricts it to these experiments or suites. `against` is a
    store whose latest answers are put next to them, with the ratios of comparable throughputs.

    UsageError where a store has no such answer.
    """
    for name in names:
        if name not in documents():
            entry(name)
    with open_store(store, reading=True) as opened:
        own = _report(opened, names, machine_id, closes=opened is not store)
        source = opened.name
    if against is None:
        return own
    with open_store(against, reading=True) as opened:
        sources = source, opened.name
        return _compared(own, _report(opened, names, "", closes=opened is not against), sources)


def _compared(own: Report, other: Report, sources: Sequence[str]) -> Report:
    """`own` with the comparison in front and the answers of `other` next to its own."""
    sides = [
        Side(machine=r.machine, runs=r.experiment_runs, records=r.records, source=source)
        for r, source in zip((own, other), sources, strict=True)
    ]
    paired = pairs(own.experiment_runs, other.experiment_runs)
    return replace(
        own,
        answers=(machine_comparison(*sides), *own.answers),
        against=other,
        names=labels(*sides),
        partners=tuple(
            (own.answer_of[one.experiment_run_id], other.answer_of[two.experiment_run_id])
            for one, two in paired
        ),
    )


def _report(store: Store, names: Sequence[str], machine_id: str, *, closes: bool) -> Report:
    """The report of one store; `closes` says that it is closed afterwards."""
    stored = answerable(store.experiment_runs(), names)
    known = {m.machine_id: m for m in store.machines()}
    experiment_runs = latest(
        [q for q in stored if q.machine_id.startswith(machine_id.lower())], names
    )
    if stored and not experiment_runs:
        ids = dict.fromkeys(q.machine_id for q in stored)
        listed = "; ".join(f"{i}: {known[i].hostname}" if i in known else i for i in ids)
        raise UsageError(
            f"No results of a machine with id '{machine_id}' are stored. There are {listed}."
        )
    if not experiment_runs:
        asked = " or ".join(names) or "any experiment"
        raise UsageError(
            f"No results of {asked} are stored here. "
            f"Run: cubemesh run {names[0] if names else 'quick'}"
        )
    machine = known.get(experiment_runs[0].machine_id)
    if machine is None:
        raise CubemeshError(
            f"The store has no description of machine {experiment_runs[0].machine_id}."
        )
    other_machines = tuple(
        known[other]
        for other in dict.fromkeys(q.machine_id for q in stored)
        if other in known and other != machine.machine_id
    )
    composed = compose(
        store, machine, experiment_runs, replayed_suites(store, machine, names), closes=closes
    )
    return replace(composed, other_machines=other_machines)


def compose(
    store: Store,
    machine: Machine,
    experiment_runs: Sequence[ExperimentRun],
    suites: Mapping[str, Sequence[ExperimentRun]],
    *,
    others: Iterable[RunRecord] = (),
    closes: bool = False,
) -> Report:
    """The report of these experiment runs of one machine, of the replays of papers' `suites`, and
    of `others`, further runs."""
    answered = stored_results(experiment_runs, EXPERIMENTS, store)
    answers = marked([(one.answer, one.records) for one in answered])
    records = {r.run_id: r for one in answered for r in one.records}
    for record in others:
        records.setdefault(record.run_id, record)
    return Report(
        machine=machine,
        answers=[
            *sorted(answers, key=lambda answer: answer.simulated),
            *_claims(store, machine, suites),
        ],
        records=records,
        series=StoredSeries(store, records, closes=closes),
        made_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        version=__version__,
        experiment_runs=tuple(one.experiment_run for one in answered),
        answer_of={
            one.experiment_run.experiment_run_id: answer
            for one, answer in zip(answered, answers, strict=True)
        },
    )


def replayed_suites(
    store: Store, machine: Machine, names: Sequence[str]
) -> dict[str, list[ExperimentRun]]:
    """The experiment runs of each paper's suite, of `names` or all, that was replayed on this
    machine."""
    stored = store.experiment_runs()
    found = {
        suite: replayed(suite, stored, machine.machine_id)
        for suite in documents()
        if not names or suite in names
    }
    return {suite: own for suite, own in found.items() if own}


def _claims(
    store: Store, machine: Machine, suites: Mapping[str, Sequence[ExperimentRun]]
) -> list[Answer]:
    """The verdicts on the claims of each paper that was replayed on this machine."""
    return [
        replay(
            suite,
            [(q.experiment, store.records(q.run_ids)) for q in own],
            machine,
            reduced=reduced_experiments(own),
        )
        for suite, own in suites.items()
    ]


def answerable(
    experiment_runs: Sequence[ExperimentRun], names: Sequence[str]
) -> list[ExperimentRun]:
    """Those of the experiments or suites `names`, or all, that have records or need none."""
    return [
        q
        for q in experiment_runs
        if q.experiment in EXPERIMENTS
        and (q.run_ids or not EXPERIMENTS[q.experiment].measures)
        and (not names or q.experiment in names or q.suite in names)
    ]


def latest(experiment_runs: Sequence[ExperimentRun], names: Sequence[str]) -> list[ExperimentRun]:
    """On the machine measured last, the latest one of each experiment and settings that has
    records or needs none, in the order of the registry, or of the suites where `names` are all
    suites."""
    asked = answerable(experiment_runs, names)
    if not asked:
        return []
    machine_id = max(asked, key=lambda q: q.started_utc).machine_id
    newest: dict[tuple[str, str], ExperimentRun] = {}
    for one in sorted(asked, key=lambda q: q.started_utc):
        if one.machine_id == machine_id:
            key = canonical_json((one.settings, one.overrides))
            newest[one.experiment, key] = one
    if names and all(name in documents() for name in names):
        return list(newest.values())  # the order in which they ran: the paper's
    return sorted(newest.values(), key=lambda q: list(EXPERIMENTS).index(q.experiment))
