"""Comparison of two programs as an answer: interleaved (`run --against`) or stored (`compare`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cubemesh.errors import TARGET_MISSED
from cubemesh.experiments.analysis.caveats import mark_simulated, noise_codes
from cubemesh.experiments.analysis.choice import compare_accuracy, criterion_of
from cubemesh.experiments.analysis.groups import throughput_unit
from cubemesh.measure.timing.interleaved_ab import ratio_of
from cubemesh.measure.timing.stopping_rule import confidence_of
from cubemesh.schema import (
    Answer,
    Cell,
    Column,
    Figure,
    Finding,
    NetworkWork,
    OwnStep,
    RunRecord,
    Table,
)
from cubemesh.schema.comparison import Difference, Ratio, breaches, corrected
from cubemesh.schema.record import AGAINST
from cubemesh.schema.serialization import to_plain
from cubemesh.store.select import PARTS, format_value

if TYPE_CHECKING:
    from cubemesh.store.compare import StoredComparison

INCONCLUSIVE = 1
"""Exit code of `--fail-below` without a valid comparison."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """`--fail-below`: whether a comparison breaches the threshold."""

    below: float
    ratios: tuple[Ratio, ...]

    @property
    def breached(self) -> tuple[bool | None, ...]:
        """Whether each ratio is significantly below; None without enough data."""
        return breaches(self.ratios, self.below)

    @property
    def exit_code(self) -> int:
        """99 if a ratio is significantly below, 1 if one has no interval, else 0."""
        found = self.breached
        if any(found):
            return TARGET_MISSED
        return INCONCLUSIVE if None in found or not found else 0

    @property
    def sentence(self) -> str:
        """The result in a sentence."""
        code = self.exit_code
        if code == TARGET_MISSED:
            pairs = zip(self.ratios, self.breached, strict=True)
            worst = min(ratio.high for ratio, breached in pairs if breached and ratio.high)
            return (
                f"Threshold breached: the whole 95 % interval (up to {worst:.3f}) is below "
                f"{self.below:g}."
            )
        if code:
            return f"Inconclusive: not enough data to compare the throughput with {self.below:g}."
        return f"The throughput is not significantly below {self.below:g}."


def gate_of(below: float, records: Iterable[RunRecord]) -> Gate:
    """The gate of the interleaved runs."""
    found = (ratio_of_record(record) for record in records)
    return Gate(below=below, ratios=tuple(ratio for ratio in found if ratio is not None))


def ratio_of_record(record: RunRecord) -> Ratio | None:
    """The ratio of an interleaved run, from its windows; None for a run of one program, or one that
    ended before the first block was complete."""
    if record.spec.against is None:
        return None
    windows = [w for w in record.windows if w.phase in ("measure", AGAINST)]
    try:
        return ratio_of(windows, confidence_of(record.spec.budget))
    except ValueError:
        return None


def with_comparisons(answer: Answer, records: Iterable[RunRecord]) -> Answer:
    """`answer` with the comparisons of its interleaved runs in front."""
    found = [r for r in records if r.spec.against is not None]
    if not found:
        return answer
    ratios = _ratios_of(found)
    return dataclasses.replace(
        answer,
        findings=(*(_finding(r, ratios.get(r.run_id)) for r in found), *answer.findings),
        tables=(_table(found, ratios), *answer.tables),
        notes=(*_notes(found[0]), *[HOLM] * (len(ratios) > 1), *answer.notes),
    )


HOLM = (
    "Verdicts of a table are corrected for the number of its comparisons (Holm), so that one in "
    "twenty tables of equal programs has a difference, not one in twenty comparisons."
)


def _ratios_of(records: Sequence[RunRecord]) -> dict[str, Ratio]:
    """Run id → its ratio, with the verdicts corrected for their number."""
    known = {r.run_id: ratio for r in records if (ratio := ratio_of_record(r)) is not None}
    return dict(zip(known, corrected(list(known.values())), strict=True))


def changes(record: RunRecord) -> tuple[tuple[str, str, str], ...]:
    """Settings that differ between the two programs of an interleaved run: (name, A's, B's)."""
    other = record.spec.other
    if other is None:
        return ()
    first, second = to_plain(record.spec), to_plain(other)
    return tuple(
        (name, format_value(first[part].get(name)), format_value(value))
        for part in PARTS
        for name, value in second[part].items()
        if first[part].get(name) != value and name != "own_data"  # `data` has its name
    )


def sentence(ratio: Ratio, first: str, second: str) -> str:
    """The difference of `second` from `first`, if it is significant."""
    interval = ""
    if ratio.low is not None and ratio.high is not None:
        interval = f", 95 % interval {ratio.low:.3f} to {ratio.high:.3f}"
    figures = f"{ratio.value:.3f} of its throughput{interval}"
    if ratio.verdict is Difference.FASTER and ratio.value >= 2:
        return f"{second} is {ratio.value:.3g} times as fast as {first}{interval}."
    if ratio.verdict is Difference.FASTER:
        return f"{second} is {100 * (ratio.value - 1):.1f} % faster than {first}: {figures}."
    if ratio.verdict is Difference.SLOWER:
        return f"{second} is {100 * (1 - ratio.value):.1f} % slower than {first}: {figures}."
    if ratio.verdict is Difference.NOT_SIGNIFICANT:
        width = 100 * (ratio.smallest_detectable or 0)
        return (
            f"No significant difference between {first} and {second}: {figures}. Differences below "
            f"{width:.2g} % would not be detected."
        )
    return f"Not enough runs to compare {first} and {second}: {ratio.why}"


def _finding(record: RunRecord, ratio: Ratio | None) -> Finding:
    where = _name(record)
    first, second = _programs(record)
    if ratio is None:
        return Finding(
            code="not-compared",
            text=f"{where}: {first} and {second} were not compared; see the run.",
        )
    return Finding.of(
        code="speed-ratio",
        text=f"{where}: {sentence(ratio, first, second)}",
        question=f"How fast is {second} compared with {first}?",
        figure=ratio,
        unit="×",
        caveats=noise_codes([record]),
    )


def _programs(record: RunRecord) -> tuple[str, str]:
    """The two programs of an interleaved run, by the settings that differ."""
    pairs = changes(record)
    first = ", ".join(f"{name}={a}" for name, a, _ in pairs)
    second = ", ".join(f"{name}={b}" for name, _, b in pairs)
    return first or "the program", second or "itself"


def _name(record: RunRecord) -> str:
    work = record.spec.work
    if not isinstance(work, NetworkWork):
        return work.name if isinstance(work, OwnStep) else work.kind
    passes = {"forward": " forward", "forward_backward": " forward and backward"}
    forward = passes.get(work.kind, "")
    return f"{work.network}{forward}, batch size {work.batch_per_device}"


def _table(records: Sequence[RunRecord], ratios: dict[str, Ratio]) -> Table:
    first, second = _programs(records[0])
    rows: list[tuple[Cell, ...]] = []
    for record in records:
        ratio, why = ratios.get(record.run_id), record.outcome.message or "no complete block"
        name = Cell(text=_name(record), run_id=record.run_id)
        if ratio is None:
            rows.append((name, *(Cell(reason=why, run_id=record.run_id),) * 4))
            continue
        steps = (record.figures.get(n) for n in ("step_s", "against_step_s"))
        rows.append(
            (
                name,
                *(Cell.of(step) if step else Cell(reason="not measured") for step in steps),
                Cell.of(ratio, run_id=record.run_id),
                Cell(text=ratio.verdict.value),
            )
        )
    return Table(
        title=f"B ({second}) compared with A ({first}), interleaved in one process",
        columns=(
            Column(name="run"),
            Column(name="step of A", unit="s"),
            Column(name="step of B", unit="s"),
            Column(name="throughput B / A", digits=4),
            Column(name="B is"),
        ),
        rows=tuple(rows),
    )


def _notes(record: RunRecord) -> Iterator[str]:
    if (found := ratio_of_record(record)) is not None:
        yield (
            f"Programs are interleaved in blocks of four windows; {found.method}. The rest of this "
            "answer is about A."
        )
    if not changes(record):
        yield "The two programs do not differ: this compares A with itself."


def _accuracy_findings(found: StoredComparison) -> Iterator[Finding]:
    """The difference of the accuracies of two trainings that were scored on the same data."""
    if len(found.first.records) != 1 or len(found.second.records) != 1:
        return
    first, second = found.first.records[0], found.second.records[0]
    if criterion_of([first, second]) != "accuracy":
        return
    standing = compare_accuracy(second, first)
    if standing.difference is None or standing.low is None or standing.high is None:
        return
    a, b = (100 * record.figures["accuracy"].value for record in (first, second))
    points, low, high = (100 * v for v in (standing.difference, standing.low, standing.high))
    if low <= 0 <= high:
        text = f"No significant difference in accuracy: A {a:.2f} %, B {b:.2f} %"
    else:
        text = f"B has a {'higher' if points > 0 else 'lower'} accuracy: A {a:.2f} %, B {b:.2f} %"
    text += f"; {points:+.2f} percentage points, 95 % interval {low:+.2f} to {high:+.2f}, by "
    text += standing.test
    if standing.only_best is not None and standing.only_own is not None:
        text += f": {standing.only_best:,} only A answers, {standing.only_own:,} only B"
    if standing.smallest is not None:
        text += f". Differences below {100 * standing.smallest:.2g} points would not be detected"
    yield Finding.of(
        code="accuracy-difference",
        text=f"{text}.",
        question="How accurate is B compared with A?",
        figure=Figure(value=points, unit="percentage points", low=low, high=high),
        unit="percentage points",
        caveats=(),
    )


def comparison_answer(found: StoredComparison, gate: Gate | None = None) -> Answer:
    """The answer of `cubemesh compare`."""
    ratio, sides = found.ratio, (found.first, found.second)
    records = [record for side in sides for record in side.records]
    notes = [f"Method of the interval: {ratio.method}."]
    notes += [
        f"{name} excludes {side.left_out} runs of older versions of the software or of cubemesh."
        for name, side in zip("AB", sides, strict=True)
        if side.left_out
    ]
    if gate is not None:
        notes.append(gate.sentence)
    answer = Answer(
        experiment="compare",
        question="Which is faster?",
        title=f"{found.second.text} compared with {found.first.text}",
        findings=(
            Finding.of(
                code="speed-ratio",
                text=sentence(ratio, "A", "B"),
                question="How fast is B compared with A?",
                figure=ratio,
                unit="×",
                caveats=noise_codes(records),
            ),
            *_accuracy_findings(found),
        ),
        tables=(_sides(found), *_different(found)),
        warnings=tuple(dict.fromkeys(w for r in records for w in r.warnings)),
        run_ids=tuple(r.run_id for r in records),
        notes=tuple(notes),
    )
    return mark_simulated(answer, records)


def baseline_answer(
    found: Sequence[StoredComparison], records: Iterable[RunRecord], gate: Gate | None = None
) -> Answer:
    """The answer of `cubemesh run --baseline`: `records` compared with an earlier store."""
    ratios = corrected([one.ratio for one in found])
    found = [dataclasses.replace(o, ratio=r) for o, r in zip(found, ratios, strict=True)]
    findings = [
        Finding.of(
            code="speed-ratio",
            text=f"{_name(one.second.records[0])}: "
            f"{sentence(one.ratio, 'the baseline', 'this run')}",
            question="How fast is it compared with the baseline?",
            figure=one.ratio,
            unit="×",
            caveats=noise_codes([*one.first.records, *one.second.records]),
        )
        for one in found
    ]
    compared = {r.spec.workload_id for one in found for r in one.second.records}
    new = {
        r.spec.workload_id: _name(r)
        for r in records
        if r.ok and r.measured and r.spec.against is None and isinstance(r.spec.work, NetworkWork)
    }
    notes = [f"Not in the baseline: {name}." for key, name in new.items() if key not in compared]
    notes += [f"Method of the intervals: {found[0].ratio.method}."] if found else []
    notes += [HOLM] * (len(found) > 1)
    notes += [gate.sentence] if gate is not None else []
    answer = Answer(
        experiment="compare",
        question="Is this as fast as the baseline?",
        title="Compared with the baseline",
        findings=tuple(findings),
        tables=(_baseline_table(found),) if found else (),
        run_ids=tuple(r.run_id for one in found for r in (*one.first.records, *one.second.records)),
        notes=tuple(notes),
    )
    return mark_simulated(answer, [r for one in found for r in one.second.records])


def _baseline_table(found: Sequence[StoredComparison]) -> Table:
    def throughput(records: Sequence[RunRecord]) -> float:
        windows = [w for r in records for w in r.measured]
        return sum(w.samples for w in windows) / sum(w.elapsed_s for w in windows)

    unit = throughput_unit(r for one in found for r in one.second.records)
    return Table(
        title="Throughput compared with the baseline",
        columns=(
            Column(name="workload"),
            Column(name="runs (baseline, this)"),
            Column(name="baseline", unit=unit, digits=4),
            Column(name="this", unit=unit, digits=4),
            Column(name="ratio", digits=4),
            Column(name="this is"),
            Column(name="what differs"),
        ),
        rows=tuple(
            (
                Cell(text=_name(one.second.records[0]), run_id=one.second.records[0].run_id),
                Cell(text=f"{len(one.first.records)}, {len(one.second.records)}"),
                Cell(value=throughput(one.first.records)),
                Cell(value=throughput(one.second.records)),
                Cell.of(one.ratio),
                Cell(text=one.ratio.verdict.value),
                Cell(text=", ".join(d.what for d in one.differences) or "nothing"),
            )
            for one in found
        ),
    )


def _sides(found: StoredComparison) -> Table:
    rows = []
    for name, side in (("A", found.first), ("B", found.second)):
        windows = [w for r in side.records for w in r.measured]
        rows.append(
            (
                Cell(text=name, run_id=side.records[0].run_id),
                Cell(text=f"{_name(side.records[0])}, {side.records[0].started_utc[:10]}"),
                Cell(value=len(side.records)),
                Cell(value=len(windows)),
                Cell(value=sum(w.samples for w in windows) / sum(w.elapsed_s for w in windows)),
                Cell(value=sum(w.elapsed_s for w in windows) / sum(w.steps for w in windows)),
            )
        )
    ratio = found.ratio
    unit = throughput_unit((*found.first.records, *found.second.records))
    return Table(
        title=f"B / A: {ratio.value:.3f}, {ratio.verdict.value}",
        columns=(
            Column(name=""),
            Column(name="what"),
            Column(name="runs"),
            Column(name="windows"),
            Column(name="throughput", unit=unit, digits=4),
            Column(name="step", unit="s"),
        ),
        rows=tuple(rows),
    )


def _different(found: StoredComparison) -> tuple[Table, ...]:
    if not found.differences:
        return ()
    return (
        Table(
            title="Differences",
            columns=(Column(name=""), Column(name="A"), Column(name="B")),
            rows=tuple(
                (Cell(text=d.what), Cell(text=d.first or "–"), Cell(text=d.second or "–"))
                for d in found.differences
            ),
        ),
    )
