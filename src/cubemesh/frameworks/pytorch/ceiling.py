"""Ceilings of a device through PyTorch: matrix products, convolutions, copies, host-device
transfers.

A product of (m × k) and (k × n) is 2 m n k operations, a convolution as many as its sums have,
whatever algorithm the library takes (Winograd's needs fewer). A copy within the device of b bytes
reads b and writes b; one between host and device moves b over the link, from or to pinned memory or
pageable memory, which the driver first copies to pinned memory of its own.
`frameworks/ceiling_search.py` searches the fastest size and shape where none is given. Elements are
normally distributed: the data decides how many transistors switch, and a GPU at its power limit
multiplies zeros or integers faster than real data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from cubemesh.frameworks.ceiling_search import (
    CONVOLUTION,
    CONVOLUTIONS,
    COPY_GROWTH,
    COPY_SIZES,
    LINK_SIZES,
    Shape,
    check_operation,
    convolution_flops,
    fastest,
    fastest_product,
    shape_of,
    shape_words,
    try_out,
)
from cubemesh.frameworks.contract.program import CeilingProgram, monotonic_s
from cubemesh.frameworks.pytorch.runtime import (
    ARRAY_TYPES,
    AUTOCAST_TYPES,
    is_out_of_memory,
    prepare,
    synchronize,
)
from cubemesh.schema.spec import ProgramSettings
from cubemesh.schema.work import Ceiling
from cubemesh.units import format_bytes


class _OnDevice:
    """Base class of all operations."""

    def __init__(self, device: str) -> None:
        self.device = device

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize(self.device)

    clock = staticmethod(monotonic_s)


class TorchMatrixProduct(_OnDevice):
    """c = a b, with a (m, k) and b (k, n); `transposed` stores b like a linear layer's
    weights, column by column."""

    unit = "FLOP/s"

    def __init__(
        self, shape: Shape, dtype: torch.dtype, device: str, transposed: bool = False
    ) -> None:
        super().__init__(device)
        m, n, k = self.shape = shape
        self.work_per_call = 2.0 * m * n * k
        self.what = f"{shape_words(shape)} (m × n × k{', b transposed' if transposed else ''})"
        self._a = torch.randn(m, k, dtype=dtype, device=device)
        b = torch.randn(*((n, k) if transposed else (k, n)), dtype=dtype, device=device)
        self._b = b.t() if transposed else b
        self._c = torch.empty(m, n, dtype=dtype, device=device)

    def call(self) -> None:
        """Queue one product."""
        torch.mm(self._a, self._b, out=self._c)


class TorchConvolution(_OnDevice):
    """A 3 × 3 convolution of `batch` images of so many channels to as many channels."""

    unit = "FLOP/s"

    def __init__(
        self,
        batch: int,
        channels: int,
        side: int,
        dtype: torch.dtype,
        device: str,
        channels_last: bool = False,
    ) -> None:
        super().__init__(device)
        self.work_per_call = convolution_flops(batch, channels, side)
        layout = "nhwc" if channels_last else "nchw"
        self.what = f"{batch} × {channels} × {side} × {side}, 3 × 3, {layout}"
        self.extent = channels, side
        self.batch = batch
        order = torch.channels_last if channels_last else torch.contiguous_format
        images = torch.randn(batch, channels, side, side, dtype=dtype, device=device)
        weights = torch.randn(channels, channels, 3, 3, dtype=dtype, device=device)
        self._images = images.contiguous(memory_format=order)
        self._weights = weights.contiguous(memory_format=order)

    def call(self) -> None:
        """Queue one convolution."""
        with torch.inference_mode():
            torch.nn.functional.conv2d(self._images, self._weights, padding=1)


class _Copying(_OnDevice):
    """A copy of `_source` into `_target`."""

    unit = "byte/s"
    work_per_call: float
    what: str
    _source: torch.Tensor
    _target: torch.Tensor

    def call(self) -> None:
        """Queue one copy."""
        self._target.copy_(self._source, non_blocking=True)


class TorchCopy(_Copying):
    """A copy from one array of `size_bytes` to another on the same device."""

    def __init__(self, size_bytes: int, device: str) -> None:
        super().__init__(device)
        self.work_per_call = 2.0 * size_bytes
        self.what = f"{format_bytes(size_bytes)}, read plus written"
        self._source = _random_bytes(size_bytes, device)
        self._target = torch.empty_like(self._source)


class TorchTransfer(_Copying):
    """A copy of `size_bytes` from host to device, or from device to host."""

    def __init__(self, size_bytes: int, device: str, *, to_device: bool, pinned: bool) -> None:
        super().__init__(device)
        self.work_per_call = float(size_bytes)
        self.what = f"{format_bytes(size_bytes)}, {'pinned' if pinned else 'pageable'} host memory"
        host = _random_bytes(size_bytes, "cpu")
        host = host.pin_memory() if pinned else host
        on_device = host.to(device)
        self._source, self._target = (host, on_device) if to_device else (on_device, host)


def _random_bytes(size_bytes: int, device: str) -> torch.Tensor:
    """1 MiB of random bytes, repeated: drawing 2 GiB takes a CPU half a minute."""
    drawn = torch.randint(0, 256, (min(size_bytes, 1 << 20),), dtype=torch.uint8, device=device)
    return drawn.repeat(math.ceil(size_bytes / len(drawn)))[:size_bytes]


def build_ceiling(
    work: Ceiling, program: ProgramSettings, device: str, threads: int
) -> CeilingProgram:
    """The operation of `work` in the program's precision, at its size or at the fastest found."""
    on_gpu = torch.device(device).type == "cuda"
    links = {"host_to_device", "device_to_host"} if on_gpu else set()
    check_operation(work, {"matrix_product", "convolution", "copy"} | links, "pytorch")
    prepare(device, program.precision, threads)
    torch.manual_seed(0)
    exact = ARRAY_TYPES.get(program.precision, torch.float32)
    dtype = AUTOCAST_TYPES.get(program.precision, exact)
    if work.operation == "convolution":
        return _convolution(work, dtype, device, (16, 512) if on_gpu else (4, 64))
    if work.operation == "matrix_product":
        return _product(work, dtype, device, (1 << 10, 1 << 14) if on_gpu else (1 << 9, 1 << 13))
    make: Callable[[int], _Copying] = partial(TorchCopy, device=device)
    sizes = COPY_SIZES
    if work.operation != "copy":
        to_device = work.operation == "host_to_device"
        make = partial(TorchTransfer, device=device, to_device=to_device, pinned=work.pinned)
        sizes = LINK_SIZES
    if work.size is not None:
        return make(work.size)
    return fastest(make, *sizes, is_out_of_memory, COPY_GROWTH)


