"""TensorFlow on this machine: its capabilities, and the settings of a run.

precision   arrays     computed in
fp64        float64    float64
fp32        float32    float32, TF32 switched off
tf32        float32    float32, matrix products and convolutions in TF32 (CUDA)
bf16        float32    products in bfloat16, statistics and loss in float32
fp16        float32    products in float16, statistics and loss in float32, loss scaled

Only `nhwc` is supported where XLA does not compile: TensorFlow's CPU kernels have no backward pass
of a convolution, and few poolings, in `nchw`. On a GPU TensorFlow's layout optimizer converts what
cuDNN computes faster in the other layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    "tf32": TensorFlowNumerics(),
    "bf16": TensorFlowNumerics(products=tf.bfloat16),
    "fp16": TensorFlowNumerics(products=tf.float16, loss_scale=1024.0),
}
"""One line a precision."""

_AMPERE = (8, 0)
"""The first compute capability with TF32 and bfloat16 (NVIDIA, CUDA C++ Programming Guide)."""
_VISIBLE = "GPU:0"
"""TensorFlow's name for the GPU of this process, the only one that it sees (`prepare`)."""
_DRIVER = Path("/proc/driver/nvidia/version")


def capabilities() -> Capabilities:
    """What TensorFlow can do here when it runs a graph operation by operation. May initialize
    CUDA."""
    gpus = tf.config.list_physical_devices("GPU")
    precisions = {"cpu": frozenset({"fp64", "fp32", "bf16", "fp16"})}
    if gpus:
        ampere = all(_compute_capability(gpu) >= _AMPERE for gpu in gpus)
        ampere_only = {"tf32", "bf16"} if ampere else set()
        precisions["cuda"] = frozenset({"fp64", "fp32", "fp16"} | ampere_only)
    hint = "" if gpus else gpu_hint(tf.test.is_built_with_cuda(), _DRIVER.exists())
    return Capabilities(
        works=frozenset(
            {
                *("train_steps", "forward", "forward_backward", "train"),
                *("infer", "infer_load", "input", "ceiling"),
            }
        ),
        devices=(*(f"cuda:{i}" for i in range(len(gpus))), "cpu"),
        precisions=precisions,
        layouts=frozenset({"nhwc"}),
        optimizers=frozenset({"sgd", "rmsprop", "adam"}),
        sync_features=frozenset({"all-reduce"}),
        hint=hint,
        lacking=frozenset({"cuda"} if hint else ()),
    )


def _compute_capability(gpu: Any) -> tuple[int, ...]:
    details = tf.config.experimental.get_device_details(gpu)
    return tuple(details.get("compute_capability", (0, 0)))


def gpu_hint(built_with_cuda: bool, has_driver: bool) -> str:
    """What to install so that TensorFlow, which sees no GPU here, can use one; empty where there is
    none that it could use."""
    install = f"pip install 'tensorflow[and-cuda]=={tf.__version__}'"
    if not built_with_cuda:
        return (
            f"TensorFlow {tf.__version__} here is built without CUDA. For GPUs install the build "
            f"with CUDA instead: pip uninstall tensorflow-cpu, then {install}."
        )
    if has_driver:
        return (
            f"TensorFlow {tf.__version__} finds no GPU, although NVIDIA's driver is loaded: CUDA's "
            f"libraries are missing, or CUDA_VISIBLE_DEVICES hides the GPUs. Install them: "
            f"{install}."
        )
    return ""


def prepare(device: str, threads: int) -> None:
    """Apply TensorFlow's settings of the whole process: its device and its threads.

    A GPU is the only one that the process sees, and its memory is allocated as needed instead of
    all at the start. TensorFlow creates its pool of threads and its devices once, when it first
    computes; UsageError for others afterwards. Operations run one after another, each on all
    threads.
    """
    kind, _, index = device.partition(":")
    visible = [tf.config.list_physical_devices("GPU")[int(index)]] if kind == "cuda" else []
    try:
        tf.config.set_visible_devices(visible, "GPU")
        for gpu in visible:
            tf.config.experimental.set_memory_growth(gpu, True)
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError as error:
        used = tf.config.threading.get_intra_op_parallelism_threads()
        raise UsageError(
            f"TensorFlow already computes in this process with "
            f"{used or 'its default number of'} threads on "
            f"{'a GPU' if tf.config.get_visible_devices('GPU') else 'the CPU'}, which cannot "
            f"become {threads} threads on {device} any more. Use a separate process."
        ) from error


def use_precision(precision: str) -> None:
    """Switch TF32 on or off for what is traced and run from now on; only GPUs have it."""
    wanted = precision == "tf32"
    if tf.config.experimental.tensor_float_32_execution_enabled() != wanted:
        tf.config.experimental.enable_tensor_float_32_execution(wanted)


def synchronize(device: str) -> None:
    """Wait for all queued work of `device`; on a CPU a graph returns when it is done."""
    if device != "cpu":
        tf.test.experimental.sync_devices()


def reset_peak_memory(device: str) -> None:
    """Let `peak_memory_bytes` count from now on."""
    if device != "cpu":
        tf.config.experimental.reset_memory_stats(_VISIBLE)


def peak_memory_bytes(device: str) -> int | None:
    """Peak bytes of TensorFlow's arrays; None on a CPU, where it does not count."""
    if device == "cpu":
        return None
    peak: int = tf.config.experimental.get_memory_info(_VISIBLE)["peak"]
    return peak


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that memory was refused."""
    return isinstance(error, (OutOfMemory, MemoryError, tf.errors.ResourceExhaustedError))


def preload() -> None:
    """Nothing more: importing this module has imported TensorFlow whole. Its threads start when it
    first computes, so a fork before that is safe."""
