"""Sequence-to-sequence training: throughput by hidden size, attention and batch size.

DGX-1 V100 white paper [002], figures 6, 7 and 15: an LSTM translator with attention by a perceptron
(Sockeye) or by a product (Caffe2), in fp32, hidden sizes 512 to 2048, 256 sentences per device and
fewer at larger sizes. Training steps are timed at each hidden size, attention and batch size. A
sentence is a pair of source and target; tokens are those of the target, without padding. Two
settings are compared at the largest batch size that both ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from cubemesh.experiments.analysis.answer import answer_of, failed_run
from cubemesh.experiments.analysis.groups import Group, caveats, group_by, titled
from cubemesh.experiments.analysis.ratios import (
    Verdict,
    format_ratio,
    plus_minus,
    ratio,
    verdicts,
)
from cubemesh.experiments.core import cpu_defaults as reduction
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.minibatch.analysis import KNEE_FRACTION
from cubemesh.experiments.minibatch.max_batch import may_double
from cubemesh.experiments.seq2seq.report import (
    NETWORKS,
    Groups,
    TranslatorSetting,
    charts,
    curves,
    name_of,
    table,
    tokens,
    values_of,
)
from cubemesh.networks import build_for, entry
from cubemesh.networks.cost import totals
from cubemesh.schema import (
    Answer,
    Figure,
    Finding,
    NetworkWork,
    ProgramSettings,
    RunRecord,
    RunSpec,
    TrainSteps,
    Warning,
)
from cubemesh.schema.spec import Precision

Attention = Literal["mlp", "plain", "input-feeding"]
HIDDEN_SIZES = (512, 1024, 2048)
BATCHES = (32, 64, 128, 256)
CPU_DIVISOR = 4
"""Divisor of the hidden sizes on a CPU."""
SYNTHETIC_NOTE = (
    "The text is random: sentences that fill more than half of the network's sequence length. "
    "data=parallel-text uses real text."
)
RULE = (
    "On a CPU hidden sizes are a quarter and batch sizes an eighth of the paper's, and a list ends "
    "where a run would take too long, unless --full or the settings are given."
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `seq2seq` besides the fields of its specs."""

    attentions: tuple[Attention, ...] = ("mlp", "plain")
    """`mlp` is `translator`, `plain` is `translator-plain`, `input-feeding` is `translator-2x`,
    which has two layers and dropout as well."""
    hidden_sizes: tuple[int, ...] = ()
    """Sizes of embeddings, LSTMs and attention; default: the paper's 512, 1024 and 2048, on a CPU
    a quarter of them."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes in sentences; default: 32 to 256, on a CPU an eighth of them, as far as this
    machine gets in reasonable time."""
    precisions: tuple[Precision, ...] = ("fp32",)
    """Precisions to train in; ratios are to the first."""


def plan(settings: Settings, context: Context) -> Plan:
    """By hidden size, from the smallest batch size up."""
    batches = sorted({*settings.batch_sizes} or {reduction.batch(b, context) for b in BATCHES})
    precisions = dict.fromkeys(settings.precisions)
    for hidden, precision in product(default_sizes(settings, context), precisions):
        remaining = [NETWORKS[a] for a in dict.fromkeys(settings.attentions)]
        for batch in batches:
            if not remaining:
                break
            records = yield [
                RunSpec(
                    work=TrainSteps(network=network, batch_per_device=batch, hidden=hidden),
                    program=ProgramSettings(precision=precision),
                    budget=context.budget,
                )
                for network in remaining
            ]
            if not settings.batch_sizes:
                ended = {_key(r).network for r in records if not may_double(r, context.scale)}
                remaining = [network for network in remaining if network not in ended]


