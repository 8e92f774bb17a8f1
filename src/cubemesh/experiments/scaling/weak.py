"""How does throughput grow with the devices when each keeps its minibatch?

Documents 001 figure 4 (32 a GPU, on 1 to 8), 002 (128 and 256), 003 figures 2 to 6 and 004 section
5.4 (32 and 64): the global minibatch grows with the devices. What the runs are is in `scaling.py`,
what efficiency is held against in `efficiency.py`. mode=constant-batch` keeps the minibatch of a
host, as document 003 had to with MXNet's GoogLeNet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.scaling.analysis import VARIES, scaling_answer
from cubemesh.experiments.scaling.design import ScalingCase, ScalingSettings, chosen, specs
from cubemesh.experiments.scaling.modes import ScalingMode
from cubemesh.schema import Answer, RunRecord, TrainSteps

DOCUMENTED = (
    ScalingCase("little-cnn", 32, 224),
    ScalingCase("resnet-50", 32),
    ScalingCase("vgg16", 32),
    ScalingCase("resnet-50", 64),
    ScalingCase("googlenet", 64),
    ScalingCase("inception-bn", 64),
    ScalingCase("inception-v3", 64),
)
"""Document 001's three at 32 a GPU, 004's ResNet-50 at 64, and 003's three, whose minibatches its
text does not keep."""
SMALL = (ScalingCase("little-cnn", 64),)


@dataclass(frozen=True, kw_only=True)
class Settings(ScalingSettings):
    """What can be set in `weak-scaling` besides the fields of its specs."""

    batch_sizes: tuple[int, ...] = ()
    """Minibatches of a device (of a host, with mode=constant-batch); none given is the
    documents'."""
    mode: Literal["weak", "constant-batch"] = "weak"
    """`weak` keeps the minibatch of a device, `constant-batch` that of a host."""


def plan(settings: Settings, context: Context) -> Plan:
    """Each network at each minibatch, on more and more devices."""
    wanted = chosen(settings, settings.batch_sizes, DOCUMENTED, SMALL, context)
    yield from specs(settings, ScalingMode(settings.mode), wanted, context)


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `weak-scaling`."""
    regime = ScalingMode(settings.mode)
    return scaling_answer(EXPERIMENT, regime, settings, DOCUMENTED, records)


EXPERIMENT = Experiment(
    name="weak-scaling",
    question="How does throughput grow with the devices when each keeps its minibatch?",
    settings=Settings,
    works=(TrainSteps,),
    varies=VARIES | {"batch_per_device": "batch_sizes"},
    plan=plan,
    answer=answer,
    documents="001 figure 4, 003 figures 2 to 6, 004 section 5.4",
)
