"""How fast does a translator train, and what do its width and its attention cost?

Document 002 figures 6, 7 and 15: an LSTM translator with attention by a perceptron (Sockeye) or by
a product (Caffe2), in fp32, 512 to 2048 wide, 256 sentences a device and fewer where it is wider.
Training steps are timed at each width, attention and minibatch. A sentence is a pair, source and
target; the tokens counted are those of the target that are judged, so padding counts as none.
Two settings are compared at the largest minibatch that both ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from cubemesh.experiments.analysis.groups import Group, caveats, group_by, titled
from cubemesh.experiments.analysis.ratios import format_ratio, plus_minus, ratio, significance
from cubemesh.experiments.core import cpu_defaults as reduction
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.minibatch.analysis import KNEE_FRACTION
from cubemesh.experiments.minibatch.max_batch import may_double
from cubemesh.experiments.seq2seq.report import (
    NETWORKS,
    Groups,
    Key,
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
    warn,
)
from cubemesh.schema.spec import Precision

Attention = Literal["mlp", "plain"]
WIDTHS = (512, 1024, 2048)
BATCHES = (32, 64, 128, 256)
NARROWER = 4
"""By how much a CPU's widths are divided."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `seq2seq` besides the fields of its specs."""

    attentions: tuple[Attention, ...] = ("mlp", "plain")
    """`mlp` is `translator`, `plain` is `translator-plain`."""
    hidden_sizes: tuple[int, ...] = ()
    """Sizes of embeddings, LSTMs and attention; default: the paper's 512, 1024 and 2048, on a CPU
    a quarter of them."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes in sentences; default: 32 to 256, on a CPU an eighth of them, as far as this
    machine gets in reasonable time."""
    precisions: tuple[Precision, ...] = ("fp32",)
    """Precisions to train in; ratios are to the first."""


def plan(settings: Settings, context: Context) -> Plan:
    """Width by width, from the smallest minibatch up, the attentions side by side."""
    batches = sorted({*settings.batch_sizes} or {reduction.batch(b, context) for b in BATCHES})
    precisions = dict.fromkeys(settings.precisions)
    for width, precision in product(default_widths(settings, context), precisions):
        going = [NETWORKS[a] for a in dict.fromkeys(settings.attentions)]
        for batch in batches:
            if not going:
                break
            records = yield [
                RunSpec(
                    work=TrainSteps(network=network, batch_per_device=batch, hidden=width),
                    program=ProgramSettings(precision=precision),
                    budget=context.budget,
                )
                for network in going
            ]
            if not settings.batch_sizes:
                ended = {_key(r).network for r in records if not may_double(r, context.scale)}
                going = [network for network in going if network not in ended]


def default_widths(settings: Settings, context: Context) -> list[int]:
    """The widths named; else the document's, a quarter of them on a CPU, two with `--quick`."""
    if settings.hidden_sizes:
        return sorted(set(settings.hidden_sizes))
    narrower = NARROWER if reduction.is_reduced(context) else 1
    many = 2 if context.scale is Scale.QUICK else len(WIDTHS)
    return [width // narrower for width in WIDTHS[:many]]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and charts from the records of one `seq2seq`."""
    groups = sorted(group_by(records, _key), key=lambda g: (g.key.width, g.key.batch))
    told = []
    works = (r.spec.work for r in records)
    if any(isinstance(w, NetworkWork) and w.data == "synthetic" for w in works):
        told.append(
            "The text is made of chance: sentences that fill more than half of the network's "
            "length. data=parallel-text takes real ones."
        )
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=titled("Translators by width, attention and minibatch", records),
        findings=tuple(_findings(groups)),
        tables=(table(groups),),
        charts=tuple(charts(groups)),
        warnings=(*_reduced(settings, groups), *(w for r in records for w in r.warnings)),
        run_ids=tuple(r.run_id for r in records),
        notes=(
            "A sentence is a pair of source and target; tokens are those of the target that are "
            "judged, so padding counts as none.",
            *told,
            "Document 002 compares the interconnects of eight GPUs with these translators; its "
            "text states no speed of a single one.",
        ),
    )


def _key(record: RunRecord) -> Key:
    work = record.spec.work
    assert isinstance(work, NetworkWork)
    attention = next(a for a, network in NETWORKS.items() if network == work.network)
    width = work.hidden or entry(work.network).hidden
    return Key(attention, width, record.spec.program.precision, work.batch_per_device)


Done = tuple[Group[Key], Figure]


def _pairs(groups: Groups, field: str, over: Any, under: Any) -> Iterator[tuple[Done, Done]]:
    """Points that differ in `field` alone, at the largest minibatch that both ran."""
    done = {g.key: (g, f) for g in groups if (f := g.throughput) is not None}
    largest: dict[Key, Key] = {}
    for key in done:  # by minibatch, so the last to come is the largest
        if getattr(key, field) == under and key._replace(**{field: over}) in done:
            largest[key._replace(batch=0)] = key
    for key in largest.values():
        yield done[key._replace(**{field: over})], done[key]


