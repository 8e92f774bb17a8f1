"""Sharded data parallelism (ZeRO): each rank has its own samples and a part of the state.

    stage  divided over n ranks              strategy             sent for each byte of weights
    1      optimizer state                   sharded-optimizer    all-reduce, broadcast: 3
    2      … and gradients                   sharded-gradients    all-gather, reduce-scatter: 2
    3      … and weights                     fully-sharded        two all-gathers, reduce-scatter: 3

S. Rajbhandari et al., ZeRO, arXiv:1910.02054; Y. Zhao et al., PyTorch FSDP, arXiv:2304.11277. The
weights are divided by unit (networks/graph.py): a unit is gathered before its forward pass and, in
stage 3, again before its backward pass; its gradients are averaged and divided when its backward
pass ends. In stage 2 weights are divided between two steps too, but gathered once a step. Stage 1
averages whole gradients, as `all-reduce`; each rank updates some of the parameters and sends them
to the others, which is more than an implementation that divides gradients on the way.
"""

from __future__ import annotations

from typing import ClassVar

from cubemesh.frameworks.contract.gradient_sync import SyncFeature
from cubemesh.frameworks.contract.group import Group
from cubemesh.parallel.all_reduce import AllReduce
from cubemesh.parallel.strategy import Strategy, SyncCost


class FullySharded(Strategy):
    """Weights, gradients and optimizer state are divided (ZeRO stage 3)."""

    name = "fully-sharded"
    summary = "weights of a unit before its passes, its gradients after: ranks share all state"
    needs: SyncFeature | None = "sharded"
    same_weights = True
    replicated = True
    collective_passes = True
    zero_stage = 3
    cost: ClassVar[SyncCost | None] = SyncCost(
        pattern="sharded",
        gradients="reduce-scatter",
        weights="all-gather",
        gathers=2,
        divides_update=True,
    )

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.group = group


class ShardedGradients(FullySharded):
    """Gathered weights stay until the backward pass (ZeRO stage 2)."""

    name = "sharded-gradients"
    summary = "as fully-sharded, but weights once a step: ranks share gradients, optimizer state"
    zero_stage = 2
    cost: ClassVar[SyncCost | None] = SyncCost(
        pattern="sharded",
        gradients="reduce-scatter",
        weights="all-gather",
        gathers=1,
        divides_update=True,
    )


class ShardedOptimizer(AllReduce):
    """Each rank has the optimizer state of some parameters, and updates them for all (ZeRO stage
    1)."""

    name = "sharded-optimizer"
    summary = "as all-reduce, then the weights that each rank updates: ranks share optimizer state"
    needs: SyncFeature | None = "sharded"
    zero_stage = 1
    replicated = False
    tuned = False
    capturable = False
    cost: ClassVar[SyncCost | None] = SyncCost(
        gradients="all-reduce", weights="all-gather", divides_update=True
    )

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.group = group
