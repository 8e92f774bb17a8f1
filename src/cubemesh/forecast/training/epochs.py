"""Epochs that a training needs, by its global batch size: stated assumptions with their sources.

Throughput grows with the devices; the samples that a training needs do too, from some global batch
size on. That size differs between workloads (Shallue et al., Measuring the effects of data
parallelism on neural network training, JMLR 20, 2019), so nothing is carried over from one network
to another. A rule is named, or typed:

    goyal-2017   ResNet-50 and -101 on ImageNet: 90 epochs up to 8,192 images, with the learning
                 rate scaled linearly and a warm-up of five epochs; beyond, accuracy is lost
    mlperf       ResNet-50 on ImageNet to 75.9 % top-1 with LARS: the reference convergence points
                 of MLPerf Training, log-linear between them
    90           the same number for any global batch size
    90@20000     90 (1 + B / 20,000) epochs at a global batch of B samples, 20,000 being the
                 critical batch size: (S/Smin − 1)(E/Emin − 1) = 1, Bcrit = Emin/Smin (McCandlish
                 et al., An empirical model of large-batch training, arXiv:1812.06162, 2018)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cubemesh.errors import UsageError, unknown_name

IMAGENET_SAMPLES = 1_281_167
"""Training images of ILSVRC 2012 (Russakovsky et al., IJCV 115, 2015, table 2)."""
MOST_EPOCHS, MOST_BATCH = 1e6, 1e9
HOUR_S = 3600.0
MLPERF_EPOCHS: Mapping[int, float] = {
    1632: 35.0,
    3264: 35.2,
    4096: 40.0,
    8192: 42.0,
    13056: 45.4,
    32768: 56.0,
    49152: 68.0,
    58880: 79.9,
    65536: 84.5,
    67840: 85.9,
}
"""Global batch size → mean epochs of 10 to 28 runs (mlcommons/logging,
mlperf_logging/rcp_checker/training_4.0.0/rcps_resnet.json at 0a0a659)."""


@dataclass(frozen=True, kw_only=True)
class NeededEpochs:
    """Epochs at one global batch size."""

    epochs: float | None
    """None where the source of the rule has none."""
    note: str = ""
    """Why there are none, or how far they are from the source."""


@dataclass(frozen=True, kw_only=True)
class EpochRule:
    """Epochs by global batch size."""

    name: str
    source: str
    at: Callable[[int], NeededEpochs] = field(repr=False)
    networks: tuple[str, ...] = ()
    """Those of the source; empty for any."""
    published_hours: Mapping[int, float] = field(default_factory=dict)
    """Devices → the source's hours of training."""
    published_batch: int = 0
    """Samples of a step on each device, of those hours."""
    published_on: str = ""
    """What the source trained on."""


@dataclass(frozen=True, kw_only=True)
class TrainingTime:
    """Time to train on a number of devices."""

    devices: int
    global_batch: int
    epochs: float | None
    hours: float | None
    """None without epochs; the forecast throughput's interval is that of `hours_low` and
    `hours_high`, the epochs have none."""
    hours_low: float | None
    hours_high: float | None
    published_hours: float | None = None
    note: str = ""


def read_rule(text: str, network: str) -> EpochRule:
    """The rule of a text, for a network. UsageError for another form, or for a rule that is not
    about this network."""
    found = RULES.get(text.strip())
    if found is None:
        typed = _TYPED.fullmatch(text.strip())
        if typed is None:
            hint = "Or give a number of epochs, as in 90, or 90@20000 with a critical batch size."
            raise unknown_name("rule of --epochs", text, RULES, hint, "rules")
        epochs, critical = float(typed[1]), float(typed[2]) if typed[2] else None
        for value, most in ((epochs, MOST_EPOCHS), (critical, MOST_BATCH)):
            if value is not None and not 0 < value <= most:
                raise UsageError(f"--epochs {text}: numbers are above 0 and at most {most:,.0f}.")
        return _constant(epochs) if critical is None else _critical(epochs, critical)
    if network not in found.networks:
        raise UsageError(
            f"--epochs {found.name} is about {' and '.join(found.networks)}, not {network}. Give a "
            "number of epochs, as in 90, or 90@20000 with a critical batch size."
        )
    return found


