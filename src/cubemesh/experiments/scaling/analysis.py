"""The answer of a scaling, of either regime, from its records alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cubemesh.experiments.analysis.groups import titled
from cubemesh.experiments.core.experiment import Experiment
from cubemesh.experiments.scaling.design import (
    MOST_DEVICES,
    PLACED,
    ScalingCase,
    ScalingSettings,
    curves,
)
from cubemesh.experiments.scaling.findings import findings
from cubemesh.experiments.scaling.forecast import forecast_finding, forecast_table
from cubemesh.experiments.scaling.modes import ScalingMode
from cubemesh.experiments.scaling.report import ScalingData, charts, parts_table, points_table
from cubemesh.schema import Answer, RunRecord, Table, Warning, warn
from cubemesh.units import format_devices

VARIES = {
    "network": "networks",
    "framework": "frameworks",
    "sync": "strategies",
    "trace": "attribution",
    **PLACED,
}
"""Spec fields that a scaling sets itself → the setting to use instead."""
RULE = (
    "On a CPU and with --quick little-cnn stands for the networks of the documents, unless --full "
    "is given or they are named."
)


def scaling_answer(
    experiment: Experiment,
    regime: ScalingMode,
    settings: ScalingSettings,
    documented: Sequence[ScalingCase],
    records: Sequence[RunRecord],
) -> Answer:
    """Findings, tables and charts from the records of one scaling."""
    shown = ScalingData(regime=regime, scaled=tuple(curves(records, regime)))
    return Answer(
        experiment=experiment.name,
        question=experiment.question,
        title=titled(f"{str(regime).capitalize()} scaling", records),
        findings=(*findings(shown), *forecast_finding(shown.forecasts)),
        tables=tuple(_tables(shown)),
        charts=tuple(charts(shown)),
        warnings=(
            *_reduced(shown, settings, documented),
            *(w for r in records for w in r.warnings),
        ),
        run_ids=tuple(r.run_id for r in records),
        notes=tuple(_notes(shown, records)),
    )


def _tables(shown: ScalingData) -> Iterator[Table]:
    if shown.scaled:
        yield points_table(shown)
    yield from parts_table(shown)
    if shown.forecasts:
        yield forecast_table(shown.forecasts)


def _reduced(
    shown: ScalingData, settings: ScalingSettings, documented: Sequence[ScalingCase]
) -> Iterator[Warning]:
    if not shown.scaled:
        return
    there = {ScalingCase(s.curve.network, s.curve.batch, s.curve.image_size) for s in shown.scaled}
    told = []
    missing = [w for w in documented if w not in there]
    if not settings.networks and missing:
        names = dict.fromkeys(f"{w.network} at {w.batch}" for w in missing)
        told.append(f"without {', '.join(names)}")
    most = max(group.key[0] for s in shown.scaled for group in s.groups)
    if not settings.devices and most < MOST_DEVICES:
        told.append(f"{format_devices(most)} for {MOST_DEVICES}")
    if told:
        cause = f"Less than the documents: {'; '.join(told)}. {RULE}"
        yield warn("reduced", cause, "Use --full, or name networks, minibatches and devices.")


def _notes(shown: ScalingData, records: Sequence[RunRecord]) -> Iterator[str]:
    yield {
        ScalingMode.WEAK: "Weak scaling: each device keeps its minibatch, so the global one grows.",
        ScalingMode.STRONG: "Strong scaling: the global minibatch stays, so each device has less.",
        ScalingMode.CONSTANT_BATCH: "Constant-batch scaling: a host keeps its minibatch, which its "
        "devices share; on one host that is strong scaling.",
    }[shown.regime]
    yield (
        "Efficiency is the throughput of N devices over N times that of one; ‘of slowest alone’ is "
        "it over N times that of the slowest of the same N devices, each training by itself and "
        "all at once. Their intervals come from drawing runs and windows of both points anew."
    )
    if any(rank.device == "cpu" for r in records for rank in r.ranks):
        threads = sorted({r.spec.placement.threads or 0 for r in records})
        cores = ", ".join(str(n or "the") for n in threads)
        yield (
            f"A device is {cores} core{'' if threads == [1] else 's'} of the CPU, of its own, to "
            "which its process is bound; one device has as many as each of several."
        )
    yield (
        "90 epochs are 1.28 million images each, at this throughput. docs/attribution.md has what "
        "each part of a step is, on several devices too."
    )
