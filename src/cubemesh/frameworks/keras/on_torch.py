"""The framework `keras-torch`: Keras on PyTorch, on a CPU or a GPU.

Operations run one by one as the step is executed, as Keras does by default on PyTorch.
"""

from __future__ import annotations

from typing import Any

from cubemesh.frameworks.keras.backend import keep_float64, select_backend
from cubemesh.frameworks.pytorch.runtime import nvml_device_check

with nvml_device_check():  # Keras looks for GPUs as it is imported
    select_backend("torch")

import keras
import numpy as np
import torch

from cubemesh.batches import Array, Batch
from cubemesh.frameworks.contract.program import BuildRequest, Capabilities
from cubemesh.frameworks.keras.layers import TorchRules
from cubemesh.frameworks.keras.program import KerasProgram, keras_capabilities
from cubemesh.frameworks.pytorch import runtime
from cubemesh.frameworks.pytorch.ceiling import build_ceiling
from cubemesh.frameworks.pytorch.runtime import is_out_of_memory

__all__ = ["build", "build_ceiling", "capabilities", "is_out_of_memory", "preload"]


def capabilities() -> Capabilities:
    """What Keras can do here on PyTorch. Initializes CUDA, where there is a GPU."""
    return keras_capabilities(runtime.capabilities())


def preload() -> None:
    """Import what Keras imports at its first optimizer, which is made on the CPU here."""
    with keras.device("cpu"):
        keras.optimizers.SGD()


class ForeachRules(TorchRules):
    """The same rules for all weights at once, as Keras's own optimizers have them on PyTorch."""

    def __init__(self, rule: str, rate: float, momentum: float, decay: float) -> None:
        super().__init__(rule, rate, momentum, decay)
        self.rate = rate
        self.steps = 0
        """Known to the host, so that no step waits for the device to read them."""

    def updates(self) -> int:
        """See `TorchRules`."""
        return self.steps

    def continue_after(self, updates: int) -> None:
        """See `TorchRules`."""
        super().continue_after(updates)
        self.steps = updates

    def set_rate(self, rate: float) -> None:
        """See `TorchRules`."""
        super().set_rate(rate)
        self.rate = rate

    @torch.no_grad()
    def _backend_update_step(
        self, grads: Any, trainable_variables: Any, learning_rate: Any
    ) -> None:
        self.steps += 1
        index = [self._get_variable_index(v) for v in trainable_variables]
        weights = [v.value for v in trainable_variables]
        slots = [[arrays[i].value for i in index] for arrays in self.slots.values()]
        if self.decay:
            grads = torch._foreach_add(grads, weights, alpha=self.decay)
        if self.rule == "sgd":
            (velocity,) = slots
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, grads)
            torch._foreach_add_(weights, velocity, alpha=-self.rate)
            return
        rate, squares, decay = self.rate, slots[-1], 0.99 if self.rule == "rmsprop" else 0.999
        torch._foreach_mul_(squares, decay)
        torch._foreach_addcmul_(squares, grads, grads, 1 - decay)
        roots = torch._foreach_sqrt(squares)
        if self.rule == "adam":
            c1, c2 = (-np.expm1(self.steps * np.log(b)) for b in (0.9, 0.999))
            means, rate = slots[0], rate / c1
            torch._foreach_mul_(means, 0.9)
            torch._foreach_add_(means, grads, alpha=0.1)
            torch._foreach_div_(roots, float(np.sqrt(c2)))
            grads = means
        torch._foreach_add_(roots, 1e-8)
        torch._foreach_addcdiv_(weights, grads, roots, -float(rate))


class TorchKerasProgram(KerasProgram):
    """A functional model of PyTorch's operations."""

    framework = "keras-torch"
    rules = ForeachRules

    def _prepare(self, request: BuildRequest) -> None:
        self._threads = request.threads
        self._torch_device = torch.device(request.device)
        if self._torch_device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._torch_device)

    def _apply_precision(self) -> None:
        keep_float64(self._precision == "fp64")
        runtime.prepare(self.device, self._precision, self._threads)
        _use_device(self.device)

    def _on_host(self, array: Any) -> Array:
        found: Array = (
            array.detach().to("cpu", torch.promote_types(array.dtype, torch.float32)).numpy()
        )
        return found

    def place(self, batch: Batch) -> tuple[Any, Any]:
        """See `KerasProgram`. To a GPU the copy is asynchronous, from pinned memory, and the layout
        is changed there."""
        images, labels = map(self._sent, (batch.images, batch.labels))
        return images.to(self._array_type).permute(0, 2, 3, 1).contiguous(), labels

    @property
    def _array_type(self) -> torch.dtype:
        return runtime.ARRAY_TYPES.get(self._precision, torch.float32)

    def _sent(self, array: Array) -> torch.Tensor:
        given = torch.from_numpy(array)
        if self._torch_device.type != "cuda":
            return given.clone()
        return given.pin_memory().to(self._torch_device, non_blocking=True)

    @torch.no_grad()
    def forward(self, placed: Any) -> None:
        """See `KerasProgram`."""
        self._start()
        images, labels = placed
        self._loss = self._mean_loss(self.model(images, training=True), labels)

    def forward_backward(self, placed: Any) -> None:
        """See `KerasProgram`."""
        self._start()
        images, labels = placed
        loss = self._mean_loss(self.model(images, training=True), labels)
        torch.autograd.grad(loss, [v.value for v in self.model.trainable_weights])
        self._loss = loss.detach()

    @torch.no_grad()
    def infer(self, placed: Any) -> Any:
        """See `KerasProgram`."""
        self._start()
        return self._evaluated(placed[0], training=False)

    def synchronize(self) -> None:
        """Wait until everything queued is done."""
        runtime.synchronize(self.device)

    def peak_memory_bytes(self) -> int | None:
        """Peak bytes of PyTorch's arrays since the program was built; None on a CPU."""
        if self._torch_device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self._torch_device)


_scopes: list[Any] = []
"""The device scope of this process, which Keras puts its arrays in."""


def _use_device(device: str) -> None:
    """Let Keras compute on `device` from now on, instead of the first GPU."""
    while _scopes:
        _scopes.pop().__exit__(None, None, None)
    scope = keras.device(device)
    scope.__enter__()
    _scopes.append(scope)


def build(request: BuildRequest) -> TorchKerasProgram:
    """The program for `request`."""
    return TorchKerasProgram(request)
