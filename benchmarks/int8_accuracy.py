"""Accuracy of networks trained on the digits in 8-bit integers, for each calibration method.

Trains a network (or takes a folder of checkpoints), calibrates with training samples, and compares
every candidate with fp32 on the held-out samples, in each installed engine: right answers lost and
gained, decisions changed, divergence and the verdict. ONNX Runtime's own static quantization with
its defaults is in the same table. Goals: CifarNet keeps 99 % of the right answers with at least one
candidate; at most one decision of LittleCNN changes.

    python benchmarks/int8_accuracy.py --network cifarnet --epochs 40
    python benchmarks/int8_accuracy.py --network little-cnn --epochs 15
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np

import cubemesh
from cubemesh.batches import Array, Batch
from cubemesh.data.images.digits import open_digits
from cubemesh.data.source import Split
from cubemesh.inference.accuracy import Agreement, PairedAccuracy, agreement, paired_accuracy
from cubemesh.inference.quantization.calibrate import OpenSession, calibrate
from cubemesh.inference.quantization.quantize import CANDIDATES, observed_values, quantize
from cubemesh.inference.quantization.sensitivity import scores_of, sensitivity
from cubemesh.onnx import reader
from cubemesh.onnx.engines import ENGINES
from cubemesh.onnx.graph import Graph

Inputs = Mapping[str, Array]
CALIBRATION_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Row:
    """One candidate in one engine."""

    engine: str
    candidate: str
    accuracy: PairedAccuracy
    agreement: Agreement

    def __str__(self) -> str:
        a, g = self.accuracy, self.agreement
        return (
            f"{self.engine:12} {self.candidate:40} {a.right:4}/{a.samples} {a.ratio:8.2%} "
            f"-{a.lost} +{a.gained}  {g.changed:3} changed  KL {g.divergence:.1e}  "
            f"error {g.largest_error:.4f}  {a.verdict}"
        )


def main() -> int:
    """Train, quantize, print the table."""
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        graph = trained(options, Path(folder))
        rows = list(measure(graph, options.samples, Path(folder)))
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=1))
    best = max(row.accuracy.ratio for row in rows if not row.candidate.startswith("stock"))
    return int(best < 0.99)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--network", default="cifarnet")
    parser.add_argument("--epochs", default="40")
    parser.add_argument("--learning-rate", default="0.02")
    parser.add_argument("--batch", default="32", help="batch size of the training")
    parser.add_argument("--checkpoints", help="use the newest of this folder; do not train")
    parser.add_argument("--samples", type=int, default=256, help="calibration samples")
    parser.add_argument("--json", help="write the rows to this file")
    return parser.parse_args()


def trained(options: argparse.Namespace, folder: Path) -> Graph:
    """The graph of the trained network."""
    checkpoints = options.checkpoints or str(folder / "checkpoints")
    if not options.checkpoints:
        settings = {
            "data": "digits",
            "framework": "pytorch",
            "epochs": options.epochs,
            "learning_rate": options.learning_rate,
            "batch_per_device": options.batch,
            "checkpoints": checkpoints,
        }
        store = str(folder / "store.sqlite")
        print(cubemesh.train(options.network, settings=settings, store=store))
    cubemesh.export_network(file=folder / "fp32.onnx", checkpoints=checkpoints)
    return reader.read(folder / "fp32.onnx")


def digits(graph: Graph, split: Split) -> Batch:
    """All digits of a split in the network's shape."""
    _, channels, height, width = (int(n) for n in (0, *graph.inputs[0].shape[1:]))
    source = open_digits(split, (channels, height, width), 10)
    return source.batch(np.arange(source.samples))


def measure(graph: Graph, samples: int, folder: Path) -> Iterator[Row]:
    """Every candidate in every engine; prints each."""
    name = graph.inputs[0].name
    training, held_out = digits(graph, "train").images, digits(graph, "validation")
    chosen = training[:: max(1, len(training) // samples)][:samples]
    calibration_batches = [
        {name: chosen[n : n + CALIBRATION_BATCH]} for n in range(0, len(chosen), CALIBRATION_BATCH)
    ]
    proof = [{name: held_out.images}]
    for engine, line in ENGINES.items():
        if not line.installed:
            print(f"{engine} is not installed")
            continue
        run = opener(engine)
        reference = scores_of(graph, run, proof)
        found = quantized_scores(graph, run, calibration_batches, proof)
        if engine == "onnxruntime":
            found = chain(found, stock_scores(folder, calibration_batches, proof))
        for candidate, scores in found:
            row = compared(engine, candidate, reference, scores, held_out.labels)
            print(row, flush=True)
            yield row


def quantized_scores(
    graph: Graph, run: OpenSession, batches: list[Inputs], proof: list[Inputs]
) -> Iterator[tuple[str, Array]]:
    """The name and the scores of each candidate; prints what each operator costs alone."""
    started = time.process_time()
    calibration = calibrate(graph, run, batches, observed_values(graph))
    seconds = time.process_time() - started
    print(f"{calibration.samples} samples calibrated in {seconds:.2f} s of processor time")
    for one in sensitivity(graph, calibration, "mse", run, proof):
        operators, a = ", ".join(one.operators), one.agreement
        print(f"{operators} alone: {a.changed} changed, KL {a.divergence:.1e}")
    for c in CANDIDATES:
        yield c.name, scores_of(quantize(graph, calibration, c.method, sums=c.sums), run, proof)


def opener(engine: str) -> OpenSession:
    """Opens sessions of one thread."""
    return lambda content: ENGINES[engine].load().open_session(content, threads=1)


def compared(engine: str, candidate: str, reference: Array, scores: Array, labels: Array) -> Row:
    """The row of a candidate, given the scores of fp32 and its own."""
    right = [s.argmax(axis=1) == labels for s in (reference, scores)]
    return Row(
        engine=engine,
        candidate=candidate,
        accuracy=paired_accuracy(*right),
        agreement=agreement(reference, scores),
    )


def stock_scores(
    folder: Path, batches: list[Inputs], proof: list[Inputs]
) -> Iterator[tuple[str, Array]]:
    """Scores of ONNX Runtime's own static quantization with its defaults, weights per channel."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches = iter(batches)

        def get_next(self) -> Inputs | None:
            return next(self.batches, None)

    prepared, quantized = folder / "prepared.onnx", folder / "quantized.onnx"
    quant_pre_process(str(folder / "fp32.onnx"), str(prepared))
    for method in ("MinMax", "Entropy", "Percentile"):
        quantization.quantize_static(
            str(prepared),
            str(quantized),
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            calibrate_method=quantization.CalibrationMethod[method],
        )
        session = opener("onnxruntime")(quantized.read_bytes())
        scores = np.concatenate([np.array(session.run(batch)[0]) for batch in proof])
        yield f"stock static quantization, {method}", scores


if __name__ == "__main__":
    sys.exit(main())
