"""Comparison of two machines by the stored runs of the same experiments.

Runs are paired within an experiment that both machines ran, those with the same settings first.
Throughputs are divided where the work is the same: network, image size, batch size, precision,
data and number of devices. Other pairs are shown without a ratio, with what differs. The interval
and the significance of a ratio are those of `ratios.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from cubemesh.experiments.analysis.groups import Group, caveats, throughput_unit
from cubemesh.experiments.analysis.ratios import format_ratio, ratio, verdict_text, verdicts
from cubemesh.experiments.analysis.titles import day_of
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.schema import (
    Answer,
    Budget,
    Cell,
    Column,
    ExperimentRun,
    Figure,
    Finding,
    Machine,
    NetworkWork,
    RunRecord,
    Table,
)
from cubemesh.schema.serialization import canonical_json
from cubemesh.schema.warning import Warning
from cubemesh.store.select import format_value, settings_of
from cubemesh.units import format_list

NAME = "machine-comparison"
SAME_WORK = {
    "work": "kind of work",
    "image_size": "image size",
    "sequence_length": "sequence length",
    "hidden": "hidden size",
    "vocabulary": "vocabulary",
    "classes": "classes",
    "batch_per_device": "batch size",
    "precision": "precision",
    "devices": "devices",
    "data": "data",
    "data_location": "data location",
}
"""Setting → its name. Throughputs are comparable only where these are equal."""
_BUDGET = {field.name for field in fields(Budget)}
_FILES = "digest_of_data_files"
VERDICT = "this machine is"
"""The column of verdicts."""

Pair = tuple[ExperimentRun, ExperimentRun]


@dataclass(frozen=True, kw_only=True)
class Side:
    """A machine with its latest experiment runs and their records."""

    machine: Machine
    runs: Sequence[ExperimentRun]
    records: Mapping[str, RunRecord]
    source: str = ""
    """Name of the store."""


class MachineWorkload(Group[str]):
    """The successful runs of one workload and program on one machine."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting except the budget, and the digest of the data's files."""
        own = settings_of(self.records[0]) | {_FILES: self.records[0].key.data_id or None}
        return {name: value for name, value in own.items() if name not in _BUDGET}

    @property
    def text(self) -> str:
        """`resnet-50, batch size 256, bf16`."""
        own = self.settings
        parts = [str(own["network"]), f"batch size {own['batch_per_device']}"]
        if own["image_size"] is not None:
            parts.append(f"{own['image_size']} pixels")
        parts.append(str(own["precision"]))
        if own["devices"] > 1:
            parts.append(f"{own['devices']} devices")
        return ", ".join(parts)

    def differing(self, other: MachineWorkload) -> list[str]:
        """Names of the settings that differ."""
        names = dict.fromkeys((*self.settings, *other.settings))
        return [n for n in names if self.settings.get(n) != other.settings.get(n)]


def pairs(own: Sequence[ExperimentRun], other: Sequence[ExperimentRun]) -> list[Pair]:
    """Runs of the same experiment on two machines: those with the same settings first, then those
    with the most settings in common, if a network is among them."""
    candidates = sorted(
        (_key(one) != _key(two), -_similarity(one, two), i, j)
        for i, one in enumerate(own)
        for j, two in enumerate(other)
        if one.experiment == two.experiment and _has_common_network(one, two)
    )
    partner: dict[int, int] = {}
    for *_, i, j in candidates:
        if i not in partner and j not in partner.values():
            partner[i] = j
    return [(one, other[partner[i]]) for i, one in enumerate(own) if i in partner]


def _key(run: ExperimentRun) -> str:
    return canonical_json((run.settings, run.overrides))


def _settings(run: ExperimentRun) -> dict[str, str]:
    return {name: canonical_json(v) for name, v in {**run.settings, **run.overrides}.items()}


def _similarity(one: ExperimentRun, two: ExperimentRun) -> int:
    return len(_settings(one).items() & _settings(two).items())


def _has_common_network(one: ExperimentRun, two: ExperimentRun) -> bool:
    """Also true where either leaves its networks to the experiment."""
    named = [{*(run.settings.get("networks") or ())} for run in (one, two)]
    return not all(named) or bool(named[0] & named[1])


