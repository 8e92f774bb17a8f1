"""A `cubemesh run`: names and settings in, answered questions out.

Names may be experiments or suites. A setting must fit at least one of the experiments asked for,
and goes to every one it fits; everything is checked before the first run starts.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass

from cubemesh.errors import unknown_name
from cubemesh.experiments.core.ab_overrides import parse_against
from cubemesh.experiments.core.settings import Request, request, settable, split, takes
from cubemesh.experiments.registry import EXPERIMENTS, SUITES, Context, Experiment, Scale, entry
from cubemesh.experiments.runner import ExperimentResult, run_experiment, stored_result
from cubemesh.machines import probe
from cubemesh.papers.replay import documents, replay
from cubemesh.runs import Executor, Observer
from cubemesh.runs.interpreters import environments
from cubemesh.schema import Answer
from cubemesh.store import Store


@dataclass(frozen=True, kw_only=True)
class PlannedExperiment:
    """One experiment of a run, with what it is asked for."""

    experiment: Experiment
    request: Request
    scale: Scale
    suite: str | None = None
    place: str = ""
    """The figure of a document it re-runs."""

    @property
    def hosts(self) -> int:
        """How many hosts it is asked to use."""
        return max(1, len(self.request.overrides.get("hosts") or ()))


def run_names(
    names: Sequence[str],
    settings: Sequence[str],
    *,
    scale: Scale | None,
    store: Store,
    observer: Observer,
    no_cache: bool = False,
    pythons: Sequence[str] = (),
    against: Sequence[str] = (),
) -> list[ExperimentResult]:
    """Ask everything `names` stand for, in order. `pythons` are lines FRAMEWORK=PATH
    (runs/interpreters.py), `against` lines KEY=VALUE that differ in a program to
    alternate with (against.py). Raises UsageError before anything runs when a name or a setting is
    unknown, or a path is no Python with its framework."""
    asked = resolve(names, settings, scale, against)
    machine = probe()
    others = environments(pythons, os.environ, machine.software)
    with Executor(
        store, machine=machine, observer=observer, no_cache=no_cache, environments=others
    ) as executor:
        return [
            run_experiment(
                one.experiment,
                one.request,
                Context(machine=machine, scale=one.scale, hosts=one.hosts),
                executor,
                store,
                suite=one.suite,
                place=one.place,
            )
            for one in asked
        ]


def latest_result(experiment: str, store: Store, *, since_utc: str) -> ExperimentResult | None:
    """The question of `experiment` that was asked last, not before `since_utc`, with the answer as
    far as its runs tell; None where none has a run."""
    asked = [
        q for q in store.experiment_runs(experiment) if q.run_ids and q.started_utc >= since_utc
    ]
    return stored_result(entry(experiment), asked[-1], store) if asked else None


def replay_papers(answered: Sequence[ExperimentResult], store: Store) -> list[Answer]:
    """For each suite among `answered` that replays a document: its claims and their verdicts."""
    found = []
    for suite in documents():
        own = [a for a in answered if a.experiment_run.suite == suite]
        if own:
            asked = [(a.experiment_run.experiment, a.records) for a in own]
            found.append(replay(suite, asked, store.machine(own[0].experiment_run.machine_id)))
    return found


def resolve(
    names: Sequence[str],
    settings: Sequence[str],
    scale: Scale | None,
    against: Sequence[str] = (),
) -> list[PlannedExperiment]:
    """Each experiment that `names` stand for, with its request, its scale and its suite."""
    texts, other = split(settings), split(against, "--against")
    lines = [line for name in names for line in _lines(name, scale)]
    for key in texts:
        if not any(takes(experiment, key) for experiment, *_ in lines):
            for experiment in {e.name: e for e, *_ in lines}.values():
                if key in experiment.varies or len(lines) == 1:
                    request(experiment, {key: texts[key]})  # says what to use instead, or is near
            asked = " or ".join(dict.fromkeys(e.name for e, *_ in lines))
            known = [name for e, *_ in lines for name in settable(e)]
            hint = "`cubemesh experiments NAME` lists them."
            raise unknown_name(f"setting of {asked}", key, known, hint, "settings")
    return [
        PlannedExperiment(
            experiment=experiment,
            request=dataclasses.replace(
                request(experiment, own | {k: v for k, v in texts.items() if takes(experiment, k)}),
                against=parse_against(experiment, other),
            ),
            scale=own_scale,
            suite=suite,
            place=place,
        )
        for experiment, own, own_scale, suite, place in lines
    ]


def _lines(
    name: str, scale: Scale | None
) -> list[tuple[Experiment, dict[str, str], Scale, str | None, str]]:
    """What a name stands for: experiments with their own settings, scale, suite and place."""
    if name not in SUITES:
        return [(entry(name), {}, scale or Scale.DEFAULT, None, "")]
    suite = SUITES[name]
    own_scale = scale or suite.scale
    return [
        (EXPERIMENTS[a.experiment], dict(a.settings), own_scale, name, a.place)
        for a in suite.asks
        if a.quick or own_scale is not Scale.QUICK
    ]
