"""The table of gradient synchronization strategies. A new one is a class, with its traits and its
cost (parallel/strategy.py), and a line here.
"""

from __future__ import annotations

from cubemesh.errors import unknown_name
from cubemesh.frameworks.contract.group import Group, SingleProcessGroup
from cubemesh.parallel.all_reduce import AllReduce, AllReduce16, PeerAllReduce, PeerAllReduce16
from cubemesh.parallel.asynchronous import Asynchronous, StalenessAware
from cubemesh.parallel.context_parallel import ContextParallel
from cubemesh.parallel.fully_sharded import FullySharded, ShardedGradients, ShardedOptimizer
from cubemesh.parallel.hybrid_by_layer import HybridByLayer
from cubemesh.parallel.local_sgd import LocalSgd
from cubemesh.parallel.model_parallel import ModelParallel
from cubemesh.parallel.parameter_server import CpuParameterServer, ParameterServer
from cubemesh.parallel.pipeline import Hybrid, Pipeline
from cubemesh.parallel.strategy import NoSync, Strategy
from cubemesh.parallel.tensor_parallel import TensorParallel

STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (
        NoSync,
        AllReduce,
        AllReduce16,
        PeerAllReduce,
        PeerAllReduce16,
        ParameterServer,
        CpuParameterServer,
        LocalSgd,
        Asynchronous,
        StalenessAware,
        ModelParallel,
        Pipeline,
        Hybrid,
        TensorParallel,
        HybridByLayer,
        ContextParallel,
        FullySharded,
        ShardedGradients,
        ShardedOptimizer,
    )
}


def strategy(name: str) -> type[Strategy]:
    """The strategy called `name`; UsageError naming the nearest where there is none."""
    if name not in STRATEGIES:
        raise unknown_name("sync", name, STRATEGIES)
    return STRATEGIES[name]


def same_steps(one: str, other: str) -> bool:
    """Whether two strategies lead to the same weights, except for the rounding of a sum."""
    first, second = strategy(one), strategy(other)
    if first.same_weights and second.same_weights:
        return first.low_precision == second.low_precision
    return one == other


def make(name: str, group: Group | None = None, bucket_bytes: int | None = None) -> Strategy:
    """The strategy called `name` for the ranks of `group` (None: a single process), with buckets
    of about `bucket_bytes` where it has any (None: its default)."""
    sync = strategy(name)(group or SingleProcessGroup())
    if bucket_bytes is not None and sync.bucket_bytes is not None:
        sync.bucket_bytes = bucket_bytes
    return sync
