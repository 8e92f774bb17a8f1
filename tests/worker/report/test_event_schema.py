"""What a rank may report: every event of the log fits, and what does not is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.runs.assemble import assemble
from cubemesh.runs.exit_status import WorkerExit
from cubemesh.schema import (
    Budget,
    Collective,
    Placement,
    ProgramSettings,
    RunKey,
    RunSpec,
    TrainSteps,
)
from cubemesh.store.json_text import to_text
from cubemesh.worker.report.event_schema import parse_event

WINDOW = {"start_s": 0.0, "elapsed_s": 1.0, "steps": 1, "samples": 1}
RATE = {"name": "read", "source": "cuda:1", "target": "cuda:0", "value": 1e9, "unit": "B/s"}
KEY = RunKey(spec_id="s", machine_id="m", software_id="w", code_version="1")
DEEP = 100_000
HUGE = 10**400


def line(event, t=0.0, **fields):
    return json.dumps({"event": event, "t": t, **fields}).encode()


def test_an_event_of_the_schema_is_read():
    assert parse_event(line("window", window=WINDOW), 0)["window"] == WINDOW
    assert parse_event(line("link_rate", link_rate=RATE), 0)["link_rate"] == RATE
    simulated = WINDOW | {"phase": "evaluate", "elapsed_s": 0.0}
    assert parse_event(line("window", window=simulated), 0)["window"] == simulated


@pytest.mark.parametrize(
    "refused",
    [
        b"7",
        b"\xff",
        b'{"event": ["alive"], "t": 0}',
        b'{"event": "alive"}',
        b'{"event": "alive", "t": ' + b"9" * 5000 + b"}",
        b"[" * DEEP,
        b'{"event": "alive", "t": 0, "x": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"event": "outcome", "t": 0, "outcome": {"status": "ok", "facts": {"x": '
        + b"[" * 100
        + b"]" * 100
        + b"}}}",
        line("alive", "soon"),
        line("alive", more=1),
        line("rm"),
        line("artifact", name="trace"),
        line("artifact", name="trace", file=["x"]),
        line("enter", name=None),
        line("window"),
        line("window", window=7),
        line("window", window={}),
        line("window", window=WINDOW | {"elapsed_s": 0}),
        line("window", window=WINDOW | {"elapsed_s": float("inf")}),
        line("window", window=WINDOW | {"steps": HUGE}),
        line("window", window=WINDOW | {"steps": 0}),
        line("window", window=WINDOW | {"rank": 1}),
        line("window", window=WINDOW, extra=1),
        line("outcome", outcome={"status": "fine"}),
        line("outcome", outcome={"status": "ok", "message": "\ud800"}),
        line("point", point={"size_bytes": 1, "count": 1, "seconds": []}),
        line("link_rate", link_rate=RATE | {"value": 0.0}),
        line("link_rate", link_rate=RATE | {"value": float("nan")}),
        line("link_rate", link_rate=RATE | {"source": None}),
        line("series", series={"name": "x", "times_s": [1.0], "values": []}),
        line("warning", warning={"code": "no-such", "cause": "", "remedy": ""}),
        line("progress", phase="a", steps=1, step_s=None, fraction=float("nan")),
        line("rank", host="h", device="cpu", threads="1"),
        line("rank", host="h", device="cpu", threads=1, devices=["cuda:0"] * 5000),
    ],
)
def test_what_does_not_fit_is_refused(refused):
    with pytest.raises(ValueError, match=r"\w"):
        parse_event(refused, 0)


def likely_windows(rank):
    """Windows that pass, of extreme values."""
    return st.fixed_dictionaries(
        {
            "rank": st.just(rank),
            "start_s": st.sampled_from([0.0, -1e18, 1e18, 5e-324]),
            "elapsed_s": st.sampled_from([1.0, 1e18, 1e-12]),
            "steps": st.sampled_from([1, 10**18]),
            "samples": st.sampled_from([1, 8, 10**18]),
            "phase": st.sampled_from(["measure", "evaluate"]),
        }
    ).map(lambda w: {"event": "window", "t": 0.0, "window": w, "of_rank": rank})


def likely_points(rank):
    return st.fixed_dictionaries(
        {
            "size_bytes": st.sampled_from([1, 4096, 10**18]),
            "count": st.integers(-1, 1),
            "seconds": st.lists(st.sampled_from([1e-6, 1e-12, 1e18]), min_size=1, max_size=8),
            "wrong": st.sampled_from([None, 0, -1, 10**18]),
            "pair": st.sampled_from([None, [0, 1], [0, 0]]),
        }
    ).map(lambda p: {"event": "point", "t": 0.0, "point": p, "of_rank": rank})


def likely_figures(rank):
    names = [
        "peak_memory_bytes",
        "gpu_power_watts",
        "cpu_energy_joules",
        "energy_joules_per_sample",
    ]
    figure = st.fixed_dictionaries(
        {"value": st.sampled_from([0.0, float("nan"), float("inf"), -1e308]), "unit": st.just("W")}
    )
    return st.tuples(st.sampled_from(names), figure).map(
        lambda f: {"event": "figure", "t": 0.0, "name": f[0], "figure": f[1], "of_rank": rank}
    )


def likely_ranks(rank):
    rest = {"host": st.sampled_from(["a", "b"]), "device": st.sampled_from(["cpu", "cuda:9", ":"])}
    rest |= {"devices": st.sampled_from([[], ["cuda:0", "cuda:1"], ["cpu"] * 9])}
    return st.fixed_dictionaries(rest).map(
        lambda r: {"event": "rank", "t": 0.0, "threads": 1, "of_rank": rank, **r}
    )


events = st.lists(
    st.integers(0, 1).flatmap(
        lambda rank: st.one_of(
            likely_windows(rank), likely_points(rank), likely_figures(rank), likely_ranks(rank)
        )
    ),
    max_size=14,
)


@settings(max_examples=100)
@given(events, st.sampled_from(["all-reduce", "asynchronous", None]))
def test_a_record_is_assembled_from_whatever_passes(found, sync):
    for event in found:
        plain = {name: value for name, value in event.items() if name != "of_rank"}
        parse_event(json.dumps(plain).encode(), event["of_rank"])
    work = (
        Collective(sizes_bytes=(4096,))
        if sync is None
        else TrainSteps(network="little-cnn", batch_per_device=8)
    )
    program = ProgramSettings(sync=sync or "none")
    spec = RunSpec(work=work, placement=Placement(devices=2), program=program, budget=Budget())
    ending = WorkerExit(exit_code=1, elapsed_s=1.0)
    record, _ = assemble(spec, KEY, found, ending, started_utc="2026-01-01T00:00:00Z", attempt=1)
    to_text(record)
