"""The table of frameworks, each a module that is loaded only when a run needs it.

A framework's module offers the functions of `Framework` (frameworks/contract/program.py).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from cubemesh.errors import unknown_name
from cubemesh.frameworks.contract.program import Framework
from cubemesh.frameworks.null.script import read_script
from cubemesh.schema.machine import Software
from cubemesh.schema.spec import Layout

__all__ = ["FRAMEWORKS", "FrameworkEntry", "entry"]


@dataclass(frozen=True, kw_only=True)
class FrameworkEntry:
    """A line of `FRAMEWORKS`."""

    module: str
    title: str
    """Its name in a sentence."""
    summary: str
    packages: tuple[str, ...]
    """Distributions whose versions belong to a result: after an upgrade runs are repeated."""
    cpp_kernels: bool = False
    """Whether C++ that is compiled on this machine runs in its steps on a CPU."""
    requires: str | None = None
    """The module that must be importable; None for none."""
    backend: str | None = None
    """The module that `requires` computes by, which must be importable too; None where it computes
    by itself, or brings it."""
    install: str = ""
    """The installation command."""
    layout: Layout = "nchw"
    """Its usual layout of images, used where frameworks are compared."""
    compiles: str | None = None
    """The framework whose program it compiles: the baseline for the gain of compiling."""
    static_scale: bool = False
    """Whether a static `loss_scale` can be set; the others choose their own in fp16."""
    profiles: bool = False
    """Whether cubemesh reads its profiler, so that its steps can be attributed."""
    fuses: bool = False
    """Whether it joins element-wise layers, so that fewer bytes move."""
    one_launch: bool = False
    """Whether a GPU's step is launched at once, so that no layer waits for its launch."""
    across_hosts: bool = False
    """Whether it trains one network on several hosts."""
    preloads: str = ""
    """Another framework whose server its workers are forked from, as both preload the same."""
    trains: bool = True
    """False for an inference engine."""
    checkpoints: bool = False
    """Whether its trainings have learning-rate schedules, and checkpoints to resume from."""
    infers: bool = True
    """Whether `inference` and `inference-load` compare it: its programs take their work with any
    weights."""
    read_script: Callable[[str], object] | None = None
    """Parses `ProgramSettings.script` (UsageError where it is invalid), where it simulates one."""

    @property
    def simulates(self) -> bool:
        """Whether it computes nothing, so that its runs use no device."""
        return self.read_script is not None

    @property
    def installed(self) -> bool:
        """Whether it can be imported, checked without importing it."""
        return all(importlib.util.find_spec(module) is not None for module in self.modules)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that must be importable."""
        return tuple(module for module in (self.requires, self.backend) if module is not None)

    def software_id(self, software: Software) -> str:
        """Identifies what its runs depend on in an environment."""
        return software.software_id(self.packages, compiles=self.cpp_kernels)

    def shares_process(self, other: FrameworkEntry) -> bool:
        """Whether programs of both can run in one process: two libraries would compete for threads
        and memory."""
        return self.modules == other.modules

    def load(self) -> Framework:
        """Import the framework's module, and with it the framework."""
        return cast(Framework, importlib.import_module(self.module))


