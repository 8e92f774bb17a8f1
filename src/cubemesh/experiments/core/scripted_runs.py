"""Was this measured, or did a script play it?

The framework `null` plays what its script says; it is there to try cubemesh out, and to test it. An
answer from such runs says so wherever it is shown, and never stands for the machine: that of an
experiment, of a comparison, and of a document's claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cubemesh.frameworks import FRAMEWORKS
from cubemesh.schema import Answer, RunRecord, warn
from cubemesh.schema.warning import SIMULATED


def told(answer: Answer, records: Sequence[RunRecord]) -> Answer:
    """`answer` with a doubt on everything it found, where a script played any of its runs."""
    played = sum(_played(record) for record in records)
    if not played:
        return answer
    runs = "This run was" if len(records) == 1 else f"These {played} runs were"
    if played < len(records):
        runs = f"{played} of these {len(records)} runs were"
    warning = warn(
        SIMULATED,
        f"{runs} played by a script: nothing was computed, and the figures say nothing of this "
        "machine.",
        "Leave framework=null out to measure.",
    )
    return replace(
        answer,
        findings=tuple(replace(f, caveats=(SIMULATED, *f.caveats)) for f in answer.findings),
        warnings=(warning, *answer.warnings),
    )


def _played(record: RunRecord) -> bool:
    entry = FRAMEWORKS.get(record.spec.program.framework)
    return entry is not None and entry.read_script is not None
