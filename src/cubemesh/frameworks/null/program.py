"""The null framework: simulates training from a script, for tests of everything around it.

The script sets the step time, the loss, the accuracy and the failures (null/script.py). Simulated
time needs no waiting: the program's clock runs ahead of the real one. Failures are real: the
signal, the exit, the allocation or the hang that a framework's fault would cause.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Array, Batch
from cubemesh.detection.labels import as_detected, grid_of
from cubemesh.frameworks.ceiling_search import CONVOLUTION, convolution_flops, shape_words
from cubemesh.frameworks.contract.gradient_sync import Bucket
from cubemesh.frameworks.contract.program import (
    BuildRequest,
    Capabilities,
    CeilingProgram,
    OutOfMemory,
    monotonic_s,
)
from cubemesh.frameworks.contract.validation import check_weights
from cubemesh.frameworks.null.script import Event, Script, read_script
from cubemesh.schema.profile import Profile, ProfileEvent
from cubemesh.schema.spec import ProgramSettings
from cubemesh.schema.work import Ceiling, Train
from cubemesh.units import format_bytes

_ALLOCATION_BYTES = 64 << 20
_DEFAULT_SIDE = 1024
_DEFAULT_BATCH = 32
_DEFAULT_COPY_BYTES = 1 << 28


def capabilities() -> Capabilities:
    """Everything, on a CPU, since nothing is computed."""
    return Capabilities(
        works=frozenset(
            {"train_steps", "forward", "forward_backward", "infer", "train", "input", "ceiling"}
        ),
        devices=("cpu",),
        precisions={"cpu": frozenset({"fp64", "fp32", "tf32", "bf16", "fp16"})},
        layouts=frozenset({"nchw", "nhwc"}),
        optimizers=frozenset({"sgd", "rmsprop", "adam", "adamw", "adamw-8bit", "lars"}),
        loss_scales=frozenset({"dynamic", "static"}),
        layer_precisions=dict.fromkeys(
            ("cpu", "cuda"), frozenset({"fp64", "fp32", "tf32", "bf16", "fp16", "fp8"})
        ),
        accumulates=True,
        checkpoints_activations=True,
        scripted=True,
    )


class ScriptedClock:
    """Starts at `time.perf_counter()`, then advances by simulated time only; with `real=1` it is
    the real clock, and simulated time is slept. Each step begins with its scripted failures."""

    def __init__(self, script: Script, seed: int) -> None:
        self._script = script
        self._random = np.random.default_rng(seed)
        self._now = monotonic_s()

    def spend(self, step: int, samples: int) -> float:
        """Advance by the time of step number `step` (from 1), for a batch of `samples`. Returns the
        clock at its start."""
        for event in self._script.events_at(step):
            trigger(event)
        start_s = self.read()
        seconds = self._script.step_s(step, samples, float(self._random.standard_normal()))
        if self._script.real:
            time.sleep(seconds)
        else:
            self._now += seconds
        return start_s

    def read(self) -> float:
        """Seconds, on the scale of `time.perf_counter()`."""
        return monotonic_s() if self._script.real else self._now


class NullProgram:
    """A `Program` that simulates a script."""

    buckets: Sequence[Bucket] = ()

    def __init__(self, request: BuildRequest) -> None:
        self.device = request.device
        program = request.program
        self._script = read_script(program.script).under(
            program.precision,
            program.layout,
            f"{request.threads}-threads",
            str(getattr(request.work, "kind", "")).replace("_", "-"),
        )
        self._network = request.network
        self._seed = request.work.seed
        self._epochs = request.work.epochs if isinstance(request.work, Train) else 1
        self._clock = ScriptedClock(self._script, self._seed)
        self._weights: dict[str, Array] | None = None
        self._steps = 0
        self._evaluations = 0  # calls of `evaluate` with no step between them are one
        self._evaluated_after = -1
        self._evaluated = 0  # samples so far in this evaluation
        self._recording = False
        self._recorded: list[ProfileEvent] = []

    def place(self, batch: Batch) -> NDArray[np.int64]:
        """A copy of the labels, all that a simulation needs."""
        return batch.labels.copy()

    def train_step(self, placed: NDArray[np.int64]) -> None:
        """Trigger the events of this step, then advance the clock."""
        self._steps += 1
        start_s = self._clock.spend(self._steps, len(placed))
        duration_s = self._clock.read() - start_s
        if self._recording:
            operator = ProfileEvent(
                name="scripted step", kind="operator", start_s=start_s, duration_s=duration_s
            )
            self._recorded.append(operator)

    def profile(
        self, run: Callable[[], None], *, layers: bool = False, trace: str | None = None
    ) -> Callable[[], Profile]:
        """Each step as one operator that computes from its start to its end; writes no trace."""
        self._recording = True
        run()
        self._recording = False
        profile = Profile(events=tuple(self._recorded))
        self._recorded.clear()
        return lambda: profile

    def forward(self, placed: NDArray[np.int64]) -> None:
        """The same as a training step."""
        self.train_step(placed)

    forward_backward = forward

    def infer(self, placed: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same as a training step; `fetch` takes no time."""
        self.train_step(placed)
        return placed

    def fetch(self, scores: NDArray[np.int64]) -> Array:
        """As `evaluate`."""
        return self.evaluate(scores)

    def evaluate(self, placed: NDArray[np.int64]) -> Array:
        """Scores that are correct for the scripted fraction of labels or of images with boxes, over
        the whole evaluation; takes no simulated time."""
        if self._evaluated_after != self._steps:
            self._evaluated_after = self._steps
            self._evaluations += 1
            self._evaluated = 0
        fraction = self._script.accuracy_of(self._evaluations, self._epochs)
        whole = placed[:, 0, 0] if placed.ndim == 3 else placed  # of a grid of cells: an image
        places = np.arange(self._evaluated, self._evaluated + whole.size).reshape(whole.shape)
        self._evaluated += whole.size
        right = np.floor((places + 1) * fraction + 1e-9) > np.floor(places * fraction + 1e-9)
        if placed.ndim == 3:
            grid = grid_of(self._network)
            found = np.stack([as_detected(grid, labels) for labels in placed])
            return np.where(right[:, None, None], found, np.float32(0))
        classes = self._network.targets[0].classes or 1
        chosen = np.where(right, placed, (placed + 1) % classes)
        scores = np.zeros((*placed.shape, classes), np.float32)
        np.put_along_axis(scores, chosen[..., None], 1, axis=-1)
        return scores

    def loss(self) -> float:
        """The scripted loss of the last step."""
        return self._script.loss_after(self._steps)

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def load(self, weights: Mapping[str, Array]) -> None:
        """Store the weights for `state`."""
        check_weights(weights, self._network)
        self._weights = {name: np.array(array) for name, array in weights.items()}

    def state(self) -> dict[str, Array]:
        """The weights as drawn or loaded: nothing is trained."""
        if self._weights is None:
            self._weights = dict(self._network.draw(self._seed))
        return {name: array.copy() for name, array in self._weights.items()}

    def peak_memory_bytes(self) -> int | None:
        """As scripted; None where the script sets none."""
        return self._script.memory_bytes

    def clock(self) -> float:
        """The simulated clock."""
        return self._clock.read()

    def close(self) -> None:
        """Drop the weights."""
        self._weights = None


