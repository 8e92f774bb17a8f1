"""Mixed precision: 8-bit integers where they keep the accuracy, fp32 where they do not.

Where no 8-bit model keeps the accuracy in an engine, operators go back to fp32. Those that cost the
most accuracy for the time they save go first: the divergence of the scores from those of fp32, when
an operator alone is in 8 bits, over its multiply-adds, to which the time it saves is about
proportional. How many go is found by bisection, judged on held-out samples.

    divergence / multiply-adds   conv1 ▇▇▇▇▇▇▇  fc ▇▇▇▇  conv3 ▇▇  conv2 ▏
                                 └── fp32 ───────────┘  └── 8 bits ──┘
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod

from cubemesh.inference.accuracy import KEEPS, agreement, verdict_of
from cubemesh.inference.candidates import (
    BATCH_OF_PROOF,
    EngineCandidate,
    EnginePool,
    Model,
    Tell,
    samples_of,
)
from cubemesh.inference.engines import EngineError, engine_errors, float_engines
from cubemesh.inference.plan_file import FrontPoint, ModelNote, Proof, Trial
from cubemesh.inference.quantization.calibrate import Calibration, calibrate
from cubemesh.inference.quantization.quantize import (
    CANDIDATES,
    Candidate,
    observed_values,
    quantizable,
    quantize,
)
from cubemesh.inference.quantization.sensitivity import sensitivity
from cubemesh.inference.samples import SampleSets, batches
from cubemesh.onnx.graph import Graph
from cubemesh.onnx.writer import infer_types, serialized

FINALISTS = 2
"""Methods of each form that are judged on all samples; all are on the first batch."""
MOST_GROUPS = 24
"""Groups of neighbours in which operators go back to fp32; fewer operators go one by one."""
Prove = Callable[[EngineCandidate], Proof | None]


@dataclass(frozen=True, kw_only=True)
class QuantizedForms:
    """The 8-bit models of a graph, and what others are made of."""

    graph: Graph
    calibration: Calibration
    reduce_range: bool
    chosen: Mapping[str, Candidate]
    """Name of a model → how it is quantized."""
    models: tuple[Model, ...]

    def mixed(self, name: str, full_precision: tuple[str, ...]) -> Model:
        """The model `name` with some operators in fp32."""
        candidate = self.chosen[name]
        others = [o for o in quantizable(self.graph) if o not in set(full_precision)]
        made = _quantized(
            self.graph, self.calibration, candidate, self.reduce_range, operators=others
        )
        note = ModelNote(
            name=f"{name}-mixed-{len(full_precision)}",
            quantized=len(others),
            method=candidate.method,
            full_precision=full_precision,
        )
        return Model(note, serialized(made), ("int8",))


def quantized_forms(
    graph: Graph,
    samples: SampleSets,
    pool: EnginePool,
    adds_bytes: bool,
    tell: Tell,
    every_method: bool = False,
) -> QuantizedForms | None:
    """8-bit models: with and without sums, each with the method whose scores are closest to those
    of fp32 on the samples for the selection. None where no operator can be quantized.
    `adds_bytes`: whether sums of products of bytes do not saturate here. `every_method`: the models
    of the other methods too."""
    operators = quantizable(graph)
    if not operators:
        tell("int8: no operator can be quantized")
        return None
    with engine_errors(pool.reference.first, graph.name):
        calibration = calibrate(
            graph,
            pool.open_reference,
            batches(samples.calibration, BATCH_OF_PROOF),
            observed_values(graph),
        )
    chosen: dict[str, Candidate] = {}
    models: list[Model] = []
    for divergence, candidate, content in _closest(
        graph, calibration, samples, pool, not adds_bytes, tell
    ):
        if any(model.content == content for model in models):
            continue  # there are no sums
        tell(f"int8, {candidate.name}: divergence {divergence:.2g} nats")
        name = "int8" if candidate.sums else "int8-products"
        note = ModelNote(name=name, quantized=len(operators), method=candidate.method)
        models.append(Model(note, content, ("int8",)))
        chosen[name] = candidate
    others = [c for c in CANDIDATES if every_method and c not in chosen.values()]
    for candidate in others:
        content = serialized(_quantized(graph, calibration, candidate, not adds_bytes))
        form = "int8" if candidate.sums else "int8-products"
        if form in chosen and all(model.content != content for model in models):
            note = ModelNote(
                name=f"{form}-{candidate.method}",
                quantized=len(operators),
                method=candidate.method,
            )
            models.append(Model(note, content, ("int8",)))
    return QuantizedForms(
        graph=graph,
        calibration=calibration,
        reduce_range=not adds_bytes,
        chosen=chosen,
        models=tuple(models),
    )


def _closest(
    graph: Graph,
    calibration: Calibration,
    samples: SampleSets,
    pool: EnginePool,
    reduce_range: bool,
    tell: Tell,
) -> Iterator[tuple[float, Candidate, bytes]]:
    """The candidate of each form with the least divergence. All are compared on the first batch,
    the best ones of each form on all samples."""
    engine = pool.first if float_engines(pool.engines) else pool.reference.first
    selection = samples.selection
    reference = pool.reference_scores(serialized(graph), selection)
    first = min(BATCH_OF_PROOF, len(reference))

    def divergence(content: bytes, count: int) -> float:
        inputs = {name: array[:count] for name, array in selection.items()}
        scores = pool.scores(engine, content, inputs, "int8")
        return agreement(reference[:count], scores).divergence

    def content_of(candidate: Candidate) -> bytes:
        return serialized(_quantized(graph, calibration, candidate, reduce_range))

    for sums in (True, False):
        found: list[tuple[float, Candidate, bytes]] = []
        group = [c for c in CANDIDATES if c.sums is sums]
        with ThreadPoolExecutor(min(len(group), len(os.sched_getaffinity(0)))) as threads:
            contents = list(threads.map(content_of, group))
        for candidate, content in zip(group, contents, strict=True):
            try:
                found.append((divergence(content, first), candidate, content))
            except EngineError as error:
                tell(str(error))
        finalists = sorted(found, key=lambda one: one[0])[:FINALISTS]
        judged = [(divergence(c, len(reference)), candidate, c) for _, candidate, c in finalists]
        yield from sorted(judged, key=lambda one: one[0])[:1]


def _quantized(
    graph: Graph,
    calibration: Calibration,
    candidate: Candidate,
    reduce_range: bool,
    operators: Sequence[str] | None = None,
) -> Graph:
    return quantize(
        graph,
        calibration,
        candidate.method,
        operators,
        sums=candidate.sums,
        reduce_range=reduce_range,
    )


@dataclass
class MixedPrecisionSearch:
    """Finds, for each engine in which no 8-bit model keeps the accuracy, the model with the fewest
    operators in fp32 that does."""

    forms: QuantizedForms
    samples: SampleSets
    pool: EnginePool
    prove: Prove
    tell: Tell
    notes: list[ModelNote] = field(default_factory=list)
    """Of every model that was judged."""
    proofs: list[Proof] = field(default_factory=list)
    _orders: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)

    def models(self, proofs: Sequence[Proof]) -> list[Model]:
        """The models found, given the `proofs` of the 8-bit ones."""
        found: dict[str, Model] = {}
        for engine in float_engines(self.pool.engines):
            own = [p for p in proofs if p.engine == engine and p.model in self.forms.chosen]
            if not own or any(keeps_bound(proof) for proof in own):
                continue
            for proof in sorted(own, key=_closeness):
                model = self._search(engine, proof.model)
                if model is not None:
                    found[model.note.name] = model
                    break
        return list(found.values())

    def _search(self, engine: str, name: str) -> Model | None:
        groups = self._order(self.forms.chosen[name].method)
        fails, keeps, found = 0, len(groups), None
        while keeps - fails > 1:
            middle = (fails + keeps) // 2
            operators = tuple(o for group in groups[:middle] for o in group)
            model = self.forms.mixed(name, operators)
            proof = self.prove(EngineCandidate(model, "int8", engine))
            if model.note not in self.notes:
                self.notes.append(model.note)
            self.proofs += [proof] if proof else []
            if proof is not None and keeps_bound(proof):
                keeps, found = middle, model
            else:
                fails = middle
        return found

    def _order(self, method: str) -> list[tuple[str, ...]]:
        """Groups of operators in the order in which they go back to fp32."""
        if method not in self._orders:
            with engine_errors(self.pool.reference.first, self.forms.graph.name):
                found = sensitivity(
                    self.forms.graph,
                    self.forms.calibration,
                    method,
                    self.pool.open_reference,
                    list(batches(self.samples.selection, BATCH_OF_PROOF)),
                    most_groups=MOST_GROUPS,
                )
            work = multiply_adds(self.forms.graph)
            cost = {
                s.operators: s.agreement.divergence / max(1, sum(work[o] for o in s.operators))
                for s in found
            }
            self._orders[method] = sorted(cost, key=lambda group: (-cost[group], group))
            first = ", ".join(self._orders[method][0][:3])
            self.tell(
                f"mixed precision: {len(cost)} groups of operators, "
                f"{samples_of(self.samples.selection)} samples; the most sensitive for its time: "
                f"{first}"
            )
        return self._orders[method]


def _closeness(proof: Proof) -> float:
    return float("inf") if proof.divergence is None else proof.divergence


def keeps_bound(proof: Proof) -> bool:
    """Whether a proof shows that the accuracy is kept. Samples that could not show it of fp32
    itself suffice where the ratio of right answers is at least the bound."""
    if not proof.accepted or proof.ratio is None or proof.verdict == KEEPS:
        return proof.accepted
    equal = verdict_of(
        both=proof.reference_right, lost=0, gained=0, samples=proof.samples, bound=proof.bound
    )
    return equal.verdict != KEEPS


def multiply_adds(graph: Graph) -> dict[str, int]:
    """Multiply-adds of each operator that can be quantized, of one sample; the number of its
    weights where the shape of its result is unknown."""
    types = infer_types(graph)
    found = {}
    for name in quantizable(graph):
        operator = graph.producers[name]
        shape = types[operator.outputs[0]].shape if operator.outputs[0] in types else ()
        lengths = [length for length in shape[1:] if isinstance(length, int)]
        # Every weight is used once at each position: along the axes behind the channels of a
        # convolution, before those of a product.
        positions = prod(lengths[1:] if operator.kind == "Conv" else lengths[:-1])
        found[name] = int(graph.constants[operator.inputs[1]].size) * positions
    return found


def front(trials: Sequence[Trial], proofs: Sequence[Proof]) -> tuple[FrontPoint, ...]:
    """Time and accuracy of every candidate that was measured in both, by batch size, the fastest
    first. fp32 has the accuracy 1."""
    proved = {(p.model, p.precision, p.engine): p for p in proofs}
    points: list[tuple[Trial, float, float, bool]] = []
    for trial in trials:
        proof = proved.get((trial.model, trial.precision, trial.engine))
        if trial.seconds is None or (proof is None and trial.precision != "fp32"):
            continue
        accuracy = 1.0 if proof is None else accuracy_of(proof)
        points.append((trial, trial.seconds, accuracy, proof is None or proof.accepted))
    found = [
        FrontPoint(
            batch=trial.batch,
            model=trial.model,
            precision=trial.precision,
            engine=trial.engine,
            seconds=seconds,
            accuracy=accuracy,
            accepted=accepted,
            dominated=any(
                other.batch == trial.batch
                and s <= seconds
                and a >= accuracy
                and (s < seconds or a > accuracy)
                for other, s, a, _ in points
            ),
        )
        for trial, seconds, accuracy, accepted in points
    ]
    return tuple(sorted(found, key=lambda p: (p.batch, p.seconds)))


def accuracy_of(proof: Proof) -> float:
    """Right answers over those of fp32; without labels the share of equal decisions."""
    if proof.ratio is not None:
        return proof.ratio
    return 1 - proof.changed / proof.samples if proof.samples else 0.0
