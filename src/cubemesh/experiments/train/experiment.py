"""Training of one network for a number of epochs or to a target accuracy, with fault tolerance.

The answer gives accuracy, loss and throughput by epoch. A run that was killed, crashed or stopped
responding is restarted from its last checkpoint, up to `restarts` times; every attempt is a stored
run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import titled
from cubemesh.experiments.analysis.trainings import ACCURACY_NOTE, DETECTION_NOTE
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.train.report import charts, cost_finding, findings, table
from cubemesh.forecast.training.cost import read_prices
from cubemesh.schema import Answer, CheckpointSettings, RunRecord, RunSpec, Status, Train
from cubemesh.training.checkpoint import steps_in
from cubemesh.training.checkpoint_interval import FAULT_EVERY_S

FOLDER = "cubemesh-checkpoints"
"""Default folder of checkpoints, below the current folder."""
TIME_LIMIT_S = 30 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `train` besides the fields of its spec."""

    networks: tuple[str, ...] = ("little-cnn",)
    """The network to train; one. `cubemesh networks` lists them."""
    checkpoints: str | None = None
    """Folder of checkpoints; default: cubemesh-checkpoints, with checkpoint_every or resume."""
    checkpoint_every: Literal["auto", "epoch"] | int = "auto"
    """Steps between checkpoints; epoch: one after each; auto: Daly's rule from measured times."""
    fault_every_s: float = FAULT_EVERY_S
    """Expected time between faults, for checkpoint_every=auto."""
    keep: int = 3
    """Number of most recent checkpoints to keep."""
    resume: bool = False
    """Resume from the latest complete checkpoint, if there is one."""
    reshard: bool = False
    """Resume on other devices with the same global batch size."""
    restarts: int = 3
    """Maximum restarts of a run that was killed, crashed or stopped responding."""
    tensorboard: str | None = None
    """Folder of event files for TensorBoard; default: none are written."""
    cost: tuple[str, ...] = ()
    """Prices for the cost of this training, KEY=NUMBER: price_per_hour or purchase_price of a
    device, depreciation_years (3), power_price and co2_per_kwh (kg) of a kWh."""

    def __post_init__(self) -> None:
        if len(self.networks) != 1:
            raise UsageError(f"networks={','.join(self.networks)}: train one network at a time.")
        if isinstance(self.checkpoint_every, int) and self.checkpoint_every < 1:
            raise UsageError(
                f"checkpoint_every={self.checkpoint_every}: it must be 1 or more, auto or epoch."
            )
        if not self.fault_every_s > 0:
            raise UsageError(f"fault_every_s={self.fault_every_s:g}: it must be above 0.")
        for line in self.cost:
            if line.partition("=")[0].strip() in ("epochs", "samples", "tokens"):
                raise UsageError(f"cost={line}: the cost is that of this training. Leave it out.")
        read_prices(self.cost)

    @property
    def network(self) -> str:
        """The network to train."""
        return self.networks[0]

    @property
    def checkpointing(self) -> CheckpointSettings:
        """The settings of the spec, with absolute paths: a worker may run in another folder."""
        every = self.checkpoint_every
        enabled = self.checkpoints is not None or self.resume or every != "auto"
        folder = Path(self.checkpoints or FOLDER).expanduser().absolute()
        board = None if self.tensorboard is None else Path(self.tensorboard).expanduser().absolute()
        return CheckpointSettings(
            checkpoints=str(folder) if enabled else None,
            every_steps=every if isinstance(every, int) else None,
            fault_every_s=self.fault_every_s if enabled and every == "auto" else None,
            keep=self.keep,
            resume=self.resume,
            reshard=self.reshard,
            tensorboard=None if board is None else str(board),
        )


def plan(settings: Settings, context: Context) -> Plan:
    """One training, restarted from its last checkpoint after a fault."""
    checkpointing = settings.checkpointing
    spec = RunSpec(
        work=Train(network=settings.network, batch_per_device=64, data="digits", epochs=10),
        budget=dataclasses.replace(context.budget, time_limit_s=TIME_LIMIT_S),
        checkpointing=checkpointing,
    )
    before = 0
    (record,) = yield [spec]
    for _ in range(settings.restarts):
        newest = _newest(record)
        if newest is None or not _can_resume(record, newest > before):
            return
        before = newest
        again = dataclasses.replace(
            spec, checkpointing=dataclasses.replace(checkpointing, resume=True)
        )
        (record,) = yield [again]


def _newest(record: RunRecord) -> int | None:
    """Step of the checkpoint to resume from; None if there is none."""
    folder = record.spec.checkpointing.checkpoints
    try:
        return None if folder is None else max(steps_in(Path(folder)), default=None)
    except OSError:  # a restart could not read them either
        return None


def _can_resume(record: RunRecord, progressed: bool) -> bool:
    """Whether a restart may help: after a kill or a lost heartbeat, and after a crash if the run
    got past the checkpoint that it started from."""
    outcome = record.outcome
    hung = outcome.status is Status.TIMED_OUT and "heartbeat_timeout_s" in outcome.facts
    crashed = outcome.status is Status.CRASHED and progressed
    return outcome.status is Status.KILLED or hung or crashed


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Accuracy, loss and throughput of the last attempt, or how it ended."""
    return answer_of(
        EXPERIMENT,
        titled(f"Training of {settings.network}{_data(records)}", records),
        records,
        findings=(*findings(records), *cost_finding(records, settings.cost)),
        tables=table(records),
        charts=charts(settings.network, records),
        notes=(DETECTION_NOTE if records and "map" in records[-1].figures else ACCURACY_NOTE,),
    )


def _data(records: Sequence[RunRecord]) -> str:
    work = records[0].spec.work if records else None
    return f" on {work.data}" if isinstance(work, Train) else ""


EXPERIMENT = Experiment(
    name="train",
    question="What accuracy does this network reach, and how fast?",
    settings=Settings,
    works=(Train,),
    varies={"network": "networks"},
    plan=plan,
    grows=True,
    answer=answer,
    papers="[001], section 3, [003]",
)
