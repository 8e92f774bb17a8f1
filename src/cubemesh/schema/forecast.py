"""Memory forecast of a training step."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """Bytes that one device needs to train a network at one batch size, at the peak of a step;
    `total_bytes` is their sum."""

    weight_bytes: int
    gradient_bytes: int
    """Of the parameter gradients that exist at that moment."""
    optimizer_bytes: int
    activation_bytes: int
    """Of the tensors saved for the backward pass that are still alive."""
    workspace_bytes: int
    """Temporary memory at that moment."""
    input_bytes: int
    library_bytes: int = 0
    """Permanent memory of libraries."""

    @property
    def total_bytes(self) -> int:
        """The sum of all parts."""
        return sum(astuple(self))
