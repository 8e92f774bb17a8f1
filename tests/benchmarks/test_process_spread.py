"""The prior for the spread between processes: its estimate, and that of the stored runs."""

import math

import numpy as np
import pytest

from cubemesh.store.spread_prior import PRIORS, SpreadKind
from stored_benchmarks import RECORDS

BUSY = SpreadKind.GPU_BOUND


@pytest.fixture
def spreads(script):
    return script("process_spread")


def drawn(spreads, rng, groups, spread, freedom, runs=2):
    """Groups whose variances are drawn around spread² with these degrees of freedom."""
    sigmas = spread * np.sqrt(freedom / rng.chisquare(freedom, size=groups))
    return [
        spreads.Repeats(BUSY, f"m{i % 3}", "w", tuple(sigma * rng.normal(size=runs)))
        for i, sigma in enumerate(sigmas)
    ]


@pytest.mark.parametrize(("spread", "freedom"), [(0.01, 2.0), (0.03, 8.0)])
@pytest.mark.parametrize("runs", [2, 4])
def test_the_fit_finds_the_distribution_of_the_variances(spreads, spread, freedom, runs):
    found = spreads.fit(drawn(spreads, np.random.default_rng(1), 1500, spread, freedom, runs))
    assert found.spread == pytest.approx(spread, rel=0.1)
    assert found.freedom == pytest.approx(freedom, rel=0.3)


def test_the_prior_of_other_machines_contains_repeats_as_often_as_it_says(spreads):
    inside, total = spreads.predicted(drawn(spreads, np.random.default_rng(2), 600, 0.01, 3.0))
    assert total == 600
    assert 0.92 <= inside / total <= 0.98


def test_a_kind_with_few_groups_or_machines_that_differ_has_no_prior(spreads):
    few = drawn(spreads, np.random.default_rng(3), 9, 0.01, 3.0)
    assert "10 groups of 2 machines" in spreads.unsupported(few)
    wild = [
        spreads.Repeats(BUSY, machine, "w", (0.0, spread))
        for machine, spread in [("calm", 0.002)] * 10 + [("wild", 0.2)] * 10
    ]
    assert "10 of 20 repeats" in spreads.unsupported(wild)
    assert not spreads.unsupported(drawn(spreads, np.random.default_rng(4), 60, 0.01, 3.0))


def test_variances_below_the_resolution_count_as_the_resolution(spreads):
    alike = spreads.Repeats(BUSY, "m", "w", (1.0, 1.0))
    assert math.sqrt(alike.variance) == spreads.RESOLUTION


def test_the_priors_are_those_of_the_stored_runs(spreads):
    stored = spreads.repeats(sorted(RECORDS.glob("*.sqlite")))
    kinds = {kind: [g for g in stored if g.kind is kind] for kind in SpreadKind}
    assert {kind for kind, own in kinds.items() if not spreads.unsupported(own)} == set(PRIORS)
    for kind, prior in PRIORS.items():
        found = spreads.fit(kinds[kind])
        assert math.sqrt(prior.variance) == pytest.approx(found.spread, rel=0.03)
        assert prior.freedom == pytest.approx(found.freedom, rel=0.03)
        assert prior.source.startswith(f"of {len(kinds[kind])} earlier pairs of runs (little-cnn")
        assert {g.freedom for g in kinds[kind]} == {1}
        assert all("little-cnn" in g.what and "H200" in g.what for g in kinds[kind])


def test_every_kind_is_printed_with_its_groups(spreads):
    groups = drawn(spreads, np.random.default_rng(5), 12, 0.01, 3.0)
    lines = list(spreads.report(groups))
    assert sum(line.startswith("| m") for line in lines) == 12
    assert sum("no prior: it needs 10 groups" in line for line in lines) == 2
    assert sum("12 groups of 3 machines: s0" in line for line in lines) == 1
