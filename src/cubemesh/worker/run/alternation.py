"""Alternation of two programs in one worker, window by window: `cubemesh run … --against`.

    data ─ build (instances of A and B, alternating) ─ warm-up ─ measure        (interleaved_ab.py)

Batches are prepared in the step on both sides: threads that prepare them ahead would work for one
program in the windows of the other. Windows of A have phase `measure` and those of B `against`, so
every figure of the record is A's, except those prefixed `against_` and the ratio.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from cubemesh.batches import Array
from cubemesh.data.feed import Feed, placed_batches
from cubemesh.data.source import Source
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import (
    BuildRequest,
    Framework,
    Program,
    SupportsCompilation,
    SupportsProcessSettings,
    Unsupported,
)
from cubemesh.measure.figures import figures
from cubemesh.measure.telemetry.telemetry import Telemetry
from cubemesh.measure.timing.interleaved_ab import (
    SECOND_PROGRAM,
    InterleavedResult,
    Side,
    alternate,
)
from cubemesh.measure.validity import window_warnings
from cubemesh.networks.graph import Network
from cubemesh.parallel import strategies
from cubemesh.schema.comparison import RATIO
from cubemesh.schema.record import AGAINST, Figure
from cubemesh.schema.spec import DataLocation, RunSpec
from cubemesh.schema.work import Forward, ForwardBackward, Infer, NetworkWork
from cubemesh.worker.report.events import EventLog
from cubemesh.worker.run import inputs
from cubemesh.worker.run.inference import request
from cubemesh.worker.run.task import (
    Task,
    check_loss,
    log_machine_warnings,
    network_of,
    start_meters,
)
from cubemesh.worker.validation import check_supported


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Components of the instances of one side."""

    spec: RunSpec
    framework: Framework
    threads: int
    network: Network
    source: Source

    @property
    def work(self) -> NetworkWork:
        return cast(NetworkWork, self.spec.work)

    @cached_property
    def weights(self) -> Mapping[str, Array]:
        """The initial weights of every instance."""
        return self.network.draw(self.work.seed)


def alternate_programs(task: Task) -> None:
    """Compare a spec with its other program on the same device."""
    log, other = task.log, task.spec.other
    assert other is not None
    framework = entry(other.program.framework).load()
    check_supported(other, framework.capabilities())
    meters = start_meters(task)
    with log.phase("data"):
        plans = (
            _plan(task.spec, task.framework, task),
            _plan(other, framework, task),
        )
    instances: list[tuple[Side, Side]] = []
    programs: list[Program] = []
    for number in range(task.spec.budget.instances):
        turn = (0, 1) if number % 2 == 0 else (1, 0)  # the first built has better memory addresses
        made = {side: _program(plans[side], task) for side in turn}
        programs += made.values()
        first, second = (_side(made[side], plans[side], task.device) for side in (0, 1))
        instances.append((first, second))
    _check_threads(plans, programs)
    with Telemetry(log, task.usable_cores, meters=meters) as telemetry:
        found = alternate(instances, budget=task.spec.budget, log=log)
    log_machine_warnings(telemetry, task.gpu_processes, task.log, found.started, found.ended)
    telemetry.log_utilization(found.started, found.ended)
    _log_comparison(found, log)
    for program in programs:
        if not isinstance(task.spec.work, Infer):  # it has no loss
            check_loss(program)
        program.close()


def _plan(spec: RunSpec, framework: Framework, task: Task) -> _Plan:
    work = cast(NetworkWork, spec.work)
    network = network_of(work)
    return _Plan(
        spec=spec,
        framework=framework,
        threads=spec.placement.threads or int(task.usable_cores),
        network=network,
        source=inputs.open_split(spec, network, "train"),
    )


def _program(plan: _Plan, task: Task) -> Program:
    with task.log.phase("build"):
        program = plan.framework.build(
            BuildRequest(
                network=plan.network,
                work=plan.work,
                placement=plan.spec.placement,
                program=plan.spec.program,
                sync=strategies.make(plan.spec.program.sync),
                device=task.device,
                threads=plan.threads,
            )
        )
    if isinstance(program, SupportsCompilation):
        sample = next(iter(Feed(plan.source, plan.work.batch_per_device, plan.work.seed)))
        with task.log.phase("compile") as phase:
            phase.cached = program.compile(program.place(sample))
    with task.log.phase("weights"):
        program.load(plan.weights)
    return program


def _side(program: Program, plan: _Plan, device: str) -> Side:
    work = plan.work
    feed = Feed(plan.source, work.batch_per_device, work.seed)
    location = plan.spec.program.data_location
    side = Side(
        step=_step(program, feed, work, location),
        synchronize=program.synchronize,
        clock=program.clock,
        samples_per_step=work.batch_per_device,
        queues=device != "cpu",
    )
    if isinstance(program, SupportsProcessSettings):
        side = dataclasses.replace(side, resume=program.apply_process_settings)
    return side


def _step(
    program: Program, feed: Feed, work: NetworkWork, location: DataLocation
) -> Callable[[], None]:
    if isinstance(work, Infer):
        return request(program, feed, work, location)
    batches = placed_batches(program, feed, location)
    queue = program.train_step
    if isinstance(work, Forward):
        queue = program.forward
    elif isinstance(work, ForwardBackward):
        queue = program.forward_backward
    return lambda: queue(next(batches))


def _check_threads(plans: tuple[_Plan, _Plan], programs: list[Program]) -> None:
    if plans[0].threads == plans[1].threads or all(
        isinstance(p, SupportsProcessSettings) for p in programs
    ):
        return
    name = plans[0].spec.program.framework
    raise Unsupported(
        f"{name} sets its number of threads once per process, so {plans[0].threads} and "
        f"{plans[1].threads} threads cannot alternate. Measure both, and compare the runs: "
        "cubemesh compare A B."
    )


def _log_comparison(found: InterleavedResult, log: EventLog) -> None:
    """Log the figures of B, the ratio, and the warnings about the windows of both."""
    ratio = found.ratio
    log.figure(
        RATIO,
        Figure(
            value=ratio.value,
            unit="×",
            low=ratio.low,
            high=ratio.high,
            n=ratio.n,
            method=ratio.method,
        ),
    )
    second = [w for w in found.windows if w.phase == AGAINST]
    for name, figure in figures(second, 0.0, found.confidence).items():
        if name in ("throughput_per_s", "step_s"):
            log.figure(f"against_{name}", figure)
    for warning in window_warnings([w for w in found.windows if w.phase != AGAINST]):
        log.warning(warning)
    for warning in window_warnings(second):
        log.warning(dataclasses.replace(warning, cause=SECOND_PROGRAM + warning.cause))
