"""OpenMetrics text, for Prometheus: the newest run of each workload on each machine.

    # TYPE cubemesh_throughput_samples_per_second gauge
    # UNIT cubemesh_throughput_samples_per_second samples_per_second
    cubemesh_throughput_samples_per_second{workload_id="…",network="resnet-50",…} 2170.25

Every metric is a gauge, and no sample has a time: so the text is also in Prometheus' older format,
the one that the textfile collector of node_exporter reads. Names end in the unit, in full, as
OpenMetrics 1.0 demands; days are converted to seconds, its base unit. `cubemesh_run_info` joins the
labels with the id of the run.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from cubemesh.exports.contents import ExportedRuns
from cubemesh.schema import NetworkWork, RunRecord

_AMOUNTS = {"s": "seconds", "B": "bytes", "byte": "bytes", "J": "joules", "W": "watts"}
_AMOUNTS |= {"FLOP": "flops", "%": "percent"}
_DAY_S = 86400.0
_PER = {"s": "second", "J": "joule"}
"""Unit → its name in full, as an amount and behind a slash; others are spelled as they are."""


@dataclass
class _Family:
    """The samples of one metric."""

    help: str
    unit: str = ""
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)


def write(runs: ExportedRuns, file: BinaryIO) -> None:
    """Write the metrics of the newest runs; only `# EOF` without runs."""
    newest = {
        (r.spec.workload_id, r.key.machine_id, r.key.repeat): r
        for r in sorted(runs.records, key=lambda r: r.started_utc)
    }
    families: dict[str, _Family] = {}
    for record in newest.values():
        machine = runs.machines.get(record.key.machine_id)
        _add_run(families, record, machine.hostname if machine else "")
        for name, figure in record.figures.items():
            if figure.unit == "days":
                figure, name = figure.scaled(_DAY_S, "s"), name.removesuffix("_days") + "_s"
            unit = unit_name(figure.unit)
            for bound, value in (("", figure.value), ("low", figure.low), ("high", figure.high)):
                if value is not None:
                    text = f"Figure {name} in {figure.unit or 'units of one'}"
                    text += f", {bound} end of its 95 % confidence interval" if bound else ""
                    metric = metric_name(name, figure.unit, bound)
                    family = families.setdefault(metric, _Family(f"{text}.", unit))
                    family.samples.append((_labels(record), value))
    text = "".join(line for name in families for line in _lines(name, families[name]))
    file.write(f"{text}# EOF\n".encode("utf-8", "backslashreplace"))


def unit_name(unit: str) -> str:
    """A unit in full: `samples/s` is `samples_per_second`, `J/sample` is `joules_per_sample`."""
    amount, slash, per = unit.partition("/")
    words = _AMOUNTS.get(amount, amount)
    if slash:
        words += f"_per_{_PER.get(per, per)}"
    return re.sub(r"\W+", "_", words.lower(), flags=re.ASCII).strip("_")


def metric_name(figure: str, unit: str, bound: str = "") -> str:
    """The metric of a figure: without the figure's own short unit, with the full one at the end."""
    full = unit_name(unit)
    short = full.replace("_per_second", "_per_s") if full != "seconds" else "s"
    stem = figure
    for end in (short, "per_s" if full.endswith("_per_second") else short):
        if end and (stem == end or stem.endswith(f"_{end}")):
            stem = stem.removesuffix(end).rstrip("_")
            break
    parts = ["cubemesh", stem, f"ci95_{bound}" if bound else "", full]
    return re.sub(r"\W+", "_", "_".join(filter(None, parts)), flags=re.ASCII)


def _add_run(families: dict[str, _Family], record: RunRecord, hostname: str) -> None:
    labels = _labels(record)
    started = datetime.datetime.fromisoformat(record.started_utc).timestamp()
    info = {
        **labels,
        "run_id": record.run_id,
        "outcome": record.outcome.status.value,
        "hostname": hostname,
        "code_version": record.key.code_version,
        "software_id": record.key.software_id,
    }
    for name, text, unit, own, value in (
        ("run_info", "Ids of the newest run of the workload.", "", info, 1.0),
        ("run_ok", "Whether the run completed.", "", labels, float(record.ok)),
        ("run_warnings", "Number of warnings.", "", labels, float(len(record.warnings))),
        ("run_start_time_seconds", "Start, in Unix time.", "seconds", labels, started),
        ("run_duration_seconds", "Wall time.", "seconds", labels, record.elapsed_s),
    ):
        family = families.setdefault(f"cubemesh_{name}", _Family(text, unit))
        family.samples.append((own, value))


def _labels(record: RunRecord) -> dict[str, str]:
    """Labels that identify a workload on a machine, and the most common of its settings."""
    spec, work = record.spec, record.spec.work
    batch = spec.batch_per_device
    return {
        "workload_id": spec.workload_id,
        "machine_id": record.key.machine_id,
        "repeat": str(record.key.repeat),
        "work": work.kind,
        "network": work.network if isinstance(work, NetworkWork) else "",
        "framework": spec.program.framework,
        "precision": spec.program.precision,
        "devices": str(spec.placement.devices),
        "batch_per_device": "" if batch is None else str(batch),
    }


def _lines(name: str, family: _Family) -> Iterable[str]:
    yield f"# TYPE {name} gauge\n"
    if family.unit:
        yield f"# UNIT {name} {family.unit}\n"
    yield f"# HELP {name} {_escaped(family.help)}\n"
    for labels, value in family.samples:
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{name}{{{pairs}}} {_number(value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
