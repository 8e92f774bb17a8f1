"""Layout: how the devices of a job share a transformer's work, and what cannot be shared so.

    tp      tensor parallel: each matrix of a layer over so many devices
    pp      pipeline parallel: the layers in so many stages
    vp      interleaved schedule: so many parts of the network per stage, in turns
    cp      context parallel: each sequence over so many devices
    dp      data parallel: so many copies of all that, each with its part of the batch
    zero    what data-parallel devices share instead of each having it all: 0 nothing, 1 optimizer
            states, 2 gradients too, 3 weights too, as FSDP
    shard   devices that share it, where fewer than dp × cp (hybrid sharding)
    sp      1: tensor-parallel devices also share what lies between the matrices (sequence parallel)

tp × cp × dp × pp devices; neighbours in that order, so that tensor-parallel devices are of one
system, as Megatron-LM numbers them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from cubemesh.errors import UsageError, unknown_name
from cubemesh.forecast.transformers.factors import STYLES, StyleName
from cubemesh.machines.catalogue.system import System
from cubemesh.networks.transformer_sizes import Transformer

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
"""Of activations in the backward pass: nothing; what a style selects; a layer from its input."""
Attention = Literal["flash", "flash-v1", "unfused"]
ATTENTION: tuple[Attention, ...] = get_args(Attention)
"""FlashAttention-2 or later, the first FlashAttention, or kernels that write the scores."""
_EXAMPLE = "--layout tp=8,pp=8,dp=16"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes of the groups of devices."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    vp: int = 1
    zero: int = 1
    shard: int = 0
    """0: all data-parallel devices."""
    sp: int = 1

    @property
    def devices(self) -> int:
        """Of the job."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def replicas(self) -> int:
        """Devices that have the same weights, or parts of them."""
        return self.dp * self.cp

    @property
    def sharded(self) -> int:
        """Devices among which optimizer states are divided."""
        if self.zero == 0:
            return 1
        return self.shard or self.replicas

    def __str__(self) -> str:
        shown = [("tp", 1), ("pp", 1), ("cp", 1), ("dp", 0), ("vp", 1), ("zero", 1), ("shard", 0)]
        parts = [f"{key}={getattr(self, key)}" for key, usual in shown if self._has(key, usual)]
        return ",".join(parts + ["sp=0"] * (self.tp > 1 and not self.sp))

    def _has(self, key: str, usual: int) -> bool:
        return key in ("tp", "pp", "dp") or getattr(self, key) != usual


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A transformer, where and how it is trained."""

    network: Transformer
    system: System
    layout: Layout
    micro_batch: int
    """Sequences that pass through a device at once."""
    global_batch: int
    """Sequences per step, of all devices."""
    sequence_length: int
    precision: str
    recompute: Recompute = "none"
    recompute_layers: int = 0
    """Layers that full recomputation applies to, 0 for all."""
    attention: Attention = "flash"
    style: StyleName = "nemo"

    @property
    def micro_batches(self) -> int:
        """Of a device in a step; the last may be smaller."""
        return -(-self.global_batch // (self.micro_batch * self.layout.dp))

    @property
    def tokens(self) -> float:
        """Of a full micro-batch, on one device."""
        return self.micro_batch * self.sequence_length / self.layout.cp

    @property
    def chunk_layers(self) -> int:
        """Layers of one of a stage's parts, the larger ones where they differ."""
        return -(-self.network.layers // (self.layout.pp * self.layout.vp))

    @property
    def stage_layers(self) -> int:
        """Layers of a stage that is not the last."""
        return self.chunk_layers * self.layout.vp

    @property
    def last_layers(self) -> int:
        """Layers of the last stage."""
        return self.network.layers - (self.layout.pp - 1) * self.stage_layers

    @property
    def recomputed_share(self) -> float:
        """Share of the layers that are computed again in the backward pass."""
        if self.recompute != "full":
            return 0.0
        return min(1.0, (self.recompute_layers or self.network.layers) / self.network.layers)


def read_layout(text: str) -> Layout:
    """From `tp=8,pp=8,dp=16`; UsageError for an unknown key, a value or a combination."""
    known = {field.name for field in fields(Layout)}
    found: dict[str, int] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        if key not in known:
            raise unknown_name("key of a layout", key, known, f"As in {_EXAMPLE}.", "keys")
        if key in found:
            raise UsageError(f"--layout {text}: {key} is given twice.")
        most = {"zero": 3, "sp": 1}.get(key)
        least = 0 if most else 1
        number = int(value) if value.isdecimal() and len(value) < _MOST_DIGITS else -1
        if number < least or (most is not None and number > most):
            allowed = f"from 0 to {most}" if most else "1 or more"
            raise UsageError(f"--layout {text}: {part.strip()} must be a whole number {allowed}.")
        found[key] = number
    return Layout(**found)


_MOST_DIGITS = 9


def check_plan(plan: TrainingPlan, devices: int) -> None:
    """UsageError for what cannot be: a layout of another number of devices, heads or layers that
    cannot be divided, a batch that cannot."""
    layout, network = plan.layout, plan.network
    if layout.devices != devices:
        rest = layout.tp * layout.pp * layout.cp
        fix = f"dp={devices // rest}" if devices % rest == 0 else f"a multiple of {rest} devices"
        raise UsageError(
            f"layout {layout}: tp × pp × cp × dp = {layout.devices}, but devices={devices}. "
            f"Give {fix}."
        )
    each = plan.system.devices
    if layout.tp > each:
        raise UsageError(
            f"tp={layout.tp}: tensor-parallel devices must be of one system; a {plan.system.name} "
            f"has {each}. Give tp={each}{' or less' if each > 1 else ''}, and more pp."
        )
    for key, count in (("heads", network.heads), ("kv_heads", network.kv_heads)):
        if count % layout.tp:
            raise UsageError(
                f"tp={layout.tp}: {network.name} has {key}={count}, which tp must divide. "
                f"Possible: {_divisors(count, each)}."
            )
    if layout.pp * layout.vp > network.layers or plan.last_layers < layout.vp:
        raise UsageError(
            f"pp={layout.pp},vp={layout.vp}: {network.layers} layers do not fill so many stages. "
            f"Possible for pp: {_divisors(network.layers, network.layers)}."
        )
    if layout.vp > 1 and layout.pp == 1:
        raise UsageError(f"vp={layout.vp} needs a pipeline; give pp=2 or more, or leave vp out.")
    if plan.sequence_length % (2 * layout.cp) and layout.cp > 1:
        raise UsageError(
            f"cp={layout.cp}: a sequence of {plan.sequence_length} tokens cannot be divided into "
            f"{2 * layout.cp} parts, two a device."
        )
    if layout.shard and layout.replicas % layout.shard:
        raise UsageError(f"shard={layout.shard} must divide dp × cp = {layout.replicas}.")
    _check_batch(plan)


def _check_batch(plan: TrainingPlan) -> None:
    dp, micro = plan.layout.dp, plan.micro_batch
    if micro < 1 or plan.global_batch < 1:
        raise UsageError(
            f"micro-batch {micro}, global batch {plan.global_batch}: both must be 1 or more."
        )
    if plan.global_batch % dp:
        raise UsageError(
            f"global batch {plan.global_batch} cannot be divided among dp={dp}. Nearest: "
            f"{max(1, plan.global_batch // dp) * dp}."
        )
    if plan.global_batch < dp * micro:
        raise UsageError(
            f"global batch {plan.global_batch} is less than one micro-batch of {micro} for each of "
            f"dp={dp}. Give {dp * micro} or more."
        )
    if plan.style not in STYLES:
        raise unknown_name("style of transformers", plan.style, STYLES, plural="styles")


def _divisors(of: int, most: int) -> str:
    return ", ".join(str(n) for n in range(1, min(of, most) + 1) if of % n == 0)
