"""How does throughput grow with the devices when each keeps its minibatch?

Documents 001 figure 4 (32 a GPU, on 1 to 8), 002 (128 and 256), 003 figures 2 to 6 and 004 section
5.4 (32 and 64): the global minibatch grows with the devices. What the runs are is in `scaling.py`,
what efficiency is held against in `efficiency.py`. `regime=constant-batch` keeps the minibatch of a
host, as document 003 had to with MXNet's GoogLeNet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.scaling.analysis import VARIES, scaling_answer
from cubemesh.experiments.scaling.design import ScalingSettings, Wanted, chosen, specs
from cubemesh.experiments.scaling.modes import Regime
from cubemesh.schema import Answer, RunRecord, TrainSteps

DOCUMENTED = (
    Wanted("little-cnn", 32, 224),
    Wanted("resnet-50", 32),
    Wanted("vgg16", 32),
    Wanted("resnet-50", 64),
    Wanted("googlenet", 64),
    Wanted("inception-bn", 64),
    Wanted("inception-v3", 64),
)
"""Document 001's three at 32 a GPU, 004's ResNet-50 at 64, and 003's three, whose minibatches its
text does not keep."""
SMALL = (Wanted("little-cnn", 64),)


@dataclass(frozen=True, kw_only=True)
class Settings(ScalingSettings):
    """What can be set in `weak-scaling` besides the fields of its specs."""

    batches: tuple[int, ...] = ()
    """Minibatches of a device (of a host, with regime=constant-batch); none given is the
    documents'."""
    regime: Literal["weak", "constant-batch"] = "weak"
    """`weak` keeps the minibatch of a device, `constant-batch` that of a host."""


def plan(settings: Settings, context: Context) -> Plan:
    """Each network at each minibatch, on more and more devices."""
    wanted = chosen(settings, settings.batches, DOCUMENTED, SMALL, context)
    yield from specs(settings, Regime(settings.regime), wanted, context)


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `weak-scaling`."""
    regime = Regime(settings.regime)
    return scaling_answer(EXPERIMENT, regime, settings, DOCUMENTED, records)


EXPERIMENT = Experiment(
    name="weak-scaling",
    question="How does throughput grow with the devices when each keeps its minibatch?",
    settings=Settings,
    works=(TrainSteps,),
    varies=VARIES | {"batch_per_device": "batches"},
    plan=plan,
    answer=answer,
    documents="001 figure 4, 003 figures 2 to 6, 004 section 5.4",
)
