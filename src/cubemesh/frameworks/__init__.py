"""WITH WHAT a network is trained: one framework a module, loaded only when a run needs it.

`FRAMEWORKS` is the table of all there are. What a framework's module offers is `Framework` in
`frameworks/api/program.py`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from cubemesh.errors import unknown_name
from cubemesh.frameworks.api.program import Framework
from cubemesh.frameworks.null.script import read_script
from cubemesh.schema.spec import Layout

__all__ = ["FRAMEWORKS", "FrameworkEntry", "entry"]


@dataclass(frozen=True, kw_only=True)
class FrameworkEntry:
    """A line of the table."""

    module: str
    summary: str
    packages: tuple[str, ...]
    """Distributions a run with it depends on: their upgrade makes old figures stale."""
    requires: str | None = None
    """The module that must be importable; None needs nothing."""
    install: str = ""
    """The command that installs it."""
    layout: Layout = "nchw"
    """How its users lay images out; where frameworks are compared each has its own."""
    compiles: str | None = None
    """The framework whose program it compiles: what compiling gains is told against that one."""
    static_scale: bool = False
    """Whether a `loss_scale` that stays can be set; the others have their own under fp16."""
    profiles: bool = False
    """Whether cubemesh reads its profiler, so that its steps can be taken apart."""
    across_hosts: bool = False
    """Whether devices of several hosts can train one network with it."""
    read_script: Callable[[str], object] | None = None
    """Reads `ProgramSettings.script` (UsageError for what it does not understand), where the
    framework plays one."""

    @property
    def installed(self) -> bool:
        """Whether it can be imported, found out without importing it."""
        return self.requires is None or importlib.util.find_spec(self.requires) is not None

    def load(self) -> Framework:
        """Import the framework's module, and with it the framework."""
        return cast(Framework, importlib.import_module(self.module))


FRAMEWORKS: dict[str, FrameworkEntry] = {
    "null": FrameworkEntry(
        module="cubemesh.frameworks.null.program",
        summary="plays scripted timings, outcomes and losses; computes nothing",
        static_scale=True,
        packages=("numpy",),
        read_script=read_script,
    ),
    "pytorch": FrameworkEntry(
        module="cubemesh.frameworks.pytorch",
        summary="PyTorch, eager",
        across_hosts=True,
        profiles=True,
        static_scale=True,
        packages=("torch", "numpy"),
        requires="torch",
        install="pip install 'cubemesh[torch]'",
    ),
    "pytorch-compiled": FrameworkEntry(
        module="cubemesh.frameworks.pytorch.compiled",
        summary="PyTorch, torch.compile",
        across_hosts=True,
        profiles=True,
        compiles="pytorch",
        static_scale=True,
        packages=("torch", "numpy"),
        requires="torch",
        install="pip install 'cubemesh[torch]'",
    ),
    "pytorch-captured": FrameworkEntry(
        module="cubemesh.frameworks.pytorch.captured",
        summary="PyTorch, fused kernels; on a GPU the whole step is one CUDA graph",
        layout="nhwc",
        across_hosts=True,
        static_scale=True,
        packages=("torch", "triton", "numpy"),
        requires="torch",
        install="pip install 'cubemesh[torch]'",
    ),
    "jax": FrameworkEntry(
        module="cubemesh.frameworks.jax",
        layout="nhwc",  # as Flax's convolutions take them
        summary="JAX, each step compiled by XLA",
        static_scale=True,
        packages=("jax", "jaxlib", "numpy"),
        requires="jax",
        install="pip install 'cubemesh[jax]'",
    ),
    "tensorflow": FrameworkEntry(
        module="cubemesh.frameworks.tensorflow",
        layout="nhwc",
        summary="TensorFlow, each step a traced graph",
        packages=("tensorflow", "tensorflow-cpu", "numpy"),
        requires="tensorflow",
        install="pip install 'cubemesh[tensorflow]'",
    ),
    "tensorflow-xla": FrameworkEntry(
        module="cubemesh.frameworks.tensorflow.xla",
        layout="nhwc",
        summary="TensorFlow, each step compiled by XLA",
        packages=("tensorflow", "tensorflow-cpu", "numpy"),
        requires="tensorflow",
        install="pip install 'cubemesh[tensorflow]'",
    ),
    "keras": FrameworkEntry(
        module="cubemesh.frameworks.keras",
        layout="nhwc",
        summary="Keras 3 on TensorFlow, train_on_batch; CNNs",
        packages=("keras", "tensorflow", "tensorflow-cpu", "numpy"),
        requires="tensorflow",  # which brings Keras
        install="pip install 'cubemesh[keras]'",
    ),
}


def entry(name: str) -> FrameworkEntry:
    """The line for `name`; UsageError naming the nearest when there is none."""
    if name not in FRAMEWORKS:
        raise unknown_name("framework", name, FRAMEWORKS)
    return FRAMEWORKS[name]
