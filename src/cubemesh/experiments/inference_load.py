"""Inference under load: the largest rate of requests whose latency keeps a limit.

MLPerf's load generator issues the requests (MLPerf Inference, scenarios SingleStream, Offline and
Server). Single-stream gives the latency without load, offline the highest rate. In between, the
largest rate of random arrivals that keeps the limit is found by bisection. A rate is within the
limit if the load generator's own test is VALID, early stopping included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cubemesh.experiments.analysis.answer import answer_of, cell_or_dash, failed_run
from cubemesh.experiments.analysis.caveats import noise_codes
from cubemesh.experiments.analysis.groups import group_by, throughput_unit, titled
from cubemesh.experiments.analysis.per_workload import per_workload
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.inference import PLAN, compared_plan, default_networks, programs
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.schema import (
    Answer,
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    InferLoad,
    Line,
    Point,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Table,
)
from cubemesh.schema.record import LOAD_TEST_VALID
from cubemesh.schema.spec import Precision
from cubemesh.units import format_number

LIMIT_FACTOR = 3.0
"""The default limit over the p99 of requests one after another."""
FIRST_SHARE = 0.7
"""Of the offline rate: the first rate that is tried."""
MOST_TRIALS = 10
LEAST_SHARE = 0.05
"""Of the offline rate: no lower rate is tried."""
CLOSE = 1.05
"""Ratio of the smallest rate that failed to the largest that passed, at which the search ends."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `inference-load` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks; default: resnet-50, with --quick little-cnn."""
    frameworks: tuple[str, ...] = ()
    """Engines; default: all that cubemesh knows."""
    precisions: tuple[Precision, ...] = ("fp32",)
    """Precisions. Accuracy is not judged."""
    batch_sizes: tuple[int, ...] = (1,)
    """Most requests that are answered together."""
    limit: float | None = None
    """Limit of the latency in seconds; default: three times the p99 of requests one by one."""
    plan: str | None = None
    """Plan file to compare with them; networks are then its own by default."""


Key = tuple[str, Precision, int]
"""Engine, precision, most requests answered together."""


def plan(settings: Settings, context: Context) -> Plan:
    """For each engine the latency without load, the offline rate, then the search."""
    quick = context.scale is Scale.QUICK
    compared = compared_plan(settings.plan)
    for network in dict.fromkeys(settings.networks or default_networks(compared, quick)):
        for batch in dict.fromkeys(settings.batch_sizes):
            for program in programs(settings.frameworks, settings.precisions, compared):
                yield from _search(settings, context, network, batch, program)


def _search(
    settings: Settings, context: Context, network: str, batch: int, program: ProgramSettings
) -> Plan:
    def spec(work: InferLoad) -> RunSpec:
        return RunSpec(work=work, program=program, budget=context.budget)

    records = yield [
        spec(InferLoad(network=network, batch_per_device=1)),
        spec(InferLoad(network=network, batch_per_device=batch, scenario="offline")),
    ]
    if not all(record.ok for record in records):
        return
    single, offline = records[0], records[-1]
    limit = settings.limit or LIMIT_FACTOR * (single.figure("latency_p99_s") or 0.0)
    highest = offline.figure("throughput_per_s") or 0.0
    passed, failed, rate = 0.0, 0.0, FIRST_SHARE * highest
    for _ in range(MOST_TRIALS):
        work = InferLoad(
            network=network,
            batch_per_device=batch,
            scenario="server",
            requests_per_s=_rounded(rate),
            latency_limit_s=_rounded(limit),
        )
        (record,) = yield [spec(work)]
        if not record.ok:
            return
        if record.figure(LOAD_TEST_VALID) == 1:
            passed = rate
        else:
            failed = rate
        if failed and passed and failed / passed < CLOSE:
            return
        rate = (passed + failed) / 2 if failed else passed * 1.25
        if rate < LEAST_SHARE * highest:
            return


