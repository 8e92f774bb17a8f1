"""Titles of answers of one page."""

from dataclasses import replace

import pytest

from cubemesh.experiments.analysis.titles import distinct_titles
from cubemesh.schema import Answer, RunSpec, TrainSteps


@pytest.fixture
def made(record_of):
    def make(network="resnet-50", batch=8, day=1):
        spec = RunSpec(work=TrainSteps(network=network, batch_per_device=batch))
        return replace(record_of(spec), started_utc=f"2026-01-{day:02}T00:00:00+00:00")

    return make


def titles(*runs):
    answer = Answer(experiment="weak-scaling", question="?", title="Weak scaling", findings=())
    return [a.title for a, _ in distinct_titles([(answer, records) for records in runs])]


def test_a_single_answer_has_its_title(made):
    assert titles([made()]) == ["Weak scaling"]


def test_equal_titles_get_what_differs(made):
    assert titles([made()], [made("alexnet")]) == [
        "Weak scaling · resnet-50",
        "Weak scaling · alexnet",
    ]
    assert titles([made(), made(batch=16)], [made(batch=32)]) == [
        "Weak scaling · batch size 8, 16",
        "Weak scaling · batch size 32",
    ]
    many = [made(batch=2**n) for n in range(5)]
    assert titles(many, [made()])[0] == "Weak scaling · batch size 1, 2, 4, …"


def test_equal_settings_are_distinguished_by_day_and_then_by_number(made):
    assert titles([made(day=2)], [made(day=1), made(day=5)]) == [
        "Weak scaling · 2 Jan 2026",
        "Weak scaling · 5 Jan 2026",
    ]
    assert titles([made()], [made()]) == ["Weak scaling · 1", "Weak scaling · 2"]
