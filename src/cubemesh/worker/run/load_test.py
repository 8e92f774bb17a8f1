"""Load test: requests from MLPerf's load generator, its four scenarios, and its own statistics.

    data ─ build ─ (compile) ─ weights ─ warm-up ─ measure

    single-stream   the next request is issued when the last one is answered
    multi-stream    the same with a whole batch a request
    server          requests of one sample arrive at random times, at a mean rate; those that wait
                    are answered together, at most a batch at a time
    offline         all samples are there at once

In `server` a latency begins when the load generator scheduled the request, so a slow answer also
delays those behind it in the figures. A batch that is not full is padded, as the program has one
batch size.
"""

from __future__ import annotations

import importlib
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from cubemesh.batches import Batch
from cubemesh.data.feed import Feed
from cubemesh.frameworks.contract.program import NotInstalled, Program, SupportsInference
from cubemesh.measure.latencies import PERCENTILES
from cubemesh.measure.telemetry.telemetry import Telemetry
from cubemesh.schema.record import LOAD_TEST_VALID, Figure, Window
from cubemesh.schema.work import InferLoad
from cubemesh.worker.run import inputs
from cubemesh.worker.run.program_lifecycle import program_for
from cubemesh.worker.run.task import Task, log_machine_warnings, network_of, start_meters

POOL = 64
"""Different samples that requests take."""
WARM_UP_REQUESTS = 5
SCENARIOS = {
    "single-stream": "SingleStream",
    "multi-stream": "MultiStream",
    "server": "Server",
    "offline": "Offline",
}
FEWEST_QUERIES = {50: 30, 90: 100, 95: 200, 97: 350, 99: 700}
"""Percentile → queries from which the load generator can accept it, with some over the limit."""
SUMMARY = "mlperf_log_summary.txt"
LATENCIES = {f"{percent:.2f}": name for name, percent in PERCENTILES.items()}
"""Percentile in the summary → figure."""
_STATISTIC = re.compile(r"^(\d+\.\d+) percentile latency \(ns\)\s*: (\d+)$", re.M)
_LARGEST = re.compile(r"^Max latency \(ns\)\s*: (\d+)$", re.M)


def infer_load(task: Task) -> None:
    """Run one load test and log its latencies, its rate and whether it kept the limit."""
    work, log = cast(InferLoad, task.spec.work), task.log
    library = import_loadgen()
    meters = start_meters(task)
    network = network_of(work)
    with log.phase("data"):
        source = inputs.open_split(task.spec, network, "train")
        feed = Feed(source, work.batch_per_device, work.seed)
        pool = source.batch(np.arange(min(POOL, source.samples)))
    with program_for(task, network, feed) as program:
        server = LoadServer(program, pool, work.batch_per_device)
        with log.phase("warm-up"):
            for _ in range(WARM_UP_REQUESTS):
                server.answer([0])
        with Telemetry(log, task.usable_cores, meters=meters) as telemetry:
            started = time.perf_counter()
            with log.phase("measure"):
                text = run_test(library, server, work, task.spec.budget.seconds, task.folder)
            ended = time.perf_counter()
        log_machine_warnings(telemetry, task.gpu_processes, task.log, started, ended)
        telemetry.log_utilization(started, ended)
        window = Window(
            start_s=server.began_s,
            elapsed_s=max(server.ended_s - server.began_s, 1e-9),
            steps=server.batches,
            samples=server.samples,
        )
        log.window(window)
        telemetry.log_energy([window], window.samples)
        for name, figure in read_summary(text).items():
            log.figure(name, figure)


def import_loadgen() -> Any:
    """The load generator; NotInstalled with the installation command where it is missing."""
    try:
        return importlib.import_module("mlperf_loadgen")
    except ImportError as error:
        raise NotInstalled(
            "MLPerf's load generator is not installed. Install it with: pip install "
            "'cubemesh[loadgen]'"
        ) from error


