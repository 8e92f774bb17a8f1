"""First steps of a training, traced and not timed.

    step 1: batch ─ forward ─ backward ─ sync ─ update   every layer's result, every gradient
    step 2 …: batch ─ step ─ loss                        before and after synchronization
    last:     error rate on held-out samples, of the synchronized weights

Each rank records itself (`RankTrace`); replicas and runs are compared afterwards.
"""

from __future__ import annotations

import math
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Array
from cubemesh.data.feed import Feed, in_order
from cubemesh.data.source import Source
from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import (
    Diverged,
    Program,
    SupportsStepInspection,
    Unsupported,
    synchronize_replicas,
)
from cubemesh.measure.log import Log
from cubemesh.schema.first_steps_trace import COUNTERS, RankTrace, Sketch
from cubemesh.schema.record import Figure
from cubemesh.schema.work import FirstSteps
from cubemesh.training.evaluation import EvaluationResult, accuracy_figure, score
from cubemesh.training.history import by_step

FED_STEPS = 16
"""Number of first steps whose sample indices are stored."""
EVALUATED = 64
"""Samples that are evaluated at a time; how many changes no score."""
_SIGNS_SEED = 20021
"""Part of what a sketch is: sketches with other signs cannot be compared."""
_SIGNS = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
"""The signs of eight elements, by a random byte."""


def first_steps(
    program: Program,
    feed: Feed,
    validation: Source,
    work: FirstSteps,
    log: Log,
    group: Group,
    *,
    evaluates: bool = False,
) -> None:
    """Make `work.iterations` steps and log the trace of this rank, the curve of its losses, and
    on rank 0 the accuracy afterwards; with `evaluates` every rank takes part in that. Unsupported
    for a program without step inspection; Diverged for a loss that is not finite."""
    if not isinstance(program, SupportsStepInspection):
        raise Unsupported("This framework does not support step inspection. Set framework=pytorch.")
    with log.phase("steps"):
        replica = _steps(program, feed, work, group)
    log.replica(replica)
    log.curve(by_step("training_loss", dict(enumerate(replica.losses, start=1))))
    synchronize_replicas(program)
    if group.rank == 0 or evaluates:
        with log.phase("evaluate"):
            scored = _evaluated(program, validation)
    if group.rank == 0:
        log.figure("accuracy", accuracy_figure(scored.top1, scored.samples))
        log.figure("validation_loss", Figure(value=scored.loss, unit="", n=scored.samples))


def _steps(
    program: SupportsStepInspection, feed: Feed, work: FirstSteps, group: Group
) -> RankTrace:
    weights = _sketches(program.parameters())
    seen: dict[str, list[Sketch]] = {"output": [], "own gradient": [], "gradient": []}

    def look(kind: str, name: str, array: Array) -> None:
        part = group.rank if kind == "output" else 0
        seen[kind].append(sketch(name, array, part))

    fed, losses = [], []
    for step in range(work.iterations):
        placed = program.place(next(feed))
        if step < FED_STEPS:
            fed.append(tuple(map(int, feed.indices)))
        if step == 0:
            program.inspected_step(placed, look)
        else:
            program.train_step(placed)
        losses.append(finite_loss(program, step + 1))
    return RankTrace(
        rank=group.rank,
        fed=tuple(fed),
        losses=tuple(losses),
        weights=weights,
        outputs=tuple(seen["output"]),
        own_gradients=tuple(sorted(seen["own gradient"], key=lambda s: s.array)),
        gradients=tuple(sorted(seen["gradient"], key=lambda s: s.array)),
        final_weights=_sketches(program.parameters()),
    )


def finite_loss(program: Program, step: int) -> float:
    """The loss of `step`; Diverged where it is not finite."""
    loss = program.loss()
    if not math.isfinite(loss):
        raise Diverged(f"the loss was {loss} in step {step}. Lower learning_rate.")
    return loss


def _evaluated(program: Program, validation: Source) -> EvaluationResult:
    total = EvaluationResult()
    with closing(in_order(validation, EVALUATED)) as batches:
        for batch in batches:
            total += score(program.evaluate(program.place(batch)), batch.labels)
    return total


def _sketches(arrays: dict[str, Array]) -> tuple[Sketch, ...]:
    return tuple(sketch(name, arrays[name]) for name in sorted(arrays))


def sketch(name: str, array: Array, part: int = 0) -> Sketch:
    """The sketch of `array`, or of a larger array with `array` as part number `part` of equal
    parts, and zeros elsewhere. Element i of the whole, in C order, is added with its sign to
    counter i modulo `COUNTERS`."""
    own: NDArray[np.float64] = np.ascontiguousarray(array, dtype=np.float64).ravel()
    first = part * own.size
    row, column = divmod(first, COUNTERS)
    rows = -(-(column + own.size) // COUNTERS)
    whole = np.zeros(rows * COUNTERS)
    whole[column : column + own.size] = own
    drawn = np.random.default_rng(_SIGNS_SEED).bytes(row + rows)[row:]
    signs = _SIGNS[np.frombuffer(drawn, np.uint8)]
    return Sketch(
        array=name,
        norm=math.sqrt(own @ own),
        sums=tuple(map(float, np.einsum("rc,rc->c", whole.reshape(rows, COUNTERS), signs))),
    )
