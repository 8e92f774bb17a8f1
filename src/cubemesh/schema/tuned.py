"""Who chose the settings of a run? A tuning of before, where it was asked for with `tuned=true`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The tuning whose fastest setting a run has taken over."""

    question_id: str
    """The tuning, as a question of the store."""
    tuned_utc: str
    """When it was asked, ISO 8601, UTC."""
    settings: tuple[str, ...]
    """What was taken from it, as `key=value`; none where nothing was faster than the defaults."""
    batch_per_device: int
    """The minibatch that it was the fastest at."""