class LoadServer:
    """Answers requests, each a number of a sample, with one program."""

    def __init__(self, program: Program, pool: Batch, batch: int) -> None:
        assert isinstance(program, SupportsInference), "its framework offers `infer`"
        self._infer, self._fetch, self._place = program.infer, program.fetch, program.place
        self._pool, self._batch = pool, batch
        self.batches = self.samples = 0
        self.began_s = self.ended_s = 0.0
        self.error: BaseException | None = None
        """The first error of an answer; the test goes on, as it waits for every answer."""

    def answer(self, numbers: Sequence[int]) -> None:
        """Compute the scores of at most a batch of samples."""
        rows = np.resize(np.asarray(numbers, np.int64), self._batch) % self._pool.samples
        batch = Batch(*(a[rows] for a in self._pool.inputs), labels=self._pool.labels[rows])
        self._fetch(self._infer(self._place(batch)))

    def count(self, begin_s: float, samples: int) -> None:
        """Count a batch of `samples` that was begun at `begin_s` and is answered now."""
        self.began_s = self.began_s or begin_s
        self.ended_s = time.perf_counter()
        self.batches += 1
        self.samples += samples

    def serve(self, waiting: Sequence[Any], done: Callable[[Sequence[Any]], None]) -> None:
        """Answer the queries `waiting` batch by batch."""
        for first in range(0, len(waiting), self._batch):
            queries = waiting[first : first + self._batch]
            begin_s = time.perf_counter()
            try:
                self.answer([query.index for query in queries])
            except BaseException as error:
                self.error = self.error or error
            done(queries)
            self.count(begin_s, len(queries))

    def serve_queue(
        self, arrived: queue.SimpleQueue[Any], done: Callable[[Sequence[Any]], None]
    ) -> None:
        """Answer queries as they arrive, those that wait together, until None arrives."""
        while (query := arrived.get()) is not None:
            queries, last = [query], False
            while len(queries) < self._batch and not last:
                try:
                    following = arrived.get_nowait()
                except queue.Empty:
                    break
                last = following is None
                queries += [] if last else [following]
            self.serve(queries, done)
            if last:
                return


def run_test(library: Any, server: LoadServer, work: InferLoad, seconds: float, folder: str) -> str:
    """One test of at least `seconds`; the load generator's summary."""
    settings = library.TestSettings()
    settings.scenario = getattr(library.TestScenario, SCENARIOS[work.scenario])
    settings.mode = library.TestMode.PerformanceOnly
    settings.min_duration_ms = round(1000 * seconds)
    settings.min_query_count = fewest_queries(work.percentile)
    settings.single_stream_target_latency_percentile = work.percentile / 100
    settings.multi_stream_target_latency_percentile = work.percentile / 100
    settings.multi_stream_samples_per_query = work.batch_per_device
    if work.scenario == "offline":
        settings.min_query_count = 1
        settings.offline_expected_qps = _offline_rate(server, work.batch_per_device)
    if work.scenario == "server":
        settings.server_target_qps = work.requests_per_s
        settings.server_target_latency_ns = round(1e9 * cast(float, work.latency_limit_s))
        settings.server_target_latency_percentile = work.percentile / 100
    log = library.LogSettings()
    log.enable_trace = False
    log.log_output.outdir = folder or "."
    log.log_output.copy_summary_to_stdout = False

    def done(queries: Sequence[Any]) -> None:
        library.QuerySamplesComplete([library.QuerySampleResponse(q.id, 0, 0) for q in queries])

    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def issue(queries: Sequence[Any]) -> None:
        if work.scenario != "server":
            server.serve(list(queries), done)
            return
        for query in queries:
            arrived.put(query)

    answering = threading.Thread(target=server.serve_queue, args=(arrived, done), daemon=True)
    answering.start()
    system = library.ConstructSUT(issue, lambda: None)
    samples = library.ConstructQSL(POOL, POOL, lambda _: None, lambda _: None)
    try:
        library.StartTestWithLogSettings(system, samples, settings, log)
    finally:
        arrived.put(None)
        answering.join()
        library.DestroySUT(system)
        library.DestroyQSL(samples)
    if server.error is not None:
        raise server.error
    return Path(folder or ".", SUMMARY).read_text(encoding="utf-8")


def fewest_queries(percentile: float) -> int:
    """Queries of a test that is to bound a percentile."""
    return next((n for p, n in FEWEST_QUERIES.items() if p >= percentile), 7000)


def _offline_rate(server: LoadServer, batch: int) -> float:
    """Samples per second of one batch: the load generator prepares as many samples as last."""
    begin_s = time.perf_counter()
    server.answer(range(batch))
    return batch / (time.perf_counter() - begin_s)


def read_summary(text: str) -> dict[str, Figure]:
    """The figures of a summary of the load generator; ValueError where it is none."""
    if "Result is :" not in text:
        raise ValueError("the load generator wrote no result")
    found = {
        LATENCIES[percent]: Figure(value=int(nanoseconds) / 1e9, unit="s", method="LoadGen")
        for percent, nanoseconds in _STATISTIC.findall(text)
        if percent in LATENCIES
    }
    largest = _LARGEST.search(text)
    if largest:
        found["latency_max_s"] = Figure(value=int(largest[1]) / 1e9, unit="s", method="LoadGen")
    valid = re.search(r"^Result is : VALID$", text, re.M) is not None
    found[LOAD_TEST_VALID] = Figure(
        value=float(valid), unit="", method="LoadGen: 1 is VALID, 0 INVALID"
    )
    return found
