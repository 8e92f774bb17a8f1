"""A stored sweep becomes measured times of a prediction."""

import pytest

from cubemesh.errors import UsageError
from cubemesh.model import (
    Collective,
    Outcome,
    Placement,
    RunKey,
    RunRecord,
    RunSpec,
    Status,
    SweepPoint,
)
from cubemesh.predict.swept import sweep_of


def record(*points, collective="all-reduce"):
    spec = RunSpec(work=Collective(collective=collective), placement=Placement(devices=4))
    return RunRecord(
        run_id="r1",
        spec=spec,
        key=RunKey(spec_id=spec.spec_id, machine_id="m", software_id="s", code_version="1"),
        started_utc="2026-01-01T00:00:00+00:00",
        elapsed_s=1.0,
        outcome=Outcome(status=Status.OK),
        sweep=points,
        library="gloo",
    )


def point(size, seconds, **fields):
    return SweepPoint(size_bytes=size, count=size, seconds=(seconds,), **fields)


def test_the_faster_way_counts_at_each_size():
    found = sweep_of(record(point(2048, 4.0), point(1024, 3.0), point(1024, 2.0, in_place=True)))
    assert (found.operation, found.devices, found.source) == ("all-reduce", 4, "run r1, gloo")
    assert (found.size_bytes, found.seconds) == ((1024.0, 2048.0), (2.0, 4.0))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (record(point(8, 1.0), point(16, 1.0), collective="scatter"), "measured times of"),
        (record(point(8, 1.0), point(9, 1.0, pair=(0, 1))), "two sizes at least, and this run 1"),
    ],
)
def test_what_is_of_no_use_is_refused(run, words):
    with pytest.raises(UsageError, match=words):
        sweep_of(run)
