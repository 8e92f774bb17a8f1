"""Runtime of plans: arrays in, arrays out.

    from cubemesh import Plan

    with Plan.load("resnet-50.plan") as plan:
        scores = plan.run(images)        # any number of samples

Only NumPy and the engine that the plan chose are imported; PyTorch is not.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from cubemesh.batches import Array
from cubemesh.errors import DataError, UsageError
from cubemesh.inference.device import check_device, differences, this_device
from cubemesh.inference.engines import (
    ENGINES,
    Session,
    computation,
    engine_errors,
    open_engine,
)
from cubemesh.inference.plan_file import (
    PlanDocument,
    Trial,
    describe_plan,
    read_plan,
    unpacked_plan,
)
from cubemesh.untrusted import quoted

Samples = Array | Mapping[str, Array]


class Plan:
    """A plan, ready to run. Not for several threads at a time: load it once for each."""

    def __init__(
        self, document: PlanDocument, models: Mapping[str, bytes | Path], device: str = "cpu"
    ) -> None:
        self.document = document
        self.batches = tuple(choice.batch for choice in document.choices)
        """The batch sizes that it was built for, in ascending order."""
        self._sessions: dict[int, Session] = {
            choice.batch: _open(document, choice, models[choice.model], device)
            for choice in document.choices
        }

    @classmethod
    def load(
        cls, path: str | Path, *, threads: int | None = None, device: str | None = None
    ) -> Self:
        """The plan of a file, made ready. `device`: `cpu` or `cuda:N`, by default the first that
        the plan is for. UsageError where there is no file or an engine is not installed; DataError
        where the file is damaged, or was built for another device or version of the engine: its
        choices are not measured here."""
        if device is None:
            device = device_of(describe_plan(Path(path))[0])
        fits = functools.partial(_check_fit, path, threads, device)
        if check_device(device) != "cpu":  # the weights are copied to the GPU
            document, contents = read_plan(Path(path))
            fits(document)
            return cls(document, contents, device)
        with unpacked_plan(Path(path), meanwhile=fits) as (document, models):
            return cls(document, models, device)

    def run(self, samples: Samples) -> Array:
        """The first output for any number of samples. An array for a network with one input,
        otherwise arrays by name."""
        return self.run_all(samples)[0]

    def run_all(self, samples: Samples) -> tuple[Array, ...]:
        """Every output, in the order of `document.outputs`."""
        arrays = self.inputs_of(samples)
        count = len(next(iter(arrays.values())))
        found: list[Array] = []
        done = 0
        for batch in self.split(count):
            here = min(batch, count - done)
            part = {name: _padded(a[done : done + here], batch) for name, a in arrays.items()}
            results = self._sessions[batch].run(part)
            if not found:
                found = [np.empty((count, *r.shape[1:]), r.dtype) for r in results]
            for whole, result in zip(found, results, strict=True):
                whole[done : done + here] = result[:here]
            done += here
        return tuple(found)

    def bind(self, samples: Samples) -> Callable[[], None]:
        """A call that computes what `run` does. On a GPU the inputs are copied there before, and
        the outputs are not copied back: its time is that of the computation."""
        arrays = self.inputs_of(samples)
        count, done = len(next(iter(arrays.values()))), 0
        calls = []
        for batch in self.split(count):
            part = {name: _padded(a[done : done + batch], batch) for name, a in arrays.items()}
            calls.append(computation(self._sessions[batch], part))
            done += min(batch, count - done)

        def compute() -> None:
            for call in calls:
                call()

        return compute

    def split(self, count: int) -> tuple[int, ...]:
        """The batch sizes in which `count` samples take the least time by the plan's
        measurements; the last one may be larger than what is left."""
        seconds = tuple((c.batch, c.seconds or 0.0) for c in self.document.choices)
        many, rest = divmod(count, self.batches[-1])
        return cheapest_split(seconds, self.batches[-1]) * many + cheapest_split(seconds, rest)

    def expected_s(self, count: int) -> float:
        """Seconds that `count` samples take by the plan's measurements, at the upper ends of their
        intervals."""
        seconds = {c.batch: c.high or c.seconds or 0.0 for c in self.document.choices}
        return sum(seconds[batch] for batch in self.split(count))

    def close(self) -> None:
        """Free the engines."""
        self._sessions.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def inputs_of(self, samples: Samples) -> dict[str, Array]:
        """Arrays by input, in its type. UsageError where they do not fit."""
        inputs = self.document.inputs
        if not isinstance(samples, Mapping):
            if len(inputs) != 1:
                names = ", ".join(value.name for value in inputs)
                raise UsageError(f"{self.document.network} has {len(inputs)} inputs: {names}.")
            samples = {inputs[0].name: samples}
        if set(samples) != {value.name for value in inputs}:
            raise UsageError(
                f"The inputs of {self.document.network} are "
                f"{', '.join(value.name for value in inputs)}; given: {', '.join(samples)}."
            )
        found = {}
        for value in inputs:
            array = np.asarray(samples[value.name])
            if array.shape[1:] != value.shape[1:] or array.ndim != len(value.shape):
                shown = "×".join(map(str, ("n", *value.shape[1:])))
                raise UsageError(
                    f"{value.name} has the shape {'×'.join(map(str, array.shape))}, and {shown} is "
                    "needed."
                )
            found[value.name] = np.ascontiguousarray(array, dtype=value.dtype)
        counts = {len(array) for array in found.values()}
        if len(counts) > 1 or not min(counts):
            raise UsageError(f"Inputs need as many samples each, at least one; given: {counts}.")
        return found


@functools.lru_cache(maxsize=256)
def cheapest_split(seconds: tuple[tuple[int, float], ...], count: int) -> tuple[int, ...]:
    """The batch sizes in which `count` samples take the least time, given (batch size, seconds);
    of equal ones the fewest. Largest first."""
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for samples in range(1, count + 1):
        ways = []
        for batch, time in seconds:
            before, parts = best[max(0, samples - batch)]
            ways.append((before + time, (*parts, batch)))
        best.append(min(ways, key=lambda way: (way[0], len(way[1]))))
    return tuple(sorted(best[count][1], reverse=True))


def device_of(document: PlanDocument) -> str:
    """The first device of the kind that a plan was built for."""
    return "cuda:0" if document.device.gpu else "cpu"


def _check_fit(path: str | Path, threads: int | None, device: str, document: PlanDocument) -> None:
    """Import the engines of a plan. UsageError where one is not installed, DataError where the plan
    was built for another device or version."""
    found = list(differences(document, this_device(threads, device)))
    for name in dict.fromkeys(choice.engine for choice in document.choices):
        engine = ENGINES.get(name)
        if engine is None:
            raise DataError(
                f"The plan {path} runs in {quoted(name)}, which is no engine of this cubemesh."
            )
        if not engine.installed:
            raise UsageError(
                f"The plan {path} runs in {name}, which is not installed: "
                f"pip install 'cubemesh[{engine.extra}]'"
            )
        built = next(c.version for c in document.choices if c.engine == name)
        if engine.version != built:
            found.append(f"it was built with {engine.title} {built}, and this is {engine.version}")
    if found:
        raise DataError(
            f"The plan {path} does not fit this device: {'; '.join(found)}. Choose again here, "
            f"which needs no data: cubemesh build --from {path}"
            + (f" --device {device}" if device != "cpu" else "")
        )
    for name in dict.fromkeys(choice.engine for choice in document.choices):
        with engine_errors(name, document.network):
            importlib.import_module(ENGINES[name].package)


def _open(document: PlanDocument, choice: Trial, model: bytes | Path, device: str) -> Session:
    with engine_errors(choice.engine, document.network):
        return open_engine(
            choice.engine,
            model,
            threads=document.device.threads,
            device=device,
            precision=compute_precision(choice.precision),
            batch=choice.batch,
            kernels=document.kernels,
        )


def compute_precision(precision: str) -> str:
    """The precision of what a model does not quantize."""
    return "fp32" if precision == "int8" else precision


def _padded(array: Array, batch: int) -> Array:
    """`array` with `batch` samples; the last one is repeated."""
    if len(array) == batch:
        return array
    return np.concatenate([array, np.repeat(array[-1:], batch - len(array), axis=0)])
