"""How large is the minibatch of each device when there are more of them? The regime of a scaling.

| regime | fixed | a device of N takes | all together take |
|---|---|---|---|
| `weak` | the minibatch of a device | b | N · b: the global minibatch grows |
| `strong` | the global minibatch | B / N | B |
| `constant-batch` | the minibatch of a host | B / devices of its host | B · hosts |

Weak scaling is documents 001, 002 and 004 (section 5.4), strong scaling document 004 (section 5.3).
Constant-batch is what document 003 did with MXNet's GoogLeNet, whose `batch-size` is that of a
host's process: on one host it has the minibatches of strong scaling.
"""

from __future__ import annotations

from enum import StrEnum


class ScalingMode(StrEnum):
    """What stays the same while devices are added."""

    WEAK = "weak"
    STRONG = "strong"
    CONSTANT_BATCH = "constant-batch"

    @property
    def fixed(self) -> str:
        """What the minibatch that stays the same is called."""
        return {
            ScalingMode.WEAK: "minibatch per device",
            ScalingMode.STRONG: "global minibatch",
            ScalingMode.CONSTANT_BATCH: "minibatch of a host",
        }[self]


def batch_per_device(regime: ScalingMode, batch: int, devices: int, hosts: int = 1) -> int | None:
    """What each of `devices` on `hosts` takes where `batch` is what stays the same; None where it
    cannot be shared out evenly."""
    if regime is ScalingMode.WEAK:
        return batch
    sharing = devices if regime is ScalingMode.STRONG else devices // hosts
    each, left = divmod(batch, sharing)
    return None if left or each < 1 else each


def fixed_batch(regime: ScalingMode, batch_per_device: int, devices: int, hosts: int = 1) -> int:
    """What stays the same, of a device that takes `batch_per_device`."""
    if regime is ScalingMode.WEAK:
        return batch_per_device
    return batch_per_device * (devices if regime is ScalingMode.STRONG else devices // hosts)
