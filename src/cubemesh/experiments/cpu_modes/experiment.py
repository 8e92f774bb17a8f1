"""CPU configurations: number of threads, pinning, NUMA node, memory layout, policy and huge pages.

Gawande et al. 2018 [004] compare clustering and memory modes of a KNL (figure 5), which its
firmware sets. Here the choices of a user on any CPU are compared: the number of threads; their
pinning to processors (compact, spread or none; worker/launch/pinning.py); the memory layout of
images; and on several NUMA nodes, whether threads and memory stay on one. Each configuration runs
in fresh processes, which differ by more than the windows of one process; the interval covers both.
The *default* is one thread per usable core, no pinning, nchw. It also runs with the memory policies
`interleave` and `preferred` (on several NUMA nodes; what a KNL's memory modes come nearest to), and
without transparent huge pages (worker/launch/memory_policy.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import group_by
from cubemesh.experiments.analysis.per_workload import per_workload, training_workload
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.cpu_modes.report import CpuMode, charts, findings, mode_of, rate_of, table
from cubemesh.schema import (
    Answer,
    Machine,
    Placement,
    ProgramSettings,
    RunRecord,
    RunSpec,
    TrainSteps,
    Warning,
    warn,
)
from cubemesh.schema.spec import HugePages, Layout, MemoryPolicy, Pinning

NETWORK, BATCH = "little-cnn", 64
REPEATS = {Scale.QUICK: 1, Scale.DEFAULT: 3, Scale.FULL: 5}
"""Fresh processes per configuration."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `cpu-modes` besides the fields of its specs."""

    networks: tuple[str, ...] = (NETWORK,)
    """Networks to train."""
    batch_sizes: tuple[int, ...] = (BATCH,)
    """Batch sizes."""
    threads: tuple[int, ...] = ()
    """Numbers of threads; default: one, half of the usable cores, all of them, and all logical
    processors; with --quick half and all cores."""
    pinnings: tuple[Pinning, ...] = ("none", "compact", "spread")
    """Thread pinnings; left out where there is a thread for every processor."""
    layouts: tuple[Layout, ...] = ("nchw", "nhwc")
    """Memory layouts of images."""
    memory_policies: tuple[MemoryPolicy, ...] = ("default", "interleave", "preferred")
    """NUMA memory policies of the default configuration, on several nodes."""
    huge_pages: tuple[HugePages, ...] = ("default", "never")
    """Transparent huge pages of the default configuration; --quick leaves never out."""


def plan(settings: Settings, context: Context) -> Plan:
    """Every distinct configuration on this machine."""
    budget = replace(context.budget, repeats=REPEATS[context.scale])
    yield [
        RunSpec(
            work=TrainSteps(network=network, batch_per_device=batch),
            placement=Placement(
                device="cpu",
                threads=mode.threads,
                pinning=mode.pinning,
                numa_node=mode.node,
                memory_policy=mode.memory_policy,
                huge_pages=mode.huge_pages,
            ),
            program=ProgramSettings(layout=mode.layout),
            budget=budget,
        )
        for network in dict.fromkeys(settings.networks)
        for batch in dict.fromkeys(settings.batch_sizes)
        for mode in modes(settings, context.machine, context.scale)
    ]


def modes(settings: Settings, machine: Machine, scale: Scale) -> list[CpuMode]:
    """The configurations to measure, the default first."""
    cpu = machine.cpu
    usable = cpu.usable_cores
    logical = cpu.affinity_cores or cpu.logical_cores or usable
    counts = settings.threads or _counts(usable, logical, scale)
    found = []
    for threads in counts:
        for node, room in [(None, logical), *_nodes(machine)]:
            if node is not None and threads > room:
                continue
            for pinning in settings.pinnings:
                bound = pinning != "none"
                if bound and (threads >= room or (threads == 1 and pinning != "compact")):
                    continue
                found += [CpuMode(threads, pinning, node, layout) for layout in settings.layouts]
    default = CpuMode(usable, "none", None, "nchw")
    ordered = sorted(dict.fromkeys(found), key=lambda mode: mode != default)  # a stable sort
    return [*ordered, *_memory_modes(settings, machine, scale, ordered[0])] if ordered else []


