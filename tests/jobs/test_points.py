"""Points: each once, and after a restart those of the record."""

from typing import Any

import pytest

from cubemesh.jobs.points import LOSS, RATE, PointSource, folded


def loss(step: int, value: float) -> dict[str, Any]:
    return {"event": "loss", "of_rank": 0, "step": step, "loss": value}


def curve(name: str, *points: tuple[float, float]) -> dict[str, Any]:
    x, y = [p[0] for p in points], [p[1] for p in points]
    plain = {"name": name, "x_name": "step", "x": x, "y": y}
    return {"event": "curve", "of_rank": 0, "curve": plain}


def window(start_s: float, samples: int) -> dict[str, Any]:
    plain = {"phase": "measure", "start_s": start_s, "elapsed_s": 2.0, "samples": samples}
    return {"event": "window", "of_rank": 0, "window": plain}


RESUMED = {"event": "figure", "of_rank": 0, "name": "resumed_at_step", "figure": {"value": 4}}


def events(source: PointSource, *of_worker: dict[str, Any]) -> list[tuple[str, Any]]:
    return [found for event in of_worker for found in source.events(event)]


def test_a_curve_adds_only_what_is_new() -> None:
    source = PointSource()
    source.start(1)
    found = events(source, loss(2, 0.5), loss(4, 0.4), curve(LOSS, (2, 0.5), (4, 0.4), (6, 0.3)))
    assert folded(found) == {1: {LOSS: [[2, 0.5], [4, 0.4], [6, 0.3]]}}
    assert len(found) == 3


def test_throughput_is_by_the_end_of_its_window() -> None:
    source = PointSource()
    source.start(1)
    assert folded(events(source, window(3.0, 100))) == {1: {RATE: [[5.0, 50.0]]}}


def test_other_ranks_and_infinite_values_do_no_harm() -> None:
    source = PointSource()
    source.start(1)
    assert events(source, {**loss(1, 1.0), "of_rank": 1}) == []
    assert folded(events(source, loss(1, float("inf")))) == {1: {LOSS: [[1, None]]}}


@pytest.mark.parametrize("again", ["same process", "another"])
def test_a_resumed_run_takes_back_the_points_after_its_checkpoint(again: str) -> None:
    source = PointSource()
    source.start(1)
    before = events(source, loss(2, 0.5), loss(4, 0.4), loss(6, 0.3), window(0.0, 10))
    if again == "another":
        source = PointSource(folded(before))
    source.start(1)
    after = events(source, RESUMED, loss(5, 0.35), curve(LOSS, (2, 0.5), (4, 0.4), (5, 0.35)))
    assert after[0] == ("rewind", {"run": 1, "step": 4})
    assert folded([*before, *after]) == {
        1: {LOSS: [[2, 0.5], [4, 0.4], [5, 0.35]], RATE: []},
    }


def test_a_run_that_starts_from_the_beginning_has_none_of_the_old_points() -> None:
    source = PointSource()
    source.start(1)
    before = events(source, loss(2, 0.5))
    source.start(1)
    after = events(source, loss(2, 0.5))
    assert folded([*before, *after]) == {1: {LOSS: [[2, 0.5]]}}
