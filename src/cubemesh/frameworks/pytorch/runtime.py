"""What can PyTorch do on this machine, and how is it set up for a run?

precision   arrays     computed in
fp64        float64    float64
fp32        float32    float32, TF32 switched off
tf32        float32    float32, matrix products and convolutions in TF32 (CUDA)
bf16        float32    autocast: products in bfloat16, reductions in float32
fp16        float32    autocast: products in float16, reductions in float32, loss scaled
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cubemesh.frameworks.api.program import BuildRequest, Capabilities, OutOfMemory
from cubemesh.kernels.cpu.allocator import keep_freed_memory
from cubemesh.networks.recurrent_layers import LSTM
from cubemesh.schema.spec import ProgramSettings

ARRAY_TYPES = {"fp64": torch.float64}
"""Precision → type of parameters, state and images, where it is not float32."""
AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision → type that products are computed in under autocast."""
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
"""What allocators say for want of memory: those of PyTorch, C++, the system, cuBLAS and cuDNN."""
_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS", "32"
_NVML_VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"
_NO_PRIMITIVE = "could not create a primitive"
"""oneDNN's words when an operation it has already accepted (it says "primitive descriptor" where
it has not) gets no memory for its generated code or its tables; it gives no reason."""


def capabilities() -> Capabilities:
    """What PyTorch can do here. Wakes the GPU, where there is one."""
    precisions = {"cpu": frozenset({"fp64", "fp32", "bf16", "fp16"})}
    gpus: list[str] = []
    if torch.cuda.is_available():
        gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        ampere = torch.cuda.get_device_capability() >= _AMPERE
        narrow = {"tf32", "bf16"} if ampere else set()
        precisions["cuda"] = frozenset({"fp64", "fp32", "fp16"} | narrow)
    return Capabilities(
        works=frozenset(
            {"train_steps", "forward", "train", "first_steps", "input", "ceiling", "collective"}
        ),
        devices=(*gpus, "cpu"),
        precisions=precisions,
        layouts=frozenset(MEMORY_FORMATS),
        optimizers=frozenset({"sgd", "rmsprop", "adam", "adamw", "lars"}),
        loss_scales=frozenset({"dynamic", "static"}),
        sync_features=frozenset({"all-reduce", "hooks", "weight-server", "model-parallel"}),
        precision_by_layer=True,
        batch_norms=frozenset({"device", "global"}),
        deterministic=True,
        decodes=True,
    )


def other_precision(request: BuildRequest) -> str:
    """See `ReportsPrecision`. Autocast hands cuDNN's recurrent layers float16 whatever type it
    was asked for (aten/src/ATen/cudnn/AutocastRNN.cpp)."""
    recurrent = [n.name for n in request.network.nodes if isinstance(n.layer, LSTM)]
    if not recurrent or request.program.precision != "bf16" or request.device == "cpu":
        return ""
    return (
        f"PyTorch computes {' and '.join(recurrent)} in fp16 on a GPU, under bf16 too, and nothing "
        "keeps small gradients there from becoming zero."
    )


def prepare(device: str, precision: str, threads: int, deterministic: bool = False) -> None:
    """Set what PyTorch keeps for the whole process: threads, TF32, the choice of convolutions; that
    denormal numbers count as 0; what becomes of memory that a CPU's program frees; and, where it is
    to be `deterministic`, algorithms that give the same result every time.

    Gradients and momenta that fade pass through the denormal range (float32: under 1.2e-38), where
    a CPU computes many times slower; TensorFlow and XLA flush them as well. Threads inherit it from
    the one that starts them, so it comes before any is started."""
    torch.set_flush_denormal(True)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    # Shapes never change in a run: try once, keep the best. Another time another may be the best.
    torch.backends.cudnn.benchmark = not deterministic
    if deterministic:  # cuBLAS reads its variable when it is first used
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    # Batches are only ever read, so that NumPy forbids writing to one is no danger.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)
    else:
        keep_freed_memory()


def synchronize(device: str) -> None:
    """Wait until everything queued on `device` is done; on a CPU nothing is ever queued."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that memory was refused, by the device or by the system.

    PyTorch has a class for the GPU's refusals only; the CPU's are RuntimeErrors, told by their
    words.
    """
    if isinstance(error, (OutOfMemory, MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    words = str(error).lower()
    return words.strip() == _NO_PRIMITIVE or any(refusal in words for refusal in _REFUSALS)


@contextmanager
def asking_the_driver() -> Iterator[None]:
    """Within it PyTorch asks NVML and not CUDA whether there is a GPU, which the compiler's import
    and torchrun's launcher want to know: once CUDA has been asked, no fork of this process can use
    the GPU (PyTorch's notes on CUDA semantics, PYTORCH_NVML_BASED_CUDA_CHECK)."""
    before = os.environ.get(_NVML_VARIABLE)
    os.environ[_NVML_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NVML_VARIABLE]
        else:
            os.environ[_NVML_VARIABLE] = before


def setup_process(program: ProgramSettings) -> None:
    """See `SupportsProcessSetup`. Streams share a few queues of the GPU, and what
    stands behind a replayed step in one waits for its end. A decoder has a dozen streams: where it
    works beside the steps, there are as many queues as CUDA makes (CUDA C++ Programming Guide,
    environment variables). On an H200 circuits decode 22,400 images/s beside a step, and 330 in the
    usual eight."""
    if program.decode_location == "device":
        os.environ.setdefault(*_QUEUES)


def preload() -> None:
    """Import what a first step imports. The optimizers pull in TorchDynamo, which takes as long
    as PyTorch itself; neither touches the GPU or starts a thread."""
    importlib.import_module("torch._dynamo")
