"""Facts of a run on several devices, and of one whose gradients were stale."""

from dataclasses import replace

from cubemesh.schema import Curve, Figure, Outcome, Rank, Status, Window
from cubemesh.views.facts.run import run_facts


def asynchronous(record):
    """A record as of two ranks, the second three times as fast, whose server counted."""
    ranks = tuple(
        Rank(rank=n, host="here", device="cpu", processors=(n,), outcome=Outcome(status=Status.OK))
        for n in range(2)
    )
    windows = tuple(
        Window(rank=n, start_s=1.0, elapsed_s=2.0, steps=4, samples=samples)
        for n, samples in ((0, 20), (1, 60))
    )
    curves = (
        Curve(name="updates_by_staleness", x_name="staleness", x=(0, 1, 2), y=(1, 8, 1)),
        Curve(name="first_updates", x_name="update", x=(1, 2, 3, 4), y=(0, 1, 1, 0)),
    )
    figures = {
        "throughput_per_s": Figure(value=40.0, unit="samples/s"),
        "staleness": Figure(value=1.0, unit="versions", n=10),
        "staleness_rank_1": Figure(value=0.5, unit="versions", n=5),
    }
    return replace(record, ranks=ranks, windows=windows, curves=curves, figures=figures)


def test_staleness_and_whose_updates_came_first(made):
    facts = dict(run_facts(asynchronous(made.training_record())))
    assert facts["mean gradient staleness"] == "1 versions"
    assert facts["staleness rank 1"] == "0.5 versions"
    assert facts["staleness histogram"] == "0 (10.0 %), 1 (80.0 %), 2 (10.0 %)"
    assert "0 1 1 0" in facts.values()


def test_a_rank_on_a_gpu_has_its_processors(made):
    record = asynchronous(made.training_record())
    gpu = replace(record.ranks[0], device="cuda:0", processors=(0, 1, 2, 8, 10, 11))
    facts = dict(run_facts(replace(record, ranks=(gpu, replace(record.ranks[1], processors=())))))
    assert facts["rank 0"] == "cuda:0, processors 0-2, 8, 10-11, ok, 10 images/s"
    assert facts["rank 1"] == "cpu, ok, 30 images/s"


def test_each_rank_with_its_own_speed(made):
    facts = dict(run_facts(asynchronous(made.training_record())))
    assert facts["rank 0"] == "processors 0, ok, 10 images/s"
    assert facts["rank 1"] == "processors 1, ok, 30 images/s"
