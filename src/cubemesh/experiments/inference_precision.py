"""Inference by precision: time against accuracy of every precision, engine and calibration method.

A network is trained, and each candidate is compared with fp32 on the same validation samples and
timed, interleaved with the others. The DGX-1 V100 white paper [002], section 5.10, has TensorRT
reduce precision; whether the accuracy stays, and whether the samples can tell, is the answer here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cubemesh.experiments.analysis.answer import answer_of, cell_or_dash, failed_run
from cubemesh.experiments.analysis.groups import caveats, group_by, titled
from cubemesh.experiments.analysis.per_workload import per_workload
from cubemesh.experiments.analysis.ratios import format_ratio, ratio
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.inference.accuracy import KEEPS, PairedAccuracy, verdict_of
from cubemesh.inference.engines import title
from cubemesh.schema import (
    Answer,
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    InferPrecision,
    Line,
    Placement,
    Point,
    RunRecord,
    RunSpec,
    Table,
)

EPOCHS = {Scale.QUICK: 2, Scale.DEFAULT: 10, Scale.FULL: 30}
SECONDS = " seconds"
"""End of the name of a figure that is the time of a candidate."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `inference-precision` besides the fields of its specs."""

    networks: tuple[str, ...] = ("little-cnn",)
    """Networks to train; `cubemesh networks` lists them."""
    batch_sizes: tuple[int, ...] = (1,)
    """Batch sizes at which candidates are timed."""
    data: str = "digits"
    """Data set: digits, or cifar-10 with data_path."""
    epochs: int | None = None
    """Epochs of the training; default: 10, with --quick 2, with --full 30."""
    accuracy: float = 0.99
    """Least ratio of right answers to those of fp32."""


@dataclass(frozen=True, kw_only=True)
class TimedCandidate:
    """A candidate of one run."""

    model: str
    precision: str
    engine: str
    seconds: Figure
    paired: PairedAccuracy | None
    """Against fp32; None for fp32 itself."""
    accepted: bool
    run_id: str

    @property
    def ratio(self) -> float:
        """Right answers over those of fp32."""
        return 1.0 if self.paired is None else self.paired.ratio

    @property
    def name(self) -> str:
        """`int8 (mse, products only) in OpenVINO`."""
        what = (
            "sibling products merged" if self.model == "fp32-siblings" else "",
            self.seconds.method,
            "products only" if "products" in self.model else "",
        )
        shown = ", ".join(filter(None, what))
        return f"{self.precision}{f' ({shown})' if shown else ''} in {title(self.engine)}"

    @property
    def verdict(self) -> str:
        """`keeps`, `loses`, or how many samples would tell."""
        if self.paired is None:
            return "reference"
        if self.paired.samples_needed is None:
            return self.paired.verdict
        return f"{self.paired.verdict}; about {self.paired.samples_needed:,} samples would"


