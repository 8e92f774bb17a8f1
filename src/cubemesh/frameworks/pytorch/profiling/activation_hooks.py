"""How does one look into a step of PyTorch? By hooks that are there for that step alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from cubemesh.batches import Array

Look = Callable[[str, str, Array], None]
"""(what, of which node or parameter, the array on the host); see `SupportsStepInspection`."""


@contextmanager
def looking_at(layers: Mapping[str, nn.Module], look: Look) -> Iterator[None]:
    """Tell `look` of every layer's result as it is made, before the next may write over it."""

    def hook(node: str) -> Callable[[nn.Module, object, object], None]:
        def made(module: nn.Module, inputs: object, result: object) -> None:
            if isinstance(result, Tensor):
                look("output", node, on_host(result))

        return made

    with ExitStack() as stack:
        for node, layer in layers.items():
            stack.enter_context(layer.register_forward_hook(hook(node)))
        yield


def on_host(array: Tensor | None) -> Array:
    """A copy on the host, in the order of its axes whatever its layout in memory."""
    assert array is not None, "every parameter has a gradient after a backward pass"
    copied: Array = array.detach().cpu().contiguous().clone().double().numpy()
    return copied