def training_time(
    rule: EpochRule,
    *,
    devices: int,
    global_batch: int,
    samples_per_epoch: int,
    samples_per_s: float,
    low: float,
    high: float,
) -> TrainingTime:
    """The time of a training at a throughput with its interval."""
    needed = rule.at(global_batch)
    is_published = global_batch == devices * rule.published_batch
    samples = None if needed.epochs is None else needed.epochs * samples_per_epoch

    def hours(rate: float) -> float | None:
        return None if samples is None else samples / rate / HOUR_S

    return TrainingTime(
        devices=devices,
        global_batch=global_batch,
        epochs=needed.epochs,
        hours=hours(samples_per_s),
        hours_low=hours(high),
        hours_high=hours(low),
        published_hours=rule.published_hours.get(devices) if is_published else None,
        note=needed.note,
    )


def _goyal(batch: int) -> NeededEpochs:
    if batch <= GOYAL_BATCH:
        return NeededEpochs(epochs=90.0)
    return NeededEpochs(
        epochs=None,
        note=f"beyond {GOYAL_BATCH:,} images 90 epochs lose accuracy (Goyal et al., figure 1)",
    )


def _mlperf(batch: int) -> NeededEpochs:
    sizes = sorted(MLPERF_EPOCHS)
    if batch > sizes[-1]:
        return NeededEpochs(epochs=None, note=f"no reference point above {sizes[-1]:,} images")
    if batch < sizes[0]:
        return NeededEpochs(
            epochs=MLPERF_EPOCHS[sizes[0]], note=f"as at {sizes[0]:,} images, the smallest point"
        )
    above = next(size for size in sizes if size >= batch)
    below = max((size for size in sizes if size <= batch), default=above)
    if above == below:
        return NeededEpochs(epochs=MLPERF_EPOCHS[above])
    part = math.log(batch / below) / math.log(above / below)
    first, last = MLPERF_EPOCHS[below], MLPERF_EPOCHS[above]
    return NeededEpochs(epochs=first + part * (last - first))


def _constant(epochs: float) -> EpochRule:
    return EpochRule(
        name=f"{epochs:g}",
        source=f"{epochs:g} epochs at any global batch size, as given",
        at=lambda batch: NeededEpochs(epochs=epochs),
    )


def _critical(epochs: float, critical: float) -> EpochRule:
    return EpochRule(
        name=f"{epochs:g}@{critical:g}",
        source=f"{epochs:g} (1 + B / {critical:,.0f}) epochs at a global batch of B, as given; the "
        "form is that of McCandlish et al. 2018, arXiv:1812.06162",
        at=lambda batch: NeededEpochs(epochs=epochs * (1 + batch / critical)),
    )


GOYAL_BATCH = 8192
_TYPED = re.compile(r"(\d+(?:\.\d+)?)(?:@(\d+(?:\.\d+)?))?")
RULES: dict[str, EpochRule] = {
    rule.name: rule
    for rule in (
        EpochRule(
            name="goyal-2017",
            source="90 epochs up to a global batch of 8,192, with linear scaling of the learning "
            "rate and warm-up: Goyal et al. 2017, Accurate, large minibatch SGD, arXiv:1706.02677",
            at=_goyal,
            networks=("resnet-50", "resnet-101"),
            published_hours={8: 29.0, 256: 1.0},
            published_batch=32,
            published_on="ResNet-50 on systems of 8 P100, 50 Gbit/s Ethernet, Caffe2, 32 images a "
            "GPU",
        ),
        EpochRule(
            name="mlperf",
            source="mean epochs to 75.9 % top-1 with LARS: reference convergence points of MLPerf "
            "Training 4.0, mlcommons/logging",
            at=_mlperf,
            networks=("resnet-50",),
        ),
    )
}
"""Rules with a name."""