def _rounded(value: float) -> float:
    """Three significant digits, as they are shown."""
    return float(f"{value:.3g}")


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and chart from the records of one `inference-load`, by network."""
    return per_workload(records, lambda record: (_work(record).network,), _answer)


@dataclass(frozen=True, kw_only=True)
class RateSearch:
    """The tests of one engine."""

    key: Key
    single: RunRecord | None
    offline: RunRecord | None
    trials: tuple[RunRecord, ...]
    """Under load, by rate."""

    @property
    def title(self) -> str:
        """The engine, its precision and, above 1, how many requests it answers together."""
        name, precision, batch = self.key
        title = FRAMEWORKS[name].title if name in FRAMEWORKS else name
        return (title if name == PLAN else f"{title}, {precision}") + (
            f", at most {batch} together" if batch > 1 else ""
        )

    @property
    def limit_ms(self) -> float | None:
        """The limit of the latency."""
        limits = [limit for r in self.trials if (limit := _work(r).latency_limit_s) is not None]
        return 1e3 * limits[0] if limits else None

    @property
    def lowest_failed(self) -> float | None:
        """The smallest rate beyond the limit."""
        return min((_rate(r) for r in self.trials if not _kept(r)), default=None)

    @property
    def largest(self) -> RunRecord | None:
        """The test of the largest rate within the limit, below every rate beyond it."""
        failed = self.lowest_failed
        kept = [r for r in self.trials if _kept(r) and (failed is None or _rate(r) < failed)]
        return kept[-1] if kept else None

    @property
    def rate(self) -> Figure | None:
        """The largest rate within the limit, up to the smallest beyond it."""
        if self.largest is None:
            return None
        value, failed = _rate(self.largest), self.lowest_failed
        return Figure(
            value=value, unit="requests/s", low=None if failed is None else value, high=failed
        )


def searches(records: Sequence[RunRecord]) -> list[RateSearch]:
    """The tests by engine, in order of first occurrence. The latency without load is that of one
    request at a time, however many are answered together under load."""
    alone = {_key(r)[:2]: r for r in records if _work(r).scenario == "single-stream" and r.ok}
    found = []
    for group in group_by((r for r in records if _work(r).scenario != "single-stream"), _key):
        offline = [r for r in group.ok if _work(r).scenario == "offline"]
        trials = [r for r in group.ok if _work(r).scenario == "server"]
        found.append(
            RateSearch(
                key=group.key,
                single=alone.get(group.key[:2]),
                offline=offline[0] if offline else None,
                trials=tuple(sorted(trials, key=_rate)),
            )
        )
    return found


def _work(record: RunRecord) -> InferLoad:
    assert isinstance(record.spec.work, InferLoad)
    return record.spec.work


def _key(record: RunRecord) -> Key:
    program = record.spec.program
    return program.framework, program.precision, _work(record).batch_per_device


def _rate(record: RunRecord) -> float:
    return _work(record).requests_per_s or 0.0


def _kept(record: RunRecord) -> bool:
    return record.figure(LOAD_TEST_VALID) == 1


def _answer(records: Sequence[RunRecord]) -> Answer:
    found = searches(records)
    name = _work(records[0]).network if records else ""
    return answer_of(
        EXPERIMENT,
        titled(f"Inference of {name} under load", records),
        records,
        findings=_findings(found, records),
        tables=_tables([s for s in found if s.single or s.offline]),
        charts=_charts(found),
        notes=(
            "Requests of one sample from MLPerf's load generator. Single-stream: one after "
            "another. Offline: all at once. Server: at random times; a latency begins when the "
            "request was scheduled, so waiting behind others counts.",
            "The largest rate is the highest at which the load generator's result is VALID, below "
            "every rate at which it is not; its interval ends at the smallest of those. Other "
            "programs on the machine lower it.",
            "Weights are random, and accuracy in lower precisions is not judged.",
        ),
    )


def _tables(found: Sequence[RateSearch]) -> Iterator[Table]:
    if found:
        unit = throughput_unit(r for search in found for r in search.trials)
        yield Table(
            title="Largest rate",
            columns=(
                Column(name="engine"),
                Column(name="single-stream p50", unit="ms"),
                Column(name="p99", unit="ms"),
                Column(name="offline", unit=unit),
                Column(name="limit", unit="ms"),
                Column(name="largest rate", unit="requests/s"),
                Column(name="its p50", unit="ms"),
                Column(name="its p99", unit="ms"),
            ),
            rows=tuple(map(_row, found)),
        )
    trials = [(search, record) for search in found for record in search.trials]
    if trials:
        yield Table(
            title="Rates that were tried",
            columns=(
                Column(name="engine"),
                Column(name="rate", unit="requests/s"),
                Column(name="p50", unit="ms"),
                Column(name="p90", unit="ms"),
                Column(name="p99", unit="ms"),
                Column(name="within limit"),
            ),
            rows=tuple(
                (
                    Cell(text=search.title),
                    Cell(value=_rate(record), run_id=record.run_id),
                    _ms(record, "latency_p50_s"),
                    _ms(record, "latency_p90_s"),
                    _ms(record, "latency_p99_s"),
                    Cell(text="yes" if _kept(record) else "no"),
                )
                for search, record in trials
            ),
        )


def _row(search: RateSearch) -> tuple[Cell, ...]:
    offline = search.offline
    return (
        Cell(text=search.title),
        _ms(search.single, "latency_p50_s"),
        _ms(search.single, "latency_p99_s"),
        cell_or_dash(None if offline is None else offline.figure("throughput_per_s")),
        cell_or_dash(search.limit_ms),
        cell_or_dash(search.rate),
        _ms(search.largest, "latency_p50_s"),
        _ms(search.largest, "latency_p99_s"),
    )


def _ms(record: RunRecord | None, name: str) -> Cell:
    seconds = None if record is None else record.figure(name)
    if record is None or seconds is None:
        return cell_or_dash(None)
    return Cell(value=1e3 * seconds, run_id=record.run_id)


def _charts(found: Sequence[RateSearch]) -> Iterator[Chart]:
    lines = tuple(
        Line(
            name=search.title,
            points=tuple(
                Point(x=_rate(r), y=1e3 * p99, run_id=r.run_id)
                for r in search.trials
                if (p99 := r.figure("latency_p99_s")) is not None
            ),
        )
        for search in found
        if search.trials
    )
    if lines:
        yield Chart(
            name="inference-load",
            kind="line",
            title="p99 by rate of requests",
            x=Axis(name="rate", unit="requests/s"),
            y=Axis(name="p99", unit="ms", scale="log10"),
            lines=lines,
        )


def _findings(found: Sequence[RateSearch], records: Sequence[RunRecord]) -> Iterator[Finding]:
    """The rate of each engine, the largest first; engines that keep the limit at no rate; those
    that failed."""
    rated = [(s, rate) for s in found if (rate := s.rate) is not None]
    rated.sort(key=lambda pair: -pair[1].value)
    for place, (search, rate) in enumerate(rated):
        limit = format_number(search.limit_ms or 0.0)
        beyond = "" if rate.high is None else f", and not {format_number(rate.high)}"
        yield Finding(
            code="largest-rate",
            question="How many requests can it serve?" if place == 0 else None,
            text=f"{search.title}, serves {format_number(rate.value)} requests/s with p99 within "
            f"{limit} ms{beyond}.",
            value=rate.value,
            low=rate.low,
            high=rate.high,
            unit="requests/s",
            caveats=noise_codes(search.trials),
        )
    for search in found:
        if search.trials and search.rate is None:
            yield Finding(
                code="no-rate",
                text=f"{search.title}, keeps {format_number(search.limit_ms or 0.0)} ms at no rate "
                f"that was tried, down to {format_number(search.lowest_failed or 0.0)} requests/s.",
            )
    failures = [g for g in group_by(records, _key) if not g.ok]
    titles = [RateSearch(key=g.key, single=None, offline=None, trials=()).title for g in failures]
    yield from dict.fromkeys(map(failed_run, titles, failures))


EXPERIMENT = Experiment(
    name="inference-load",
    question="How many requests per second keep a limit of the latency?",
    settings=Settings,
    works=(InferLoad,),
    varies={
        "network": "networks",
        "framework": "frameworks",
        "precision": "precisions",
        "batch_per_device": "batch_sizes",
        "latency_limit_s": "limit",
        "scenario": "limit",
        "requests_per_s": "limit",
        "plan_file": "plan",
        "plan_checksum": "plan",
    },
    plan=plan,
    answer=answer,
    grows=True,
    alternates=False,
    papers="[002], section 5.10 (inference)",
)
