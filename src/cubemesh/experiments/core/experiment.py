"""Experiment: a question, the plan of runs that answer it, and the answer computed from records.

`plan` is a generator: it yields lists of specs and receives their records, so that later runs can
depend on earlier ones. `answer` is a pure function of settings and records: it gives the same
answer on any machine at any time, without running anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from cubemesh.errors import DataError, StoreError
from cubemesh.schema import Answer, Budget, Machine, RunRecord, RunSpec
from cubemesh.schema.serialization import field_types

if TYPE_CHECKING:
    from cubemesh.store import Store

Plan = Generator[Sequence[RunSpec], Sequence[RunRecord], None]
T = TypeVar("T")


class Scale(StrEnum):
    """How thorough an experiment is: `--quick`, the default, `--full`."""

    QUICK = "quick"
    DEFAULT = "default"
    FULL = "full"


BUDGETS: dict[Scale, Budget] = {
    Scale.QUICK: Budget(steps=3, seconds=1.0, windows=10, warmup_seconds=4.0),
    Scale.DEFAULT: Budget(),
    Scale.FULL: Budget(steps=100, seconds=10.0, windows=30, warmup_seconds=60.0, repeats=3),
}


@dataclass(frozen=True, kw_only=True)
class Context:
    """Input of a plan besides its settings."""

    machine: Machine
    scale: Scale = Scale.DEFAULT
    clock: Callable[[], float] = time.monotonic
    """Seconds, for a plan with a time budget."""
    ends_s: float | None = None
    """The time of `clock` after which no run starts; None: there is none."""
    hosts: int = 1
    """Number of hosts that share the devices of a run."""
    tuned: Callable[[RunSpec], RunSpec] = lambda spec: spec
    """Applies the stored tuning that fits a spec; without one the spec is unchanged."""

    @property
    def budget(self) -> Budget:
        """The budget of each run at this scale."""
        return BUDGETS[self.scale]

    def is_over(self) -> bool:
        """Whether the time for runs has passed."""
        return self.ends_s is not None and self.clock() >= self.ends_s

    @property
    def has_gpu(self) -> bool:
        """Whether the machine has a GPU."""
        return bool(self.machine.gpus)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment of the registry."""

    name: str
    question: str
    settings: type[Any]
    """A frozen dataclass; every field has a default and a docstring."""
    works: tuple[type[Any], ...]
    """The kinds of work of its runs: their fields can be set too."""
    varies: dict[str, str]
    """Spec fields that the experiment sets → the setting to use instead."""
    plan: Callable[[Any, Context], Plan]
    answer: Callable[[Any, Sequence[RunRecord]], Answer]
    gather: Callable[[Any, Store, Sequence[RunRecord]], Sequence[RunRecord]] | None = None
    """Stored records that the answer uses, after those of the plan, which it is given."""
    papers: str = ""
    """Where the papers (schema/published.py) have it, by their ids."""
    measures: bool = True
    """Whether it uses runs, new or stored; otherwise it computes an answer without any."""
    alternates: bool = True
    """Whether its programs can be interleaved with others (`--against`)."""
    grows: bool = False
    """Whether its plan may request more runs after the first ones, depending on their results."""
    repeats: bool = False
    """Whether a spec that its plan requests again is measured again, in a fresh process; otherwise
    its record is reused."""
    measured_anew: bool = False
    """Whether its runs are always measured: what is stored says how the machine was before."""
    tunes: bool = True
    """Whether its runs can use a tuning (`tuned=true`)."""
    announce: Callable[[Any, Context], str] | None = None
    """What it will do and how long it takes, as a sentence before it starts."""

    @property
    def plans_devices(self) -> bool:
        """Whether its plan sets the number of devices and the strategy of each run."""
        return "devices" in self.varies or "devices" in field_types(self.settings)


def import_records(store: Store, locations: Sequence[str]) -> list[RunRecord]:
    """Copy machines and records that `store` lacks from the stores at `locations` (paths or URLs);
    return all records of those stores. DataError if one of those cannot be read."""
    from cubemesh.store import Store

    known = {r.run_id for r in store.records()}
    found = []
    for location in locations:
        opened = partial(Store.open, location, must_exist=True, read_only=True)
        with _from_named(opened) as other:
            machines = {m.machine_id for m in store.machines()}
            for machine in _from_named(other.machines):
                if machine.machine_id not in machines:
                    store.save_machine(machine)
            for record in _from_named(other.records):
                found.append(record)
                if record.run_id not in known:
                    known.add(record.run_id)
                    series = _from_named(partial(other.series, record.run_id))
                    store.save(record, series)
    return found


def _from_named(read: Callable[[], T]) -> T:
    """What `read` reads from a store that the settings name; a DataError where it fails."""
    try:
        return read()
    except StoreError as error:
        raise DataError(f"The setting `stores`: {error}") from error
