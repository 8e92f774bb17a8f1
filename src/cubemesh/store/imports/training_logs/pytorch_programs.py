"""Logs of training programs for PyTorch: its ImageNet example, timm, and Hugging Face's Trainer.

    Epoch: [0][ 11/5005]	Time  0.250 ( 0.310)	Data …          ImageNet example
    Train: 0 [  50/1251 (  4%)]  Loss: 6.9 (6.9)  Time: 0.385s, 2660.12/s  (0.401s, 2553.62/s) …
    {'train_runtime': 123.4, 'train_samples_per_second': 45.6, …}      Hugging Face

Figures in parentheses are running means since the start of the epoch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cubemesh.errors import DataError
from cubemesh.store.imports.training_logs.intervals import (
    NUMBER,
    LogContext,
    LoggedTraining,
    LogLine,
    Sum,
    checked,
    differences,
    half_digit,
)

IMAGENET = re.compile(
    rf"Epoch: \[([0-9]{{1,9}})\]\[ {{0,9}}([0-9]{{1,9}})/ {{0,9}}[0-9]{{1,9}}\]\s{{1,4}}"
    rf"Time {{1,4}}{NUMBER} {{0,4}}\( {{0,4}}{NUMBER}\)"
)
TIMM = re.compile(
    rf"Train: ([0-9]{{1,9}}) \[ {{0,9}}([0-9]{{1,9}})/ {{0,9}}[0-9]{{1,9}} [^\]]{{0,20}}\]"
    rf".{{1,200}}?Time: {NUMBER}s, {{1,12}}{NUMBER}/s {{1,4}}\({NUMBER}s, {{1,12}}{NUMBER}/s\)"
)
HUGGING_FACE = re.compile(
    rf"\btrain_samples_per_second\b['\"]?\s{{0,40}}[:=]\s{{0,40}}['\"]?{NUMBER}"
)
_RUNTIME = re.compile(
    rf"\btrain_runtime\b['\"]?\s{{0,40}}[:=]\s{{0,40}}['\"]?"
    rf"(?:([0-9]{{1,6}}):([0-9]{{2}}):)?{NUMBER}"
)
_STEPS_RATE = re.compile(rf"\btrain_steps_per_second\b['\"]?\s{{0,40}}[:=]\s{{0,40}}['\"]?{NUMBER}")
_TOTAL_BATCH = re.compile(r"Total train batch size \([^)]{0,80}\) = ([0-9,]{1,15})")
_PER_DEVICE = re.compile(r"Instantaneous batch size per device = ([0-9,]{1,15})")
_ACCUMULATION = re.compile(r"Gradient Accumulation steps = ([0-9,]{1,15})")
_ALL_STEPS = re.compile(r"Total optimization steps = ([0-9,]{1,15})")
EVALUATION = "evaluation, checkpoints and logging during the training"


@dataclass(frozen=True)
class _Mean:
    """A line with a running mean."""

    line: int
    epoch: int
    index: int
    mean: str


def imagenet(lines: Sequence[LogLine], context: LogContext, skip_steps: int) -> LoggedTraining:
    """`AverageMeter('Time', ':6.3f')` of pytorch/examples, imagenet/main.py. Since 2022 it prints
    the number of the batch, before that its index from 0."""
    found = [
        _Mean(line.number, int(m[1]), int(m[2]), m[4])
        for line in lines
        if (m := IMAGENET.search(line.text))
    ]
    from_zero = any(one.index == 0 for one in found)
    sums = (
        [
            Sum(
                steps=(steps := one.index + from_zero),
                seconds=float(one.mean) * steps,
                error_s=half_digit(one.mean) * steps,
                line=one.line,
            )
            for one in epoch
        ]
        for epoch in _epochs(found)
    )
    return LoggedTraining(intervals=tuple(differences(context, sums, skip_steps)))


def timm(lines: Sequence[LogLine], context: LogContext, skip_steps: int) -> LoggedTraining:
    """`train_one_epoch` of timm's train.py. The global batch size is rate × time, if only one
    integer fits all lines."""
    found = []
    fits: list[tuple[float, float]] = []
    for line in lines:
        if (m := TIMM.search(line.text)) is None:
            continue
        found.append(_Mean(line.number, int(m[1]), int(m[2]), m[6]))
        for seconds, rate in ((m[3], m[4]), (m[5], m[6])):
            half = half_digit(seconds)
            fits.append(
                (float(rate) * (float(seconds) - half), float(rate) * (float(seconds) + half))
            )
        if float(m[6]) <= 0:
            raise context.wrong(line.number, "its mean rate is 0")
    batch = context.global_batch or _only_integer(fits)
    if batch is None:
        raise DataError(
            f"{context.file}: its rates and times fit no single batch size. State it: --set "
            "global_batch=1024."
        )
    sums = (
        [
            Sum(
                steps=(steps := one.index + 1),
                seconds=(seconds := steps * batch / float(one.mean)),
                error_s=seconds * half_digit(one.mean) / float(one.mean),
                line=one.line,
            )
            for one in epoch
        ]
        for epoch in _epochs(found)
    )
    return LoggedTraining(
        intervals=tuple(differences(context, sums, skip_steps)), global_batch=batch
    )


def _only_integer(fits: Sequence[tuple[float, float]]) -> int | None:
    """The one integer within all of these ranges."""
    low = max((low for low, _ in fits), default=0.0)
    high = min((high for _, high in fits), default=0.0)
    first = math.ceil(low)
    return first if 0 < first <= high < first + 1 else None


def _epochs(found: Sequence[_Mean]) -> Iterator[list[_Mean]]:
    """The lines of each epoch; one begins where its number changes or its steps begin again."""
    own: list[_Mean] = []
    for one in found:
        if own and (one.epoch != own[-1].epoch or one.index <= own[-1].index):
            yield own
            own = []
        own.append(one)
    if own:
        yield own


def hugging_face(lines: Sequence[LogLine], context: LogContext, skip_steps: int) -> LoggedTraining:
    """`speed_metrics` of transformers/trainer_utils.py: one interval, the whole training. It is in
    the printed dictionary, in `log_metrics`, and in all_results.json."""
    facts: dict[re.Pattern[str], tuple[LogLine, re.Match[str]]] = {}
    for line in lines:
        for pattern in (
            *(HUGGING_FACE, _RUNTIME, _STEPS_RATE),
            *(_TOTAL_BATCH, _PER_DEVICE, _ACCUMULATION, _ALL_STEPS),
        ):
            if (m := pattern.search(line.text)) is not None:
                facts.setdefault(pattern, (line, m))

    def whole(pattern: re.Pattern[str]) -> int | None:
        return int(facts[pattern][1][1].replace(",", "")) if pattern in facts else None

    if _RUNTIME not in facts or HUGGING_FACE not in facts:
        raise DataError(
            f"{context.file} has train_samples_per_second without train_runtime. Import the whole "
            "line, or all_results.json."
        )
    line, m = facts[_RUNTIME]
    rate = facts[HUGGING_FACE][1][1]
    seconds = 3600.0 * int(m[1] or 0) + 60.0 * int(m[2] or 0) + float(m[3])
    samples = round(float(rate) * seconds)
    steps_rate = facts[_STEPS_RATE][1][1] if _STEPS_RATE in facts else "0"
    batch = context.global_batch or whole(_TOTAL_BATCH)
    steps = whole(_ALL_STEPS) or round(float(steps_rate) * seconds)
    if not steps and batch:
        steps = round(samples / batch)
    per_device, accumulation = whole(_PER_DEVICE), whole(_ACCUMULATION) or 1
    if skip_steps:
        raise DataError(
            f"{context.file} has one rate for the whole training: no steps of it can be skipped."
        )
    interval = checked(
        context,
        line.number,
        first_step=0,
        steps=steps,
        seconds=seconds,
        rounding=half_digit(rate) / max(float(rate), 1e-9) + half_digit(m[3]) / max(seconds, 1e-9),
        samples=samples,
    )
    return LoggedTraining(
        intervals=(interval,),
        global_batch=batch or round(samples / steps) or None,
        devices=batch // (per_device * accumulation)
        if batch and per_device and batch % (per_device * accumulation) == 0
        else None,
        includes=EVALUATION,
    )
