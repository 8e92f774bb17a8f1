"""Session of a program on a GPU: its weights and arrays, the tiling of each convolution, and the
CUDA graph that replays all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from cubemesh.batches import Array
from cubemesh.inference.gpu.program import (
    NOWHERE,
    ConvStep,
    DeviceProgram,
    DeviceStep,
)
from cubemesh.inference.lowering import AddStep, PoolStep
from cubemesh.inference.quantization.quantized_graph import Quantized
from cubemesh.kernels.cuda_events import time_ms
from cubemesh.kernels.triton.compilation import compiling_in_threads
from cubemesh.kernels.triton.hwnc import launch
from cubemesh.kernels.triton.hwnc.launch import (
    Layout,
    Parameters,
    Projection,
    Tiling,
    split_bytes,
    tilings,
)

Kernels = Mapping[str, tuple[int, ...]]
"""Description of a convolution → the numbers of its tiling."""
_TYPES = {"int8": torch.int8, "float16": torch.float16, "float32": torch.float32}
TUNED_CALLS, TUNED_TIMES = 3, 3
"""Calls in a replay, and replays, when a tiling is timed."""
SHORT_MS, SHORT_CALLS = 0.03, 20
"""More calls for kernels that take less time than a replay."""
TOLERANCE = 1e-3
"""How far sums of a tiling's results may be from those of the others, of the largest."""


