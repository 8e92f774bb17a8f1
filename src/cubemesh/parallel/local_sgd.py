"""Local SGD: each rank trains separately, and every few steps the weights are averaged (Stich, ICLR
2019). The mean is also what is evaluated and saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cubemesh.frameworks.contract.group import Group
from cubemesh.parallel.strategy import Strategy, SyncCost, wait_all

AVERAGE_EVERY = 8
"""Steps from one average to the next."""


class LocalSgd(Strategy):
    """The weights are averaged every `every` steps."""

    name = "local-sgd"
    summary = f"nothing for most steps; every {AVERAGE_EVERY} steps the weights, averaged"
    needs = "hooks"
    cost = SyncCost(pattern="periodic", weights="all-reduce")

    def __init__(self, group: Group, every: int = AVERAGE_EVERY) -> None:
        super().__init__(group)
        self._every, self._steps = every, 0
        self._differ = False
        """Whether a step was made since the weights were averaged."""

    def update(self, apply: Callable[[], None], weights: Sequence[Any]) -> None:
        """Update, and average the weights every few steps."""
        apply()
        self._steps += 1
        self._differ = True
        if self._steps % self._every == 0:
            self.average(weights)

    def average(self, weights: Sequence[Any]) -> None:
        """See `WeightAveragingSync`."""
        if self._differ:
            wait_all([self._group.all_reduce_mean(array) for array in weights])
        self._differ = False

    def state(self) -> dict[str, Any]:
        """See `StatefulSync`."""
        return {"steps": self._steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `StatefulSync`."""
        self._steps = state["steps"]
