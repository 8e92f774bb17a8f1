"""`--set tuned=true`: every run takes over what a tuning of before found to be the fastest.

The tuning must be of the same network on inputs of the same shape, on as many of the same devices
of this very machine, by the versions of cubemesh and of the framework that are here now; what data
it was fed is not compared. Where there is but another, the message says in what it differs and
which command tunes anew: what won elsewhere need not win here. Of several that fit, the newest that
won at the same minibatch stands, or else the newest that began there, or else the newest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cubemesh.errors import UsageError
from cubemesh.experiments.core.experiment import Experiment
from cubemesh.experiments.core.settings import TUNED
from cubemesh.experiments.tune import experiment as tune
from cubemesh.experiments.tune.search_space import FIELDS, Configuration
from cubemesh.schema import ExperimentRun, Input, NetworkWork, RunKey, RunRecord, RunSpec, Tuned
from cubemesh.schema.serialization import from_plain
from cubemesh.store import Store
from cubemesh.units import format_devices

BATCH = "batch_per_device"
CHOSEN = tuple(name for name in FIELDS if name != BATCH)
_SHAPE = ("network", "image_size", "classes", "sequence_length", "vocabulary", "hidden")
_PLACE = ("devices", "device", "hosts")


@dataclass(frozen=True)
class BestTrial:
    """What a stored tuning found."""

    experiment_run: ExperimentRun
    stock: Configuration
    best: Configuration
    record: RunRecord
    """A run of the best."""

    @property
    def batch(self) -> int:
        """The minibatch it was the fastest at."""
        return self.best.batch_per_device

    def fits(self, spec: RunSpec) -> bool:
        """Whether it tuned the same network and shape of input on as many of the same devices."""
        tuned = self.record.spec
        return _some(tuned.work, _SHAPE) == _some(spec.work, _SHAPE) and _some(
            tuned.placement, _PLACE
        ) == _some(spec.placement, _PLACE)


def best_trial(experiment_run: ExperimentRun, store: Store) -> BestTrial | None:
    """What a tuning found; None where nothing ran."""
    settings = from_plain(tune.Settings, experiment_run.settings)
    search = tune.found(settings, store.records(experiment_run.run_ids))
    if search.stock is None or search.best is None:
        return None
    record = search.group(search.best).ok[0]
    return BestTrial(
        experiment_run=experiment_run, stock=search.stock, best=search.best, record=record
    )


class Tunings:
    """The tunings of a store, as the runs of one question take them over.

    `taken` are fields that were set for it by name; `key` tells what decides whether a stored run
    may stand for a new one (`Executor.key`). UsageError for a question that sets what a tuning
    chooses.
    """

    def __init__(
        self,
        experiment: Experiment,
        taken: Mapping[str, Any],
        store: Store,
        key: Callable[[RunSpec], RunKey],
    ) -> None:
        self._store, self._key, self._taken = store, key, taken
        own = {f.name for f in dataclasses.fields(experiment.settings)}
        self._batch_is_set = BATCH in {*own, *experiment.varies, *taken}
        clash = [name for name in CHOSEN if name in experiment.varies]
        if clash:
            raise UsageError(
                f"{TUNED}=true chooses {', '.join(clash)}, and {experiment.name} goes through "
                f"{'it' if len(clash) == 1 else 'them'} itself. Leave {TUNED} out."
            )

    def of(self, spec: RunSpec) -> RunSpec:
        """`spec` as the tuning of its network on its devices would have it; what trains no network
        stays as it is. UsageError where there is none that may be used, or where another value was
        set for what it chose."""
        work = spec.work
        if not isinstance(work, NetworkWork) or isinstance(work, Input):
            return spec
        winner = self._winner(spec)
        batch = work.batch_per_device
        if winner.batch != winner.stock.batch_per_device and not self._batch_is_set:
            batch = winner.batch
        chosen = replace(winner.best, batch_per_device=batch)
        self._check(chosen)
        usual = Configuration(framework="pytorch", batch_per_device=work.batch_per_device)
        tuned = Tuned(
            experiment_run_id=winner.experiment_run.experiment_run_id,
            tuned_utc=winner.experiment_run.started_utc,
            settings=chosen.changes(usual),
            batch_per_device=winner.batch,
        )
        return replace(chosen.of(spec), tuned=tuned)

    @cached_property
    def _all(self) -> list[BestTrial]:
        """Every tuning that found something, the newest first."""
        experiment_runs = reversed(self._store.experiment_runs(tune.EXPERIMENT.name))
        found = (best_trial(experiment_run, self._store) for experiment_run in experiment_runs)
        return [winner for winner in found if winner is not None]

    def _winner(self, spec: RunSpec) -> BestTrial:
        fitting = [winner for winner in self._all if winner.fits(spec)]
        usable = [winner for winner in fitting if not self._strange(winner)]
        if usable:
            return min(usable, key=lambda winner: self._distance(winner, spec.batch_per_device))
        if not fitting:
            what = f"nothing was tuned for {_said(spec)} in the store {self._store.name}"
        else:
            newest = fitting[0]
            what = f"{_said(spec)} was tuned {self._strange(newest)}, and not since"
        raise UsageError(f"{TUNED}=true: {what}. Tune it first: {_command(spec)}")

    def _distance(self, winner: BestTrial, batch: int | None) -> int:
        """How far a tuning is from a run at this minibatch: 0 where it won there, 1 where it began
        there and won at another, 2 elsewhere. Where the minibatch may be taken over as well, one
        that began there is as good."""
        if winner.batch == batch:
            return 0
        if winner.stock.batch_per_device == batch:
            return 1 if self._batch_is_set else 0
        return 2

    def _strange(self, winner: BestTrial) -> str:
        """In what a tuning is not of here and now; empty where it is."""
        then, now = winner.record.key, self._key(winner.record.spec)
        day = winner.experiment_run.started_utc[:10]
        if then.machine_id != now.machine_id:
            machine = self._store.machine(then.machine_id)
            name = "another machine" if machine is None else machine.hostname
            return f"on {day} on {name}, with other hardware than is usable here"
        if then.code_version != now.code_version:
            return f"on {day} with cubemesh {then.code_version} (this is {now.code_version})"
        if then.software_id != now.software_id:
            framework = winner.best.framework
            return f"on {day} with other versions of {framework}, Python or the system"
        return ""

    def _check(self, chosen: Configuration) -> None:
        for name in CHOSEN:
            value = getattr(chosen, name)
            if name in self._taken and self._taken[name] != value:
                raise UsageError(
                    f"{TUNED}=true sets {name}={_shown(value)} here, and {name}="
                    f"{_shown(self._taken[name])} was asked for. Leave one of the two out."
                )


def _some(part: object, names: Collection[str]) -> tuple[object, ...]:
    return tuple(getattr(part, name, None) for name in names)


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def _said(spec: RunSpec) -> str:
    work, devices = spec.work, spec.placement.devices
    assert isinstance(work, NetworkWork), "only networks are tuned"
    return f"{work.network} on {format_devices(devices)}"


def _command(spec: RunSpec) -> str:
    """What tunes for `spec`."""
    work, place = spec.work, spec.placement
    assert isinstance(work, NetworkWork), "only networks are tuned"
    parts = [f"cubemesh tune {work.network} --batch-sizes {work.batch_per_device}"]
    if place.devices > 1:
        parts.append(f"--devices {place.devices}")
    if place.device != "auto":
        parts.append(f"--set device={place.device}")
    shape = ((name, getattr(work, name)) for name in _SHAPE[1:])
    return " ".join([*parts, *(f"--set {name}={v}" for name, v in shape if v is not None)])
