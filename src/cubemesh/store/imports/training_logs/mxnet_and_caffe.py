"""Logs of MXNet and Caffe, whose programs are no longer developed but whose logs are published.

Epoch[0] Batch [20-40]	Speed: 1234.50 samples/sec	accuracy=0.1              MXNet
… solver.cpp:239] Iteration 20 (3.5 iter/s, 5.7s/20 iters), loss = 6.9        Caffe
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cubemesh.errors import DataError
from cubemesh.store.imports.training_logs.intervals import (
    NUMBER,
    LogContext,
    LoggedTraining,
    LogLine,
    checked,
    half_digit,
    usual_step,
)

MXNET = re.compile(
    r"(?:Epoch|Iter)\[([0-9]{1,9})\] {1,4}Batch {0,4}\[(?:[0-9]{1,9}-)?([0-9]{1,9})\]\s{1,8}"
    rf"Speed: {NUMBER} samples/sec"
)
CAFFE = re.compile(
    rf"\bIteration ([0-9]{{1,9}}) \({NUMBER} iter/s, {NUMBER}s/([0-9]{{1,9}}) iters?\)"
)


def mxnet(lines: Sequence[LogLine], context: LogContext, skip_steps: int) -> LoggedTraining:
    """`Speedometer` of python/mxnet/callback.py, and scripts of GluonCV: samples of the batches
    since the last line over their seconds."""
    if context.global_batch is None:
        raise DataError(
            f"{context.file} does not state its batch size. Add --set global_batch=256, or "
            "batch_per_device and devices."
        )
    found = [(line, m) for line in lines if (m := MXNET.search(line.text))]
    usual = usual_step([int(m[2]) for _, m in found])
    intervals, done, last = [], 0, None
    for line, m in found:
        place = int(m[1]), int(m[2])
        same = last is not None and place[0] == last[0] and place[1] > last[1]
        steps = place[1] - last[1] if same and last is not None else usual
        rate = float(m[3])
        if rate <= 0:
            raise context.wrong(line.number, "its rate is 0")
        intervals.append(
            checked(
                context,
                line.number,
                first_step=done,
                steps=steps,
                seconds=steps * context.global_batch / rate,
                rounding=half_digit(m[3]) / rate,
            )
        )
        last, done = place, done + steps
    return LoggedTraining(intervals=tuple(intervals))


def caffe(lines: Sequence[LogLine], context: LogContext, skip_steps: int) -> LoggedTraining:
    """`Solver::Step` of src/caffe/solver.cpp: the seconds of the iterations since the last line."""
    intervals, done = [], 0
    for line in lines:
        m = CAFFE.search(line.text)
        if m is None or float(m[2]) == 0.0 or float(m[3]) == 0.0:
            continue  # iteration 0 has no iterations before it
        seconds = float(m[3])
        steps = round(float(m[2]) * seconds) or int(m[4])
        intervals.append(
            checked(
                context,
                line.number,
                first_step=done,
                steps=steps,
                seconds=seconds,
                rounding=half_digit(m[3]) / seconds,
            )
        )
        done += steps
    if not intervals:
        raise DataError(f"{context.file} has no iteration of Caffe after the first.")
    return LoggedTraining(intervals=tuple(intervals))
