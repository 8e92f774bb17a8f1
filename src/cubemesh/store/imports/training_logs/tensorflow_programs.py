"""Logs of Keras and of tf_cnn_benchmarks.

391/391 [==============================] - 12s 31ms/step - loss: 1.5      Keras 2
391/391 ━━━━━━━━━━━━━━━━━━━━ 12s 31ms/step - accuracy: 0.4                Keras 3
391/391 - 12s - 31ms/step - accuracy: 0.4                                 verbose=2
10	images/sec: 215.5 +/- 0.1 (jitter = 0.6)	8.123                         tf_cnn_benchmarks
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cubemesh.errors import DataError
from cubemesh.store.imports.training_logs.intervals import (
    NUMBER,
    Interval,
    LogContext,
    LoggedTraining,
    LogLine,
    Sum,
    checked,
    differences,
    half_digit,
)

KERAS = re.compile(
    r"^\s{0,8}([0-9]{1,9})/([0-9]{1,9}) (?:\[[=>.]{1,200}\] - |[━╸╺]{1,200} |- )"
    r"([0-9]{1,9})s (?:- )?(?:.{0,400}? - )?([0-9]{1,9})(us|ms|s)/step"
)
_EPOCH = re.compile(r"^\s{0,8}Epoch ([0-9]{1,9})/[0-9]{1,9}\s{0,8}$")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
VALIDATION = "the validation after each epoch"
TF_CNN = re.compile(
    rf"^\s{{0,8}}([0-9]{{1,9}})\s{{1,8}}images/sec: {NUMBER} \+/- (?:nan|{NUMBER}) \(jitter"
)
_TOTAL = re.compile(rf"^\s{{0,8}}total images/sec: {NUMBER}")
_MODEL = re.compile(r"^Model: {1,12}([A-Za-z0-9._-]{1,60})")
_DATASET = re.compile(r"^Dataset: {1,12}([A-Za-z0-9._-]{1,60})( \(synthetic\))?")
_GLOBAL = re.compile(r"^Batch size: {1,12}([0-9]{1,9})(?:\.0)? global")
_PER_DEVICE = re.compile(r"^ {1,20}([0-9]{1,9})(?:\.0)? per device")


def keras(lines: Sequence[LogLine], context: LogContext, skip_steps: int) -> LoggedTraining:
    """`Progbar.update` of keras/src/utils/progbar.py: the last line of each epoch of `fit`.

    The time of a step leaves out the first; the time of the epoch does not. The one with the
    smaller rounding is used.
    """
    intervals: list[Interval] = []
    waiting, done, validated = False, 0, False
    for line in lines:
        if _EPOCH.match(line.text):
            waiting = True
            continue
        m = KERAS.match(line.text) if waiting else None
        if m is None or m[1] != m[2]:
            continue
        waiting = False
        validated = validated or " val_" in line.text
        steps, unit = int(m[1]), _UNITS[m[5]]
        step_s, epoch_s = int(m[4]) * unit, int(m[3])
        counted = max(1, steps - 1)
        rounding = 0.5 * unit / step_s if step_s else 1.0
        if epoch_s and 0.5 / epoch_s < rounding:
            counted, seconds, rounding = steps, float(epoch_s), 0.5 / epoch_s
        else:
            seconds = step_s * counted
        intervals.append(
            checked(
                context,
                line.number,
                first_step=done + steps - counted,
                steps=counted,
                seconds=seconds,
                rounding=rounding,
            )
        )
        done += steps
    if not intervals:
        raise DataError(
            f"{context.file} has progress lines of Keras, but none below a line 'Epoch 1/5': they "
            "are of an evaluation or a prediction."
        )
    return LoggedTraining(intervals=tuple(intervals), includes=VALIDATION if validated else "")


def tf_cnn_benchmarks(
    lines: Sequence[LogLine], context: LogContext, skip_steps: int
) -> LoggedTraining:
    """`get_perf_timing` of tensorflow/benchmarks, benchmark_cnn.py: the running mean over the steps
    after its own warm-up, of one worker. `total images/sec` is that of all workers."""
    facts: dict[re.Pattern[str], re.Match[str]] = {}
    for line in lines:
        for pattern in (_TOTAL, _MODEL, _DATASET, _GLOBAL, _PER_DEVICE):
            if (m := pattern.match(line.text)) is not None:
                facts.setdefault(pattern, m)
    stated = int(facts[_GLOBAL][1]) if _GLOBAL in facts else None
    batch = context.global_batch or stated
    if batch is None:
        raise DataError(
            f"{context.file} has no line 'Batch size: … global'. State it: --set global_batch=256."
        )
    found = [(line, m) for line in lines if (m := TF_CNN.match(line.text))]
    if any(float(m[2]) <= 0 for _, m in found):
        raise DataError(f"{context.file}: a rate of 0 images/sec.")
    workers = 1
    if _TOTAL in facts and found:
        workers = max(1, round(float(facts[_TOTAL][1]) / float(found[-1][1][2])))
    sums = [
        Sum(
            steps=(steps := int(m[1])),
            seconds=(seconds := steps * batch / (workers * float(m[2]))),
            error_s=seconds * half_digit(m[2]) / float(m[2]),
            line=line.number,
        )
        for line, m in found
    ]
    per_device = int(facts[_PER_DEVICE][1]) if _PER_DEVICE in facts else None
    dataset = facts.get(_DATASET)
    return LoggedTraining(
        intervals=tuple(differences(context, [sums], skip_steps)),
        global_batch=batch,
        devices=batch // per_device if per_device and batch % per_device == 0 else None,
        network=facts[_MODEL][1] if _MODEL in facts else None,
        data=None if dataset is None else "synthetic" if dataset[2] else dataset[1],
    )
