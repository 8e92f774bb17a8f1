"""Pipeline parallelism: micro-batches pass through stages of the network on several devices; and
the hybrid of data and pipeline parallelism.

    1f1b, stage 0   F0 F1 ▒▒ B0 F2 B1 F3 B2 ▒▒ B3     p = 2 stages, m = 4 micro-batches
          stage 1   ▒▒ F0 B0 F1 B1 F2 B2 F3 B3 ▒▒     ▒ bubble: the stage waits
    gpipe           every F, then every B, in the same order

A step divides its samples into m micro-batches and adds up their gradients, so the update is that
of one device with all of them; batch normalization alone sees one micro-batch at a time. With equal
stages a step takes m + p - 1 turns of a forward and a backward pass, of which each stage waits
p - 1: the bubble is (p - 1) / (m + p - 1) of the step (Huang et al., GPipe, NeurIPS 2019).
`1f1b` has the same bubble, and at most p micro-batches whose activations are stored rather than m
(Narayanan et al., SC 2021, section 2.2).

`hybrid` is a mesh of data × stages ranks: replica r of the pipeline has ranks r·p to r·p + p - 1,
and its own samples; before the update the ranks of a stage average their gradients. The hybrid of
Krizhevsky (arXiv:1404.5997) has convolutions that are data parallel and fully connected layers that
are model parallel on the same devices; here every layer is both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Literal, NamedTuple

from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.measure.log import Log
from cubemesh.networks.graph import Network
from cubemesh.networks.memory import forecast, memory_settings
from cubemesh.parallel.model_parallel import ModelParallel, parts
from cubemesh.schema.forecast import MemoryForecast
from cubemesh.schema.record import Figure
from cubemesh.schema.spec import PipelineSchedule, ProgramSettings, RunSpec

MICRO_BATCHES_PER_STAGE = 4
"""By default: a bubble of a fifth (GPipe: negligible from four micro-batches per stage on)."""
HYBRID_STAGES = 2
"""Stages of each pipeline of `hybrid` by default."""
_WARM_UP = 3
"""First steps of a run that the figures leave out."""

WAIT, BUBBLE = "pipeline_wait", "pipeline_bubble_forecast"
"""Figures: measured and forecast fraction of a step in which a stage waits."""
PARTS = ("pipeline_bubble", "pipeline_imbalance", "pipeline_transfer")
"""Figures: the parts of `pipeline_wait`."""
GRADIENTS = "pipeline_gradient_wait"
"""Figure: the fraction of a step that a stage averages gradients with the other replicas."""


class Action(NamedTuple):
    """A pass of one micro-batch in one stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int


def schedule(
    stage: int, stages: int, micro_batches: int, order: PipelineSchedule = "1f1b"
) -> list[Action]:
    """The passes of `stage` in a step, in order."""
    ahead = micro_batches if order == "gpipe" else min(stages - stage - 1, micro_batches)
    passes = [Action("forward", n) for n in range(ahead)]
    for n in range(micro_batches - ahead):
        passes += [Action("forward", ahead + n), Action("backward", n)]
    return passes + [Action("backward", n) for n in range(micro_batches - ahead, micro_batches)]


def bubble(stages: int, micro_batches: int) -> float:
    """Fraction of a step for which a stage waits, if all take the same time and sending takes
    none."""
    return (stages - 1) / (micro_batches + stages - 1)


class StageTimes:
    """Times of this rank's steps, and how long each waited for other stages and for the other
    replicas' gradients."""

    def __init__(self) -> None:
        self.step_s: list[float] = []
        self.wait_s: list[float] = []
        self.gradients_s: list[float] = []
        self.micro_batches: list[int] = []

    def add(self, step_s: float, wait_s: float, gradients_s: float, micro_batches: int) -> None:
        """One step."""
        self.step_s.append(step_s)
        self.wait_s.append(wait_s)
        self.gradients_s.append(gradients_s)
        self.micro_batches.append(micro_batches)

    def medians(self) -> list[float]:
        """[step, wait, gradients] in seconds and the number of steps and micro-batches, without the
        first steps; empty if there are no others."""
        kept = slice(_WARM_UP, None)
        if not self.step_s[kept]:
            return []
        times = (self.step_s, self.wait_s, self.gradients_s)
        return [
            *(median(values[kept]) for values in times),
            len(self.step_s[kept]),
            self.micro_batches[-1],
        ]


