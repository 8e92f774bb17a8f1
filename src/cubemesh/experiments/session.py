"""Session of `cubemesh run`: from names of experiments and suites to their results.

A setting must fit at least one of the experiments, and goes to all that it fits. Everything is
checked before the first run starts.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cubemesh.data import own as own_data
from cubemesh.errors import UsageError, unknown_name
from cubemesh.experiments.core.ab_overrides import parse_against
from cubemesh.experiments.core.planned_cost import planned_cost
from cubemesh.experiments.core.settings import (
    Request,
    data_names,
    network_names,
    request,
    settable,
    split,
)
from cubemesh.experiments.registry import EXPERIMENTS, SUITES, Context, Experiment, Scale, entry
from cubemesh.experiments.runner import (
    ExperimentResult,
    first_specs,
    run_experiment,
    stored_result,
)
from cubemesh.experiments.tune.apply import Tunings
from cubemesh.machines import probe
from cubemesh.networks import own_networks
from cubemesh.papers.replay import documents, reduced_experiments, replay
from cubemesh.runs import Executor, Observer
from cubemesh.runs.interpreters import environments
from cubemesh.runs.own_networks import describe_named
from cubemesh.runs.quiet import check_quiet
from cubemesh.schema import Answer, RunSpec
from cubemesh.schema.own_network import OwnData, OwnNetwork
from cubemesh.units import format_list

if TYPE_CHECKING:
    from cubemesh.store import Store


@dataclass(frozen=True, kw_only=True)
class PlannedExperiment:
    """One experiment of a session, with its request."""

    experiment: Experiment
    request: Request
    scale: Scale
    suite: str | None = None
    reproduces: str = ""
    """The figure of a paper that it reproduces."""

    @property
    def hosts(self) -> int:
        """Number of requested hosts."""
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
    wait_s: float = 0.0,
    wait_quiet_s: float = 0.0,
    pause_file: Path | None = None,
    own_code: bool = False,
    within_s: float | None = None,
) -> list[ExperimentResult]:
    """Run all experiments of `names`, in order. `pythons` are lines FRAMEWORK=PATH
    (runs/interpreters.py), `against` lines KEY=VALUE of a program to interleave with
    (ab_overrides.py). Waits up to `wait_s` seconds for a device that another run uses, which no
    plan's time budget includes, and up to `wait_quiet_s` seconds for other programs to end. After
    `within_s` seconds no run starts; each experiment has an equal share of what is left of them,
    and one without a run or a stored record is left out. Once `pause_file` exists, it ends with
    RunPaused (runs/executor.py). With `own_code`, networks and data of the user's own may be named,
    whose code runs: only for what the user wrote in a command. Raises
    UsageError before the first run for an unknown name or setting, or a path that is not a Python
    with its framework."""
    with (
        own_data.named(_own_data(settings, against, pythons) if own_code else ()),
        own_networks.named(_described(settings, pythons) if own_code else ()),
    ):
        return _run_planned(
            resolve(names, settings, scale, against),
            store=store,
            observer=observer,
            no_cache=no_cache,
            pythons=pythons,
            wait_s=wait_s,
            wait_quiet_s=wait_quiet_s,
            pause_file=pause_file,
            within_s=within_s,
        )


def _described(settings: Sequence[str], pythons: Sequence[str]) -> list[OwnNetwork]:
    """The descriptions of the user's own networks that settings name."""
    texts = split(settings)
    return describe_named(network_names(texts), texts, pythons)


def _own_data(
    settings: Sequence[str], against: Sequence[str], pythons: Sequence[str]
) -> list[OwnData]:
    """The data of the user's own that settings name; nothing is imported."""
    names = [*data_names(split(settings)), *data_names(split(against, "--against"))]
    return own_data.located(names, elsewhere=bool(pythons))


def _run_planned(
    planned: Sequence[PlannedExperiment],
    *,
    store: Store,
    observer: Observer,
    no_cache: bool,
    pythons: Sequence[str],
    wait_s: float,
    wait_quiet_s: float,
    pause_file: Path | None,
    within_s: float | None,
) -> list[ExperimentResult]:
    machine = probe()
    others = environments(pythons, os.environ, machine.software)
    with Executor(
        store,
        machine=machine,
        observer=observer,
        no_cache=no_cache or any(one.experiment.measured_anew for one in planned),
        environments=others,
        wait_s=wait_s,
        pause_file=pause_file,
    ) as executor:
        contexts = [
            Context(
                machine=machine,
                scale=one.scale,
                hosts=one.hosts,
                clock=lambda: time.monotonic() - executor.waited_s,
                tuned=Tunings(None, {}, store, executor.key).if_stored,
            )
            for one in planned
        ]
        _announce(planned, contexts, executor, store, observer)
        if any(one.experiment.announce is not None for one in planned) or wait_quiet_s:
            check_quiet(machine.gpus, observer, wait_s=wait_quiet_s)
        results = []
        ends_s = None if within_s is None else contexts[0].clock() + within_s
        for place, (one, context) in enumerate(zip(planned, contexts, strict=True)):
            if ends_s is not None:
                now = context.clock()
                share_s = (ends_s - now) / (len(planned) - place)
                context = dataclasses.replace(context, ends_s=now + share_s)
            result = run_experiment(
                one.experiment,
                one.request,
                context,
                executor,
                store,
                suite=one.suite,
                reproduces=one.reproduces,
            )
            if result.records or result.experiment_run.complete:
                results.append(result)
            else:
                observer.message(f"{one.experiment.name}: no time for a run.")
        return results


