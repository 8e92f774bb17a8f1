"""`--set tuned=true`: apply the fastest settings that a stored tuning found to every run.

The tuning must be of the same network with the same input shape, on the same number of the same
devices of this machine, with the current versions of cubemesh and the framework; the data may
differ. If only another tuning is stored, the error says how it differs and which command tunes
again. Of several that fit, the newest with its best at the same batch size is used, else the newest
that started there, else the newest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cubemesh.errors import UsageError
from cubemesh.experiments.core.experiment import Experiment
from cubemesh.experiments.core.settings import TUNED
from cubemesh.experiments.tune import experiment as tune
from cubemesh.experiments.tune.search_space import FIELDS, Configuration
from cubemesh.schema import ExperimentRun, Input, NetworkWork, RunKey, RunRecord, RunSpec, Tuned
from cubemesh.schema.serialization import from_plain
from cubemesh.units import format_devices

if TYPE_CHECKING:
    from cubemesh.store import Store

BATCH = "batch_per_device"
CHOSEN = tuple(name for name in FIELDS if name != BATCH)
_SHAPE = ("network", "image_size", "classes", "sequence_length", "vocabulary", "hidden")
_PLACE = ("devices", "device", "hosts")


@dataclass(frozen=True)
class BestTrial:
    """Result of a stored tuning."""

    experiment_run: ExperimentRun
    stock: Configuration
    best: Configuration
    record: RunRecord
    """A run of the best configuration."""

    @property
    def batch(self) -> int:
        """Its batch size per device."""
        return self.best.batch_per_device

    def fits(self, spec: RunSpec) -> bool:
        """Whether it is of the same network, input shape and devices."""
        tuned = self.record.spec
        return _some(tuned.work, _SHAPE) == _some(spec.work, _SHAPE) and _some(
            tuned.placement, _PLACE
        ) == _some(spec.placement, _PLACE)


def best_trial(experiment_run: ExperimentRun, store: Store) -> BestTrial | None:
    """Result of a tuning; None if nothing ran."""
    settings = from_plain(tune.Settings, experiment_run.settings)
    search = tune.found(settings, store.records(experiment_run.run_ids))
    if search.stock is None or search.best is None:
        return None
    record = search.group(search.best).ok[0]
    return BestTrial(
        experiment_run=experiment_run, stock=search.stock, best=search.best, record=record
    )


class Tunings:
    """The tunings of a store, applied to the runs of one experiment.

    `given` are fields set by name; `key` gives the key that decides whether a stored run can be
    reused (`Executor.key`). UsageError for an experiment that varies a tuned field; None for one
    that sets the batch size and no other.
    """

    def __init__(
        self,
        experiment: Experiment | None,
        given: Mapping[str, Any],
        store: Store,
        key: Callable[[RunSpec], RunKey],
    ) -> None:
        self._store, self._key, self._given = store, key, given
        self._batch_is_set = True
        if experiment is None:
            return
        own = {f.name for f in dataclasses.fields(experiment.settings)}
        self._batch_is_set = BATCH in {*own, *experiment.varies, *given}
        clash = [name for name in CHOSEN if name in experiment.varies]
        if clash:
            raise UsageError(
                f"{TUNED}=true sets {', '.join(clash)}, which {experiment.name} varies. Leave "
                f"{TUNED} out."
            )

    def of(self, spec: RunSpec) -> RunSpec:
        """`spec` with the tuned settings of its network and devices; other work is unchanged.
        UsageError if no tuning fits, or if a field it sets was given another value."""
        work = spec.work
        if not isinstance(work, NetworkWork) or isinstance(work, Input):
            return spec
        tuning = self._tuning(spec)
        batch = work.batch_per_device
        if tuning.batch != tuning.stock.batch_per_device and not self._batch_is_set:
            batch = tuning.batch
        chosen = replace(tuning.best, batch_per_device=batch)
        self._check(chosen)
        usual = Configuration(framework="pytorch", batch_per_device=work.batch_per_device)
        tuned = Tuned(
            experiment_run_id=tuning.experiment_run.experiment_run_id,
            tuned_utc=tuning.experiment_run.started_utc,
            settings=chosen.changes(usual),
            batch_per_device=tuning.batch,
        )
        return replace(chosen.of(spec), tuned=tuned)

    def if_stored(self, spec: RunSpec) -> RunSpec:
        """`of`, or `spec` unchanged where no stored tuning fits."""
        try:
            return self.of(spec)
        except UsageError:
            return spec

    @cached_property
    def _all(self) -> list[BestTrial]:
        """Every tuning with a result, newest first."""
        experiment_runs = reversed(self._store.experiment_runs(tune.EXPERIMENT.name))
        found = (best_trial(experiment_run, self._store) for experiment_run in experiment_runs)
        return [tuning for tuning in found if tuning is not None]

    def _tuning(self, spec: RunSpec) -> BestTrial:
        fitting = [tuning for tuning in self._all if tuning.fits(spec)]
        usable = [tuning for tuning in fitting if not self._mismatch(tuning)]
        if usable:
            return min(usable, key=lambda tuning: self._distance(tuning, spec.batch_per_device))
        if not fitting:
            what = f"No tuning result found for {_workload(spec)} in the store {self._store.name}."
        else:
            newest = fitting[0]
            what = f"{_workload(spec)} was only tuned {self._mismatch(newest)}."
        raise UsageError(f"{TUNED}=true: {what} Run: {_command(spec)}")

    def _distance(self, tuning: BestTrial, batch: int | None) -> int:
        """Rank of a tuning for this batch size: 0 if its best is there, 1 if it started there, 2
        otherwise. If the batch size is applied too, one that started there also ranks 0."""
        if tuning.batch == batch:
            return 0
        if tuning.stock.batch_per_device == batch:
            return 1 if self._batch_is_set else 0
        return 2

    def _mismatch(self, tuning: BestTrial) -> str:
        """How a tuning differs from this machine and software; empty if it does not."""
        then, now = tuning.record.key, self._key(tuning.record.spec)
        day = tuning.experiment_run.started_utc[:10]
        if then.machine_id != now.machine_id:
            machine = self._store.machine(then.machine_id)
            name = "another machine" if machine is None else machine.hostname
            return f"on {day} on {name}, which has other hardware"
        if then.code_version != now.code_version:
            return f"on {day} with cubemesh {then.code_version} (current: {now.code_version})"
        if then.software_id != now.software_id:
            framework = tuning.best.framework
            return f"on {day} with other versions of {framework}, Python or the system"
        return ""

    def _check(self, chosen: Configuration) -> None:
        for name in CHOSEN:
            value = getattr(chosen, name)
            if name in self._given and self._given[name] != value:
                raise UsageError(
                    f"{TUNED}=true sets {name}={_text(value)}, but "
                    f"{name}={_text(self._given[name])} was given. Remove one of them."
                )


def _some(part: object, names: Collection[str]) -> tuple[object, ...]:
    return tuple(getattr(part, name, None) for name in names)


def _text(value: object) -> str:
    return "none" if value is None else str(value)


def _workload(spec: RunSpec) -> str:
    work, devices = spec.work, spec.placement.devices
    assert isinstance(work, NetworkWork), "only networks are tuned"
    return f"{work.network} on {format_devices(devices)}"


def _command(spec: RunSpec) -> str:
    """The command that tunes for `spec`."""
    work, place = spec.work, spec.placement
    assert isinstance(work, NetworkWork), "only networks are tuned"
    parts = [f"cubemesh tune {work.network} --batch-sizes {work.batch_per_device}"]
    if place.devices > 1:
        parts.append(f"--devices {place.devices}")
    if place.device != "auto":
        parts.append(f"--set device={place.device}")
    shape = ((name, getattr(work, name)) for name in _SHAPE[1:])
    return " ".join([*parts, *(f"--set {name}={v}" for name, v in shape if v is not None)])
