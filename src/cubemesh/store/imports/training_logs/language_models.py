"""Logs of programs that train language models: Megatron-LM, NeMo and TorchTitan.

     iteration       10/     100 | … | elapsed time per iteration (ms): 1234.5 | …
    global batch size:   256 | …                                                 Megatron-LM
    Training epoch 0, iteration 9/99 | … | global_batch_size: 256 | global_step: 9 | … |
    train_step_timing in s: 1.505 | …                                            NeMo
    step: 10  loss:  8.1234  memory: 12.34GiB(15.6%)  tps: 5,762  tflops: …  mfu: 35.2%

A sample is a sequence. TorchTitan prints tokens per second of one device.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cubemesh.errors import DataError
from cubemesh.forecast.transformers.layout import Layout
from cubemesh.store.imports.training_logs.intervals import (
    NUMBER,
    LogContext,
    LoggedTraining,
    LogLine,
    checked,
    half_digit,
    usual_step,
)

MEGATRON = re.compile(
    rf"\biteration {{1,12}}([0-9]{{1,12}})/ {{0,12}}(?:[0-9]{{1,12}}|infinity) \|.{{0,400}}?"
    rf"elapsed time per iteration \(ms\): {NUMBER}"
)
_MEGATRON_BATCH = re.compile(r"\bglobal batch size: {1,12}([0-9]{1,9})")
_WORLD_SIZE = re.compile(r"using world size: {0,4}([0-9]{1,7})")
_MEGATRON_GROUPS = {
    "dp": re.compile(r"(?<![\w-])data-parallel[- ]size: {0,4}([0-9]{1,7})\b"),
    "cp": re.compile(r"(?<![\w-])context-parallel[- ]size: {0,4}([0-9]{1,7})\b"),
    "tp": re.compile(r"(?<![\w-])tensor-model-parallel[- ]size: {0,4}([0-9]{1,7})\b"),
    "pp": re.compile(r"(?<![\w-])pipeline-model-parallel[- ]size: {0,4}([0-9]{1,7})\b"),
}
"""Group of devices → its size, in the line of the world size."""
_MEGATRON_PRECISION = re.compile(r"using torch\.(bfloat16|float16|float32) for parameters")
_MEGATRON_LENGTH = re.compile(r"^\s{0,8}seq_length \.{3,80} ([0-9]{1,9})")
NEMO = re.compile(
    rf"Training epoch [0-9]{{1,9}}, iteration ([0-9]{{1,12}})/[0-9]{{1,12}} \|.{{0,400}}?"
    rf"train_step_timing in s: {NUMBER}"
)
_NEMO_BATCH = re.compile(r"\bglobal_batch_size: ([0-9]{1,9})")
_NEMO_STEP = re.compile(r"\bglobal_step: ([0-9]{1,12})")
TORCHTITAN = re.compile(r"\bstep: {1,8}([0-9]{1,12}) .{0,200}?\btps: {1,8}([0-9][0-9,]{0,14})")
_TITAN_TRAINER = re.compile(
    r"Trainer is initialized with local batch size ([0-9]{1,9}), "
    r"global batch size ([0-9]{1,9}),.{0,60}? sequence length ([0-9]{1,9})"
)
_TITAN_WORLD = re.compile(r"\bworld_size[=:] ?([0-9]{1,7})\b")
_TITAN_MESH = re.compile(
    r"Building [0-9]-D device mesh with \[([a-z_', ]{1,120})\], \[([0-9, ]{1,60})\]"
)
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def megatron(lines: Sequence[LogLine], context: LogContext, skip_steps: int) -> LoggedTraining:
    """`training_log` of megatron/training/training.py: the mean over the iterations since the last
    line. The global batch size may grow."""
    found = [(line, m) for line in lines if (m := MEGATRON.search(line.text))]
    usual = usual_step([int(m[1]) for _, m in found])
    intervals, last, done, batch = [], None, 0, None
    for line, m in found:
        iteration = int(m[1])
        steps = usual if last is None or iteration <= last else iteration - last
        steps = min(steps, iteration) if last is None and iteration else steps
        stated = _MEGATRON_BATCH.search(line.text)
        batch = int(stated[1]) if stated else batch
        intervals.append(
            checked(
                context,
                line.number,
                first_step=done,
                steps=steps,
                seconds=1e-3 * float(m[2]) * steps,
                rounding=half_digit(m[2]) / max(float(m[2]), 1e-9),
                samples=None if batch is None else batch * steps,
            )
        )
        last, done = iteration, done + steps
    precision = _first(lines, _MEGATRON_PRECISION)
    return LoggedTraining(
        intervals=tuple(intervals),
        global_batch=batch,
        devices=_whole(lines, _WORLD_SIZE),
        precision=_PRECISIONS[precision] if precision else None,  # type: ignore[arg-type]
        sequence_length=_whole(lines, _MEGATRON_LENGTH),
        layout=_megatron_layout(lines),
    )


def nemo(lines: Sequence[LogLine], context: LogContext, skip_steps: int) -> LoggedTraining:
    """NeMo's progress lines: the time of the one step that is printed, so with
    `log_every_n_steps=10` of each tenth."""
    intervals, batch = [], None
    for line in lines:
        if (m := NEMO.search(line.text)) is None:
            continue
        stated, step = _NEMO_BATCH.search(line.text), _NEMO_STEP.search(line.text)
        batch = int(stated[1]) if stated else batch
        intervals.append(
            checked(
                context,
                line.number,
                first_step=int(step[1] if step else m[1]),
                steps=1,
                seconds=float(m[2]),
                rounding=half_digit(m[2]) / max(float(m[2]), 1e-9),
                samples=batch,
            )
        )
    return LoggedTraining(intervals=tuple(intervals), global_batch=batch)


def torchtitan(lines: Sequence[LogLine], context: LogContext, skip_steps: int) -> LoggedTraining:
    """`MetricsProcessor.log` of torchtitan/components/metrics.py. Seconds of an interval are its
    tokens per device over `tps`."""
    trainer = next((m for line in lines if (m := _TITAN_TRAINER.search(line.text))), None)
    batch = context.global_batch or (int(trainer[2]) if trainer else None)
    length = context.sequence_length or (int(trainer[3]) if trainer else None)
    devices = context.devices or _whole(lines, _TITAN_WORLD)
    if batch is None or length is None or devices is None:
        raise DataError(
            f"{context.file} has tokens per second of one device. For sequences per second, state "
            "--set global_batch=64 --set sequence_length=8192 --set devices=8."
        )
    found = [(line, m) for line in lines if (m := TORCHTITAN.search(line.text))]
    usual = usual_step([int(m[1]) for _, m in found])
    intervals, last = [], 0
    for line, m in found:
        step, rate = int(m[1]), int(m[2].replace(",", ""))
        steps = step - last if last and step > last else min(usual, max(step, 1))
        if rate == 0:
            raise context.wrong(line.number, "its rate is 0")
        intervals.append(
            checked(
                context,
                line.number,
                first_step=max(0, step - steps),
                steps=steps,
                seconds=steps * batch * length / (rate * devices),
                rounding=0.5 / rate,
            )
        )
        last = step
    return LoggedTraining(
        intervals=tuple(intervals),
        global_batch=batch,
        devices=devices,
        sequence_length=length,
        layout=_titan_layout(lines),
    )


def _megatron_layout(lines: Sequence[LogLine]) -> Layout | None:
    """The groups of devices that Megatron-LM states; None where it states plain data
    parallelism, or none."""
    text = next((line.text for line in lines if _WORLD_SIZE.search(line.text)), "")
    sizes = {name: int(m[1]) for name, p in _MEGATRON_GROUPS.items() if (m := p.search(text))}
    return _layout(**sizes)


def _titan_layout(lines: Sequence[LogLine]) -> Layout | None:
    """The device mesh of TorchTitan: `dp_shard` shares weights, gradients and optimizer states
    (`fully_shard`); `dp_replicate` repeats that."""
    mesh = next((m for line in lines if (m := _TITAN_MESH.search(line.text))), None)
    if mesh is None:
        return None
    names = [name.strip(" '") for name in mesh[1].split(",")]
    sizes = [int(size) for size in mesh[2].split(",") if size.strip()]
    if len(names) != len(sizes):
        return None
    axes = dict(zip(names, sizes, strict=True))
    shard, replicas = axes.get("dp_shard", 1), axes.get("dp_replicate", 1)
    groups = {name: axes.get(name, 1) for name in ("tp", "pp", "cp")}
    dp = axes.get("dp", shard * replicas)
    if shard == 1:
        return _layout(dp=dp, **groups)
    return _layout(dp=dp, zero=3, shard=shard * groups["cp"] if replicas > 1 else 0, **groups)


def _layout(**sizes: int) -> Layout | None:
    """None for a size below 1, and where each device has the whole network and optimizer state."""
    found = Layout(**sizes) if all(v or k == "shard" for k, v in sizes.items()) else Layout()
    return found if found.devices > found.dp or found.zero > 1 else None


def _first(lines: Sequence[LogLine], pattern: re.Pattern[str]) -> str | None:
    return next((m[1] for line in lines if (m := pattern.search(line.text))), None)


def _whole(lines: Sequence[LogLine], pattern: re.Pattern[str]) -> int | None:
    found = _first(lines, pattern)
    return None if found is None else int(found)
