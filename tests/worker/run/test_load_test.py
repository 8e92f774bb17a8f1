"""Load tests: the real load generator on programs that sleep, and its summary."""

import queue
import time
from types import SimpleNamespace

import numpy as np
import pytest

from cubemesh.batches import Batch
from cubemesh.errors import UsageError
from cubemesh.schema import InferLoad
from cubemesh.schema.record import LOAD_TEST_VALID
from cubemesh.worker.run.load_test import LoadServer, fewest_queries, read_summary, run_test

loadgen = pytest.importorskip("mlperf_loadgen")

SUMMARY = """
Scenario : Server
Mode     : PerformanceOnly
Completed samples per second    : 187.39
Result is : {result}
Scheduled samples per second : 187.85
Max latency (ns)                : 6756062
50.00 percentile latency (ns)   : 2351835
90.00 percentile latency (ns)   : 4494607
95.00 percentile latency (ns)   : 5596512
99.00 percentile latency (ns)   : 6684178
99.90 percentile latency (ns)   : 6756062
"""


class Sleeper:
    """A program whose passes take the next of some times; it records the rows of each."""

    def __init__(self, seconds=(0.001,)):
        self.seconds = seconds
        self.rows = []

    def place(self, batch):
        return batch

    def infer(self, batch):
        time.sleep(self.seconds[len(self.rows) % len(self.seconds)])
        self.rows.append(batch.images[:, 0, 0, 0].astype(int).tolist())
        return batch

    def fetch(self, scores):
        return scores


def server_of(program, batch=1):
    images = np.arange(8, dtype=np.float32).reshape(8, 1, 1, 1)
    return LoadServer(program, Batch(images=images, labels=np.zeros(8, np.int64)), batch)


def work(scenario, **fields):
    return InferLoad(network="little-cnn", scenario=scenario, **{"batch_per_device": 1, **fields})


def measured(program, of, folder, batch=1):
    server = server_of(program, batch=batch)
    return server, read_summary(run_test(loadgen, server, of, 0.05, str(folder)))


@pytest.mark.parametrize(("result", "valid"), [("VALID", 1.0), ("INVALID", 0.0)])
def test_a_summary_is_read(result, valid):
    found = read_summary(SUMMARY.format(result=result))
    assert found["latency_p50_s"].value == pytest.approx(0.002351835)
    assert found["latency_p99_s"].value == pytest.approx(0.006684178)
    assert found["latency_max_s"].value == pytest.approx(0.006756062)
    assert found[LOAD_TEST_VALID].value == valid
    with pytest.raises(ValueError, match="no result"):
        read_summary("")


@pytest.mark.parametrize("scenario", ["single-stream", "multi-stream", "offline"])
def test_every_sample_is_answered(scenario, tmp_path):
    program = Sleeper()
    batch = 4 if scenario != "single-stream" else 1
    of = work(scenario, percentile=50, batch_per_device=batch)
    server, found = measured(program, of, tmp_path, batch)
    assert server.samples >= batch
    assert server.batches <= len(program.rows)  # offline estimates its rate first
    assert all(len(rows) == batch for rows in program.rows)
    assert found["latency_p50_s"].value >= 0.001


@pytest.mark.parametrize(("limit_s", "valid"), [(1000.0, 1.0), (1e-6, 0.0)])
def test_a_limit_decides_whether_a_rate_is_kept(limit_s, valid, tmp_path):
    of = work("server", requests_per_s=300.0, latency_limit_s=limit_s, percentile=50)
    server, found = measured(Sleeper(), of, tmp_path)
    assert server.samples >= fewest_queries(50)
    assert found[LOAD_TEST_VALID].value == valid


def test_a_stall_delays_the_requests_behind_it(tmp_path):
    """Every twentieth answer takes 100 ms, in which some ten more requests arrive and wait."""
    of = work("server", requests_per_s=100.0, latency_limit_s=1000.0, percentile=90)
    _, found = measured(Sleeper((0.1, *[0.001] * 19)), of, tmp_path)
    assert found["latency_p99_s"].value >= 0.1
    assert found["latency_p90_s"].value >= 0.02


def test_requests_that_wait_are_answered_together():
    program, arrived, answered = Sleeper(), queue.SimpleQueue(), []
    for number in range(6):
        arrived.put(SimpleNamespace(id=number, index=number))
    arrived.put(None)
    server = server_of(program, batch=4)
    server.serve_queue(arrived, lambda queries: answered.append([q.id for q in queries]))
    assert answered == [[0, 1, 2, 3], [4, 5]]
    assert program.rows == [[0, 1, 2, 3], [4, 5, 4, 5]]  # padded
    assert (server.batches, server.samples) == (2, 6)


def test_an_error_ends_the_test_and_is_raised(tmp_path):
    class Broken(Sleeper):
        def infer(self, batch):
            raise MemoryError("refused")

    of = work("server", requests_per_s=300.0, latency_limit_s=1.0, percentile=50)
    with pytest.raises(MemoryError, match="refused"):
        measured(Broken(), of, tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {"scenario": "server"},
        {"scenario": "server", "requests_per_s": 10.0},
        {"scenario": "offline", "requests_per_s": 10.0, "latency_limit_s": 1.0},
        {"percentile": 49.0},
        {"scenario": "server", "requests_per_s": -1.0, "latency_limit_s": 1.0},
    ],
)
def test_impossible_tests_are_refused(fields):
    with pytest.raises(UsageError):
        InferLoad(network="little-cnn", batch_per_device=1, **fields)