def _product(
    work: Ceiling, dtype: torch.dtype, device: str, sides: tuple[int, int]
) -> TorchMatrixProduct:
    """The shape of `work`; without one the fastest, with b in the faster layout."""
    shape = shape_of(work)
    if shape is not None:
        return TorchMatrixProduct(shape, dtype, device)
    plain = fastest_product(
        lambda shape: TorchMatrixProduct(shape, dtype, device), sides, is_out_of_memory
    )
    other = TorchMatrixProduct(plain.shape, dtype, device, transposed=True)
    return max(plain, other, key=lambda program: try_out(program).rate_per_s)


def _convolution(
    work: Ceiling, dtype: torch.dtype, device: str, batches: tuple[int, int]
) -> TorchConvolution:
    """The batch size of `work`; without one the fastest shape and batch size. In the faster layout
    of the two."""
    if work.size is not None:
        best = TorchConvolution(work.size, *CONVOLUTION, dtype, device)
    else:
        found = (
            fastest(partial(_of_extent, extent, dtype, device), *batches, is_out_of_memory)
            for extent in CONVOLUTIONS
        )
        best = max(found, key=lambda program: try_out(program).rate_per_s)
    other = TorchConvolution(best.batch, *best.extent, dtype, device, channels_last=True)
    return max(best, other, key=lambda program: try_out(program).rate_per_s)


def _of_extent(
    extent: tuple[int, int], dtype: torch.dtype, device: str, batch: int
) -> TorchConvolution:
    return TorchConvolution(batch, *extent, dtype, device)