def default_sizes(settings: Settings, context: Context) -> list[int]:
    """The hidden sizes set; else the paper's, a quarter of them on a CPU, two with --quick."""
    if settings.hidden_sizes:
        return sorted(set(settings.hidden_sizes))
    divisor = CPU_DIVISOR if reduction.is_reduced(context) else 1
    many = 2 if context.scale is Scale.QUICK else len(HIDDEN_SIZES)
    return [size // divisor for size in HIDDEN_SIZES[:many]]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and charts from the records of one `seq2seq`."""
    groups = sorted(group_by(records, _key), key=lambda g: (g.key.hidden, g.key.batch))
    works = (r.spec.work for r in records)
    synthetic = any(isinstance(w, NetworkWork) and w.data == "synthetic" for w in works)
    return answer_of(
        EXPERIMENT,
        titled("Translators by hidden size, attention and batch size", records),
        records,
        findings=_findings(groups),
        tables=(table(groups),),
        charts=charts(groups),
        warnings=_reduced(settings, groups),
        notes=(
            "A sentence is a pair of source and target; tokens are those of the target, without "
            "padding.",
            *([SYNTHETIC_NOTE] if synthetic else []),
            "DGX-1 V100 white paper [002] compares the interconnects of eight GPUs with these "
            "translators; it states no throughput of a single GPU.",
        ),
    )


def _key(record: RunRecord) -> TranslatorSetting:
    work = record.spec.work
    assert isinstance(work, NetworkWork)
    attention = next(a for a, network in NETWORKS.items() if network == work.network)
    hidden = work.hidden or entry(work.network).hidden
    return TranslatorSetting(
        attention, hidden, record.spec.program.precision, work.batch_per_device
    )


Done = tuple[Group[TranslatorSetting], Figure]


def _done(groups: Groups) -> list[Done]:
    return [(g, f) for g in groups if (f := g.throughput) is not None]


def _pairs(groups: Groups, field: str, over: Any, under: Any) -> Iterator[tuple[Done, Done]]:
    """Points that only differ in `field`, at the largest batch size that both ran."""
    done = {g.key: (g, f) for g, f in _done(groups)}
    largest: dict[TranslatorSetting, TranslatorSetting] = {}
    for key in done:  # sorted by batch size: the last is the largest
        if getattr(key, field) == under and key._replace(**{field: over}) in done:
            largest[key._replace(batch=0)] = key
    for key in largest.values():
        yield done[key._replace(**{field: over})], done[key]


def _findings(groups: Groups) -> Iterator[Finding]:
    yield from _fastest(groups)
    yield from _all_compared(
        groups, "attention", "mlp", ["plain", "input-feeding"], "Which attention is faster?"
    )
    for field, question in (
        ("hidden", "What does a larger hidden size cost?"),
        ("precision", "What does lower precision gain?"),
    ):
        first, *others = values_of(groups, field) or [None]
        yield from _all_compared(groups, field, first, others, question)
    several = len(values_of(groups, "precision")) > 1
    for key, curve in curves(groups).items():
        done = _done(curve)
        if len(done) > 1:
            yield _growth(name_of(key, several), done)
    for group in groups:
        if group.throughput is None:
            where = f"{name_of(group.key, several)}, batch size {group.key.batch}"
            yield failed_run(where, group)


def _fastest(groups: Groups) -> Iterator[Finding]:
    done = _done(groups)
    if not done:
        return
    group, figure = max(done, key=lambda pair: pair[1].value)
    rate, several = tokens(group), len(values_of(groups, "precision")) > 1
    also = f", {plus_minus(rate)} tokens/s" if rate else ""
    yield Finding.of(
        code="highest-throughput",
        question="How fast does a translator train?",
        text=f"Highest throughput: {plus_minus(figure)} sentences/s{also} with "
        f"{name_of(group.key, several)}, batch size {group.key.batch}.",
        figure=figure,
        unit="sentences/s",
        caveats=group.caveats,
    )


def _all_compared(
    groups: Groups, field: str, under: Any, values: list[Any], question: str
) -> Iterator[Finding]:
    """All comparisons along one field; the first carries the question."""
    several = len(values_of(groups, "precision")) > 1
    pairs = [pair for value in values for pair in _pairs(groups, field, value, under)]
    judged = verdicts([ratio(over[1], base[1]) for over, base in pairs])
    for place, ((over, base), verdict) in enumerate(zip(pairs, judged, strict=True)):
        found = _compared(over, base, field, verdict, precision=several)
        yield found if place else replace(found, question=question)


def _compared(over: Done, under: Done, field: str, verdict: Verdict, *, precision: bool) -> Finding:
    """Throughput of one point relative to another, which differs in `field`."""
    (group, rate), (base, base_rate) = over, under
    found = ratio(rate, base_rate)
    one, other = name_of(group.key, precision), name_of(base.key, precision)
    at = f"At batch size {base.key.batch}"
    if verdict.sign:
        text = f"{at}, {one} trains {format_ratio(found)} as many sentences/s as {other}."
    else:
        text = f"{at}, no significant difference of {one} and {other}: {format_ratio(found)}; "
        text += f"{verdict.unseen}."
    if field == "hidden":
        text += f" A sentence takes {_flops(group) / _flops(base):.2g} times the operations."
    return Finding.of(
        code=f"{field}-comparison",
        text=text,
        figure=found,
        unit="× the speed",
        caveats=caveats(group, base),
    )


def _flops(group: Group[TranslatorSetting]) -> int:
    work = group.records[0].spec.work
    assert isinstance(work, NetworkWork)
    return totals(build_for(work)).total.matrix_flops


def _growth(name: str, done: list[Done]) -> Finding:
    """The knee of throughput: the first batch size within 3 % of the highest."""
    top = max(figure.value for _, figure in done)
    (first, slow), (last, _) = done[0], done[-1]
    knee, figure = next(pair for pair in done if pair[1].value >= KNEE_FRACTION * top)
    code, remedy = "throughput-knee", ""
    if knee is first:
        code = "flat-throughput"
        text = f"{name}: throughput does not grow with the batch size above {first.key.batch}."
    else:
        gain = f"{format_ratio(ratio(figure, slow))} that at {first.key.batch}"
        if knee is last:
            code = "growing-throughput"
            text = f"{name}: throughput still grows at batch size {knee.key.batch}, {gain}."
            batch = knee.key.batch
            remedy = f"Try larger batch sizes: --set batch_sizes={2 * batch},{4 * batch}"
        else:
            text = f"{name}: throughput knee at batch size {knee.key.batch}, {gain}."
    return Finding(
        code=code,
        text=text,
        value=knee.key.batch,
        remedy=remedy,
        caveats=caveats(*(g for g, _ in done)),
    )


def _reduced(settings: Settings, groups: Groups) -> tuple[Warning, ...]:
    less = []
    most = groups[-1].key.hidden if groups else HIDDEN_SIZES[-1]
    if not settings.hidden_sizes and most < HIDDEN_SIZES[-1]:
        less.append(f"hidden sizes up to {most} instead of {HIDDEN_SIZES[-1]}")
    if not settings.batch_sizes:
        ends = {c[-1].key.batch for c in curves(groups).values() if c[-1].throughput is not None}
        if ends and min(ends) < BATCHES[-1]:
            less.append(f"batch sizes up to {min(ends)} instead of {BATCHES[-1]}")
    records = (record for group in groups for record in group.records)
    return reduction.reduced(less, reduction.rule_of(records, RULE))


EXPERIMENT = Experiment(
    name="seq2seq",
    question="How fast does a translator train, by hidden size and attention?",
    settings=Settings,
    works=(TrainSteps,),
    varies={
        "network": "attentions",
        "hidden": "hidden_sizes",
        "batch_per_device": "batch_sizes",
        "precision": "precisions",
    },
    plan=plan,
    grows=True,
    answer=answer,
    papers="[002], figures 6, 7 and 15",
)
