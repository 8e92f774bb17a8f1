"""Memory forecast of a training step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """Bytes one device needs to train a network at one batch, at the fullest moment of a step;
    `total_bytes` is their sum."""

    weight_bytes: int
    gradient_bytes: int
    """Of the parameters' gradients, those that exist at that moment."""
    optimizer_bytes: int
    activation_bytes: int
    """Of what the forward pass keeps for the backward pass, what is still there."""
    workspace_bytes: int
    """Temporaries alive beside them."""
    input_bytes: int
    library_bytes: int = 0
    """What libraries keep for themselves all the time."""

    @property
    def total_bytes(self) -> int:
        """All of it together."""
        return (
            self.weight_bytes
            + self.gradient_bytes
            + self.optimizer_bytes
            + self.activation_bytes
            + self.workspace_bytes
            + self.input_bytes
            + self.library_bytes
        )
