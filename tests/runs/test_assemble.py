import pytest

from cubemesh.runs.assemble import assemble, join_series
from cubemesh.runs.exit_status import WorkerExit
from cubemesh.schema import (
    Budget,
    Ceiling,
    Forward,
    Gpu,
    Outcome,
    Placement,
    RunKey,
    RunSpec,
    Series,
    Status,
    Train,
    TrainSteps,
    Window,
)
from cubemesh.schema.serialization import to_plain
from cubemesh.worker.report.events import EventLog, events_path, read_events

KEY = RunKey(spec_id="s", machine_id="m", software_id="w", code_version="1")
STEPS = TrainSteps(network="little-cnn", batch_per_device=8)


def window(number, phase="measure", elapsed_s=0.5):
    found = Window(phase=phase, start_s=number, elapsed_s=elapsed_s, steps=5, samples=40)
    return {"event": "window", "t": 0.0, "window": to_plain(found)}


def outcome(status):
    return {"event": "outcome", "t": 9.0, "outcome": to_plain(Outcome(status=status))}


def record_of(events, work=STEPS, exit_code=0, devices=1):
    ending = WorkerExit(exit_code=exit_code, elapsed_s=12.0, phase="measure")
    spec = RunSpec(work=work, placement=Placement(devices=devices), budget=Budget())
    return assemble(spec, KEY, events, ending, started_utc="2026-01-01T00:00:00Z", attempt=2)[0]


def test_the_workers_own_outcome_comes_first():
    assert record_of([outcome(Status.OK)]).ok
    assert record_of([outcome(Status.DIVERGED)], exit_code=-11).outcome.status is Status.DIVERGED
    assert record_of([], exit_code=-11).outcome.status is Status.CRASHED


def test_figures_are_computed_from_measured_windows_only():
    record = record_of([window(0, "warm-up", 9.0), *map(window, range(1, 9)), outcome(Status.OK)])
    assert len(record.windows) == 9
    assert record.figure("step_s") == pytest.approx(0.1)
    assert record.figure("throughput_per_s") == pytest.approx(80)
    assert record.figure("wall_s") == record.elapsed_s == 12.0
    assert (record.attempt, record.key) == (2, KEY)


def test_a_run_without_windows_has_its_wall_time():
    assert set(record_of([]).figures) == {"wall_s"}


@pytest.mark.parametrize(
    ("work", "has"),
    [
        (STEPS, {"throughput_per_s"}),
        (TrainSteps(network="resnet-50", batch_per_device=8), {"projected_90_epochs_days"}),
        (Train(network="resnet-50", batch_per_device=8), {"projected_90_epochs_days"}),
        (TrainSteps(network="resnet-50", batch_per_device=8, image_size=80), set()),
        (Train(network="little-cnn", batch_per_device=8), set()),
        (Forward(network="little-cnn", batch_per_device=8), {"throughput_per_s"}),
        (Ceiling(), set()),
    ],
)
def test_only_figures_that_apply_to_the_work_are_stored(work, has):
    figures = set(record_of(list(map(window, range(8))), work).figures)
    assert has <= figures
    assert "step_s" in figures
    assert ("projected_90_epochs_days" in figures) == ("projected_90_epochs_days" in has)
    assert ("throughput_per_s" in figures) == (work.kind != "ceiling")


def test_the_latest_curve_of_a_name_and_each_warning_once():
    def curve(y):
        plain = {"name": "loss", "x_name": "step", "x": [1.0], "y": [y]}
        return {"event": "curve", "t": 0.0, "curve": plain}

    doubt = {"code": "drift", "cause": "c", "remedy": "r"}
    warning = {"event": "warning", "t": 0.0, "warning": doubt}
    why = {"what": "energy and power", "why": "not measurable: no sensor"}
    unmeasured = {"event": "unmeasured", "t": 0.0, "unmeasured": why}
    record = record_of([curve(2.0), curve(1.0), warning, warning, unmeasured, unmeasured])
    assert [c.y for c in record.curves] == [(1.0,)]
    assert [w.code for w in record.warnings] == ["drift"]
    assert [(u.what, u.why) for u in record.unmeasured] == [tuple(why.values())]


def test_the_energy_of_a_run_is_that_of_all_its_ranks():
    def of_rank(number, watts):
        heard = {"t": 0.0, "of_rank": number}
        rank = {"event": "rank", "host": "h", "device": f"cuda:{number}", "threads": 1}
        figures = {"gpu_power_watts": watts, "mean_power_watts": watts, "input_wait_s": number}
        for name, value in figures.items():
            figure = {"value": value, "unit": "W", "method": "energy counter"}
            yield {**heard, "event": "figure", "name": name, "figure": figure}
        yield {**heard, **rank}
        own = window(1)
        yield {**own, "of_rank": number, "window": {**own["window"], "rank": number}}

    figures = record_of([*of_rank(0, 100.0), *of_rank(1, 300.0)], devices=2).figures
    assert figures["gpu_power_watts"].value == figures["mean_power_watts"].value == 400
    assert figures["input_wait_s"].value == 0, "of the others, the first rank's stand"
    one_rank = record_of([*of_rank(0, 100.0)]).figures
    assert one_rank["mean_power_watts"].value == 100
    lacking = record_of([*of_rank(0, 100.0), *list(of_rank(1, 300.0))[2:]], devices=2).figures
    assert "mean_power_watts" not in lacking


def test_a_rank_is_recorded_with_its_device():
    rank = {"event": "rank", "t": 0.0, "host": "h", "device": "cuda:1", "threads": 4}
    spec = RunSpec(work=STEPS)
    record, _ = assemble(
        spec,
        KEY,
        [rank, outcome(Status.OK)],
        WorkerExit(exit_code=0, elapsed_s=1.0),
        started_utc="2026-01-01T00:00:00Z",
        attempt=1,
        gpus=[Gpu(index=i, name="H200", uuid=f"GPU-7{i}") for i in (6, 7)],
    )
    (found,) = record.ranks
    assert (found.host, found.device, found.threads) == ("h", "cuda:1", 4)
    assert (found.device_name, found.device_uuid) == ("H200", "GPU-77")
    assert found.outcome == record.outcome


def test_chunks_of_a_series_are_joined():
    def chunk(name, *pairs):
        return Series(
            name=name, times_s=tuple(t for t, _ in pairs), values=tuple(v for _, v in pairs)
        )

    nan = float("nan")
    joined = join_series(
        [chunk("a", (0.0, 1.0)), chunk("b", (0.0, 9.0)), chunk("a", (1.0, nan), (2.0, 3.0))]
    )
    assert [(s.name, s.times_s, s.values) for s in joined] == [
        ("a", (0.0, 2.0), (1.0, 3.0)),
        ("b", (0.0,), (9.0,)),
    ]


def test_a_torn_event_file_gives_a_record_of_its_complete_lines(tmp_path):
    log = EventLog(events_path(tmp_path, 0), 0, 0.0)
    for number in range(3):
        log.window(Window(start_s=float(number), elapsed_s=0.5, steps=5, samples=40))
    log.close()
    path = events_path(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-20])
    record = record_of(read_events(path), exit_code=-11)
    assert len(record.windows) == 2
    assert record.figure("step_s") == pytest.approx(0.1)
