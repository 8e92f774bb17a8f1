"""Waits of pipelines in the scaling experiments: measured, attributed and forecast.

A stage of a pipeline waits for the bubble of its schedule, because other stages have more to do,
and for sending; parallel/pipeline.py has the figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cubemesh.experiments.analysis.groups import caveats
from cubemesh.experiments.scaling.analysis import ScalingData
from cubemesh.experiments.scaling.design import ScalingCurve, ScalingGroup
from cubemesh.parallel.pipeline import BUBBLE, GRADIENTS, PARTS, WAIT
from cubemesh.schema import Cell, Column, Finding, Table

_NAMES = ("bubble of the schedule", "imbalance of the stages", "sending")
"""Of `PARTS`."""


def pipeline_findings(data: ScalingData) -> Iterator[Finding]:
    """What each pipeline waits for, and the forecast of its bubble."""
    for curve, group in _pipelines(data):
        devices, sync = group.key
        wait, forecast = group.median_of(WAIT), group.median_of(BUBBLE)
        parts = [group.median_of(name) or 0.0 for name in PARTS]
        words = [f"{value:.1f} % {name}" for name, value in zip(_NAMES, parts, strict=True)]
        yield Finding(
            code="pipeline-wait",
            text=f"{data.name(curve)} on {devices} devices, {sync}: a stage waits {wait:.1f} % of "
            f"a step for others: {', '.join(words)}. The bubble of equal stages would be "
            f"{forecast:.1f} %.",
            value=wait,
            unit="%",
            remedy="Set micro_batches higher, while the samples of one keep a device busy."
            if parts[0] == max(parts)
            else "",
            caveats=caveats(group),
        )


def pipeline_tables(data: ScalingData) -> Iterator[Table]:
    """A row for each pipeline."""
    rows = [_row(data, curve, group) for curve, group in _pipelines(data)]
    if rows:
        columns = (
            Column(name="network, batch size"),
            Column(name="devices"),
            Column(name="strategy"),
            Column(name="wait of a stage", unit="%"),
            *(Column(name=name, unit="%") for name in _NAMES),
            Column(name="bubble, forecast", unit="%"),
            Column(name="gradients of other replicas", unit="%"),
        )
        yield Table(
            title="Waits of a pipeline's stages, % of the step", columns=columns, rows=tuple(rows)
        )


def _pipelines(data: ScalingData) -> Sequence[tuple[ScalingCurve, ScalingGroup]]:
    return [(c, g) for c in data.curves for g in c.groups if g.median_of(WAIT) is not None]


def _row(data: ScalingData, curve: ScalingCurve, group: ScalingGroup) -> tuple[Cell, ...]:
    devices, sync = group.key
    values = [group.median_of(name) for name in (WAIT, *PARTS, BUBBLE, GRADIENTS)]
    return (
        Cell(text=data.name(curve), run_id=group.run_id),
        Cell(value=devices),
        Cell(text=sync),
        *(Cell(text="–") if v is None else Cell(value=v, run_id=group.run_id) for v in values),
    )
