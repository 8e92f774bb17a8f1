"""Bytes of the arrays that are alive at the same time while PyTorch computes."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Alive(TorchDispatchMode):
    """Counts the bytes of storages that operations made and that are still referred to; those of
    the arrays `standing` before are not counted."""

    def __init__(self, standing):
        super().__init__()
        self.now = self.peak = 0
        self.known = {storage(a)._cdata for a in standing}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and storage(tensor)._cdata not in self.known:
                self._born(storage(tensor))
        return result

    def _born(self, array):
        key, size = array._cdata, array.nbytes()
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(array, self._died, key, size)

    def _died(self, key, size):
        self.known.discard(key)
        self.now -= size


def storage(tensor):
    """What holds the bytes of a tensor and of its views."""
    return tensor.untyped_storage()
