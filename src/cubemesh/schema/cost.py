"""Cost of a computation in FLOPs and bytes, independent of any machine."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Floating-point operations and bytes moved. Costs add up, and scale with a whole number.

    A multiply-add is two operations. Bytes are counted as if nothing stayed in a cache: every
    operand read once, every result written once.
    """

    matrix_flops: int = 0
    """Operations of convolutions and matrix products, which matrix units can run."""
    other_flops: int = 0
    """Operations of everything else: activations, normalization, pooling, loss."""
    read_bytes: int = 0
    written_bytes: int = 0
    saved_bytes: int = 0
    """Saved by the forward pass for the backward pass."""

    @property
    def flops(self) -> int:
        """All operations."""
        return self.matrix_flops + self.other_flops

    @property
    def moved_bytes(self) -> int:
        """Read and written together."""
        return self.read_bytes + self.written_bytes

    @property
    def intensity(self) -> float:
        """Operations per byte moved: left of a device's ridge point, memory is the limit."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0

    def __add__(self, other: Cost) -> Cost:
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(
            matrix_flops=self.matrix_flops + other.matrix_flops,
            other_flops=self.other_flops + other.other_flops,
            read_bytes=self.read_bytes + other.read_bytes,
            written_bytes=self.written_bytes + other.written_bytes,
            saved_bytes=self.saved_bytes + other.saved_bytes,
        )

    def __radd__(self, other: object) -> Cost:
        return self if other == 0 else NotImplemented

    def __mul__(self, times: int) -> Cost:
        return Cost(**{f.name: getattr(self, f.name) * times for f in fields(Cost)})

    __rmul__ = __mul__