def plan(settings: Settings, context: Context) -> Plan:
    """One run for each network and batch size, which trains and then times every candidate."""
    yield [
        RunSpec(
            work=InferPrecision(
                network=network,
                batch_per_device=batch,
                data=settings.data,
                epochs=settings.epochs or EPOCHS[context.scale],
                optimizer="rmsprop",
                learning_rate=1e-3,
                accuracy=settings.accuracy,
            ),
            placement=Placement(device="cpu"),
            budget=context.budget,
        )
        for network in dict.fromkeys(settings.networks)
        for batch in dict.fromkeys(settings.batch_sizes)
    ]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and chart from the records of one `inference-precision`, by network and batch
    size."""
    return per_workload(
        records,
        lambda record: (_work(record).network, f"batch size {_work(record).batch_per_device}"),
        _answer,
    )


def _work(record: RunRecord) -> InferPrecision:
    assert isinstance(record.spec.work, InferPrecision)
    return record.spec.work


def timed_candidates(records: Sequence[RunRecord]) -> list[TimedCandidate]:
    """The candidates of the last completed run, the fastest first."""
    record = next((r for r in reversed(records) if r.ok), None)
    if record is None:
        return []
    found = [
        _candidate(record, name.removesuffix(SECONDS), figure)
        for name, figure in record.figures.items()
        if name.endswith(SECONDS) and name.count(" ") == 3
    ]
    return sorted(found, key=lambda one: one.seconds.value)


def _candidate(record: RunRecord, name: str, seconds: Figure) -> TimedCandidate:
    model, precision, engine = name.split(" ")
    samples, right, lost, gained = (
        round(record.figure(f"{name} {what}") or 0)
        for what in ("samples", "reference right", "lost", "gained")
    )
    paired = None
    if right:
        paired = verdict_of(
            both=right - lost,
            lost=lost,
            gained=gained,
            samples=samples,
            bound=_work(record).accuracy,
        )
    return TimedCandidate(
        model=model,
        precision=precision,
        engine=engine,
        seconds=seconds,
        paired=paired,
        accepted=paired is None or record.figure(f"{name} accepted") == 1,
        run_id=record.run_id,
    )


def pareto(found: Sequence[TimedCandidate]) -> list[TimedCandidate]:
    """The candidates than which none is both faster and as accurate, or as fast and more accurate;
    the fastest first."""
    front: list[TimedCandidate] = []
    for one in sorted(found, key=lambda one: (one.seconds.value, -one.ratio)):
        if not front or one.ratio > front[-1].ratio:
            front.append(one)
    return front


def _answer(records: Sequence[RunRecord]) -> Answer:
    found = timed_candidates(records)
    name = _work(records[0]).network if records else ""
    return answer_of(
        EXPERIMENT,
        titled(f"{name}: time and accuracy of inference by precision", records),
        records,
        findings=_findings(records, found),
        tables=(_table(found),) if found else (),
        charts=(_chart(name, found),) if found else (),
        notes=(
            "Accuracy: right answers over those of fp32 on the same validation samples, which "
            "served neither training nor calibration. It keeps the bound where the ratio is at "
            "least the bound and the lower end of its 95 % interval at least the bound − 0.01, and "
            "loses it where the upper end is below the bound.",
            "Time: median over short windows, interleaved with the other candidates. A method in "
            "brackets chose the ranges of 8-bit integers.",
        ),
    )


def _table(found: Sequence[TimedCandidate]) -> Table:
    front = pareto(found)
    columns = (
        Column(name="candidate"),
        Column(name="time", unit="ms"),
        Column(name="accuracy", unit="% of fp32", digits=4),
        Column(name="lost"),
        Column(name="gained"),
        Column(name="verdict"),
        Column(name="front"),
    )
    rows = tuple(
        (
            Cell(text=one.name, run_id=one.run_id),
            Cell.of(one.seconds.scaled(1e3, "ms"), one.run_id),
            _accuracy(one),
            cell_or_dash(None if one.paired is None else float(one.paired.lost)),
            cell_or_dash(None if one.paired is None else float(one.paired.gained)),
            Cell(text=one.verdict),
            Cell(text="yes" if one in front else "–"),
        )
        for one in found
    )
    return Table(title="candidates", columns=columns, rows=rows)


def _accuracy(one: TimedCandidate) -> Cell:
    if one.paired is None:
        return Cell(value=100.0, run_id=one.run_id)
    low, high = one.paired.interval.low, one.paired.interval.high
    return Cell(value=100 * one.ratio, low=100 * low, high=100 * high, run_id=one.run_id)


def _chart(network: str, found: Sequence[TimedCandidate]) -> Chart:
    """A point for each candidate, and the front as a line."""

    def points(some: Sequence[TimedCandidate], labelled: bool) -> tuple[Point, ...]:
        return tuple(
            Point(
                x=one.seconds.value * 1e3,
                y=100 * one.ratio,
                run_id=one.run_id,
                label=one.precision if labelled else "",
            )
            for one in some
        )

    kinds = dict.fromkeys(one.precision for one in found)
    front = pareto(found)
    lines = [
        Line(name=kind, points=points([one for one in found if one.precision == kind], False))
        for kind in kinds
    ]
    return Chart(
        name=f"inference-precision-{network}",
        title="Accuracy against time",
        kind="scatter",
        x=Axis(name="time", unit="ms", scale="log10"),
        y=Axis(name="accuracy", unit="% of fp32"),
        lines=(*lines, Line(name="front", points=points(front, True), role="reference")),
    )


def _findings(records: Sequence[RunRecord], found: Sequence[TimedCandidate]) -> Iterator[Finding]:
    for group in group_by(records, lambda record: _work(record).network):
        if not group.ok:
            yield failed_run(group.key, group)
    reference = next((one for one in found if one.paired is None), None)
    if reference is None:
        return
    noise = caveats(*group_by(records, lambda record: _work(record).network))
    allowed = [one for one in found if one.accepted]
    best = allowed[0]
    text = f"{best.name} is the fastest that keeps the accuracy: {_milliseconds(best)}"
    lead = ratio(reference.seconds, best.seconds)
    if best is not reference:
        text += f", {format_ratio(lead)} as fast as {reference.name}"
    if best.paired is not None:
        text += f"; {best.paired}"
    yield Finding(
        code="fastest-accurate",
        question="Which precision is the fastest that keeps the accuracy?",
        text=f"{text}.",
        value=lead.value,
        low=lead.low,
        high=lead.high,
        unit="× the speed of fp32",
        caveats=noise,
    )
    lost = [one for one in found if one.paired is not None and one.paired.verdict == "loses"]
    if lost:
        worst = min(lost, key=lambda one: one.ratio)
        yield Finding(
            code="accuracy-lost",
            text=f"{len(lost)} of {len(found) - 1} candidates lose accuracy, most of all "
            f"{worst.name}: {worst.paired}.",
        )
    unsure = [one for one in found if one.paired is not None and one.paired.samples_needed]
    if unsure:
        needed = max(one.paired.samples_needed or 0 for one in unsure if one.paired)
        yield Finding(
            code="too-few-samples",
            text=f"For {len(unsure)} candidates the samples cannot tell whether they keep the "
            f"accuracy; about {needed:,} would for all.",
            remedy="Use a data set with more validation samples: --set data=cifar-10 "
            "--set data_path=FOLDER.",
        )
    mixed = [one for one in found if "mixed" in one.model and _kept(one)]
    if mixed:
        yield Finding(
            code="mixed-precision",
            text=f"With some operators back in fp32, 8-bit integers keep the accuracy: "
            f"{mixed[0].name}, {_milliseconds(mixed[0])}.",
        )


def _kept(one: TimedCandidate) -> bool:
    return one.paired is not None and (one.paired.verdict == KEEPS or one.accepted)


def _milliseconds(one: TimedCandidate) -> str:
    return f"{one.seconds.value * 1e3:.3g} ms"


EXPERIMENT = Experiment(
    name="inference-precision",
    question="Which precision answers fastest, and does it keep the accuracy?",
    settings=Settings,
    works=(InferPrecision,),
    varies={
        "network": "networks",
        "batch_per_device": "batch_sizes",
        "data": "data",
        "epochs": "epochs",
        "accuracy": "accuracy",
    },
    plan=plan,
    answer=answer,
    papers="[002], section 5.10 (TensorRT)",
    alternates=False,
    tunes=False,
)
