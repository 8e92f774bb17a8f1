"""Windows of convolutions and pools, as kernels of every device read them."""

from __future__ import annotations

from dataclasses import dataclass

Pair = tuple[int, int]
"""Of the height and the width."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Which pixels of its input an output pixel of a convolution or pool reads."""

    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    pad: Pair = (0, 0)
    """Before the first row and the first pixel."""
    dilation: Pair = (1, 1)
