"""Builder: which model of a network, in which engine, is the fastest here at an accepted accuracy.

    graph ─ passes ─▶ fp32 ─ calibration ─▶ 8-bit models ─ proof on held-out samples ─▶ accepted
    accepted models × engines × batch sizes ─ interleaved trials ─▶ a choice for each batch size

With the same timing record, samples and versions a build makes the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cubemesh.batches import Array
from cubemesh.errors import AccuracyError, UsageError, unknown_name
from cubemesh.inference.accuracy import agreement, paired_accuracy
from cubemesh.inference.candidates import (
    FLOATS,
    PRECISIONS,
    EngineCandidate,
    EnginePool,
    Model,
    Tell,
    candidates,
    samples_of,
)
from cubemesh.inference.device import check_device, this_device
from cubemesh.inference.engines import (
    ENGINES,
    EngineError,
    check_kind,
    computation,
    engine_errors,
    float_engines,
    kernels_of,
    of_device,
    title,
    unsupported,
)
from cubemesh.inference.mixed_precision import MixedPrecisionSearch, front, quantized_forms
from cubemesh.inference.passes import OPTIONAL, PASSES, optimize, steps
from cubemesh.inference.plan_file import (
    FORMAT,
    MOST_BATCH,
    ModelNote,
    PassNote,
    PlanDevice,
    PlanDocument,
    Proof,
    Trial,
)
from cubemesh.inference.samples import SampleSets, random_inputs, right_answers
from cubemesh.inference.timing import Latency, TimingRecord, choose, interleaved_latencies
from cubemesh.onnx.graph import BATCH, Graph, Value
from cubemesh.onnx.writer import serialized
from cubemesh.schema.serialization import to_plain


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """What a build tries."""

    batches: tuple[int, ...] = (1,)
    precisions: tuple[str, ...] = ("fp32",)
    accuracy: float = 0.99
    """Least ratio of right answers to those of fp32."""
    engines: tuple[str, ...] = ()
    """Default: those installed."""
    device: str = "cpu"
    """Or `cuda:N`: the Nth GPU."""
    threads: int | None = None
    seconds: float = 10.0
    """Time for the trials of a batch size."""
    every_candidate: bool = False
    """Compare and measure the 8-bit models of every method, and those that lose the accuracy too,
    to draw the front. None that loses is chosen."""

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1 or max(self.batches) > MOST_BATCH:
            raise UsageError(f"Batch sizes are 1 to {MOST_BATCH}; given: {_list(self.batches)}.")
        for name in self.precisions:
            if name not in PRECISIONS:
                raise unknown_name("precision", name, PRECISIONS)
        kind = check_device(self.device)
        for name in self.engines:
            if name not in ENGINES:
                raise unknown_name("engine", name, ENGINES)
            check_kind(name, kind)
        if not 0 < self.accuracy <= 1:
            raise UsageError(f"An accuracy bound is above 0 and at most 1, not {self.accuracy:g}.")


def with_free_batch(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """The graph whose inputs have a free first axis and, from `shapes` (without the batch), a
    fixed length of every other. UsageError where a length is missing or the batch is fixed."""
    unknown = shapes.keys() - {value.name for value in graph.inputs}
    if unknown:
        names = ", ".join(value.name for value in graph.inputs)
        raise UsageError(f"{graph.name} has no input {min(unknown)}. Inputs: {names}.")
    return replace(
        graph,
        inputs=tuple(_free(graph, value, shapes.get(value.name)) for value in graph.inputs),
        outputs=tuple(
            replace(value, shape=tuple(BATCH if n == 0 else "" for n, _ in enumerate(value.shape)))
            for value in graph.outputs
        ),
    )


def _free(graph: Graph, value: Value, given: tuple[int, ...] | None) -> Value:
    if not value.shape:
        raise UsageError(f"The input {value.name} of {graph.name} has no batch axis.")
    rest = value.shape[1:]
    if given is not None:
        fits = len(given) == len(rest) and all(
            isinstance(own, str) or own == length for own, length in zip(rest, given, strict=True)
        )
        if not fits or min(given, default=1) < 1:
            raise UsageError(
                f"The input {value.name} of {graph.name} has the shape "
                f"{_list(rest, '×')} for each sample, and {_list(given, '×')} was given."
            )
        rest = given
    free = [str(length) for length in rest if isinstance(length, str)]
    if free:
        raise UsageError(
            f"The input {value.name} of {graph.name} has free lengths besides the batch: "
            f"{', '.join(free)}. Set them: --shape {value.name}="
            f"{'x'.join('N' if isinstance(n, str) else str(n) for n in rest)}"
        )
    if isinstance(value.shape[0], int) and value.shape[0] != 1:
        raise UsageError(
            f"{graph.name} has a fixed batch of {value.shape[0]} samples. Export it with a free "
            "first axis."
        )
    return replace(value, shape=(BATCH, *rest))


def build(
    graph: Graph,
    source: str,
    settings: BuildSettings,
    samples: SampleSets | None,
    record: TimingRecord,
    tell: Tell,
) -> tuple[PlanDocument, dict[str, bytes]]:
    """The plan of `graph`, whose batch is free, and its models. UsageError where no engine is
    installed or a precision needs samples."""
    pool = _pool(settings, graph.name, tell)
    device = pool.device
    lower = [name for name in settings.precisions if name != "fp32"]
    if lower and samples is None:
        raise UsageError(
            f"{_list(lower)} can cost accuracy, which needs samples: --data NAME, or --samples "
            "FILE.npz."
        )
    optimized, results = optimize(graph)
    count = len(steps(optimized))
    tell(f"{len(graph.operators)} operators, {len(optimized.operators)} after the passes: "
         f"{count} steps")  # fmt: skip
    content = serialized(optimized)
    models = [Model(ModelNote(name="fp32"), content, _floats(settings))]
    merged, _ = optimize(optimized, {**PASSES, **OPTIONAL})
    if len(merged.operators) != len(optimized.operators):
        note = ModelNote(name="fp32-siblings")
        models.append(Model(note, serialized(merged), _floats(settings)))
        tell(f"with sibling products merged: {len(steps(merged))} steps")
    pool.reference.check(graph, [model.content for model in models], samples, tell)
    forms = None
    if "int8" in settings.precisions and samples is not None:
        forms = quantized_forms(
            optimized, samples, pool, _adds_bytes(device), tell, settings.every_candidate
        )
        models += forms.models if forms else ()
    proofs: list[Proof] = []
    notes = [model.note for model in models]
    if samples is not None and lower:
        prover = _Prover(models[0], samples, settings.accuracy, pool, tell)
        proofs = list(filter(None, map(prover.prove, candidates(models, pool))))
        if forms is not None:
            search = MixedPrecisionSearch(forms, samples, pool, prover.prove, tell)
            models += search.models(proofs)
            notes += search.notes
            proofs += search.proofs
    pool.close()
    trials, chosen = _choose(models, proofs, graph.inputs, settings, pool, record, tell)
    accepted = {p.model for p in proofs if p.accepted}
    stored = [m for m in models if not m.note.quantized or m.note.name in accepted]
    document = PlanDocument(
        format=FORMAT,
        network=graph.name,
        source=source,
        source_digest=graph.digest(),
        inputs=graph.inputs,
        outputs=tuple(value.name for value in graph.outputs),
        device=device,
        kernels=_kernels(trials, chosen, contents_of(models), device, record),
        steps=count,
        passes=tuple(PassNote(name=r.name, before=r.before, after=r.after) for r in results),
        models=tuple(notes),
        proofs=tuple(proofs),
        trials=tuple(trials),
        chosen=tuple(chosen),
        calibration_samples=samples_of(samples.calibration)
        if samples and any(m.note.quantized for m in models)
        else 0,
        samples=samples.about if samples and lower else "",
        front=front(trials, proofs),
    )
    return document, {model.note.name: model.content for model in stored}


def rebuild(
    document: PlanDocument,
    contents: Mapping[str, bytes],
    settings: BuildSettings,
    record: TimingRecord,
    tell: Tell,
) -> tuple[PlanDocument, dict[str, bytes]]:
    """The plan of another device or version, with choices measured here. The proofs stay: a model
    gives the same answers, to rounding, on every device that does not saturate sums of bytes; on
    one that does, 8-bit models with full weights are not tried."""
    pool = _pool(settings, document.network, tell)
    device = pool.device
    notes = {note.name: note for note in document.models}
    if _adds_bytes(document.device) and not _adds_bytes(device):
        notes = {name: note for name, note in notes.items() if not note.quantized}
        tell("int8: not tried, as sums of bytes saturate on this processor (it has no VNNI)")
    models = [
        Model(notes[name], content, ("int8",) if notes[name].quantized else FLOATS)
        for name, content in contents.items()
        if name in notes
    ]
    trials, chosen = _choose(models, document.proofs, document.inputs, settings, pool, record, tell)
    return (
        replace(
            document,
            device=device,
            kernels=_kernels(trials, chosen, contents, device, record),
            trials=tuple(trials),
            chosen=tuple(chosen),
            front=front(trials, document.proofs),
        ),
        dict(contents),
    )


def _pool(settings: BuildSettings, network: str, tell: Tell) -> EnginePool:
    """The engines of the device, and those that compute fp32 for comparison. UsageError where one
    is missing, or a precision that none computes is asked for."""
    kind = check_device(settings.device)
    device = this_device(settings.threads, settings.device)
    engines = _usable(_engines(settings, kind), settings, tell)
    reference = None
    if kind != "cpu" or not float_engines(engines):
        others = float_engines(_engines(replace(settings, engines=()), "cpu"))
        reference = EnginePool(others, device, network)
    pool = EnginePool(engines, device, network, place=settings.device, reference=reference)
    unable = [p for p in settings.precisions if not any(pool.able(e, p) for e in engines)]
    if kind != "cpu" and unable:
        raise UsageError(
            f"No engine computes in {_list(unable)} on a GPU: --precision fp16,int8. fp32 is "
            "computed on the CPU, to compare with."
        )
    return pool


def contents_of(models: Sequence[Model]) -> dict[str, bytes]:
    """The content of each model by its name."""
    return {model.note.name: model.content for model in models}


def _kernels(
    trials: Sequence[Trial],
    chosen: Sequence[int],
    contents: Mapping[str, bytes],
    device: PlanDevice,
    record: TimingRecord,
) -> dict[str, tuple[int, ...]]:
    """The tilings of the chosen trials."""
    found: dict[str, tuple[int, ...]] = {}
    for trial in (trials[index] for index in chosen):
        found |= record.kernels.get(_key(contents[trial.model], trial, device), {})
    return dict(sorted(found.items()))


def _engines(settings: BuildSettings, kind: str) -> tuple[str, ...]:
    wanted = settings.engines or tuple(ENGINES)
    found = tuple(name for name in of_device(kind) if name in wanted)
    missing = [name for name in settings.engines if name not in found]
    if missing:
        raise UsageError(
            f"The engine {missing[0]} is not installed: "
            f"pip install 'cubemesh[{ENGINES[missing[0]].extra}]'"
        )
    if not found and kind != "cpu":
        raise UsageError("A plan on a GPU needs Triton, which comes with PyTorch for CUDA.")
    if kind == "cpu" and not settings.engines and not float_engines(found):
        raise UsageError(
            "A plan needs an engine, ONNX Runtime or OpenVINO: pip install 'cubemesh[inference]'"
        )
    return found


def _usable(engines: Sequence[str], settings: BuildSettings, tell: Tell) -> tuple[str, ...]:
    """The engines without those that cannot run here or in these precisions. UsageError where one
    of those was asked for."""
    if "int8" not in settings.precisions:
        asked = [name for name in settings.engines if ENGINES[name].integers_only]
        if asked:
            raise UsageError(
                f"The engine {asked[0]} computes in 8-bit integers only: --accuracy 0.99, or "
                "--precision int8, and samples."
            )
        return float_engines(engines)
    reasons = {name: unsupported(name) for name in engines}
    for name, reason in reasons.items():
        if reason and name in settings.engines:
            raise UsageError(f"The engine {name} cannot run here: {reason}.")
        if reason:
            tell(f"{title(name)}: not tried, as {reason}")
    return tuple(name for name, reason in reasons.items() if not reason)


def _floats(settings: BuildSettings) -> tuple[str, ...]:
    return tuple(name for name in FLOATS if name in settings.precisions)


def _adds_bytes(device: PlanDevice) -> bool:
    """Whether products of bytes are summed in 32 bits, so that they do not saturate."""
    if device.gpu:
        return True
    return any("vnni" in name or "amx" in name for name in device.instruction_sets) or (
        "dotprod" in device.instruction_sets
    )


class _Prover:
    """Compares candidates with fp32 on the held-out samples."""

    def __init__(
        self, reference: Model, samples: SampleSets, bound: float, pool: EnginePool, tell: Tell
    ) -> None:
        self._samples, self._bound, self._pool, self._tell = samples, bound, pool, tell
        self._reference = pool.reference_scores(reference.content, samples.proof)

    def prove(self, candidate: EngineCandidate) -> Proof | None:
        """The proof of a candidate in less than fp32; None where its engine cannot run it."""
        if candidate.precision == "fp32":
            return None
        content, precision = candidate.model.content, candidate.precision
        try:
            scores = self._pool.scores(candidate.engine, content, self._samples.proof, precision)
        except EngineError as error:
            self._tell(str(error))
            return None
        found = _proof(candidate, self._reference, scores, self._samples, self._bound)
        self._tell(f"{candidate.title}: {proof_text(found)}")
        return found


def _proof(
    candidate: EngineCandidate,
    reference: Array,
    scores: Array,
    samples: SampleSets,
    bound: float,
) -> Proof:
    agreed = agreement(reference, scores)
    common = Proof(
        model=candidate.model.note.name,
        precision=candidate.precision,
        engine=candidate.engine,
        accepted=agreed.agrees,
        verdict="agrees" if agreed.agrees else "differs",
        samples=len(reference),
        bound=bound,
        changed=agreed.changed,
        divergence=agreed.divergence if np.isfinite(agreed.divergence) else None,
    )
    if samples.labels is None:
        return common
    paired = paired_accuracy(
        right_answers(reference, samples.labels), right_answers(scores, samples.labels), bound
    )
    return replace(
        common,
        accepted=paired.verdict == "keeps"
        or (paired.verdict == "cannot tell" and paired.ratio >= bound),
        verdict=paired.verdict,
        samples=paired.samples,
        reference_right=paired.reference_right,
        right=paired.right,
        lost=paired.lost,
        gained=paired.gained,
        low=paired.interval.low,
        high=paired.interval.high if np.isfinite(paired.interval.high) else None,
        samples_needed=paired.samples_needed,
    )


def proof_text(proof: Proof) -> str:
    """A proof in a sentence without its end."""
    if proof.ratio is None:
        return f"{proof.changed:,} decisions of {proof.samples:,} changed: {proof.verdict}"
    found = (
        f"{proof.ratio:.2%} of fp32's right answers ({proof.lost} lost, {proof.gained} gained of "
        f"{proof.samples:,})"
    )
    if proof.verdict != "cannot tell":
        return f"{found}: {proof.verdict}"
    more = f", about {proof.samples_needed:,} would" if proof.samples_needed else ""
    return f"{found}: these samples cannot tell{more}"


def _choose(
    models: Sequence[Model],
    proofs: Sequence[Proof],
    inputs: Sequence[Value],
    settings: BuildSettings,
    pool: EnginePool,
    record: TimingRecord,
    tell: Tell,
) -> tuple[list[Trial], list[int]]:
    """The trials of every batch size, and the index of the chosen one of each."""
    accepted = {(p.model, p.precision, p.engine) for p in proofs if p.accepted}
    trials: list[Trial] = []
    chosen = []
    for batch in sorted(set(settings.batches)):
        untried = {
            " ".join(candidate.key): (
                candidate.model,
                Trial(
                    batch=batch,
                    model=candidate.model.note.name,
                    precision=candidate.precision,
                    engine=candidate.engine,
                    version=ENGINES[candidate.engine].version,
                ),
            )
            for candidate in candidates(models, pool)
            if settings.every_candidate
            or candidate.precision == "fp32"
            or candidate.key in accepted
        }
        allowed = [
            name
            for name, (_, trial) in untried.items()
            if trial.precision == "fp32" or (trial.model, trial.precision, trial.engine) in accepted
        ]
        if not allowed:
            raise AccuracyError(_refusal(pool.network, proofs))
        found, errors = _latencies(untried, inputs, settings, pool, record)
        if not any(name in found for name in allowed):
            raise EngineError(f"At batch size {batch}: {next(iter(errors.values()))}")
        best = choose({name: found[name] for name in allowed if name in found})
        for name, (_, trial) in untried.items():
            if name == best:
                chosen.append(len(trials))
            latency = found.get(name)
            trials.append(
                replace(trial, **to_plain(latency))
                if latency
                else replace(trial, error=errors[name])
            )
        picked = untried[best][1]
        tell(
            f"batch size {batch}: {picked.precision} in {title(picked.engine)}, "
            f"{found[best].seconds * 1e3:.3g} ms"
        )
    return trials, chosen


def _refusal(network: str, proofs: Sequence[Proof]) -> str:
    shown = "; ".join(f"{p.precision} in {title(p.engine)} has {proof_text(p)}" for p in proofs)
    return (
        f"No model of {network} keeps the accuracy: {shown or 'none could be compared'}. Allow "
        "fp32 with --precision, or lower --accuracy."
    )


def _latencies(
    untried: Mapping[str, tuple[Model, Trial]],
    values: Sequence[Value],
    settings: BuildSettings,
    pool: EnginePool,
    record: TimingRecord,
) -> tuple[dict[str, Latency], dict[str, str]]:
    """The latency of each trial, from the record where it has all of them; errors by name."""
    keys = {
        name: _key(model.content, trial, pool.device) for name, (model, trial) in untried.items()
    }
    if all(key in record.latencies for key in keys.values()):
        return {name: record.latencies[key] for name, key in keys.items()}, {}
    runs: dict[str, Callable[[], object]] = {}
    tilings: dict[str, dict[str, tuple[int, ...]]] = {}
    errors: dict[str, str] = {}
    for name, (model, trial) in untried.items():
        inputs = random_inputs(values, trial.batch)
        try:
            session = pool.open(
                trial.engine,
                model.content,
                trial.precision,
                trial.batch,
                kernels=record.kernels.get(keys[name]),
                tune=True,
            )
            with engine_errors(trial.engine, pool.network):
                session.run(inputs)
        except EngineError as error:
            errors[name] = str(error)
            continue
        runs[name] = computation(session, inputs)
        tilings[keys[name]] = kernels_of(session)
    found = interleaved_latencies(runs, seconds=settings.seconds) if runs else {}
    record.add(
        {keys[name]: latency for name, latency in found.items()},
        {key: tiling for key, tiling in tilings.items() if tiling},
    )
    return found, errors


def _key(content: bytes, trial: Trial, device: PlanDevice) -> str:
    """Identifies what a latency depends on."""
    model = hashlib.sha256(content).hexdigest()[:32]
    parts = (model, trial.engine, trial.version, trial.precision, trial.batch)
    if device.gpu:
        return " | ".join(map(str, (*parts, device.gpu)))
    return " | ".join(
        map(str, (*parts, device.cpu, "+".join(device.instruction_sets), device.threads))
    )


def _list(values: Sequence[object], joint: str = ", ") -> str:
    return joint.join(map(str, values))