FRAMEWORKS: dict[str, FrameworkEntry] = {
    "null": FrameworkEntry(
        module="cubemesh.frameworks.null.program",
        title="null framework",
        summary="simulated timings, losses and failures; computes nothing",
        static_scale=True,
        packages=("numpy",),
        read_script=read_script,
    ),
    "pytorch": FrameworkEntry(
        module="cubemesh.frameworks.pytorch",
        title="PyTorch eager",
        summary="PyTorch, eager",
        across_hosts=True,
        profiles=True,
        static_scale=True,
        cpp_kernels=True,
        checkpoints=True,
        packages=("torch", "numpy"),
        requires="torch",
        install="pip install 'cubemesh[torch]'",
    ),
    "pytorch-compiled": FrameworkEntry(
        module="cubemesh.frameworks.pytorch.compiled",
        title="torch.compile",
        summary="PyTorch, torch.compile",
        across_hosts=True,
        profiles=True,
        compiles="pytorch",
        fuses=True,
        static_scale=True,
        cpp_kernels=True,
        checkpoints=True,
        packages=("torch", "numpy"),
        requires="torch",
        install="pip install 'cubemesh[torch]'",
    ),
    "pytorch-captured": FrameworkEntry(
        module="cubemesh.frameworks.pytorch.captured",
        title="pytorch-captured",
        infers=False,
        summary="PyTorch, fused kernels; on a GPU the step is one CUDA graph",
        fuses=True,
        one_launch=True,
        preloads="pytorch-compiled",
        layout="nhwc",
        across_hosts=True,
        static_scale=True,
        cpp_kernels=True,
        checkpoints=True,
        packages=("torch", "triton", "numpy"),
        requires="torch",
        install="pip install 'cubemesh[torch]'",
    ),
    "jax": FrameworkEntry(
        module="cubemesh.frameworks.jax",
        title="JAX",
        layout="nhwc",  # as in Flax
        fuses=True,
        summary="JAX, each step compiled by XLA",
        static_scale=True,
        checkpoints=True,
        packages=("jax", "jaxlib", "numpy"),
        requires="jax",
        install="pip install 'cubemesh[jax]'",
    ),
    "tensorflow": FrameworkEntry(
        module="cubemesh.frameworks.tensorflow",
        title="TensorFlow",
        layout="nhwc",
        summary="TensorFlow, each step a traced graph",
        checkpoints=True,
        packages=("tensorflow", "tensorflow-cpu", "numpy"),
        requires="tensorflow",
        install="pip install 'cubemesh[tensorflow]'",
    ),
    "tensorflow-xla": FrameworkEntry(
        module="cubemesh.frameworks.tensorflow.xla",
        title="TensorFlow XLA",
        fuses=True,
        layout="nhwc",
        summary="TensorFlow, each step compiled by XLA",
        checkpoints=True,
        packages=("tensorflow", "tensorflow-cpu", "numpy"),
        requires="tensorflow",
        install="pip install 'cubemesh[tensorflow]'",
    ),
    "keras": FrameworkEntry(
        module="cubemesh.frameworks.keras.on_tensorflow",
        title="Keras",
        infers=False,
        layout="nhwc",
        summary="Keras 3 on TensorFlow, train_on_batch; CNNs",
        checkpoints=True,
        packages=("keras", "tensorflow", "tensorflow-cpu", "numpy"),
        requires="tensorflow",  # which includes Keras
        install="pip install 'cubemesh[keras]'",
    ),
    "keras-jax": FrameworkEntry(
        module="cubemesh.frameworks.keras.on_jax",
        title="Keras on JAX",
        infers=False,
        fuses=True,
        layout="nhwc",
        summary="Keras 3 on JAX, train_on_batch compiled by XLA; CNNs",
        checkpoints=True,
        packages=("keras", "jax", "jaxlib", "numpy"),
        requires="keras",
        backend="jax",
        install="pip install 'cubemesh[keras-jax]'",
    ),
    "keras-torch": FrameworkEntry(
        module="cubemesh.frameworks.keras.on_torch",
        title="Keras on PyTorch",
        infers=False,
        layout="nhwc",
        summary="Keras 3 on PyTorch, train_on_batch; CNNs",
        checkpoints=True,
        packages=("keras", "torch", "numpy"),
        requires="keras",
        backend="torch",
        install="pip install 'cubemesh[keras-torch]'",
    ),
    "onnxruntime": FrameworkEntry(
        module="cubemesh.frameworks.onnx_engines.onnxruntime",
        title="ONNX Runtime",
        fuses=True,
        summary="ONNX Runtime, inference only",
        packages=("onnxruntime", "onnxruntime-gpu", "onnx", "numpy"),
        requires="onnxruntime",
        install="pip install 'cubemesh[onnxruntime]'",
        trains=False,
    ),
    "openvino": FrameworkEntry(
        module="cubemesh.frameworks.onnx_engines.openvino",
        title="OpenVINO",
        fuses=True,
        summary="OpenVINO, inference only, on a CPU",
        packages=("openvino", "onnx", "numpy"),
        requires="openvino",
        install="pip install 'cubemesh[openvino]'",
        trains=False,
    ),
    "plan": FrameworkEntry(
        module="cubemesh.inference.program",
        title="plan",
        infers=False,  # it has its own weights
        fuses=True,
        summary="a plan of `cubemesh build`, inference only, on a CPU",
        packages=("onnxruntime", "openvino", "numpy"),
        trains=False,
    ),
}


def entry(name: str) -> FrameworkEntry:
    """The line of `name`; UsageError naming the nearest where there is none."""
    if name not in FRAMEWORKS:
        raise unknown_name("framework", name, FRAMEWORKS)
    return FRAMEWORKS[name]
