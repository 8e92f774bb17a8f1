"""Capabilities of PyTorch on this machine, and process settings of a run.

precision   arrays     computed in
fp64        float64    float64
fp32        float32    float32, TF32 switched off
tf32        float32    float32, matrix products and convolutions in TF32 (CUDA)
bf16        float32    autocast: products in bfloat16, reductions in float32
fp16        float32    autocast: products in float16, reductions in float32, loss scaled
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from cubemesh.frameworks.contract.program import BuildRequest, Capabilities, OutOfMemory
from cubemesh.frameworks.environment import environment_variable
from cubemesh.frameworks.pytorch.precision.float8_linear import supported as float8_supported
from cubemesh.kernels.cpu.allocator import keep_freed_memory
from cubemesh.networks.layers import Recurrence
from cubemesh.schema.spec import ProgramSettings

ARRAY_TYPES = {"fp64": torch.float64}
"""Precision → dtype of parameters, state and images, where it is not float32."""
AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision → dtype of products under autocast."""
MEMORY_FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}

_AMPERE = (8, 0)
"""The first compute capability with TF32 and bfloat16 (NVIDIA, CUDA C++ Programming Guide)."""
_REFUSALS = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "could not allocate",
    "bad_alloc",
    "alloc_failed",
)
"""In the messages of allocators that refuse memory: PyTorch, C++, the system, cuBLAS, cuDNN."""
_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS", "32"
LAYER_PRECISIONS = frozenset({"fp64", "fp32", "tf32", "bf16", "fp16"})
"""Of single layers, besides FP8."""
_NO_PRIMITIVE = "could not create a primitive"
"""oneDNN's message when a supported operation gets no memory for its generated code or tables (it
says "primitive descriptor" for an unsupported one)."""


def capabilities() -> Capabilities:
    """The capabilities of PyTorch here. Initializes CUDA, where there is a GPU."""
    precisions = {"cpu": frozenset({"fp64", "fp32", "bf16", "fp16"})}
    gpus: list[str] = []
    if torch.cuda.is_available():
        gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        ampere = torch.cuda.get_device_capability() >= _AMPERE
        ampere_only = {"tf32", "bf16"} if ampere else set()
        precisions["cuda"] = frozenset({"fp64", "fp32", "fp16"} | ampere_only)
    return Capabilities(
        works=frozenset(
            {
                *("train_steps", "forward", "forward_backward", "train", "first_steps"),
                *("infer", "infer_load", "infer_precision"),
                *("input", "ceiling", "collective", "own_step"),
            }
        ),
        devices=(*gpus, "cpu"),
        precisions=precisions,
        layouts=frozenset(MEMORY_FORMATS),
        optimizers=frozenset({"sgd", "rmsprop", "adam", "adamw", "adamw-8bit", "lars"}),
        loss_scales=frozenset({"dynamic", "static"}),
        sync_features=frozenset(
            {
                *("all-reduce", "hooks", "weight-server", "cpu-server"),
                *("model-parallel", "tensor-parallel", "hybrid-by-layer", "context-parallel"),
                "sharded",
            }
        ),
        layer_precisions={
            kind: LAYER_PRECISIONS | ({"fp8"} if all(map(float8_supported, devices)) else set())
            for kind, devices in (("cpu", ["cpu"]), ("cuda", gpus))
            if devices
        },
        accumulates=True,
        sparse_gradients=True,
        checkpoints_activations=True,
        batch_norms=frozenset({"device", "global"}),
        deterministic=True,
        decodes=True,
    )


def other_precision(request: BuildRequest) -> str:
    """See `ReportsPrecision`. Autocast runs cuDNN's recurrent layers in float16 for any dtype
    (aten/src/ATen/cudnn/AutocastRNN.cpp)."""
    recurrent = [n.name for n in request.network.nodes if isinstance(n.layer, Recurrence)]
    if not recurrent or request.program.precision != "bf16" or request.device == "cpu":
        return ""
    return (
        f"PyTorch computes {' and '.join(recurrent)} in fp16 on a GPU even with precision=bf16, "
        "where small gradients underflow to zero without loss scaling."
    )


def prepare(device: str, precision: str, threads: int, deterministic: bool = False) -> None:
    """Set PyTorch's process-wide settings: threads, TF32, cuDNN benchmarking, flushing of
    denormals, the allocator of a CPU, and `deterministic` algorithms.

    Vanishing gradients and momenta pass through the denormal range (float32: under 1.2e-38), where
    a CPU computes many times slower; TensorFlow and XLA flush them as well. Threads inherit the
    setting from the one that starts them, so it comes before any is started."""
    torch.set_flush_denormal(True)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    # Shapes are fixed in a run, so algorithms are timed once; another run may choose others.
    torch.backends.cudnn.benchmark = not deterministic
    if deterministic:  # read by cuBLAS at its first use
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if "torch._inductor" in sys.modules:  # sets the compiler too, which it would import
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
    else:
        torch.set_deterministic_debug_mode("warn" if deterministic else "default")
    # Batches are only read.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)
    else:
        keep_freed_memory()


def synchronize(device: str) -> None:
    """Wait for all queued work of `device`; a CPU has no queue."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Queue work on `stream`, in order with this thread's current stream; None on a CPU."""
    if stream is None:
        yield
        return
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        current.wait_stream(stream)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that the device or the system refused memory.

    PyTorch has a class for GPUs only; on a CPU it is a RuntimeError, recognized by its message.
    """
    if isinstance(error, (OutOfMemory, MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = str(error).lower()
    return message.strip() == _NO_PRIMITIVE or any(text in message for text in _REFUSALS)


def nvml_device_check() -> AbstractContextManager[None]:
    """Within it PyTorch checks for GPUs by NVML instead of CUDA, which the compiler's import does:
    after a check by CUDA no fork of this process can use the GPU (PyTorch's notes on CUDA
    semantics, PYTORCH_NVML_BASED_CUDA_CHECK)."""
    return environment_variable("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def setup_process(program: ProgramSettings) -> None:
    """See `SupportsProcessSetup`. Streams share a few hardware queues, and work behind a replayed
    step in a queue waits for its end. nvJPEG has a dozen streams: with decoding on the device the
    number of queues is CUDA's maximum (CUDA C++ Programming Guide, environment variables). During
    steps an H200's hardware decodes 22,400 images/s with it, and 330 with the default of 8."""
    if program.decode_location == "device":
        os.environ.setdefault(*_QUEUES)


def preload() -> None:
    """Import the modules of a first step, which this module and those of the program have done:
    nothing of an eager step needs TorchDynamo, whose import takes as long as PyTorch's."""