class NullCeiling:
    """A call takes the time of a scripted step."""

    def __init__(self, work: Ceiling, script: Script) -> None:
        product = work.operation in ("matrix_product", "convolution")
        if work.operation == "convolution":
            batch = work.size or _DEFAULT_BATCH
            self.work_per_call = convolution_flops(batch, *CONVOLUTION)
            self.what = f"batch size {batch}"
        elif product:
            side = work.size or _DEFAULT_SIDE
            shape = work.shape or (side, side, side)
            self.work_per_call, self.what = 2.0 * math.prod(shape), shape_words(shape)
        else:
            size_bytes = work.size or _DEFAULT_COPY_BYTES
            self.work_per_call = (2.0 if work.operation == "copy" else 1.0) * size_bytes
            self.what = format_bytes(size_bytes)
        self.unit = "FLOP/s" if product else "byte/s"
        self._clock = ScriptedClock(script, seed=0)
        self._calls = 0

    def call(self) -> None:
        """Trigger the events of this call, then advance the clock."""
        self._calls += 1
        self._clock.spend(self._calls, samples=0)

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def clock(self) -> float:
        """The simulated clock."""
        return self._clock.read()


def build(request: BuildRequest) -> NullProgram:
    """The program for the request's script; UsageError where the script is invalid."""
    return NullProgram(request)


def build_ceiling(
    work: Ceiling, program: ProgramSettings, device: str, threads: int
) -> CeilingProgram:
    """An operation with the script's step time; of side 1024 or 256 MiB where no size is given."""
    return NullCeiling(work, read_script(program.script))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is that of `allocate@`, or NumPy's."""
    return isinstance(error, (OutOfMemory, MemoryError))


def preload() -> None:
    """Nothing: NumPy is already imported."""


def trigger(event: Event) -> None:
    """Cause the failure of `event`."""
    _FAILURES[event.kind](event)


def _hang(event: Event) -> None:
    while True:
        time.sleep(3600)


def _error(event: Event) -> None:
    raise RuntimeError(f"scripted error at step {event.step}")


def _allocate(event: Event) -> None:
    """Fill memory until an allocation fails. Only sensible under a memory limit."""
    arrays: list[NDArray[np.uint8]] = []
    try:
        while True:
            arrays.append(np.ones(_ALLOCATION_BYTES, np.uint8))  # ones, so that pages are touched
    except MemoryError as error:
        size_bytes = len(arrays) * _ALLOCATION_BYTES
        arrays.clear()
        raise OutOfMemory(
            f"scripted allocation at step {event.step}: failed after {size_bytes} bytes."
        ) from error


_FAILURES: Mapping[str, Callable[[Event], None]] = {
    "segfault": lambda event: os.kill(os.getpid(), signal.SIGSEGV),
    "kill": lambda event: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda event: os._exit(event.value),
    "hang": _hang,
    "error": _error,
    "allocate": _allocate,
    "nan": lambda event: None,  # see `Script.loss_after`
}
