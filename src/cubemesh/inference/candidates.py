"""Candidates of a build: models, the precisions and engines that compute them, and their sessions.

A model is the graph in fp32, or with some or all of its products in 8-bit integers. A candidate is
a model in a precision in an engine. Sessions cost memory, so a pool keeps those that were used last
and closes the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cubemesh.batches import Array
from cubemesh.errors import UsageError
from cubemesh.inference.engines import (
    ENGINES,
    EngineError,
    Session,
    engine_errors,
    float_engines,
    open_engine,
    title,
)
from cubemesh.inference.plan_file import ModelNote, PlanDevice
from cubemesh.inference.runtime import compute_precision
from cubemesh.inference.samples import SampleSets, batches, random_inputs
from cubemesh.onnx.graph import Graph
from cubemesh.onnx.writer import serialized

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
"""In the order of their accuracy, which decides between equally fast ones."""
BATCH_OF_PROOF = 16
FLOATS = PRECISIONS[:-1]
LARGEST_ERROR = 1e-3
"""Of an engine's fp32 scores against those of the other engine and the unchanged graph."""
MOST_SESSIONS = 5
"""That a pool keeps open between calls."""


Tell = Callable[[str], object]


@dataclass(frozen=True)
class Model:
    """A model that may be chosen."""

    note: ModelNote
    content: bytes
    precisions: tuple[str, ...]
    """In which it can be computed."""


@dataclass(frozen=True)
class EngineCandidate:
    """A model in a precision in an engine."""

    model: Model
    precision: str
    engine: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Name of the model, precision, engine."""
        return self.model.note.name, self.precision, self.engine

    @property
    def title(self) -> str:
        """`int8 (products only) in OpenVINO`."""
        return f"{model_title(self.model.note, self.precision)} in {title(self.engine)}"


def model_title(note: ModelNote, precision: str) -> str:
    """A precision, and which operators have it where not all do."""
    if note.full_precision:
        return f"{precision} with {len(note.full_precision)} operators in fp32"
    return f"{precision} (products only)" if note.name == "int8-products" else precision


def candidates(models: Sequence[Model], pool: EnginePool) -> Iterator[EngineCandidate]:
    """Every candidate that can run here, the most accurate first."""
    for precision in PRECISIONS:
        for engine in pool.engines:
            for model in models:
                if precision in model.precisions and pool.able(engine, precision):
                    yield EngineCandidate(model, precision, engine)


class EnginePool:
    """Sessions of the engines that a build uses: at most `most` stay open to be used again."""

    def __init__(
        self,
        engines: Sequence[str],
        device: PlanDevice,
        network: str,
        most: int = MOST_SESSIONS,
        *,
        place: str = "cpu",
        reference: EnginePool | None = None,
    ) -> None:
        """`place`: the device, `cpu` or `cuda:N`. `reference`: where fp32 is computed, if not
        here."""
        self.engines = list(engines)
        """The first in floating point computes fp32, where `reference` is this pool."""
        self.device = device
        self.network = network
        self.place = place
        self.reference = self if reference is None else reference
        self._able = {name: ENGINES[name].load().available() for name in engines}
        self._most = most
        self._kept: OrderedDict[tuple[str, bytes, str, int], Session] = OrderedDict()

    def able(self, engine: str, precision: str) -> bool:
        """Whether an engine computes in a precision here."""
        return precision == "int8" or precision in self._able[engine]

    def open(
        self,
        engine: str,
        content: bytes,
        precision: str = "fp32",
        batch: int | None = None,
        *,
        kernels: Mapping[str, tuple[int, ...]] | None = None,
        tune: bool = False,
    ) -> Session:
        """A session of one engine. EngineError where it cannot run the model. `kernels`, `tune`: of
        own kernels."""
        with engine_errors(engine, self.network):
            return open_engine(
                engine,
                content,
                threads=self.device.threads,
                device=self.place,
                precision=compute_precision(precision),
                batch=batch,
                kernels=kernels,
                tune=tune,
            )

    def scores(
        self,
        engine: str,
        content: bytes,
        inputs: Mapping[str, Array],
        precision: str = "fp32",
    ) -> Array:
        """The first output for all samples of `inputs`. EngineError where there is none."""
        size = BATCH_OF_PROOF if self.place != "cpu" else min(BATCH_OF_PROOF, samples_of(inputs))
        session = self._session(engine, content, precision, size)
        found = []
        for part in batches(inputs, size):
            here = samples_of(part)
            padded = {n: np.resize(a, (size, *a.shape[1:])) for n, a in part.items()}
            with engine_errors(engine, self.network):
                found.append(np.array(session.run(padded)[0])[:here])
        return np.concatenate(found)

    def close(self) -> None:
        """Close the sessions that are kept."""
        self._kept.clear()
        if self.reference is not self:
            self.reference.close()

    def reference_scores(self, content: bytes, inputs: Mapping[str, Array]) -> Array:
        """The scores of a model in fp32."""
        return self.reference.scores(self.reference.first, content, inputs)

    def open_reference(self, content: bytes) -> Session:
        """A session in fp32, for batches of any size."""
        return self.reference.open(self.reference.first, content)

    @property
    def first(self) -> str:
        """The first engine that computes in floating point too; the first one where none does."""
        return (*float_engines(self.engines), *self.engines)[0]

    def _session(self, engine: str, content: bytes, precision: str, batch: int) -> Session:
        key = (engine, content, precision, batch)
        if key not in self._kept:
            while len(self._kept) >= self._most:
                self._kept.popitem(last=False)
            self._kept[key] = self.open(engine, content, precision, batch)
        self._kept.move_to_end(key)
        return self._kept[key]

    def check(
        self, graph: Graph, contents: Sequence[bytes], samples: SampleSets | None, tell: Tell
    ) -> None:
        """Leave out engines that cannot run the network; EngineError if none can. UsageError unless
        every model has the scores of the unchanged graph in all others."""
        inputs = next(batches(samples.selection, 4)) if samples else random_inputs(graph.inputs, 2)
        unchanged = serialized(graph)
        scores: dict[str, list[Array]] = {}
        for engine in float_engines(self.engines):
            try:
                scores[engine] = [self.scores(engine, c, inputs) for c in (unchanged, *contents)]
            except EngineError as error:
                tell(str(error))
                failed = error
        if not scores:
            raise failed
        self.engines = [e for e in self.engines if e in scores or ENGINES[e].integers_only]
        first, (wanted, *_) = next(iter(scores.items()))
        largest = float(np.abs(wanted).max()) or 1.0
        for engine, every in scores.items():
            apart = max(float(np.abs(found - wanted).max()) for found in every) / largest
            if not apart <= LARGEST_ERROR:
                raise UsageError(
                    f"The scores of {graph.name} in {title(engine)} differ from those of "
                    f"{title(first)} by {apart:.2g} of the largest. Choose one with --engine."
                )


def samples_of(inputs: Mapping[str, Array]) -> int:
    """Number of samples of arrays by input."""
    return len(next(iter(inputs.values())))
