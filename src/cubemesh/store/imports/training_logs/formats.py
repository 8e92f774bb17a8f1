"""The training logs that can be read: which program wrote a log, and its reader."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cubemesh.errors import DataError, unknown_name
from cubemesh.store.imports.training_logs import (
    language_models,
    mlperf_log,
    mxnet_and_caffe,
    pytorch_programs,
    tensorflow_programs,
)
from cubemesh.store.imports.training_logs.intervals import (
    LogContext,
    LoggedTraining,
    LogLine,
    log_lines,
)

MAX_LINE = 20_000
"""Longer lines hold no figures and are left out."""
MAX_TRIED = 4 << 20
"""Characters at the beginning of a log in which its program is searched."""


@dataclass(frozen=True, kw_only=True)
class LogFormat:
    """A program's log."""

    title: str
    framework: str
    """The framework that the program trains with."""
    marker: str
    """Text that each line of figures contains."""
    pattern: re.Pattern[str]
    """A line of figures."""
    read: Callable[[Sequence[LogLine], LogContext, int], LoggedTraining]
    """(lines, what the user stated, steps that are skipped) → what the log states; DataError with
    the invalid line."""


FORMATS: Mapping[str, LogFormat] = {
    "pytorch-imagenet": LogFormat(
        title="PyTorch's ImageNet example",
        framework="pytorch",
        marker="Epoch: [",
        pattern=pytorch_programs.IMAGENET,
        read=pytorch_programs.imagenet,
    ),
    "timm": LogFormat(
        title="timm",
        framework="pytorch",
        marker="Train: ",
        pattern=pytorch_programs.TIMM,
        read=pytorch_programs.timm,
    ),
    "hugging-face": LogFormat(
        title="Hugging Face Trainer",
        framework="pytorch",
        marker="train_samples_per_second",
        pattern=pytorch_programs.HUGGING_FACE,
        read=pytorch_programs.hugging_face,
    ),
    "torchtitan": LogFormat(
        title="TorchTitan",
        framework="pytorch",
        marker="tps: ",
        pattern=language_models.TORCHTITAN,
        read=language_models.torchtitan,
    ),
    "megatron": LogFormat(
        title="Megatron-LM",
        framework="pytorch",
        marker="elapsed time per iteration",
        pattern=language_models.MEGATRON,
        read=language_models.megatron,
    ),
    "nemo": LogFormat(
        title="NeMo",
        framework="pytorch",
        marker="train_step_timing",
        pattern=language_models.NEMO,
        read=language_models.nemo,
    ),
    "keras": LogFormat(
        title="Keras",
        framework="keras",
        marker="/step",
        pattern=tensorflow_programs.KERAS,
        read=tensorflow_programs.keras,
    ),
    "tf-cnn-benchmarks": LogFormat(
        title="tf_cnn_benchmarks",
        framework="tensorflow",
        marker="images/sec",
        pattern=tensorflow_programs.TF_CNN,
        read=tensorflow_programs.tf_cnn_benchmarks,
    ),
    "mxnet": LogFormat(
        title="MXNet",
        framework="mxnet",
        marker="samples/sec",
        pattern=mxnet_and_caffe.MXNET,
        read=mxnet_and_caffe.mxnet,
    ),
    "caffe": LogFormat(
        title="Caffe",
        framework="caffe",
        marker="iter/s",
        pattern=mxnet_and_caffe.CAFFE,
        read=mxnet_and_caffe.caffe,
    ),
    "mlperf": LogFormat(
        title="MLPerf Training",
        framework="",
        marker=":::MLLOG",
        pattern=mlperf_log.MLLOG,
        read=mlperf_log.mlperf,
    ),
}
"""Name → format. A log of several programs, as MLPerf's, is of the one with the most lines."""


def lines_of(text: str) -> list[LogLine]:
    """The lines of a log."""
    return list(log_lines(text, MAX_LINE))


def find_format(lines: Sequence[LogLine]) -> str | None:
    """The program with the most lines of figures in the first `MAX_TRIED` characters; None for no
    training log."""
    count: Counter[str] = Counter()
    tried = 0
    for line in lines:
        tried += len(line.text)
        if tried > MAX_TRIED:
            break
        for name, known in FORMATS.items():
            if known.marker in line.text and known.pattern.search(line.text):
                count[name] += 1
    return count.most_common(1)[0][0] if count else None


def read_training_log(
    lines: Sequence[LogLine], name: str, context: LogContext, skip_steps: int
) -> LoggedTraining:
    """What a log of the program `name` states; DataError where it has no figures of it."""
    if name not in FORMATS:
        raise unknown_name("format of training logs", name, FORMATS, "", "formats")
    known = FORMATS[name]
    if not any(known.marker in line.text and known.pattern.search(line.text) for line in lines):
        raise DataError(f"{context.file} has no line of figures of {known.title}.")
    found = known.read(lines, context, skip_steps)
    if not found.intervals:
        raise DataError(f"{context.file} has no interval of two lines of {known.title}.")
    return found
