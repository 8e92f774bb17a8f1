"""A gradient synchronization strategy: its traits, its cost and its defaults, on one base class.

The table of all strategies is `STRATEGIES` in parallel/strategies.py. Everything that depends on a
strategy reads a trait of its class, never its name: which frameworks support it, how ranks are
paced, which windows of a record belong together, what may be profiled, what the tuner tries and
what the forecast adds to a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cubemesh.frameworks.contract.gradient_sync import Bucket, SyncFeature
from cubemesh.frameworks.contract.group import Group, SingleProcessGroup, TransferHandle
from cubemesh.networks.graph import Network
from cubemesh.networks.memory import forecast, memory_settings
from cubemesh.networks.memory_simulation import Sharding
from cubemesh.schema.forecast import MemoryForecast
from cubemesh.schema.spec import ProgramSettings, RunSpec

SERVER = 0
"""The rank that is the parameter server."""


@dataclass(frozen=True, kw_only=True)
class SyncCost:
    """The transfers of a step, as forecast/gradient_sync.py prices them."""

    pattern: Literal[
        "overlapped",
        "periodic",
        "asynchronous",
        "host-copies",
        "host-server",
        "peer-copies",
        "sharded",
    ] = "overlapped"
    """`overlapped`: each bucket during the backward pass, then the weights; `periodic`: the
    weights every few steps; `asynchronous`: gradients to a server and weights back, without
    waiting for other devices; `host-copies`: as `overlapped`, by copies to and from the host;
    `host-server`: after the backward pass to a process that adds, updates and sends back;
    `peer-copies`: each bucket by copies between GPUs of one host; `sharded`: the weights before a
    pass, each bucket of gradients during the backward pass."""
    gradients: str = ""
    """The collective of a bucket: `all-reduce`, `reduce`; `peers` is an all-reduce by copies;
    `host` and `servers` are transfers to the memory of one host or of all."""
    weights: str = ""
    """The collective of the weights after the update; empty where there is none."""
    gathers: int = 0
    """Of `sharded`: how often a step gathers the weights."""
    divides_update: bool = False
    """Whether each device updates its part of the weights only."""
    bytes_factor: float = 1.0
    """Bytes sent for each byte of gradients."""


class Strategy:
    """The base of all strategies: a `GradientSync` (frameworks/contract) that sends no data; each
    rank updates its own weights."""

    name: str
    summary: ClassVar[str]
    """What is sent, and when; for help and tables."""
    needs: SyncFeature | None = None
    """The feature that a framework must have (`Capabilities.sync_features`); None where each rank
    trains separately."""
    same_weights: ClassVar[bool] = False
    """Whether all ranks have the same weights after each step, bit for bit."""
    replicated: ClassVar[bool] = False
    """Whether they have the same optimizer state too, so that a checkpoint can be resharded."""
    low_precision: bool = False
    """Whether gradients are sent as 16-bit floats."""
    blocking: ClassVar[bool] = True
    """Whether a step of a rank waits for other ranks', so that their windows start together."""
    free_running: ClassVar[bool] = False
    """Whether each rank makes as many steps as it can, rather than as many as the others."""
    more_work: ClassVar[tuple[int, ...]] = ()
    """Ranks that have more to do in a step than the others."""
    same_samples: ClassVar[bool] = False
    """Whether all ranks work on the samples of the global batch, rather than on their own."""
    group_setting: ClassVar[str] = ""
    """The setting of a program that is the number of ranks in a group, which divides the network or
    each sequence; empty where there are no groups."""
    collective_passes: ClassVar[bool] = False
    """Whether a forward pass needs all ranks, though each has its own samples: all evaluate the
    same."""
    zero_stage: ClassVar[int] = 0
    """What is divided over the ranks instead of each having it whole, as ZeRO's stages: 1 the
    optimizer's state, 2 the gradients too, 3 the weights too; 0 nothing."""
    profiled: ClassVar[bool] = True
    """Whether every wait is a collective of `Group`, so that a step can be attributed."""
    checkpoints: ClassVar[bool] = True
    """Whether all that the next step depends on is in the ranks' checkpoints."""
    sequential_step: ClassVar[bool] = True
    """Whether the first step has a gradient that one device can compute from the same samples."""
    needs_peer_access: ClassVar[bool] = False
    """Whether devices must be able to read each other's memory (GPUs of one host)."""
    tuned: ClassVar[bool] = False
    """Whether the tuner tries it by default."""
    cost: ClassVar[SyncCost | None] = None
    """None where there is no forecast."""

    capturable: bool = False
    updates: bool = True
    bucket_bytes: int | None = None

    def __init__(self, group: Group | None = None) -> None:
        self._group = group or SingleProcessGroup()

    @classmethod
    def ranks_per_sample(cls, ranks: int, program: ProgramSettings) -> int:
        """How many of `ranks` work together on the same samples."""
        return ranks if cls.same_samples else 1

    def configure(self, program: ProgramSettings) -> None:
        """Take a strategy's own settings from the spec; most have none."""

    @classmethod
    def sharding(cls, spec: RunSpec) -> Sharding | None:
        """How its ranks divide the state of a training; None on one device, without
        synchronization, and where the ranks divide the network."""
        if spec.placement.devices == 1 or cls.needs is None or cls.same_samples:
            return None
        return Sharding(
            ranks=spec.placement.devices,
            zero_stage=cls.zero_stage,
            unit_bytes=spec.program.bucket_bytes,
        )

    @classmethod
    def memory(cls, spec: RunSpec, network: Network, device: str) -> MemoryForecast:
        """The memory forecast of a run of `spec` on `device`, of the rank that needs most."""
        settings = memory_settings(spec, device, network, cls.sharding(spec))
        return forecast(network, spec.batch_per_device or 1, **settings)

    @classmethod
    def one_model(cls) -> bool:
        """Whether every rank has the whole network with the same weights once the replicas are
        synchronized, so that the ranks can share an evaluation."""
        return cls.needs is not None and not cls.same_samples and not cls.collective_passes

    def ready(self, bucket: Bucket) -> None:
        """No gradients are sent."""

    def finish(self) -> None:
        """Nothing is queued."""

    def update(self, apply: Callable[[], None], weights: Sequence[Any]) -> None:
        """Update this rank's weights."""
        apply()


class NoSync(Strategy):
    """No synchronization: a single device, or several that train separately."""

    name = "none"
    summary = "nothing: one device, or several that train separately"
    blocking = False
    capturable = True


def wait_all(transfers: list[TransferHandle]) -> None:
    """Wait for all transfers and clear the list."""
    for transfer in transfers:
        transfer.wait()
    transfers.clear()
