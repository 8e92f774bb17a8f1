"""Caveats of a result: warnings that forbid comparing runs closely, and simulated runs.

The framework `null` computes nothing and takes its times from a script; it serves tests and trials.
Every answer that contains such runs carries the warning `simulated`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cubemesh.frameworks import FRAMEWORKS
from cubemesh.schema import Answer, Ceiling, RunRecord, warn
from cubemesh.schema.warning import SIMULATED
from cubemesh.schema.work import DISK_OPERATIONS

NOISY = ("not-steady", "drift", "busy-host", "shared-gpu")
"""Warnings of runs whose speed may be due to other load."""


def noise_codes(records: Iterable[RunRecord]) -> tuple[str, ...]:
    """Codes of the warnings of `records` that forbid comparing them closely, each once."""
    codes = dict.fromkeys(w.code for record in records for w in record.warnings)
    return tuple(code for code in codes if code in NOISY)


def mark_simulated(answer: Answer, records: Sequence[RunRecord]) -> Answer:
    """`answer` with a warning, and a caveat on every finding, if any of its runs was simulated."""
    count = sum(_is_simulated(record) for record in records)
    if not count:
        return answer
    runs = "This run was" if len(records) == 1 else f"These {count} runs were"
    if count < len(records):
        runs = f"{count} of these {len(records)} runs were"
    warning = warn(
        SIMULATED,
        f"{runs} simulated (null framework): no computation; not a measurement of this machine.",
        "Leave framework=null out to measure.",
    )
    return replace(
        answer,
        findings=tuple(replace(f, caveats=(SIMULATED, *f.caveats)) for f in answer.findings),
        warnings=(warning, *answer.warnings),
    )


def _is_simulated(record: RunRecord) -> bool:
    """Whether its times are a script's. A disk is measured without a framework, and so by any
    without a script."""
    work, program = record.spec.work, record.spec.program
    if isinstance(work, Ceiling) and work.operation in DISK_OPERATIONS and program.script is None:
        return False
    entry = FRAMEWORKS.get(program.framework)
    return entry is not None and entry.read_script is not None