class GpuSession:
    """A program, ready to run at one batch size. Inputs and outputs are NumPy arrays."""

    def __init__(
        self,
        program: DeviceProgram,
        batch: int,
        device: str,
        kernels: Kernels | None = None,
        *,
        tune: bool = False,
    ) -> None:
        """With `tune`, tilings that `kernels` does not have are timed; otherwise the first that
        fits is taken."""
        self.program, self.batch = program, batch
        self._device = torch.device(device)
        self.kernels: dict[str, tuple[int, ...]] = {}
        """The tiling of each convolution."""
        with torch.cuda.device(self._device):
            shape = (batch, *program.input_shape)
            self._input = torch.zeros(shape, device=self._device)
            self._pinned = torch.zeros(shape, pin_memory=True)
            self._buffers = [
                torch.empty(size * batch, dtype=torch.int8, device=self._device)
                for size in program.buffers
            ]
            self._parameters = {
                number: self._folded(step)
                for number, step in enumerate(program.steps)
                if isinstance(step, ConvStep)
            }
            self._partial, self._arrived = self._split_memory()
            self._choose_tilings(kernels or {}, tune)
            self._launches = [
                self._launch(number, step) for number, step in enumerate(program.steps)
            ]
            self._graph = self._captured()

    def run(self, inputs: Mapping[str, Array]) -> Sequence[Array]:
        """The outputs for the inputs of a batch."""
        self.put(inputs)
        return self.compute()

    def put(self, inputs: Mapping[str, Array]) -> None:
        """Copy the inputs to the GPU."""
        with torch.cuda.device(self._device):
            self._pinned.copy_(torch.from_numpy(np.asarray(inputs[self.program.input])))
            self._input.copy_(self._pinned, non_blocking=True)

    def replay(self) -> None:
        """Compute the outputs of the inputs that are on the GPU, and wait for them."""
        with torch.cuda.device(self._device):
            self._graph.replay()
            torch.cuda.current_stream().synchronize()

    def compute(self) -> Sequence[Array]:
        """`replay`, and the outputs."""
        self.replay()
        return [self._fetched(name, flat) for name, flat in self.program.outputs]

    def array(self, name: str) -> Array:
        """What an array of the program holds, in real numbers, as (batch, channels, height, width).
        Arrays whose buffer was used again hold something else."""
        layout, own = self._layout(name), self.program.arrays[name]
        shape = (own.height, own.width, self.batch, own.channels)
        strides = (own.width * self.batch * own.row, self.batch * own.row, own.row, 1)
        found = layout.array.as_strided(shape, strides, layout.array.storage_offset())
        real = found.float()
        if own.quantized is not None:
            real = (real - own.quantized.zero) * own.quantized.scale
        wanted = [at for at, slot in enumerate(own.slots) if slot != NOWHERE]
        result: Array = real.permute(2, 3, 0, 1)[:, wanted].contiguous().cpu().numpy()
        return result

    def _fetched(self, name: str, flat: bool) -> Array:
        found = self.array(name)
        return found.reshape(len(found), -1) if flat else found

    def _layout(self, name: str) -> Layout:
        own = self.program.arrays[name]
        array = self._buffers[own.buffer].view(_TYPES[own.dtype])[own.offset :]
        quantized = own.quantized or Quantized(scale=1.0, zero=0)
        return Layout(
            array=array,
            height=own.height,
            width=own.width,
            channels=own.channels,
            row=own.row,
            line_pixels=own.line_pixels,
            scale=quantized.scale,
            zero=quantized.zero,
        )

    def _folded(self, step: ConvStep) -> Parameters:
        x, y = self._layout(step.x), self._layout(step.y)
        residual = self._layout(step.residual) if step.residual else None
        projected, part = None, step.projection
        if part is not None:
            projected = (part.weights, part.scales, self._layout(part.x))
        numbers = (step.weights, step.scales, step.biases)
        return launch.folded(*numbers, x, y, self.batch, residual, projected)

    def _projection(self, step: ConvStep) -> Projection | None:
        if step.projection is None:
            return None
        return Projection(x=self._layout(step.projection.x), stride=step.projection.stride)

    def _split_memory(self) -> tuple[torch.Tensor, torch.Tensor]:
        """For the partial sums of all convolutions, and how many programs of a block arrived: 0
        between the kernels."""
        partial = arrived = 0
        for step in self.program.steps:
            if isinstance(step, ConvStep):
                for tiling in self._fitting(step):
                    found = split_bytes(self._layout(step.y), self.batch, tiling)
                    partial, arrived = max(partial, found[0]), max(arrived, found[1])
        return (
            torch.empty(partial // 4, dtype=torch.float32, device=self._device),
            torch.zeros(arrived // 4, dtype=torch.int32, device=self._device),
        )

    def _launch(self, number: int, step: DeviceStep) -> Callable[[], None]:
        y = self._layout(step.y)
        if isinstance(step, ConvStep):
            return self._convolution(number, step, self._tiling(step))
        if isinstance(step, PoolStep):
            x, window = self._layout(step.x), step.window
            if not step.average:
                return partial(launch.max_pool, x, y, window, self.batch, relu=step.relu)
            pool = partial(launch.average_pool, divisor=step.divisor, relu=step.relu)
            return partial(pool, x, y, window, self.batch)
        if isinstance(step, AddStep):
            x, other = self._layout(step.x), self._layout(step.other)
            return partial(launch.add, x, other, y, self.batch, relu=step.relu)
        return partial(
            partial(launch.store_images, self._input, y, self.batch),
            top=step.top,
            left=step.left,
            fold=step.fold,
        )

    def _convolution(self, number: int, step: ConvStep, tiling: Tiling) -> Callable[..., None]:
        residual = self._layout(step.residual) if step.residual else None
        return partial(
            launch.convolve,
            self._layout(step.x),
            self._parameters[number],
            self._layout(step.y),
            step.window,
            self.batch,
            tiling,
            residual=residual,
            projection=self._projection(step),
            relu=step.relu,
            partial=self._partial,
            arrived=self._arrived,
        )

    # Tilings

    def _tiling(self, step: ConvStep) -> Tiling:
        return Tiling.from_numbers(self.kernels[self.describe(step)])

    def describe(self, step: ConvStep) -> str:
        """What the time of a convolution depends on, for the record of tilings."""
        x, y, window = self.program.arrays[step.x], self.program.arrays[step.y], step.window
        flags = ("+residual" if step.residual else "") + ("+relu" if step.relu else "")
        part = step.projection
        if part is not None:
            p = self.program.arrays[part.x]
            flags = f"+{p.height}x{p.width}x{p.channels}/{p.row} s{_pair(part.stride)}" + flags
        return (
            f"{x.dtype}>{y.dtype} {self.batch}x{x.height}x{x.width}x{x.channels}/{x.row} > "
            f"{y.height}x{y.width}x{y.channels}/{y.row} "
            f"k{_pair(window.kernel)} s{_pair(window.stride)} p{_pair(window.pad)} "
            f"d{_pair(window.dilation)}{flags}"
        )

    def _choose_tilings(self, known: Kernels, tune: bool) -> None:
        """Take tilings from `known`, time the others or take the first that fits."""
        untuned: dict[str, tuple[int, ConvStep, tuple[Tiling, ...]]] = {}
        for number, step in enumerate(self.program.steps):
            if not isinstance(step, ConvStep):
                continue
            name, fitting = self.describe(step), self._fitting(step)
            if not fitting:
                raise ValueError(
                    f"{step.y} is too large for a batch size of {self.batch}, which is not a "
                    "multiple of 16"
                )
            numbers = tuple(known.get(name, ()))
            if numbers in {one.as_numbers() for one in fitting}:
                self.kernels[name] = numbers
            elif tune:
                untuned.setdefault(name, (number, step, fitting))
            else:
                self.kernels[name] = fitting[0].as_numbers()
        with compiling_in_threads():
            for number, step, fitting in untuned.values():
                for tiling in fitting:
                    self._convolution(number, step, tiling)(compile_only=True)
        for name, (number, step, fitting) in untuned.items():
            self.kernels[name] = self._fastest(number, step, fitting).as_numbers()

    def _fitting(self, step: ConvStep) -> tuple[Tiling, ...]:
        x, y = self._layout(step.x), self._layout(step.y)
        return tilings(x, y, step.window, self.batch, self._projection(step))

    def _fastest(self, number: int, step: ConvStep, fitting: Sequence[Tiling]) -> Tiling:
        """The tiling with the least time; one that does not compile, or does not compute what most
        of the others do, is left out."""
        times: dict[Tiling, float] = {}
        results: dict[Tiling, Array] = {}
        error: object = None
        self._fill(step)
        for tiling in fitting:
            run = self._convolution(number, step, tiling)
            try:
                times[tiling] = time_ms(run, TUNED_CALLS, TUNED_TIMES)
                if times[tiling] < SHORT_MS:
                    times[tiling] = time_ms(run, SHORT_CALLS, TUNED_TIMES)
            except Exception as failed:  # of Triton's compiler or of the driver
                error = failed
                continue
            results[tiling] = self._checked(step.y)
        if not times:
            raise RuntimeError(f"no tiling of {step.y} runs: {error}")
        typical = np.median(np.stack(list(results.values())), axis=0)
        allowed = TOLERANCE * float(np.abs(typical).max())
        right = {t for t, found in results.items() if np.abs(found - typical).max() <= allowed}
        return min(right or times, key=lambda tiling: times[tiling])

    def _fill(self, step: ConvStep) -> None:
        """Put random numbers where a convolution reads."""
        random = torch.Generator(self._device).manual_seed(0)
        for name in step.reads:
            own = self.program.arrays[name]
            buffer = self._buffers[own.buffer]
            if own.dtype == "int8":
                buffer.random_(-128, 128, generator=random)
            else:
                buffer.view(_TYPES[own.dtype]).normal_(generator=random)

    def _checked(self, name: str) -> Array:
        """Sums of an array that differ where its elements do: of the samples of each pixel and of
        the pixels of each sample, for each channel."""
        own = self.program.arrays[name]
        shape = (own.height * own.width, self.batch, own.channels)
        strides = (self.batch * own.row, own.row, 1)
        array = self._layout(name).array
        values = array.as_strided(shape, strides, array.storage_offset())
        weights = torch.linspace(1, 2, self.batch, device=self._device).to(torch.float64)
        of_pixels = torch.einsum("pnc,n->pc", values[::7].double(), weights)
        found: Array = of_pixels.flatten().cpu().numpy()
        return found

    def _captured(self) -> torch.cuda.CUDAGraph:
        with compiling_in_threads():
            for number, step in enumerate(self.program.steps):
                if isinstance(step, ConvStep):
                    self._convolution(number, step, self._tiling(step))(compile_only=True)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._run_launches()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._run_launches()
        return graph

    def _run_launches(self) -> None:
        for run in self._launches:
            run()


def _pair(values: tuple[int, int]) -> str:
    return "x".join(map(str, values))
