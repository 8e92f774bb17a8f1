"""JAX on this machine: its capabilities, and the settings of a run.

precision   arrays     computed in
fp64        float64    float64
fp32        float32    float32: products of `highest` precision, so that no GPU uses TF32
tf32        float32    float32, matrix products and convolutions in TF32 (CUDA)
bf16        float32    products in bfloat16, statistics and loss in float32
fp16        float32    products in float16, statistics and loss in float32, loss scaled

64-bit types are enabled for the process and every array is made with an explicit type, so programs
of different precision do not affect one another.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass

import jax
import jax.extend.backend
import jax.numpy as jnp
from numpy.typing import DTypeLike

from cubemesh.frameworks.contract.program import Capabilities, OutOfMemory, Unsupported

THREADS_VARIABLE = "NPROC"
"""Environment variable that XLA's client for the CPU, as it starts, takes its number of threads
from (xla/pjrt/utils.cc, DefaultThreadPoolSize)."""

DEVICES_OPTION = "jax_num_cpu_devices"

_AMPERE = (8, 0)
"""The first compute capability with TF32 and bfloat16 (NVIDIA, CUDA C++ Programming Guide)."""


@dataclass(frozen=True, kw_only=True)
class JaxNumerics:
    """The types of a program's arrays and operations at one precision."""

    arrays: DTypeLike = jnp.float32
    """Type of parameters, state, statistics and loss."""
    products: DTypeLike = jnp.float32
    """Type of convolutions and matrix products, and of their results."""
    precision: str = "highest"
    """The `precision` argument of `jax.lax` for float32 products."""


NUMERICS: dict[str, JaxNumerics] = {
    "fp64": JaxNumerics(arrays=jnp.float64, products=jnp.float64),
    "fp32": JaxNumerics(),
    "tf32": JaxNumerics(precision="tensorfloat32"),
    "bf16": JaxNumerics(products=jnp.bfloat16, precision="default"),
    "fp16": JaxNumerics(products=jnp.float16, precision="default"),
}
"""One line a precision."""


def capabilities() -> Capabilities:
    """What JAX can do here. Initializes the GPU."""
    precisions = {"cpu": frozenset({"fp64", "fp32", "bf16", "fp16"})}
    gpus = _gpus()
    if gpus:
        ampere = all(_compute_capability(gpu) >= _AMPERE for gpu in gpus)
        of_ampere = {"tf32", "bf16"} if ampere else set()
        precisions["cuda"] = frozenset({"fp64", "fp32", "fp16"} | of_ampere)
    return Capabilities(
        works=frozenset(
            {
                *("train_steps", "forward", "forward_backward", "train"),
                *("infer", "infer_load", "input", "ceiling"),
            }
        ),
        devices=(*(f"cuda:{i}" for i in range(len(gpus))), "cpu"),
        precisions=precisions,
        layouts=frozenset({"nchw", "nhwc"}),
        optimizers=frozenset({"sgd", "rmsprop", "adam", "adamw"}),
        sync_features=frozenset({"all-reduce"}),
        loss_scales=frozenset({"dynamic", "static"}),
        layer_precisions=dict.fromkeys(
            ("cpu", "cuda"), frozenset({"fp64", "fp32", "tf32", "bf16", "fp16"})
        ),
        batch_norms=frozenset({"device", "global"}),
    )


def prepare(device: str, threads: int, devices: int = 1) -> list[jax.Device]:
    """Apply JAX's settings of the whole process and return `devices` devices, `device` first.

    XLA creates its pool of CPU threads and its CPU devices once, when it starts. Another number of
    threads, or more devices, restart it; earlier arrays and programs on the CPU become invalid.
    """
    jax.config.update("jax_enable_x64", True)
    kind, _, index = device.partition(":")
    _allocate_as_needed()  # XLA starts on every GPU, whichever device is used
    if kind == "cuda":
        return _gpus()[int(index) :][:devices]
    has = max(1, getattr(jax.config, DEVICES_OPTION, 1))
    if os.environ.get(THREADS_VARIABLE) != str(threads) or has < devices:
        os.environ[THREADS_VARIABLE] = str(threads)
        jax.extend.backend.clear_backends()
        if has < devices:
            _make_cpu_devices(devices)
    found: list[jax.Device] = jax.devices("cpu")[:devices]
    return found


def _make_cpu_devices(devices: int) -> None:
    if not hasattr(jax.config, DEVICES_OPTION):
        raise Unsupported(
            f"JAX {jax.__version__} has one device on a CPU. Upgrade it (pip install -U jax), or "
            "set devices=1."
        )
    jax.config.update(DEVICES_OPTION, devices)


def _gpus() -> list[jax.Device]:
    """NVIDIA's GPUs. Without a plugin for JAX there are none, and XLA is not started."""
    if importlib.util.find_spec("jax_plugins") is None:
        return []
    _allocate_as_needed()
    return [d for d in jax.devices() if d.platform == "gpu" and hasattr(d, "compute_capability")]


def _compute_capability(gpu: jax.Device) -> tuple[int, ...]:
    return tuple(int(part) for part in gpu.compute_capability.split("."))


def _allocate_as_needed() -> None:
    """Allocate a GPU's memory when needed rather than three quarters of it at the start, unless the
    user has set it: another process may need it."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that memory was refused, by the device or by the system."""
    if isinstance(error, (OutOfMemory, MemoryError)):
        return True
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def preload() -> None:
    """Import what a first step imports. XLA itself starts, with its threads, when the first array
    is made; importing JAX starts none, so a fork after it is safe."""
    for module in ("jax.extend.backend", "jaxlib.mlir.dialects.mhlo"):
        importlib.import_module(module)
