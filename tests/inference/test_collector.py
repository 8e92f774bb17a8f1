"""Requests that are collected: which are answered together, when, and how errors reach them. The
clock is scripted: nothing here depends on how fast a machine is."""

import threading
from concurrent.futures import CancelledError
from types import SimpleNamespace

import numpy as np
import pytest

from cubemesh import Collector
from cubemesh.errors import UsageError
from cubemesh.inference.runtime import Plan
from cubemesh.onnx.graph import BATCH, Value

HANG_S = 60
LONG_S = 1e6
"""A limit that no test reaches."""


class Doubling:
    """A session that doubles its input; it waits for `go` where that is set."""

    def __init__(self):
        self.sizes, self.go, self.begun, self.error = [], None, threading.Event(), None

    def run(self, inputs):
        self.sizes.append(len(inputs["x"]))
        self.begun.set()
        if self.go is not None:
            assert self.go.wait(HANG_S)
        if self.error is not None:
            raise self.error
        return [inputs["x"] * 2]


@pytest.fixture
def plan(monkeypatch):
    """A plan of batch sizes 1 and 4, which take 1 and 2 seconds, in an engine of the test."""
    session = Doubling()
    monkeypatch.setattr("cubemesh.inference.runtime._open", lambda *arguments: session)
    choices = [
        SimpleNamespace(batch=1, seconds=1.0, high=1.0, model="m", engine="test"),
        SimpleNamespace(batch=4, seconds=2.0, high=2.0, model="m", engine="test"),
    ]
    document = SimpleNamespace(
        network="doubling",
        choices=choices,
        inputs=(Value(name="x", dtype="float32", shape=(BATCH, 2)),),
    )
    made = Plan(document, {"m": None})
    made.session = session
    return made


class Clock:
    """A time that stands still until it is set."""

    now = 0.0

    def __call__(self):
        return self.now


def rows(*values):
    return np.array([[value, -value] for value in values], np.float32)


def results(futures):
    return [future.result(HANG_S)[:, 0].tolist() for future in futures]


def test_requests_that_fill_the_largest_batch_do_not_wait(plan):
    with Collector(plan, latency_limit_s=LONG_S, clock=Clock()) as collector:
        futures = [collector.submit(rows(n)) for n in range(4)]
        assert results(futures) == [[0], [2], [4], [6]]
        assert plan.session.sizes == [4]
        assert collector.batches == 1


def test_a_request_waits_until_it_must_begin(plan):
    """Two samples take 2 s, so at a limit of 10 s the first may wait for 8 s."""
    clock = Clock()
    collector = Collector(plan, latency_limit_s=10.0, clock=clock)
    first = collector.submit(rows(1))
    assert collector._wait_s() == 9  # alone it takes 1 s
    clock.now = 7.0
    second = collector.submit(rows(2))
    assert collector._wait_s() == 1
    assert plan.session.sizes == []
    clock.now = 8.0
    with collector._changed:
        collector._changed.notify()  # as the end of a wait does
    assert results([first, second]) == [[2], [4]]
    assert plan.session.sizes == [4]  # padded
    collector.close()


def test_a_limit_below_the_time_of_a_run_answers_at_once(plan):
    with Collector(plan, latency_limit_s=0.5, clock=Clock()) as collector:
        assert results([collector.submit(rows(1))]) == [[2]]


def test_requests_that_come_during_a_run_are_the_next_batch(plan):
    plan.session.go = threading.Event()
    with Collector(plan, latency_limit_s=0.5, clock=Clock()) as collector:
        first = collector.submit(rows(1))
        assert plan.session.begun.wait(HANG_S)
        others = [collector.submit(rows(n, n)) for n in (2, 3)]
        plan.session.go.set()
        assert results([first, *others]) == [[2], [4, 4], [6, 6]]
    assert plan.session.sizes == [1, 4]


def test_a_request_beyond_the_largest_batch_is_split(plan):
    with Collector(plan, latency_limit_s=LONG_S, clock=Clock()) as collector:
        assert results([collector.submit(rows(*range(6)))]) == [[0, 2, 4, 6, 8, 10]]


def test_closing_answers_what_waits_and_refuses_more(plan):
    collector = Collector(plan, latency_limit_s=LONG_S, clock=Clock())
    future = collector.submit(rows(1, 2, 3))
    collector.close()
    assert results([future]) == [[2, 4, 6]]
    with pytest.raises(UsageError, match="The collector is closed"):
        collector.submit(rows(1))
    collector.close()


def test_an_error_reaches_every_request_of_its_batch_and_no_other(plan):
    plan.session.error = RuntimeError("broken")
    with Collector(plan, latency_limit_s=LONG_S, clock=Clock()) as collector:
        futures = [collector.submit(rows(1, 2)) for _ in range(2)]
        for future in futures:
            assert "broken" in str(future.exception(HANG_S))
        plan.session.error = None
        assert results([collector.submit(rows(1, 2, 3, 4))]) == [[2, 4, 6, 8]]


def test_inputs_that_do_not_fit_are_refused_when_submitted(plan):
    with Collector(plan, latency_limit_s=LONG_S, clock=Clock()) as collector:
        with pytest.raises(UsageError, match="x has the shape 1×3, and n×2 is needed"):
            collector.submit(np.zeros((1, 3)))
        assert not collector._waiting


def test_a_cancelled_request_is_not_computed(plan):
    collector = Collector(plan, latency_limit_s=LONG_S, clock=Clock())
    cancelled, other = collector.submit(rows(1)), collector.submit(rows(2))
    assert cancelled.cancel()
    collector.close()
    with pytest.raises(CancelledError):
        cancelled.result(HANG_S)
    assert results([other]) == [[4]]
    assert plan.session.sizes == [1]


def test_what_is_submitted_may_be_changed_afterwards(plan):
    with Collector(plan, latency_limit_s=LONG_S, clock=Clock()) as collector:
        array = rows(1)
        future = collector.submit(array)
        array[:] = 9
        collector.submit(rows(2, 3, 4))
        assert results([future]) == [[2]]


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
def test_a_limit_is_a_time(plan, limit):
    with pytest.raises(UsageError, match=r"latency_limit_s=.* must be a time above 0"):
        Collector(plan, latency_limit_s=limit)
