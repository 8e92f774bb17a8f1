"""Time and accuracy of inference by precision: a network is trained, then built in every way.

    data ─ build ─ weights ─ train ─ candidates

A candidate is a model (fp32, or 8-bit integers with ranges chosen by one method, or with some
operators in fp32), a precision and an engine. Figures of each, named MODEL PRECISION ENGINE and the
quantity: its seconds at the batch size, its right answers over those of fp32, the counts of lost
and gained ones, and whether it was accepted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from cubemesh.detection import detects
from cubemesh.detection.labels import grid_of
from cubemesh.frameworks.contract.program import NotInstalled, SupportsSnapshots, Unsupported
from cubemesh.inference.build import BuildSettings, build, with_free_batch
from cubemesh.inference.engines import float_engines, of_device
from cubemesh.inference.plan_file import PlanDocument, Proof
from cubemesh.inference.samples import from_data
from cubemesh.inference.timing import TimingRecord
from cubemesh.measure.log import Log
from cubemesh.networks.graph import Network
from cubemesh.onnx.export import graph_of
from cubemesh.onnx.graph import Graph
from cubemesh.schema.record import Figure
from cubemesh.schema.work import InferPrecision, Train
from cubemesh.training.loop import Training
from cubemesh.worker.run import inputs
from cubemesh.worker.run.program_lifecycle import program_for
from cubemesh.worker.run.task import Task, network_of

PRECISIONS = ("fp32", "bf16", "int8")


class TrainingLog(Log):
    """Shows the progress of a training and keeps its figures: its windows are not those of the
    inference that is measured."""

    def __init__(self, log: Log) -> None:
        self.rank, self.origin = log.rank, log.origin
        self.figures: dict[str, Figure] = {}
        self._log = log

    def emit(self, event: str, **fields: Any) -> None:
        """Keep a figure, pass progress and warnings on, drop the rest."""
        if event == "figure":
            self.figures[fields["name"]] = fields["figure"]
        elif event in ("progress", "warning"):
            self._log.emit(event, **fields)


def infer_precision(task: Task) -> None:
    """Train the network, judge and time every candidate, and log them."""
    work, log = cast(InferPrecision, task.spec.work), task.log
    if not float_engines(of_device("cpu")):
        raise NotInstalled(
            "Neither ONNX Runtime nor OpenVINO is installed. Install both with: pip install "
            "'cubemesh[inference]'"
        )
    if work.data == "synthetic":
        raise Unsupported(
            "data=synthetic has random labels, which no network answers correctly. Set data=digits "
            "or another data set."
        )
    network = network_of(work)
    with log.phase("data"):
        samples = from_data(
            network, work.data, work.data_path, work.seed, work.tokenizer, work.own_data
        )
    graph = with_free_batch(_trained(task, work, network), {})
    with log.phase("candidates"):
        document, _ = build(
            graph,
            network.name,
            BuildSettings(
                batches=(work.batch_per_device,),
                precisions=PRECISIONS,
                accuracy=work.accuracy,
                threads=task.threads,
                seconds=task.spec.budget.seconds,
                every_candidate=True,
            ),
            samples,
            TimingRecord(),
            lambda line: log.progress("candidates", 0, None, None, line),
        )
    for name, figure in front_figures(document).items():
        log.figure(name, figure)


def _trained(task: Task, work: InferPrecision, network: Network) -> Graph:
    """The graph of the network with trained weights. Logs its accuracy."""
    training = Train(
        network=work.network,
        batch_per_device=work.training_batch,
        image_size=work.image_size,
        classes=work.classes,
        sequence_length=work.sequence_length,
        vocabulary=work.vocabulary,
        hidden=work.hidden,
        data=work.data,
        data_path=work.data_path,
        own_data=work.own_data,
        max_image_pixels=work.max_image_pixels,
        seed=work.seed,
        optimizer=work.optimizer,
        learning_rate=work.learning_rate,
        momentum=work.momentum,
        weight_decay=work.weight_decay,
        epochs=work.epochs,
    )
    own = replace(task, spec=replace(task.spec, work=training))
    source = inputs.open_split(own.spec, network, "train")
    validation = inputs.open_split(own.spec, network, "validation")
    feed = inputs.feed(own.spec, source, own.usable_cores, epochs=work.epochs, group=own.group)
    log = TrainingLog(task.log)
    with program_for(own, network, feed) as program:
        assert isinstance(program, SupportsSnapshots), "its framework offers `infer_precision`"
        with task.log.phase("train"):
            Training(
                program=program,
                feed=feed,
                validation=validation,
                work=training,
                log=log,
                grid=grid_of(network) if detects(network) else None,
            ).run()
        weights = dict(program.snapshot().weights)
    if "accuracy" in log.figures:
        task.log.figure("accuracy", log.figures["accuracy"])
    return graph_of(network, weights)


def front_figures(document: PlanDocument) -> dict[str, Figure]:
    """The figures of every candidate that was timed."""
    notes = {note.name: note for note in document.models}
    proofs = {(p.model, p.precision, p.engine): p for p in document.proofs}
    found: dict[str, Figure] = {}
    for trial in document.trials:
        if trial.seconds is None:
            continue
        key = (trial.model, trial.precision, trial.engine)
        name, note = " ".join(key), notes[trial.model]
        method = ", ".join(
            filter(None, (note.method, _back_in_fp32(len(note.full_precision), note.quantized)))
        )
        found[f"{name} seconds"] = Figure(
            value=trial.seconds, unit="s", low=trial.low, high=trial.high, method=method
        )
        proof = proofs.get(key)
        if proof is not None:
            found |= {f"{name} {what}": figure for what, figure in _proof_figures(proof).items()}
    return found


def _back_in_fp32(operators: int, quantized: int) -> str:
    return f"{operators} of {operators + quantized} operators in fp32" if operators else ""


def _proof_figures(proof: Proof) -> dict[str, Figure]:
    counts = {
        "samples": proof.samples,
        "reference right": proof.reference_right,
        "lost": proof.lost,
        "gained": proof.gained,
    }
    return {
        "accepted": Figure(value=float(proof.accepted), unit=""),
        **{name: Figure(value=float(count), unit="") for name, count in counts.items()},
    }
