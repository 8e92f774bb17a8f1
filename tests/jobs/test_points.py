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


def chunk(name: str, *points: tuple[float, float], rank: int = 0) -> dict[str, Any]:
    times, values = [p[0] for p in points], [p[1] for p in points]
    plain = {"name": name, "rank": rank, "device": "gpu", "times_s": times, "values": values}
    return {"event": "series", "of_rank": rank, "series": plain}


def test_sensors_are_passed_on_as_they_are_read() -> None:
    source = PointSource()
    source.start(1)
    found = events(
        source,
        chunk("gpu_power_watts", (0.5, 300.0), (1.0, 310.0)),
        chunk("gpu_power_watts", (1.5, 305.0)),
        chunk("resident_bytes", (0.5, 1e9)),  # not shown
        chunk("gpu_power_watts", (0.5, 200.0), rank=1),
        curve("gpu_power_watts", (1.2, 305.0)),  # means of the readings, at the end
    )
    assert folded(found) == {1: {"gpu_power_watts": [[0.5, 300.0], [1.0, 310.0], [1.5, 305.0]]}}


def test_a_resumed_run_takes_back_the_readings_of_before() -> None:
    source = PointSource()
    source.start(1)
    before = events(source, loss(2, 0.5), chunk("gpu_power_watts", (9.0, 300.0)))
    source.start(1)
    after = events(source, RESUMED, chunk("gpu_power_watts", (0.5, 250.0)), loss(5, 0.4))
    assert folded([*before, *after])[1]["gpu_power_watts"] == [[0.5, 250.0]]


def test_of_a_long_run_fewer_readings_are_passed_on_and_all_are_the_records(monkeypatch) -> None:
    monkeypatch.setattr("cubemesh.jobs.points.MOST_READINGS", 10)
    source = PointSource()
    source.start(1)
    read = [(0.5 * n, float(n)) for n in range(1000)]
    found = events(
        source, *(chunk("gpu_power_watts", *read[n : n + 10]) for n in range(0, 1000, 10))
    )
    values = [y for _, y in folded(found)[1]["gpu_power_watts"]]
    assert values[:15] == [*range(10), 10, 12, 14, 16, 18]
    assert len(values) < 60
    assert set(values) < {y for _, y in read}
    assert values[-1] > 800
