"""Training for its own sake: to how many epochs ask, or to an accuracy, with what it takes to last.

One network is trained, and the answer says what it has learned, epoch by epoch, and how fast. A run
that was killed, crashed or fell silent is started again from its last checkpoint, as often as
`restarts` says; every attempt is a run of its own in the store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.groups import titled
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.train.report import charts, findings, table
from cubemesh.schema import Answer, CheckpointSettings, RunRecord, RunSpec, Status, Train, Warning
from cubemesh.training.checkpoint import steps_in

FOLDER = "cubemesh-checkpoints"
"""Where checkpoints go when no folder is named, in the current folder."""
TIME_LIMIT_S = 30 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `train` besides the fields of its spec."""

    networks: tuple[str, ...] = ("little-cnn",)
    """The network to train, one; `cubemesh networks` lists them."""
    checkpoints: str | None = None
    """Folder of the checkpoints; none given is `cubemesh-checkpoints`, where they are asked for."""
    checkpoint_every: int | None = None
    """Steps from one checkpoint to the next; none given is one after each epoch."""
    keep: int = 3
    """How many checkpoints stay, the newest."""
    resume: bool = False
    """Go on from the newest whole checkpoint, where there is one."""
    restarts: int = 3
    """How often a run that was killed, crashed or fell silent goes on from its last checkpoint."""
    tensorboard: str | None = None
    """Folder of event files for TensorBoard; none given writes none."""

    def __post_init__(self) -> None:
        if len(self.networks) != 1:
            raise UsageError(f"networks={','.join(self.networks)}: train one network at a time.")

    @property
    def network(self) -> str:
        """The network to train."""
        return self.networks[0]

    @property
    def checkpointing(self) -> CheckpointSettings:
        """As the spec has it, with absolute paths: a worker may run elsewhere."""
        asked = self.checkpoints is not None or self.resume or self.checkpoint_every is not None
        folder = Path(self.checkpoints or FOLDER).expanduser().absolute()
        board = None if self.tensorboard is None else Path(self.tensorboard).expanduser().absolute()
        return CheckpointSettings(
            checkpoints=str(folder) if asked else None,
            every_steps=self.checkpoint_every,
            keep=self.keep,
            resume=self.resume,
            tensorboard=None if board is None else str(board),
        )


def plan(settings: Settings, context: Context) -> Plan:
    """One training; again, from its last checkpoint, where it was ended by a fault."""
    checkpointing = settings.checkpointing
    _check_free(checkpointing)
    spec = RunSpec(
        work=Train(network=settings.network, batch_per_device=64, data="digits", epochs=10),
        budget=dataclasses.replace(context.budget, time_limit_s=TIME_LIMIT_S),
        checkpointing=checkpointing,
    )
    before = 0
    (record,) = yield [spec]
    for _ in range(settings.restarts):
        newest = _newest(record)
        if newest is None or not _may_go_on(record, newest > before):
            return
        before = newest
        again = dataclasses.replace(
            spec, checkpointing=dataclasses.replace(checkpointing, resume=True)
        )
        (record,) = yield [again]


def _check_free(checkpointing: CheckpointSettings) -> None:
    """UsageError where checkpoints would be mixed with those that are there."""
    if checkpointing.checkpoints is None or checkpointing.resume:
        return
    steps = steps_in(Path(checkpointing.checkpoints), ranks=1)
    if steps:
        raise UsageError(
            f"'{checkpointing.checkpoints}' holds checkpoints already, up to step {steps[-1]}. Add "
            "--resume to go on from there, or name another folder with --checkpoints."
        )


def _newest(record: RunRecord) -> int | None:
    """The step of the checkpoint to go on from; None where there is none."""
    checkpointing, devices = record.spec.checkpointing, record.spec.placement.devices
    if checkpointing.checkpoints is None:
        return None
    return max(steps_in(Path(checkpointing.checkpoints), devices), default=None)


def _may_go_on(record: RunRecord, came_further: bool) -> bool:
    """Whether the same training may come further next time: after what somebody or something did to
    it, but after a crash only where it got past the checkpoint that it began from."""
    outcome = record.outcome
    silent = outcome.status is Status.TIMED_OUT and "heartbeat_timeout_s" in outcome.facts
    crashed = outcome.status is Status.CRASHED and came_further
    return outcome.status is Status.KILLED or silent or crashed


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """What was learned, by the last run that came to its end, or how the last one ended."""
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=titled(f"{settings.network}{_data(records)}: a training", records),
        findings=tuple(findings(records)),
        tables=tuple(table(records)),
        charts=tuple(charts(settings.network, records)),
        warnings=tuple(_warnings(records)),
        run_ids=tuple(r.run_id for r in records),
        notes=(
            "Accuracy is on samples held out from training; ± is its 95 % binomial (Wilson) "
            "interval, which does not cover the luck of the initial weights.",
        ),
    )


def _data(records: Sequence[RunRecord]) -> str:
    work = records[0].spec.work if records else None
    return f" on {work.data}" if isinstance(work, Train) else ""


def _warnings(records: Sequence[RunRecord]) -> Iterator[Warning]:
    for record in records:
        yield from record.warnings


EXPERIMENT = Experiment(
    name="train",
    question="What does this network learn, and how fast?",
    settings=Settings,
    works=(Train,),
    varies={"network": "networks"},
    plan=plan,
    answer=answer,
    documents="001 section 3, 003",
)
