"""How does throughput grow with the devices when they share one global minibatch?

Document 004, section 5.3: CifarNet at 96 and 192, AlexNet and GoogLeNet at 256 and 512 samples in
all. With the devices each has less to compute in a step, and as much to exchange. What the runs are
is in `scaling.py`, what efficiency is held against in `efficiency.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.scaling.analysis import VARIES, scaling_answer
from cubemesh.experiments.scaling.design import ScalingCase, ScalingSettings, chosen, specs
from cubemesh.experiments.scaling.modes import ScalingMode
from cubemesh.schema import Answer, RunRecord, TrainSteps

DOCUMENTED = (
    ScalingCase("cifarnet", 96),
    ScalingCase("cifarnet", 192),
    ScalingCase("alexnet", 256),
    ScalingCase("alexnet", 512),
    ScalingCase("googlenet", 256),
    ScalingCase("googlenet", 512),
)
SMALL = (ScalingCase("little-cnn", 64),)


@dataclass(frozen=True, kw_only=True)
class Settings(ScalingSettings):
    """What can be set in `strong-scaling` besides the fields of its specs."""

    global_batch_sizes: tuple[int, ...] = ()
    """Minibatches of all devices together; none given is the document's. Where so many devices
    cannot share one evenly, that point is left out."""


def plan(settings: Settings, context: Context) -> Plan:
    """Each network at each global minibatch, on more and more devices."""
    wanted = chosen(settings, settings.global_batch_sizes, DOCUMENTED, SMALL, context)
    yield from specs(settings, ScalingMode.STRONG, wanted, context)


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `strong-scaling`."""
    return scaling_answer(EXPERIMENT, ScalingMode.STRONG, settings, DOCUMENTED, records)


EXPERIMENT = Experiment(
    name="strong-scaling",
    question="How does throughput grow with the devices when they share one global minibatch?",
    settings=Settings,
    works=(TrainSteps,),
    varies=VARIES | {"batch_per_device": "global_batch_sizes"},
    plan=plan,
    answer=answer,
    documents="004 section 5.3",
)
