"""Weak scaling: throughput by devices at a constant batch size per device.

From the papers 001 (figure 4: 32 per GPU on 1 to 8), 002 (128 and 256), 003 (figures 2 to 6) and
004 (section 5.4: 32 and 64). With `mode=constant-batch` the batch size per host is constant, as in
003 with MXNet's GoogLeNet. design.py has the runs, analysis.py the efficiency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
    ScalingCase("little-cnn", 32, 224),
    ScalingCase("resnet-50", 32),
    ScalingCase("vgg16", 32),
    ScalingCase("resnet-50", 64),
    ScalingCase("googlenet", 64),
    ScalingCase("inception-bn", 64),
    ScalingCase("inception-v3", 64),
)
"""Three of the paper 001 at 32 per GPU, ResNet-50 of 004 at 64, and three of 003, which does not
state its batch sizes."""
SMALL = (ScalingCase("little-cnn", 64),)


@dataclass(frozen=True, kw_only=True)
class Settings(CurveSettings):
    """Settings of `weak-scaling` besides the fields of its specs."""

    batch_sizes: tuple[int, ...] = ()
    """Batch sizes per device (per host with mode=constant-batch). Default: the papers'."""
    mode: Literal["weak", "constant-batch"] = "weak"
    """Constant batch size: per device (`weak`) or per host (`constant-batch`)."""


def plan(settings: Settings, context: Context) -> Plan:
    """Each network at each batch size, on increasing numbers of devices."""
    cases = chosen_cases(settings, settings.batch_sizes, PUBLISHED, SMALL, context)
    yield from specs(settings, ScalingMode(settings.mode), cases, context)


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `weak-scaling`."""
    mode = ScalingMode(settings.mode)
    return scaling_answer(EXPERIMENT, mode, settings, PUBLISHED, records)


EXPERIMENT = Experiment(
    name="weak-scaling",
    question="How does throughput scale with the devices at a constant batch size per device?",
    settings=Settings,
    works=(TrainSteps,),
    varies=VARIES | {"batch_per_device": "batch_sizes"},
    plan=plan,
    answer=answer,
    papers="[001], figure 4, [003], figures 2 to 6, [004], section 5.4",
)
