"""Logs of MLPerf Training: `:::MLLOG` lines of mlperf_logging.

    :::MLLOG {"namespace": "", "time_ms": 1580, "event_type": "INTERVAL_START", "key":
    "epoch_start", "value": null, "metadata": {"epoch_num": 1}}

An interval is an epoch, or a block, from its start to its stop. Its samples are the difference of
`samples_count` of the two events; else `train_samples` times the epochs of the block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cubemesh.errors import DataError
from cubemesh.store.imports.training_logs.intervals import (
    Interval,
    LogContext,
    LoggedTraining,
    LogLine,
    checked,
)
from cubemesh.untrusted import parse_json

MLLOG = re.compile(r"^.{0,200}?:::MLLOG (\{.*\})\s{0,8}$")
NETWORKS: Mapping[str, str] = {"resnet": "resnet-50"}
"""Benchmark → network of cubemesh, where it has another name."""
_PAIRS = {"epoch_start": "epoch_stop", "block_start": "block_stop"}
_TIMER_S = 0.001
"""`time_ms` is in whole milliseconds."""


def mlperf(lines: Sequence[LogLine], context: LogContext, skip_steps: int) -> LoggedTraining:
    """The epochs of a log, or its blocks where it has no epochs."""
    facts: dict[str, Any] = {}
    begun: dict[str, tuple[float, Mapping[str, Any]]] = {}
    pieces: dict[str, list[tuple[int, float, Mapping[str, Any], Mapping[str, Any]]]] = {}
    for line in lines:
        if (m := MLLOG.search(line.text)) is None:
            continue
        key, time_s, value, metadata = _event(context, line, m[1])
        if key in _PAIRS:
            begun[key] = time_s, metadata
        for start, stop in _PAIRS.items():
            if key == stop and start in begun:
                start_s, own = begun.pop(start)
                pieces.setdefault(start, []).append((line.number, time_s - start_s, own, metadata))
        facts.setdefault(key, value)
    batch = context.global_batch or _count(facts.get("global_batch_size"))
    chosen = pieces.get("epoch_start") or pieces.get("block_start") or []
    if not chosen:
        raise DataError(f"{context.file} has no epoch or block with a start and a stop.")
    if batch is None:
        raise DataError(
            f"{context.file} has no global_batch_size. State it: --set global_batch=3264."
        )
    train_samples = _count(facts.get("train_samples"))
    intervals: list[Interval] = []
    done = 0
    for number, seconds, first, last in chosen:
        samples = _samples(first, last, train_samples)
        if samples is None:
            raise context.wrong(
                number,
                "neither train_samples nor samples_count states how many samples it has",
            )
        steps = max(1, round(samples / batch))
        intervals.append(
            checked(
                context,
                number,
                first_step=done,
                steps=steps,
                seconds=seconds,
                rounding=_TIMER_S / max(seconds, _TIMER_S),
                samples=samples,
            )
        )
        done += steps
    benchmark = facts.get("submission_benchmark")
    name = benchmark if isinstance(benchmark, str) else None
    return LoggedTraining(
        intervals=tuple(intervals),
        global_batch=batch,
        network=None if name is None else NETWORKS.get(name, name),
    )


def _event(
    context: LogContext, line: LogLine, text: str
) -> tuple[str, float, Any, Mapping[str, Any]]:
    """(key, time in seconds, value, metadata) of a line; DataError where it is damaged."""
    try:
        event = parse_json(text)
    except ValueError as error:
        raise context.wrong(line.number, f"it is not JSON: {error}") from None
    key = event.get("key") if isinstance(event, dict) else None
    time_ms = event.get("time_ms") if isinstance(event, dict) else None
    if not isinstance(key, str) or isinstance(time_ms, bool) or not isinstance(time_ms, int):
        raise context.wrong(line.number, "it has no key, or no time_ms in milliseconds")
    metadata = event.get("metadata")
    return key, 1e-3 * time_ms, event.get("value"), metadata if isinstance(metadata, dict) else {}


def _samples(
    first: Mapping[str, Any], last: Mapping[str, Any], train_samples: int | None
) -> int | None:
    begin, end = first.get("samples_count"), last.get("samples_count")
    if isinstance(begin, int) and isinstance(end, int) and end > begin:
        return end - begin
    if train_samples is None:
        return None
    return train_samples * (_count(first.get("epoch_count")) or 1)


def _count(value: Any) -> int | None:
    """A number of 1 or more."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
