"""TensorFlow on this machine: its capabilities, and the settings of a run.

precision   arrays     computed in
fp64        float64    float64
fp32        float32    float32
bf16        float32    products in bfloat16, statistics and loss in float32
fp16        float32    products in float16, statistics and loss in float32, loss scaled

Only the CPU is supported, and only `nhwc` where XLA does not compile: TensorFlow's CPU kernels have
no backward pass of a convolution, and few poolings, in `nchw`.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import Capabilities, OutOfMemory


@dataclass(frozen=True, kw_only=True)
class TensorFlowNumerics:
    """The types of a program's arrays and operations at one precision."""

    arrays: tf.DType = tf.float32
    """Type of parameters, state, statistics and loss."""
    products: tf.DType = tf.float32
    """Type of convolutions and matrix products, and of their results."""
    loss_scale: float = 1.0
    """Factor of the loss and divisor of the gradients, so that small ones do not underflow in
    float16 (Micikevicius et al. 2018, who found 8 to 32,768 sufficient)."""


NUMERICS: dict[str, TensorFlowNumerics] = {
    "fp64": TensorFlowNumerics(arrays=tf.float64, products=tf.float64),
    "fp32": TensorFlowNumerics(),
    "bf16": TensorFlowNumerics(products=tf.bfloat16),
    "fp16": TensorFlowNumerics(products=tf.float16, loss_scale=1024.0),
}
"""One line a precision."""


def capabilities() -> Capabilities:
    """What TensorFlow can do here when it runs a graph operation by operation."""
    return Capabilities(
        works=frozenset(
            {
                *("train_steps", "forward", "forward_backward", "train"),
                *("infer", "infer_load", "input", "ceiling"),
            }
        ),
        devices=("cpu",),
        precisions={"cpu": frozenset(NUMERICS)},
        layouts=frozenset({"nhwc"}),
        optimizers=frozenset({"sgd", "rmsprop", "adam"}),
        sync_features=frozenset({"all-reduce"}),
    )


def prepare(threads: int) -> None:
    """Apply TensorFlow's settings of the whole process: its threads, and the CPU as its device.

    Its pool is created once, when it first computes; UsageError for another number of threads
    afterwards. Operations run one after another, each on all threads.
    """
    try:
        tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError as error:
        raise UsageError(
            f"TensorFlow already computes in this process with "
            f"{tf.config.threading.get_intra_op_parallelism_threads()} threads, which cannot "
            f"become {threads} any more. Use a separate process."
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that memory was refused."""
    return isinstance(error, (OutOfMemory, MemoryError, tf.errors.ResourceExhaustedError))


def preload() -> None:
    """Nothing more: importing this module has imported TensorFlow whole. Its threads start when it
    first computes, so a fork before that is safe."""
