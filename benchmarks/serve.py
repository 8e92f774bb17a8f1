"""Start, memory, list and page times, and transferred bytes of `cubemesh serve`.

A store of so many runs is made from a stored benchmark: its records with other ids and dates.
The server is a process of its own; each address is asked several times over one connection. The
processor time is the server's for an answer, which depends less on what else runs.

    python benchmarks/serve.py
    python benchmarks/serve.py --runs 10000 --asks 50 --json serve.json

The goals: 2 s to the first page, 120 MiB, 20 ms for the JSON of a list of 10,000 runs.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from cubemesh.store import Store

RECORDS = Path(__file__).parent / "records" / "2026-11-21-one-h200.sqlite"
LISTS = {
    "newest 100": "/api/v1/runs?limit=100",
    "of a network": "/api/v1/runs?limit=100&network=resnet-50",
    "by throughput": "/api/v1/runs?limit=100&sort=-samples_per_s",
    "by a figure": "/api/v1/runs?limit=100&sort=-figure.peak_memory_bytes",
    "words": "/api/v1/runs?limit=100&text=alexnet",
}
PAGES = {"Home": "/", "Runs": "/runs", "Answers": "/answers", "Machines": "/machines"}


def make_store(path: Path, runs: int) -> None:
    """A store at `path` with so many runs."""
    import shutil

    small = path.with_name("small.sqlite")
    shutil.copy(RECORDS, small)
    with Store.open(str(small)) as source, Store.open(str(path)) as store:
        seen = source.records()
        for machine in source.machines():
            store.save_machine(machine)
        for answer in source.experiment_runs():
            store.save_experiment_run(answer)
        begin = datetime.datetime.fromisoformat(seen[0].started_utc)
        for i in range(runs):
            one = seen[i % len(seen)]
            if i >= len(seen):
                started = begin - datetime.timedelta(minutes=i)
                one = replace(one, run_id=f"{i:012x}", started_utc=started.isoformat())
            store.save(one)


def ask(connection: http.client.HTTPConnection, path: str, token: str) -> tuple[float, int]:
    """Seconds of an answer, and its bytes on the wire."""
    headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip"}
    begin = time.perf_counter()
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    size = len(answer.read())
    if answer.status != 200:
        sys.exit(f"{path}: status {answer.status}")
    return time.perf_counter() - begin, size


@contextmanager
def serving(store: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server on a store, and what it printed when it was ready. It ends at the end."""
    command = [sys.executable, "-m", "cubemesh", "serve", "--no-open", "--json", "--port", "0"]
    with subprocess.Popen(
        [*command, "--store", str(store), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(store.parent)},
    ) as process:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line.rstrip() == "}":
                break
        ready = json.loads(text)
        ready["token"] = Path(ready["token_file"]).read_text().strip()
        try:
            yield process, ready
        finally:
            process.terminate()


def connect(ready: dict[str, Any]) -> http.client.HTTPConnection:
    """A connection to a server."""
    place = urlsplit(ready["address"])
    return http.client.HTTPConnection(place.hostname or "", place.port)


def cpu_s(process: int) -> float:
    """The processor time of a process so far."""
    return sum(psutil.Process(process).cpu_times()[:2])


def measure(store: Path, asks: int) -> dict[str, Any]:
    """Start a server on the store and ask it."""
    begin = time.perf_counter()
    with serving(store) as (process, ready):
        token, connection = ready["token"], connect(ready)
        ask(connection, "/login", token)
        found: dict[str, Any] = {"start_s": time.perf_counter() - begin}
        found["start_cpu_s"] = cpu_s(process.pid)
        found["first_list_s"] = ask(connection, "/api/v1/runs", token)[0]
        for kind, paths in (("lists", LISTS), ("pages", PAGES)):
            found[kind] = {}
            for name, path in paths.items():
                before = cpu_s(process.pid)
                times = [ask(connection, path, token) for _ in range(asks)]
                found[kind][name] = {
                    "median_ms": 1e3 * statistics.median(seconds for seconds, _ in times),
                    "most_ms": 1e3 * max(seconds for seconds, _ in times),
                    "cpu_ms": 1e3 * (cpu_s(process.pid) - before) / asks,
                    "bytes": times[0][1],
                }
            found[f"rss_after_{kind}_mib"] = psutil.Process(process.pid).memory_info().rss / 2**20
    found["exit_code"] = process.wait()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--asks", type=int, default=30)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "results.sqlite"
        make_store(store, given.runs)
        found = measure(store, given.asks)
    print(f"{given.runs} runs; start {found['start_s']:.2f} s ({found['start_cpu_s']:.2f} s CPU)")
    for kind in ("lists", "pages"):
        print(f"after {kind}: {found[f'rss_after_{kind}_mib']:.0f} MiB")
        for name, one in found[kind].items():
            print(
                f"  {name:14} median {one['median_ms']:7.1f} ms, most {one['most_ms']:7.1f} ms, "
                f"{one['cpu_ms']:6.1f} ms CPU, "
                f"{one['bytes']:,} bytes"
            )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
