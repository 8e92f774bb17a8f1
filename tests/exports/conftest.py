"""Runs to export: simulated ones in a store, and records made by hand."""

import dataclasses
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cubemesh.exports import FORMATS
from cubemesh.exports.contents import ExportedRuns
from cubemesh.schema import (
    Budget,
    Figure,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Series,
    Status,
    TrainSteps,
)

HOSTILE = '=cmd|" /C calc"!A0,\n"quoted" \\ <b>&amp;</b> \x00\x1b[31m \ud800 {} ü'
"""Text from outside: a formula, separators, markup, control characters, half a surrogate pair."""


@pytest.fixture
def runs(record_of: Callable[..., RunRecord]) -> tuple[RunRecord, ...]:
    """Two measured runs of different settings, one out of memory with a hostile message."""
    first = record_of(RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8)))
    second = record_of(
        RunSpec(
            work=TrainSteps(network="vgg-16", batch_per_device=16, learning_rate=0.1 + 0.2),
            program=ProgramSettings(precision="fp16", loss_scale=1024.5, layout="nhwc"),
        ),
        step_s=1 / 3,
    )
    figures = {
        **second.figures,
        "loss_scale": Figure(value=512.0, unit=""),
        "validation_loss": Figure(value=float("nan"), unit=""),
        "below_zero": Figure(value=-1e-17, unit="", low=-2.0, high=5e-324),
    }
    second = dataclasses.replace(second, figures=figures)
    third = record_of(
        RunSpec(
            work=TrainSteps(network="little-cnn", batch_per_device=1 << 20),
            program=ProgramSettings(precision="fp16", loss_scale="dynamic"),
            budget=Budget(windows=6),
        ),
        status=Status.OOM,
        message=HOSTILE,
    )
    return first, second, third


@pytest.fixture
def exported(machine: Any) -> Callable[..., bytes]:
    """The bytes of an export: `exported("csv", records, series=…)`."""

    def write(name: str, records: Sequence[RunRecord], **more: Any) -> bytes:
        series: dict[str, Sequence[Series]] = more.pop("series", {})
        file = io.BytesIO()
        contents = ExportedRuns(
            records=tuple(records),
            machines=more.pop("machines", {"machine": machine}),
            series=lambda run_id: series.get(run_id, ()),
            open_artifact=more.pop("open_artifact", lambda record, name: None),
            **more,
        )
        FORMATS[name].write(contents, file)
        return file.getvalue()

    return write
