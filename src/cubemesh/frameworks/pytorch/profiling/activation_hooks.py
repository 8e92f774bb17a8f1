"""Forward hooks that pass each layer's activation to a callback, during one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

from torch import Tensor, nn

from cubemesh.batches import Array

InspectCallback = Callable[[str, str, Array], None]
"""(kind of array, node or parameter, the array on the host); see `SupportsStepInspection`."""


@contextmanager
def inspected_layers(layers: Mapping[str, nn.Module], inspect: InspectCallback) -> Iterator[None]:
    """Call `inspect` with every layer's result, before the next layer may write over it."""

    def forwarded(node: str, module: nn.Module, inputs: object, result: object) -> None:
        if isinstance(result, Tensor):
            inspect("output", node, to_host_array(result))

    with ExitStack() as hooks:
        for node, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(partial(forwarded, node)))
        yield


def to_host_array(array: Tensor | None) -> Array:
    """A copy on the host in fp64, in C order."""
    assert array is not None, "every parameter has a gradient after a backward pass"
    copied: Array = array.detach().cpu().contiguous().clone().double().numpy()
    return copied
