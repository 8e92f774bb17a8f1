"""Engines that run an ONNX model, in this process. A file each; to add one, write it and add a line
to `ENGINES`.

A session takes and gives NumPy arrays. Neither PyTorch nor the package onnx is needed to run one.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from cubemesh.batches import Array
from cubemesh.errors import DataError


class EngineError(DataError):
    """An engine cannot read or run a model."""


class Session(Protocol):
    """A model, ready to run."""

    def run(self, inputs: Mapping[str, Array]) -> Sequence[Array]:
        """The outputs, in the order of the model; valid until the next call."""


class Engine(Protocol):
    """What the module of an engine offers."""

    def available(self) -> tuple[str, ...]:
        """The precisions in which it computes on this machine's CPU."""

    def open_session(
        self,
        content: bytes | Path,
        *,
        threads: int,
        precision: str = "fp32",
        device: str = "cpu",
        batch: int | None = None,
    ) -> Session:
        """A session for a serialized model, or for a file of one. Its weights may be in a file
        of its folder, needed until it is open. Values that it quantizes are computed in 8-bit
        integers, the others in `precision`. `batch` is the length of every axis that is free."""


@dataclass(frozen=True, kw_only=True)
class EngineLine:
    """An engine as `ENGINES` lists it."""

    title: str
    module: str
    package: str
    """Import name of its library."""
    extra: str
    """The extra of cubemesh that installs it."""
    kind: str = "cpu"
    """Of the devices on which it runs: `cpu` or `cuda`."""
    own_version: str = ""
    """Of cubemesh's own kernels, instead of that of the library."""
    integers_only: bool = False
    """Whether it computes nothing but 8-bit models, with fixed batch sizes."""

    @property
    def installed(self) -> bool:
        """Whether its library is installed."""
        return find_spec(self.package) is not None

    @property
    def version(self) -> str:
        """The version of its library, or of own kernels."""
        return self.own_version or metadata.version(self.package)

    def load(self) -> Engine:
        """Its module."""
        module: Any = importlib.import_module(self.module)
        found: Engine = module
        return found


ENGINES: dict[str, EngineLine] = {
    "openvino": EngineLine(
        title="OpenVINO",
        module=f"{__name__}.openvino",
        package="openvino",
        extra="openvino",
    ),
    "onnxruntime": EngineLine(
        title="ONNX Runtime",
        module=f"{__name__}.onnxruntime",
        package="onnxruntime",
        extra="onnxruntime",
    ),
}
"""Name → engine, in the order in which equally fast ones are chosen."""