def _announce(
    planned: Sequence[PlannedExperiment],
    contexts: Sequence[Context],
    executor: Executor,
    store: Store,
    observer: Observer,
) -> None:
    """Tell the observer how many runs are planned, and what they cost where the experiments do not
    announce it themselves."""
    exact, specs, others = True, list[tuple[RunSpec, int]](), list[tuple[RunSpec, int]]()
    for one, context in zip(planned, contexts, strict=True):
        first = first_specs(one.experiment, one.request, context, executor, store)
        exact = exact and first is not None and not one.experiment.grows
        own = [(spec, executor.stored_count(spec)) for spec in first or ()]
        specs += own
        if one.experiment.announce is None:
            others += own
        else:
            observer.message(one.experiment.announce(one.request.settings, context))
    observer.expect(sum(spec.budget.repeats for spec, _ in specs), exact=exact)
    if others:
        observer.message(planned_cost(others, exact=exact).text)


def latest_result(experiment: str, store: Store, *, since_utc: str) -> ExperimentResult | None:
    """The result of the last run of `experiment` since `since_utc`, as far as it got; None
    without a run."""
    found = [
        run
        for run in store.experiment_runs(experiment)
        if run.run_ids and run.started_utc >= since_utc
    ]
    return stored_result(entry(experiment), found[-1], store) if found else None


def replay_papers(results: Sequence[ExperimentResult], store: Store) -> list[Answer]:
    """For each suite of a paper among `results`: the claims of the paper and their verdicts."""
    found = []
    for suite in documents():
        own = [r for r in results if r.experiment_run.suite == suite]
        if own:
            records = [(r.experiment_run.experiment, r.records) for r in own]
            machine = store.machine(own[0].experiment_run.machine_id)
            reduced = reduced_experiments(r.experiment_run for r in own)
            found.append(replay(suite, records, machine, reduced=reduced))
    return found


def resolve(
    names: Sequence[str],
    settings: Sequence[str],
    scale: Scale | None,
    against: Sequence[str] = (),
) -> list[PlannedExperiment]:
    """The experiments of `names`, with their requests, scales and suites."""
    texts, other = split(settings), split(against, "--against")
    lines = [line for name in names for line in _lines(name, scale)]
    for key in texts:
        if not any(key in settable(experiment) for experiment, *_ in lines):
            for experiment in {e.name: e for e, *_ in lines}.values():
                if key in experiment.varies or len(lines) == 1:
                    # raises with the setting to use instead, or the nearest
                    request(experiment, {key: texts[key]})
            experiments = " or ".join(dict.fromkeys(e.name for e, *_ in lines))
            known = [name for e, *_ in lines for name in settable(e)]
            hint = "`cubemesh experiments NAME` lists them."
            raise unknown_name(f"setting of {experiments}", key, known, hint, "settings")
    return [
        PlannedExperiment(
            experiment=experiment,
            request=dataclasses.replace(
                request(
                    experiment, own | {k: v for k, v in texts.items() if k in settable(experiment)}
                ),
                against=parse_against(experiment, other),
            ),
            scale=own_scale,
            suite=suite,
            reproduces=reproduces,
        )
        for experiment, own, own_scale, suite, reproduces in lines
    ]


def _lines(
    name: str, scale: Scale | None
) -> list[tuple[Experiment, dict[str, str], Scale, str | None, str]]:
    """The experiments of a name: (experiment, settings, scale, suite, figure of a paper).
    UsageError for a suite of which the scale leaves nothing."""
    if name not in SUITES:
        return [(entry(name), {}, scale or Scale.DEFAULT, None, "")]
    suite = SUITES[name]
    own_scale = scale or suite.scale
    entries = [e for e in suite.entries if e.quick or own_scale is not Scale.QUICK]
    if not entries:
        left_out = format_list(dict.fromkeys(e.experiment for e in suite.entries))
        raise UsageError(
            f"--quick leaves out every experiment of {name}, as each takes long: {left_out}. "
            "Leave --quick out, or run one of them with it."
        )
    return [
        (EXPERIMENTS[e.experiment], dict(e.settings), own_scale, name, e.reproduces)
        for e in entries
    ]
