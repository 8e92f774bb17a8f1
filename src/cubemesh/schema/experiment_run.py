"""Experiment run: an experiment with its settings on one machine, and the runs that answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cubemesh.schema.serialization import digest


@dataclass(frozen=True, kw_only=True)
class ExperimentRun:
    """One execution of an experiment.

    It is saved again under its id as records come in, so its answer can be computed at any later
    time, also after an interruption.
    """

    experiment_run_id: str
    experiment: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The experiment's own settings, as plain data."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Spec fields that were set for every run, as plain data."""
    machine_id: str
    started_utc: str
    """ISO 8601, UTC."""
    run_ids: tuple[str, ...] = ()
    """Its runs, in the order of the plan."""
    complete: bool = False
    """Whether every planned run is stored."""
    scale: str | None = None
    """How thorough it was: `quick`, `default` or `full`; None where it was stored without. A quick
    run gives no verdicts on claims."""
    suite: str | None = None
    """The suite it is part of."""
    reproduces: str = ""
    """The figure or table of a paper that it reproduces, by the paper's number or heading; empty
    for none."""


def new_experiment_run_id(
    experiment: str, settings: Mapping[str, Any], started_utc: str, machine_id: str = ""
) -> str:
    """Twelve hexadecimal digits: a hash of the arguments."""
    return digest((experiment, settings, started_utc, machine_id), length=12)
