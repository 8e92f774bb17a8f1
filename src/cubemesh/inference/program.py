"""Program of a plan: what `cubemesh build` chose, as a side of a comparison (framework `plan`).

It computes with the weights and in the precision of its plan, and refuses a run that its plan does
not fit: another network, input, batch size or device.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cubemesh.batches import Array
from cubemesh.errors import DataError, UsageError
from cubemesh.frameworks.contract.program import (
    BuildRequest,
    Capabilities,
    Unsupported,
)
from cubemesh.frameworks.onnx_engines.program import OnnxProgram, Placed, build_ceiling
from cubemesh.inference.plan_file import PlanDocument, describe_plan
from cubemesh.inference.runtime import Plan
from cubemesh.units import format_list

__all__ = ["build", "build_ceiling", "capabilities", "is_out_of_memory", "preload"]


class PlanProgram(OnnxProgram):
    """A plan as an evaluation; see `Program` and `SupportsInference`."""

    def __init__(self, request: BuildRequest) -> None:
        self.device = request.device
        self.request = request
        self._plan: Plan | None = None
        self._names = [i.name for i in request.network.inputs]
        self._weights = {}
        program = request.program
        if program.plan_file is None:
            raise Unsupported(
                "framework=plan runs a plan: set plan=FILE, which `cubemesh build` writes."
            )
        try:
            document, checksum = describe_plan(Path(program.plan_file))
        except (DataError, UsageError) as error:
            raise Unsupported(str(error)) from error
        if program.plan_checksum not in (None, checksum):
            raise Unsupported(f"'{program.plan_file}' has changed since this run was planned.")
        _check_fit(document, request)

    def infer(self, placed: Placed) -> Array:
        """See `SupportsInference`."""
        assert self._plan is not None
        return self._plan.run(dict(zip(self._names, placed, strict=False)))

    def load(self, weights: Mapping[str, Array]) -> None:
        """Load the plan, with its own weights. Unsupported where it does not fit this device."""
        assert self.request.program.plan_file is not None
        try:
            self._plan = Plan.load(self.request.program.plan_file, threads=self.request.threads)
        except (DataError, UsageError) as error:
            raise Unsupported(str(error)) from error
        self._weights = {name: np.array(array) for name, array in weights.items()}

    def close(self) -> None:
        """Close the plan."""
        if self._plan is not None:
            self._plan.close()
        super().close()


def _check_fit(document: PlanDocument, request: BuildRequest) -> None:
    """Unsupported where a plan is for another network, input or batch size."""
    network, batch = request.network, request.work.batch_per_device
    if document.network != network.name:
        raise Unsupported(f"the plan is of {document.network}, and this run of {network.name}.")
    own = {value.name: value.shape[1:] for value in document.inputs}
    needed = {value.name: tuple(value.shape) for value in network.inputs}
    if own != needed:
        shown = [
            ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in each.items())
            for each in (own, needed)
        ]
        raise Unsupported(
            f"the plan takes {shown[0]}, and this run has {shown[1]}. Set image_size, or build a "
            "plan for it."
        )
    batches = [choice.batch for choice in document.choices]
    if batch not in batches:
        raise Unsupported(
            f"the plan has the batch sizes {format_list(list(map(str, batches)))}, and this run "
            f"has {batch}. Build one with cubemesh build --batches."
        )


def capabilities() -> Capabilities:
    """Inference on the CPU. The precision is the plan's, whatever is asked for as fp32."""
    return Capabilities(
        works=frozenset({"infer", "infer_load"}),
        devices=("cpu",),
        precisions={"cpu": frozenset({"fp32"})},
        layouts=frozenset({"nchw"}),
        optimizers=frozenset(),
    )


def build(request: BuildRequest) -> PlanProgram:
    """The program for `request`."""
    return PlanProgram(request)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a refused allocation."""
    return isinstance(error, MemoryError) or any(
        sign in str(error) for sign in ("bad_alloc", "Failed to allocate")
    )


def preload() -> None:
    """Nothing: the engine is the plan's."""
