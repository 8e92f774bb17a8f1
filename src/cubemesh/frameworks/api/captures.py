"""What may a program say about steps that are recorded once and replayed?"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Captures(Protocol):
    """A `Program` that records its training step once and replays it as one piece, where that can
    be done; others need not offer this."""

    @property
    def not_captured(self) -> str:
        """Why its steps run one kernel after the other, in words; empty where they are replayed."""
