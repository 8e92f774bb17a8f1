"""What is expected before anything runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """Bytes one device needs to train a network at one batch; `total_bytes` is their sum."""

    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    """What the forward pass keeps for the backward pass."""
    workspace_bytes: int
    """The largest set of temporaries alive at once beside the activations."""
    input_bytes: int

    @property
    def total_bytes(self) -> int:
        return (
            self.weight_bytes
            + self.gradient_bytes
            + self.optimizer_bytes
            + self.activation_bytes
            + self.workspace_bytes
            + self.input_bytes
        )
