"""Which windows of a record are those of the whole run, whatever its ranks did?"""

from __future__ import annotations

from cubemesh.measure.together import alongside, together
from cubemesh.model import RunRecord, Window
from cubemesh.parallel.exchanges import OUT_OF_STEP


def run_windows(record: RunRecord) -> list[Window]:
    """The measured windows, the samples of all ranks in each."""
    if record.spec.placement.devices > 1 and record.spec.program.exchange in OUT_OF_STEP:
        return alongside(record.windows)
    return together(record.measured)
