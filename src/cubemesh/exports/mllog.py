"""MLPerf log: the `:::MLLOG` lines of mlperf_logging, from a stored run.

    :::MLLOG {"namespace": "", "time_ms": …, "event_type": "INTERVAL_START", "key": "run_start", …}

A training run has the events of MLPerf Training: init, run, each epoch and evaluation with its
accuracy, samples, seed and optimizer, in the open division. They are computed from the windows of
the first rank. Every run has its figures as keys of their own, `cubemesh_throughput_per_s`, with
unit and interval as metadata. What MLPerf's rules ask for and cubemesh does not know (the
submitter) is `unspecified`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, BinaryIO

from cubemesh.exports.contents import ExportedRuns
from cubemesh.exports.record_json import finite
from cubemesh.schema import Machine, RunRecord, Train

POINT, START, END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
BENCHMARKS: Mapping[str, str] = {"resnet-50": "resnet"}
"""Network → name of its benchmark, where MLPerf has another name for it."""
_UNSPECIFIED = "unspecified"
_EVALUATE, _MEASURED = "evaluate", ("warm-up", "measure")


def write(runs: ExportedRuns, file: BinaryIO) -> None:
    """Write the events of each run, in order of their time."""
    for record in runs.records:
        log = _Log(record, runs.machines.get(record.key.machine_id))
        log.add_run()
        file.write("".join(log.lines()).encode("ascii"))


class _Log:
    """Events of one run: (seconds of the run, type, key, value, metadata)."""

    def __init__(self, record: RunRecord, machine: Machine | None) -> None:
        self.record, self.machine = record, machine
        self.events: list[tuple[float, str, str, Any, dict[str, Any]]] = []
        self.windows = [w for w in record.windows if w.rank == 0]
        self.trained = [w for w in self.windows if w.phase in _MEASURED]

    def add(self, at_s: float, kind: str, key: str, value: Any = None, **metadata: Any) -> None:
        self.events.append((at_s, kind, key, value, metadata))

    def lines(self) -> list[str]:
        """The log lines; events of one time stay in the order in which they were added."""
        started = datetime.datetime.fromisoformat(self.record.started_utc).timestamp()
        return [
            ":::MLLOG "
            + json.dumps(
                {
                    "namespace": "",
                    "time_ms": round((started + at_s) * 1000),
                    "event_type": kind,
                    "key": key,
                    "value": finite(value),
                    "metadata": finite({**metadata, "run_id": self.record.run_id}),
                },
                allow_nan=False,
            )
            + "\n"
            for at_s, kind, key, value, metadata in sorted(self.events, key=lambda e: e[0])
        ]

    def add_run(self) -> None:
        """All events of the run."""
        record = self.record
        begin = min((w.start_s for w in self.trained), default=record.elapsed_s)
        end = max((w.start_s + w.elapsed_s for w in self.windows), default=record.elapsed_s)
        self.add(0.0, POINT, "cache_clear", record.spec.program.drop_page_cache)
        self.add(0.0, START, "init_start")
        self.add_description()
        self.add(begin, END, "init_stop")
        self.add(begin, START, "run_start")
        if isinstance(record.spec.work, Train):
            self.add_epochs(record.spec.work)
        self.add(end, END, "run_stop", status="success" if self.succeeded() else "aborted")
        for name, figure in record.figures.items():
            interval = {"unit": figure.unit, "low": figure.low, "high": figure.high, "n": figure.n}
            self.add(end, POINT, f"cubemesh_{name}", figure.value, **interval)
        outcome = record.outcome
        self.add(
            record.elapsed_s,
            POINT,
            "cubemesh_outcome",
            str(outcome.status),
            message=outcome.message,
        )

    def add_description(self) -> None:
        """Submission, batch size and optimizer."""
        spec, work = self.record.spec, self.record.spec.work
        described: dict[str, Any] = {
            "submission_benchmark": BENCHMARKS.get(
                getattr(work, "network", ""), getattr(work, "network", work.kind)
            ),
            "submission_org": _UNSPECIFIED,
            "submission_division": "open",
            "submission_status": "research",
            "submission_platform": self.platform(),
        }
        if spec.global_batch is not None:
            described["global_batch_size"] = spec.global_batch
        if isinstance(work, Train):
            described |= {
                "seed": work.seed,
                "opt_name": work.optimizer,
                "opt_base_learning_rate": work.learning_rate,
                "opt_weight_decay": work.weight_decay,
                "opt_learning_rate_warmup_epochs": work.warmup_epochs,
                "train_samples": self.samples_per_epoch(),
                "eval_samples": self.eval_samples(),
            }
        for key, value in described.items():
            self.add(0.0, POINT, key, value)

    def add_epochs(self, work: Train) -> None:
        """Epochs, evaluations and accuracies."""
        curve = self.record.curve("validation_accuracy")
        accuracy = dict(zip(curve.x, curve.y, strict=True)) if curve else {}
        for epoch in range(1, work.epochs + 1):
            mark = f"epoch-{epoch}"
            own = [w for w in self.trained if mark in w.marks]
            scored = [w for w in self.windows if w.phase == _EVALUATE and mark in w.marks]
            if own:
                self.add(own[0].start_s, START, "epoch_start", epoch_num=epoch)
                end = own[-1].start_s + own[-1].elapsed_s
                self.add(end, END, "epoch_stop", epoch_num=epoch)
            if scored:
                end = scored[-1].start_s + scored[-1].elapsed_s
                self.add(scored[0].start_s, START, "eval_start", epoch_num=epoch)
                if epoch in accuracy:
                    self.add(end, POINT, "eval_accuracy", accuracy[epoch], epoch_num=epoch)
                self.add(end, END, "eval_stop", epoch_num=epoch)

    def succeeded(self) -> bool:
        """Whether the run completed and reached its target, if it has one."""
        work = self.record.spec.work
        aimed = isinstance(work, Train) and work.target_accuracy is not None
        return self.record.ok and (not aimed or "target_epoch" in self.record.figures)

    def samples_per_epoch(self) -> int | None:
        """Samples of the first whole epoch, of all ranks; None without one."""
        epochs: dict[str, int] = {}
        for window in self.record.windows:
            if window.phase in _MEASURED:
                for mark in window.marks:
                    epochs[mark] = epochs.get(mark, 0) + window.samples
        return max(epochs.values(), default=None)

    def eval_samples(self) -> int | None:
        """Validation samples."""
        figure = self.record.figures.get("accuracy")
        return None if figure is None else figure.n

    def platform(self) -> str:
        """`2 x NVIDIA H200`."""
        first = next(iter(self.record.ranks), None)
        name = first.device_name if first else None
        if not name and self.machine is not None:
            on_gpu = first is not None and first.device.startswith("cuda") and self.machine.gpus
            name = self.machine.gpus[0].name if on_gpu else self.machine.cpu.model
        return f"{self.record.spec.placement.devices} x {name or _UNSPECIFIED}"