def machine_comparison(own: Side, other: Side) -> Answer:
    """The answer: ratios of throughputs, this machine over the other."""
    names = labels(own, other)
    paired = pairs(own.runs, other.runs)
    matches = [
        (one.experiment, first, second)
        for one, partner in paired
        for first, second in _matched(_workloads(one, own), _workloads(partner, other))
    ]
    used = [w for _, *both in matches for w in both if w is not None]
    run_ids = tuple(dict.fromkeys(r.run_id for w in used for r in w.records))
    records = [r for w in used for r in w.records]
    return Answer(
        experiment=NAME,
        question="How does this machine compare with another?",
        title=f"{names[0]} compared with {names[1]}",
        findings=tuple(_findings(matches, names)),
        tables=(_table(matches, names),) if matches else (),
        warnings=_warnings(records),
        run_ids=run_ids,
        notes=tuple(_notes(own, other, paired)),
    )


def labels(own: Side, other: Side) -> tuple[str, str]:
    """Names of two machines: their devices. Where these are equal, also the first that differs:
    host, versions of the frameworks, date, store or hardware."""
    first, second = _label(own.machine), _label(other.machine)
    if first != second:
        return first, second
    for describe in (_host, _software, _date, _store, _hardware):
        a, b = describe(own), describe(other)
        if a and b and a != b:
            return f"{first} ({a})", f"{second} ({b})"
    return f"{first} (this store)", f"{second} ({other.source or 'the other store'})"


def _host(side: Side) -> str:
    return side.machine.hostname


def _software(side: Side) -> str:
    """The versions of the frameworks that ran."""
    used = {r.spec.program.framework for r in side.records.values()}
    packages = side.machine.software.packages
    names = {name for n in sorted(used) if n in FRAMEWORKS for name in FRAMEWORKS[n].packages[:1]}
    return ", ".join(f"{name} {packages[name]}" for name in sorted(names) if name in packages)


def _date(side: Side) -> str:
    return day_of(side.records.values())


def _hardware(side: Side) -> str:
    return side.machine.machine_id[:6]


def _store(side: Side) -> str:
    return side.source


def _label(machine: Machine) -> str:
    names = [gpu.name for gpu in machine.gpus]
    if names:
        listed = [(names.count(name), name) for name in dict.fromkeys(names)]
        return " and ".join(name if count == 1 else f"{count} × {name}" for count, name in listed)
    cores = machine.cpu.usable_cores
    plain = f"{cores} {'core' if cores == 1 else 'cores'}"
    return f"{plain} of {machine.cpu.model}" if machine.cpu.model else plain


def _workloads(run: ExperimentRun, side: Side) -> list[MachineWorkload]:
    found: dict[str, list[RunRecord]] = {}
    for run_id in run.run_ids:
        record = side.records.get(run_id)
        if record is None or not isinstance(record.spec.work, NetworkWork):
            continue
        if record.ok and record.measured and "throughput_per_s" in record.figures:
            key = canonical_json(MachineWorkload("", (record,)).settings)
            found.setdefault(key, []).append(record)
    return [MachineWorkload(key, tuple(records)) for key, records in found.items()]


def _matched(
    first: Sequence[MachineWorkload], second: Sequence[MachineWorkload]
) -> Iterator[tuple[MachineWorkload, MachineWorkload | None]]:
    """Each workload of `first` with the most similar one of the same network in `second`."""
    costs = sorted(
        (sum(n in SAME_WORK for n in names), len(names), i, j)
        for i, a in enumerate(first)
        for j, b in enumerate(second)
        if a.settings["network"] == b.settings["network"]
        for names in [a.differing(b)]
    )
    partner: dict[int, int] = {}
    for *_, i, j in costs:
        if i not in partner and j not in partner.values():
            partner[i] = j
    for i, workload in enumerate(first):
        yield workload, second[partner[i]] if i in partner else None


Match = tuple[str, MachineWorkload, MachineWorkload | None]


def _compared(first: MachineWorkload, second: MachineWorkload | None) -> tuple[Figure | None, str]:
    """The ratio of two workloads, or why there is none."""
    if second is None:
        return None, "not measured on the other machine"
    names = [n for n in first.differing(second) if n in SAME_WORK]
    if names:
        return None, f"not comparable: {_differences(names, first, second)}"
    a, b = first.throughput, second.throughput
    if a is None or b is None or b.value <= 0:
        return None, "not measured"
    return ratio(a, b), ""