class Pipeline(ModelParallel):
    """Each rank is a stage; all work on the same samples."""

    name = "pipeline"
    summary = "activations and their gradients of one micro-batch after another: ranks are stages"
    sequential_step = True

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.times = StageTimes()
        self.order: PipelineSchedule = "1f1b"
        self._asked: int | None = None
        self.stages = group.size

    @classmethod
    def ranks_per_sample(cls, ranks: int, program: ProgramSettings) -> int:
        """All."""
        return ranks

    def configure(self, program: ProgramSettings) -> None:
        """Take the stages, micro-batches and schedule from the spec."""
        self.stages = self.ranks_per_sample(self.group.size, program)
        self.order = program.pipeline_schedule
        self._asked = program.micro_batches

    def parts(self, network: Network) -> Sequence[Network]:
        """The part of every stage."""
        return parts(network, self.stages)

    def micro_batches(self, samples: int) -> int:
        """Micro-batches of a step of so many samples: at most one a sample, of sizes that differ by
        one at most."""
        return min(self._asked or MICRO_BATCHES_PER_STAGE * self.stages, max(1, samples))

    @classmethod
    def memory(cls, spec: RunSpec, network: Network, device: str) -> MemoryForecast:
        """Of the stage that needs most: the activations of the micro-batches that have passed it
        forward and not backward, and the gradients of all its weights."""
        program = spec.program
        stages = cls.ranks_per_sample(spec.placement.devices, program)
        if stages == 1:
            return super().memory(spec, network, device)
        samples = stages * (spec.batch_per_device or 1)
        count = min(program.micro_batches or MICRO_BATCHES_PER_STAGE * stages, samples)
        micro = -(-samples // count)
        found = []
        for stage, part in enumerate(parts(network, stages)):
            settings = {**memory_settings(spec, device, part), "accumulation_steps": 2}
            one = forecast(part, 2 * micro, **settings)  # type: ignore[arg-type]
            ahead = count if program.pipeline_schedule == "gpipe" else min(stages - stage, count)
            found.append(replace(one, activation_bytes=ahead * one.activation_bytes))
        return max(found, key=lambda one: one.total_bytes)

    def actions(self, stage: int, micro_batches: int) -> Sequence[Action]:
        """The passes of a stage in a step."""
        return schedule(stage, self.stages, micro_batches, self.order)


class Hybrid(Pipeline):
    """Data parallel replicas of a pipeline."""

    name = "hybrid"
    summary = "pipelines of some ranks each, which average their gradients: data × model parallel"
    group_setting = "pipeline_stages"

    @classmethod
    def ranks_per_sample(cls, ranks: int, program: ProgramSettings) -> int:
        """The stages of one pipeline. Unsupported where they do not divide the ranks."""
        stages = program.pipeline_stages or HYBRID_STAGES
        if ranks > 1 and ranks % stages:
            raise Unsupported(
                f"sync=hybrid: pipelines of {stages} stages do not divide devices={ranks}. Set "
                f"pipeline_stages to a divisor of {ranks}, or devices to a multiple of {stages}."
            )
        return stages if ranks > 1 else 1


def log_pipeline(sync: object, group: Group, log: Log) -> None:
    """Log on rank 0 how long stages waited, from the times of all ranks, and the forecast. Every
    rank calls this."""
    if not isinstance(sync, Pipeline) or group.size == 1:
        return
    found = group.all_gather_object(sync.times.medians())
    if group.rank == 0 and all(found):
        for name, figure in figures(found, sync.stages):
            log.figure(name, figure)


def figures(found: Sequence[Sequence[float]], stages: int) -> Iterator[tuple[str, Figure]]:
    """The figures of a pipeline from each rank's `StageTimes.medians`.

    A stage's wait is the step less its own passes. Its parts, means over the stages: the bubble of
    equal stages that take as long as the slowest; what a stage has less to do than the slowest; the
    rest, which is sending and the host."""
    step_s = max(times[0] for times in found)
    micro_batches = int(found[0][4])
    busy_s = [step - wait - gradients for step, wait, gradients, *_ in found]
    slowest = max(busy_s)
    wait = fmean(times[1] for times in found) / step_s
    ideal = min(wait, (stages - 1) / micro_batches * slowest / step_s)
    imbalance = min(wait - ideal, fmean(slowest - busy for busy in busy_s) / step_s)
    count = int(min(times[3] for times in found))
    method = "of a step, mean over stages of the median over steps"

    def figure(value: float, how: str) -> Figure:
        return Figure(value=100 * value, unit="%", n=count, method=how)

    yield WAIT, figure(wait, f"{method}: waiting for another stage")
    for rank, times in enumerate(found):
        yield f"{WAIT}_rank_{rank}", figure(times[1] / step_s, "of a step, median over steps")
    values = (ideal, imbalance, wait - ideal - imbalance)
    hows = (
        "the slowest stage's passes times (p - 1) / m",
        "the slowest stage's passes less the stage's own",
        "the rest of the wait: sending, and the host",
    )
    for name, value, how in zip(PARTS, values, hows, strict=True):
        yield name, figure(value, f"{method}: {how}")
    forecast = f"(p - 1) / (m + p - 1), p = {stages} stages, m = {micro_batches} micro-batches"
    yield BUBBLE, Figure(value=100 * bubble(stages, micro_batches), unit="%", method=forecast)
    if len(found) > stages:
        gradients = fmean(times[2] for times in found) / step_s
        yield GRADIENTS, figure(gradients, f"{method}: averaging gradients with other replicas")
