"""Contents of an export: the runs to write, with what belongs to them, and the format of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from cubemesh.experiments.analysis.comparison import Gate
from cubemesh.schema import Machine, RunRecord, Series

if TYPE_CHECKING:
    from cubemesh.store.compare import StoredComparison


@dataclass(frozen=True, kw_only=True)
class ExportedRuns:
    """Runs, oldest first, their machines and telemetry, and what was concluded from them."""

    records: tuple[RunRecord, ...]
    machines: Mapping[str, Machine]
    """By machine id; a machine that the store does not describe is missing."""
    series: Callable[[str], Sequence[Series]]
    """Telemetry of the run with this id."""
    open_artifact: Callable[[RunRecord, str], BinaryIO | None]
    """A file that belongs to a run, by its name there; None if its store does not have it."""
    comparisons: tuple[StoredComparison, ...] = ()
    """Of `compare`, or with a baseline."""
    gate: Gate | None = None
    """Of `--fail-below`."""
    targets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Each requested target, as `train target_accuracy=0.95` → a sentence for each miss."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format: how it is written and how it is recognized."""

    write: Callable[[ExportedRuns, BinaryIO], None]
    """UsageError for runs that it cannot hold, or a package that is not installed."""
    suffixes: tuple[str, ...]
    """Ends of a file's name that select it."""
