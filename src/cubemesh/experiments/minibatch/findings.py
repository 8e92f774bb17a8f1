"""What `minibatch` finds, in sentences: where throughput stops growing, what else could be had.

Throughput *stops growing* at the smallest minibatch that comes within 3 % of the best. *Matrix use*
is the network's matrix FLOPs per second (a multiply-add is two) over the fastest matrix product
measured on the same device in the same precision. Bends and dear doublings are in `bends.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from cubemesh.experiments.analysis.groups import Group, caveats
from cubemesh.experiments.analysis.ratios import plus_minus
from cubemesh.experiments.minibatch.curvature import (
    curvature_findings,
    curvatures,
    superlinear_doublings,
)
from cubemesh.experiments.minibatch.input_starvation import input_bound_findings
from cubemesh.experiments.minibatch.report import MinibatchData
from cubemesh.schema import Figure, Finding
from cubemesh.units import format_quantity

KNEE_FRACTION = 0.97
"""Share of the best throughput from which on it no longer grows."""


def findings(shown: MinibatchData) -> Iterator[Finding]:
    """How fast, where it stops growing, what bends, how much of the matrix rate, who starves."""
    network, groups = shown.network, shown.training
    done = [(g, g.throughput) for g in groups if g.throughput is not None]
    if not done:
        if groups:
            yield Finding(text=f"{network} ran at no minibatch. {groups[0].key}: {groups[0].why}.")
        return
    best, top = max(done, key=lambda p: p[1].value)
    yield Finding(
        question="How fast?",
        text=f"This machine trains {network} at {plus_minus(top)} samples/s, at minibatch "
        f"{best.key}.",
        value=top.value,
        unit="samples/s",
        low=top.low,
        high=top.high,
        caveats=best.caveats,
    )
    if len(done) > 1:
        yield from _growth(done, top)
        yield from superlinear_doublings(groups, "a step")
        yield from superlinear_doublings(shown.forward, "a forward pass")
    yield from curvature_findings(curvatures(groups))
    if shown.rate:
        yield _matrix_use(shown, best, top)
    on_device = {g.key: g for g in shown.device}
    pairs = [(f"minibatch {g.key}", g, on_device[g.key]) for g in groups if g.key in on_device]
    yield from input_bound_findings(network, pairs)
    for group in groups:
        if group.throughput is None:
            yield Finding(text=f"Minibatch {group.key}: {group.why}.")


def _growth(done: list[tuple[Group[int], Figure]], top: Figure) -> Iterator[Finding]:
    first, slow = done[0]
    level, figure = next(p for p in done if p[1].value >= KNEE_FRACTION * top.value)
    if level.key == first.key:
        yield Finding(text=f"Throughput does not grow with the minibatch from {first.key} on.")
        return
    gain = figure.value / slow.value
    grown = f"{plus_minus(figure)} samples/s, {gain:.2g}× minibatch {first.key}"
    if level.key == done[-1][0].key:
        text = f"Throughput still grows at minibatch {level.key}, the largest measured: {grown}."
        remedy = f"Try larger ones: --set batch_sizes={2 * level.key},{4 * level.key}"
    else:
        text, remedy = f"Throughput stops growing at minibatch {level.key}: {grown}.", ""
    yield Finding(text=text, remedy=remedy, caveats=caveats(*(g for g, _ in done)))
    yield Finding(
        question="What does it lose the time to?",
        text=f"At minibatch {first.key} a sample takes {gain:.2g}× as long as at {level.key}.",
        caveats=caveats(first, level),
        value=gain,
        unit="× the time",
        remedy=f"Train at minibatch {level.key} where accuracy allows it.",
    )


def _matrix_use(shown: MinibatchData, best: Group[int], top: Figure) -> Finding:
    share = shown.share(best, top)
    return Finding(
        question="How much of its matrix rate?",
        text=f"At minibatch {best.key} {shown.network} gets {100 * share:.0f} % of the "
        f"{format_quantity(shown.rate or 0.0, 'FLOP/s')} that {shown.whose} fastest matrix product "
        "reaches.",
        value=100 * share,
        unit="%",
        caveats=best.caveats,
    )
