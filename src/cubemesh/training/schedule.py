"""Learning-rate schedule: the rate of each step.

    rate ▲      ┌────────────╮  full · ½ (1 + cos π t)          cosine, t from 0 to 1
    full │     ╱└────────────┐─────────────────────── constant
         │   ╱                └──────┐ full · 0.1              step
    first│ ╱                         └── full · 0.01
         └─┴────┴───────────────────────▶ steps
           warm-up

The full rate is `learning_rate`, times the number of devices if it is scaled: a batch k times as
large takes a step k times as long (Goyal et al. 2017, "Accurate, Large Minibatch SGD",
arXiv:1706.02677, section 2.1). The warm-up rises evenly, step by step, to it: from the rate of one
device where the rate is scaled (the paper's section 2.2), else from 0. The paper's drops come after
epochs 30, 60 and 80 of 90, to a tenth each; the cosine is Loshchilov and Hutter's (ICLR 2017),
without restarts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cubemesh.schema.work import Train

DROP = 0.1
DROPS_AT = (1 / 3, 2 / 3, 8 / 9)
"""Fractions of all epochs."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate of `work` by step, on `devices` that make `steps_per_epoch` together."""

    work: Train
    devices: int
    steps_per_epoch: int

    @property
    def full(self) -> float:
        """The rate after the warm-up."""
        scale = self.devices if self.work.rate_scaling == "linear" else 1
        return self.work.learning_rate * scale

    @property
    def changes(self) -> bool:
        """Whether any step has another rate than `learning_rate`."""
        work = self.work
        changed = self.full != work.learning_rate
        return changed or work.schedule != "constant" or self.warmup_steps > 0

    @property
    def warmup_steps(self) -> int:
        """Steps before the full rate."""
        return round(self.work.warmup_epochs * self.steps_per_epoch)

    def rate(self, step: int) -> float:
        """Of the step that is made after `step` others."""
        warmup = self.warmup_steps
        if step < warmup:
            own = self.work.learning_rate
            begin = own if self.full > own else 0.0
            return begin + (self.full - begin) * (step + 1) / warmup
        if self.work.schedule == "cosine":
            total = self.work.epochs * self.steps_per_epoch
            way = (step - warmup) / max(1, total - warmup)
            return self.full * 0.5 * (1 + math.cos(math.pi * min(1.0, way)))
        if self.work.schedule == "step":
            return self.full * float(DROP ** sum(step >= drop for drop in self._drops()))
        return self.full

    def _drops(self) -> list[int]:
        """The steps before which the rate falls."""
        epochs: tuple[float, ...] = self.work.rate_drops or tuple(
            fraction * self.work.epochs for fraction in DROPS_AT
        )
        return [round(epoch * self.steps_per_epoch) for epoch in epochs]