def _judged(matches: Sequence[Match]) -> list[tuple[Figure | None, str]]:
    """The ratio and the verdict of each match, all judged together; without a ratio, why."""
    found = [_compared(a, b) for _, a, b in matches]
    judged = iter(verdicts([figure for figure, _ in found if figure is not None]))
    return [
        (figure, why if figure is None else verdict_text(figure, next(judged)))
        for figure, why in found
    ]


def _differences(names: Sequence[str], first: MachineWorkload, second: MachineWorkload) -> str:
    return format_list(
        [
            f"{SAME_WORK.get(n, n.replace('_', ' '))} {format_value(first.settings.get(n))} here, "
            f"{format_value(second.settings.get(n))} there"
            for n in names
        ]
    )


def _findings(matches: Sequence[Match], names: tuple[str, str]) -> Iterator[Finding]:
    found = [
        (a, b, figure, verdict)
        for (_, a, b), (figure, verdict) in zip(matches, _judged(matches), strict=True)
        if b is not None and figure is not None
    ]
    rate = {a.key: a.throughput.value if a.throughput else 0.0 for a, *_ in found}
    for first, second, figure, verdict in sorted(found, key=lambda one: -rate[one[0].key]):
        extra = first.differing(second)
        also = f" Also different: {_differences(extra, first, second)}." if extra else ""
        yield Finding.of(
            code="machine-ratio",
            question=f"How fast is this machine compared with {names[1]}?",
            text=f"{first.text}: {format_ratio(figure)} the throughput of {names[1]}.{also}",
            figure=figure,
            unit="×",
            caveats=caveats(first, second),
            verdict=verdict,
        )
    if not found:
        yield Finding(
            code="no-common-workload",
            text="No throughput of the two machines is comparable; the table has the reasons."
            if matches
            else "The two machines have no experiment with training runs in common.",
            remedy="Run the same experiments with the same --set on both.",
        )


def _table(matches: Sequence[Match], names: tuple[str, str]) -> Table:
    rows = []
    for (experiment, first, second), (figure, verdict) in zip(
        matches, _judged(matches), strict=True
    ):
        there = Cell(text="–") if second is None else second.cell(second.throughput)
        row = (
            Cell(text=first.text),
            Cell(text=experiment),
            first.cell(first.throughput),
            there,
        )
        if figure is None or second is None:
            rows.append((*row, *(Cell(reason=verdict),) * 3))
            continue
        extra = first.differing(second)
        rows.append(
            (
                *row,
                Cell.of(figure),
                Cell(text=verdict),
                Cell(text=_differences(extra, first, second) if extra else "–"),
            )
        )
    unit = throughput_unit(r for _, first, _ in matches for r in first.records)
    return Table(
        title="Throughput on both machines",
        columns=(
            Column(name="workload"),
            Column(name="experiment"),
            Column(name=names[0], unit=unit),
            Column(name=names[1], unit=unit),
            Column(name="this / other", unit="×"),
            Column(name=VERDICT),
            Column(name="other differences"),
        ),
        rows=tuple(rows),
    )


def _warnings(records: Sequence[RunRecord]) -> tuple[Warning, ...]:
    return tuple(dict.fromkeys(w for record in records for w in record.warnings))


def _notes(own: Side, other: Side, paired: Sequence[Pair]) -> Iterator[str]:
    yield (
        "A ratio is this machine's throughput over the other's; its 95 % interval combines both "
        "intervals, a difference below 3 % is not significant, and verdicts are corrected for the "
        "number of comparisons in the table (Holm). Throughputs "
        f"are comparable with the same network, {format_list(list(SAME_WORK.values())[1:])}."
    )
    for side, index, where in ((own, 0, "this machine"), (other, 1, "the other machine")):
        used = {pair[index].experiment_run_id for pair in paired}
        only = [r.experiment for r in side.runs if r.experiment_run_id not in used]
        if only:
            yield f"Only on {where}: {format_list(list(dict.fromkeys(only)))}."
