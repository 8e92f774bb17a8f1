"""Which windows of a record are those of the whole run, whatever its ranks did?"""

from __future__ import annotations

from cubemesh.measure.merge_ranks import merge_free_running, merge_lockstep
from cubemesh.parallel.strategies import SIDE_BY_SIDE
from cubemesh.schema import RunRecord, Window


def run_windows(record: RunRecord) -> list[Window]:
    """The measured windows, the samples of all ranks in each."""
    if record.spec.placement.devices > 1 and record.spec.program.sync in SIDE_BY_SIDE:
        return merge_free_running(record.windows)
    return merge_lockstep(record.measured)
