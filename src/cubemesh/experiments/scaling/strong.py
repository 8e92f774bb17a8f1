"""Strong scaling: throughput by devices at a constant global batch size.

From the paper 004, section 5.3: CifarNet at 96 and 192, AlexNet and GoogLeNet at 256 and 512.
With more devices, each has less to compute in a step and as much to communicate. design.py has the
runs, analysis.py the efficiency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.scaling.design import (
    VARIES,
    CurveSettings,
    ScalingCase,
    ScalingMode,
    chosen_cases,
    specs,
)
from cubemesh.experiments.scaling.report import scaling_answer
from cubemesh.schema import Answer, RunRecord, TrainSteps

PUBLISHED = (
    ScalingCase("cifarnet", 96),
    ScalingCase("cifarnet", 192),
    ScalingCase("alexnet", 256),
    ScalingCase("alexnet", 512),
    ScalingCase("googlenet", 256),
    ScalingCase("googlenet", 512),
)
SMALL = (ScalingCase("little-cnn", 64),)


@dataclass(frozen=True, kw_only=True)
class Settings(CurveSettings):
    """Settings of `strong-scaling` besides the fields of its specs."""

    global_batch_sizes: tuple[int, ...] = ()
    """Global batch sizes. Default: the paper's. Points without an even division are left out."""


def plan(settings: Settings, context: Context) -> Plan:
    """Each network at each global batch size, on increasing numbers of devices."""
    cases = chosen_cases(settings, settings.global_batch_sizes, PUBLISHED, SMALL, context)
    yield from specs(settings, ScalingMode.STRONG, cases, context)


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `strong-scaling`."""
    return scaling_answer(EXPERIMENT, ScalingMode.STRONG, settings, PUBLISHED, records)


EXPERIMENT = Experiment(
    name="strong-scaling",
    question="How does throughput scale with the devices at a constant global batch size?",
    settings=Settings,
    works=(TrainSteps,),
    varies=VARIES | {"batch_per_device": "global_batch_sizes"},
    plan=plan,
    answer=answer,
    papers="[004], section 5.3",
)
