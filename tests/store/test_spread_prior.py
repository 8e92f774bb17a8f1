"""Which runs have a prior for the spread between processes."""

from dataclasses import replace

import pytest

from cubemesh.schema import Placement, Rank, RunSpec, TrainSteps
from cubemesh.store.spread_prior import PRIORS, SpreadKind, prior_spread, spread_kind


def made(record_of, device="cuda:0", percent=98.0, **work):
    spec = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8, **work))
    record = record_of(spec, gpu_percent=percent)
    rank = Rank(rank=0, host="h", device=device, outcome=record.outcome)
    return replace(record, ranks=(rank,))


def test_a_gpu_that_is_busy_has_the_prior(record_of):
    runs = [made(record_of), made(record_of, percent=91.0)]
    assert spread_kind(runs) is SpreadKind.GPU_BOUND
    assert prior_spread(runs) is PRIORS[SpreadKind.GPU_BOUND]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"device": "cpu", "percent": None}, SpreadKind.CPU),
        ({"percent": 60.0}, SpreadKind.LAUNCH_BOUND),
        ({"percent": None}, None),
        ({"data": "digits"}, None),
    ],
)
def test_other_runs_have_none(record_of, changes, kind):
    runs = [made(record_of, **changes)]
    assert spread_kind(runs) is kind
    assert prior_spread(runs) is None


def test_several_devices_and_no_runs_have_none(record_of):
    one = made(record_of)
    two = replace(one, spec=replace(one.spec, placement=Placement(devices=2)))
    assert spread_kind([two]) is None
    assert spread_kind([]) is None
