"""What was asked: an experiment with its settings on a machine, and the runs that answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cubemesh.schema.serialization import digest


@dataclass(frozen=True, kw_only=True)
class Question:
    """One asking of an experiment.

    It is saved again under its id as records come in, so that its answer can be computed at any
    later time, also of a question that was broken off.
    """

    question_id: str
    experiment: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The experiment's own settings, as plain data."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Spec fields that were set for every run, as plain data."""
    machine_id: str
    asked_utc: str
    """ISO 8601, UTC."""
    run_ids: tuple[str, ...] = ()
    """The runs that answer it, in the order they were asked for."""
    complete: bool = False
    """Whether every run it asks for is there."""
    suite: str | None = None
    """The suite it was asked as part of."""
    place: str = ""
    """The figure or table of a document that it re-runs, by the document's own number or heading;
    empty for none."""


def new_question_id(
    experiment: str, settings: Mapping[str, Any], asked_utc: str, machine_id: str = ""
) -> str:
    """Twelve hexadecimal digits, the same for the same asking."""
    return digest((experiment, settings, asked_utc, machine_id), length=12)