def _findings(groups: Groups) -> Iterator[Finding]:
    yield from _fastest(groups)
    yield from _all_compared(groups, "attention", "mlp", ["plain"], "Which attention is faster?")
    for field, question in (
        ("width", "What does a wider translator cost?"),
        ("precision", "What do fewer bits gain?"),
    ):
        first, *others = values_of(groups, field) or [None]
        yield from _all_compared(groups, field, first, others, question)
    several = len(values_of(groups, "precision")) > 1
    for key, curve in curves(groups).items():
        done = [(g, f) for g in curve if (f := g.throughput) is not None]
        if len(done) > 1:
            yield _growth(name_of(key, several), done)
    for group in groups:
        if group.throughput is None:
            where = f"{name_of(group.key, several)}, minibatch {group.key.batch}"
            yield Finding(text=f"{where}: {group.why}.")


def _fastest(groups: Groups) -> Iterator[Finding]:
    done = [(g, f) for g in groups if (f := g.throughput) is not None]
    if not done:
        return
    group, figure = max(done, key=lambda pair: pair[1].value)
    rate, several = tokens(group), len(values_of(groups, "precision")) > 1
    also = f", {plus_minus(rate)} tokens/s" if rate else ""
    yield Finding(
        question="How fast does a translator train?",
        text=f"The fastest, {name_of(group.key, several)}, trains at {plus_minus(figure)} "
        f"sentences/s{also}, at minibatch {group.key.batch}.",
        value=figure.value,
        unit="sentences/s",
        low=figure.low,
        high=figure.high,
        caveats=group.caveats,
    )


def _all_compared(
    groups: Groups, field: str, under: Any, values: list[Any], question: str
) -> Iterator[Finding]:
    """Every comparison along one field; the first is the one that can stand alone."""
    several = len(values_of(groups, "precision")) > 1
    pairs = [pair for value in values for pair in _pairs(groups, field, value, under)]
    for place, (over, base) in enumerate(pairs):
        found = _compared(over, base, precision=several, operations=field == "width")
        yield found if place else replace(found, question=question)


def _compared(over: Done, under: Done, *, precision: bool, operations: bool) -> Finding:
    """One point as a multiple of another, in sentences a second; with `precision` in their names,
    and with `operations` compared as well."""
    (group, rate), (base, base_rate) = over, under
    found = ratio(rate, base_rate)
    one, other = name_of(group.key, precision), name_of(base.key, precision)
    at = f"At minibatch {base.key.batch}"
    if significance(found):
        text = f"{at} {one} trains {format_ratio(found)} as many sentences a second as {other}."
    else:
        text = f"{at} {one} and {other} are level: {format_ratio(found)}."
    if operations:
        text += f" A sentence takes {_flops(group) / _flops(base):.2g} times the operations."
    return Finding(
        text=text,
        value=found.value,
        unit="× the speed",
        low=found.low,
        high=found.high,
        caveats=caveats(group, base),
    )


def _flops(group: Group[Key]) -> int:
    work = group.records[0].spec.work
    assert isinstance(work, NetworkWork)
    return totals(build_for(work)).total.matrix_flops


def _growth(name: str, done: list[Done]) -> Finding:
    """Where throughput levels off: the first minibatch within 3 % of the fastest."""
    top = max(figure.value for _, figure in done)
    (first, slow), (last, _) = done[0], done[-1]
    level, figure = next(pair for pair in done if pair[1].value >= KNEE_FRACTION * top)
    remedy = ""
    if level is first:
        text = f"{name}: throughput does not grow with the minibatch from {first.key.batch} on."
    else:
        gain = f"{format_ratio(ratio(figure, slow))} that of {first.key.batch}"
        if level is last:
            text = f"{name}: throughput still grows at minibatch {level.key.batch}, {gain}."
            larger = 2 * level.key.batch, 4 * level.key.batch
            remedy = f"Try larger ones: --set batch_sizes={larger[0]},{larger[1]}"
        else:
            text = f"{name}: throughput levels off at minibatch {level.key.batch}, {gain}."
    return Finding(text=text, remedy=remedy, caveats=caveats(*(g for g, _ in done)))


def _reduced(settings: Settings, groups: Groups) -> Iterator[Warning]:
    told = []
    if groups and not settings.hidden_sizes and (most := groups[-1].key.width) < WIDTHS[-1]:
        told.append(f"widths up to {most} for {WIDTHS[-1]}")
    if not settings.batch_sizes:
        ends = {c[-1].key.batch for c in curves(groups).values() if c[-1].throughput is not None}
        if ends and min(ends) < BATCHES[-1]:
            told.append(f"minibatches up to {min(ends)} for {BATCHES[-1]}")
    if told:
        cause = (
            f"Less than the document: {'; '.join(told)}. On a CPU widths are a quarter and "
            "minibatches an eighth of the document's, and a list ends where a run would take too "
            "long, unless --full is given or they are named."
        )
        yield warn("reduced", cause, "Use --full, or name the settings.")


EXPERIMENT = Experiment(
    name="seq2seq",
    question="How fast does a translator train, and what do its width and its attention cost?",
    settings=Settings,
    works=(TrainSteps,),
    varies={
        "network": "attentions",
        "hidden": "hidden_sizes",
        "batch_per_device": "batch_sizes",
        "precision": "precisions",
    },
    plan=plan,
    answer=answer,
    documents="002 figures 6, 7 and 15",
)
