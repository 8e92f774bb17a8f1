"""Parts of an acceptance test: which runs measure what, and the name of each run."""

from __future__ import annotations

from typing import Literal, get_args

from cubemesh.schema import Ceiling, Collective, Input, NetworkWork, RunRecord, RunSpec

Part = Literal[
    "matrix-product",
    "memory-copy",
    "host-copies",
    "links",
    "neighbours",
    "disk",
    "input",
    "results",
    "training",
    "burn-in",
]
PARTS: tuple[Part, ...] = get_args(Part)
"""In the order of the plan."""
NEEDS: dict[Part, str] = {
    "host-copies": "there is no GPU",
    "links": "it needs two devices or more (devices=2 divides the cores of a CPU)",
    "neighbours": "it needs two devices or more (devices=2 divides the cores of a CPU)",
    "burn-in": "burn_in_minutes=0",
}
"""Part that a plan may lack → why."""
BURN_IN_WINDOWS = 60
"""Windows of a burn-in; no other part has as many."""
NAMES = {
    "copy": "copy in device memory",
    "host_to_device": "copy from host to device",
    "device_to_host": "copy from device to host",
    "disk_read": "disk read",
}


def part_of(record: RunRecord) -> Part:
    """The part that a run belongs to."""
    work, program, budget = record.spec.work, record.spec.program, record.spec.budget
    if isinstance(work, Ceiling):
        if work.operation == "matrix_product":
            return "matrix-product"
        if work.operation == "disk_read":
            return "disk"
        return "memory-copy" if work.operation == "copy" else "host-copies"
    if isinstance(work, Collective):
        return "links"
    if isinstance(work, Input):
        return "input"
    if program.deterministic:
        return "results"
    if budget.windows == BURN_IN_WINDOWS:
        return "burn-in"
    return "neighbours" if record.spec.placement.devices > 1 else "training"


def name_of(record: RunRecord) -> str:
    """What a run measures, in words: `matrix product, bf16`."""
    work, spec, part = record.spec.work, record.spec, part_of(record)
    if isinstance(work, Ceiling):
        return NAMES.get(work.operation) or f"matrix product, {spec.program.precision}"
    if isinstance(work, Collective):
        return f"{work.collective} of {spec.placement.devices} devices"
    assert isinstance(work, NetworkWork)
    if isinstance(work, Input):
        return f"input: {'reading files' if work.stage == 'read' else 'decoding images'}"
    name = f"{work.network}, batch size {work.batch_per_device}"
    if part in ("neighbours", "burn-in") and spec.placement.devices > 1:
        name += f", on each of {spec.placement.devices} devices"
    words = {"results": "repeated training of", "burn-in": "burn-in with"}
    return f"{words.get(part, 'training')} {name}"


def figure_name(spec: RunSpec) -> str:
    """The figure of a run that is judged."""
    work = spec.work
    if isinstance(work, Ceiling):
        return f"rate_{'flops' if work.operation == 'matrix_product' else 'bytes'}_per_s"
    return "bus_bytes_per_s" if isinstance(work, Collective) else "throughput_per_s"