def _memory_modes(
    settings: Settings, machine: Machine, scale: Scale, base: CpuMode
) -> list[CpuMode]:
    """`base` with each memory policy, on several nodes, and without huge pages."""
    policies = settings.memory_policies if _nodes(machine) else ()
    pages = ("default",) if scale is Scale.QUICK else settings.huge_pages
    found = [replace(base, memory_policy=policy) for policy in dict.fromkeys(policies)]
    found += [replace(base, huge_pages=choice) for choice in dict.fromkeys(pages)]
    return [mode for mode in found if mode != base]


def _counts(usable: int, logical: int, scale: Scale) -> list[int]:
    half = max(1, usable // 2)
    if scale is Scale.QUICK:
        return sorted({half, usable})
    return sorted({1, half, usable, logical})


def _nodes(machine: Machine) -> list[tuple[int, int]]:
    """The first NUMA node and its number of processors; empty if there is only one."""
    nodes = [n for n in machine.cpu.numa_nodes if n.cpus]
    return [(nodes[0].node, len(nodes[0].cpus))] if len(nodes) > 1 else []


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and chart from the records of one `cpu-modes`, by workload."""
    return per_workload(records, _workload, _answer)


def _workload(record: RunRecord) -> tuple[str, ...]:
    return training_workload(record)[:2]  # without the threads, which are compared


def _answer(records: Sequence[RunRecord]) -> Answer:
    network, batch = _workload(records[0]) if records else (NETWORK, f"batch size {BATCH}")
    groups = group_by(records, mode_of)
    done = [g for g in groups if g.throughput is not None]
    ranked = sorted(done, key=lambda g: -rate_of(g).value)
    return answer_of(
        EXPERIMENT,
        f"CPU configurations of {network}, {batch}",
        records,
        findings=findings(network, groups, ranked),
        tables=(table(groups, ranked),) if groups else (),
        charts=charts(network, ranked),
        warnings=_reduced(records),
        notes=(
            "Pinned threads use as many processors as threads: neighbours (compact), neighbours "
            "with a core each (cores), or distant ones (spread). ± covers windows and processes; "
            "ratios whose interval contains 1, or that are within 3 % of it, are not significant.",
            *_memory_notes(records),
            "Gawande et al. 2018 [004], figure 5, compare clustering and memory modes of a KNL, "
            "which its firmware sets.",
        ),
    )


def _memory_notes(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Why there is no memory policy besides the default."""
    if not records or any(r.spec.placement.memory_policy != "default" for r in records):
        return ()
    return ("Memory policies (interleave, preferred) are compared on several NUMA nodes only.",)


def _reduced(records: Sequence[RunRecord]) -> tuple[Warning, ...]:
    repeats = {r.spec.budget.repeats for r in records}
    if not repeats or min(repeats) >= REPEATS[Scale.DEFAULT]:
        return ()
    return (
        warn(
            "reduced",
            f"Each configuration ran in {min(repeats)} process{'' if min(repeats) == 1 else 'es'}; "
            "processes differ, so the intervals are too narrow for small differences.",
            "Leave --quick out, or set repeats=3.",
        ),
    )


EXPERIMENT = Experiment(
    name="cpu-modes",
    question="Which threads, pinning and memory layout train fastest on this CPU?",
    settings=Settings,
    works=(TrainSteps,),
    varies={
        "network": "networks",
        "batch_per_device": "batch_sizes",
        "pinning": "pinnings",
        "numa_node": "pinnings",
        "layout": "layouts",
        "memory_policy": "memory_policies",
        "huge_pages": "huge_pages",
        "device": "threads",
    },
    plan=plan,
    answer=answer,
    papers="[004], figure 5",
)
