"""Time of lists of runs from stores of 10,000 and 100,000 runs, by filter and by order.

The records are those of one quick run with the null framework, stored again with other ids, dates,
networks, machines, outcomes and figures. Filling a store is not timed. Printed for each list:
medians of so many calls of `Store.list_runs` with 50 rows, of the first page and of a later one,
the processor time of both, and whether a median is above the goal.

    python benchmarks/store_lists.py
    python benchmarks/store_lists.py --runs 10000 --calls 50 --json lists.json
    python benchmarks/store_lists.py --store postgresql+psycopg://user@host/empty_database

The goals: 20 ms with 10,000 runs, 50 ms with 100,000.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

GOALS_S = {10_000: 0.020, 100_000: 0.050}
NETWORKS = (
    "little-cnn",
    "resnet-50",
    "vgg16",
    "alexnet",
    "googlenet",
    "resnet-152",
    "gpt2",
    "lstm",
)
FRAMEWORKS = ("pytorch", "pytorch-compiled", "jax", "tensorflow", "null")
MACHINES = 20
AT_A_TIME = 2_000
_ROWS: dict[str, Any] = {}
"""The rows of each template, by its id."""
TEMPLATES = 1_009
"""Records of which all others are copies, with another id, date and figures."""


def fill(location: str, runs: int) -> None:
    """A store with so many records."""
    import cubemesh
    from cubemesh.store import Store

    with tempfile.TemporaryDirectory() as folder:
        small = str(Path(folder) / "small.sqlite")
        cubemesh.run("minibatch", framework="null", store=small, quick=True)
        with Store.open(small, read_only=True) as source:
            (run,) = source.experiment_runs()
            machine = source.machine(run.machine_id)
            like = source.records(run.run_ids, work="train_steps", outcome="ok")[0]
    assert machine is not None
    draw = random.Random(0)
    hosts = [replace(machine, hostname=f"host-{i:02d}") for i in range(MACHINES)]
    with Store.open(location) as store:
        for host in hosts:
            store.save_machine(host)
        templates = [made(draw, i, like, hosts[i % MACHINES].machine_id) for i in range(TEMPLATES)]
        ids: list[str] = []
        for first in range(0, runs, AT_A_TIME):
            some = range(first, min(runs, first + AT_A_TIME))
            ids += save(store, templates, some, draw)
        for i, name in enumerate(("minibatch", "frameworks", "precision")):
            asked = replace(run, experiment=name, experiment_run_id=f"{i:012x}")
            store.save_experiment_run(replace(asked, run_ids=tuple(ids[i::50])))


def made(draw: random.Random, i: int, like: Any, machine_id: str) -> Any:
    """One record: other settings, a figure of another value, now and then a failure."""
    from cubemesh.schema import Figure, Outcome, Status

    rate = draw.lognormvariate(6.0, 1.5)
    failed = draw.random() < 0.05
    outcome = Outcome(status=Status.OOM, message=f"Needs {i % 90} GiB.") if failed else like.outcome
    work = replace(
        like.spec.work,
        network=draw.choice(NETWORKS),
        batch_per_device=2 ** draw.randrange(10),
    )
    program = replace(
        like.spec.program,
        framework=draw.choice(FRAMEWORKS),
        precision=draw.choice(("fp32", "bf16", "fp16")),
    )
    placement = replace(like.spec.placement, devices=draw.choice((1, 1, 1, 2, 4, 8)))
    spec = replace(like.spec, work=work, program=program, placement=placement)
    figures = dict(like.figures)
    for name, figure in figures.items():
        figures[name] = Figure(value=figure.value * rate, unit=figure.unit, n=12)
    return replace(
        like,
        run_id=f"{draw.getrandbits(48):012x}",
        spec=spec,
        key=replace(like.key, spec_id=spec.spec_id, machine_id=machine_id),
        outcome=outcome,
        figures={} if failed else figures,
        elapsed_s=draw.uniform(1.0, 100.0),
    )


def save(store: Any, templates: list[Any], numbers: range, draw: random.Random) -> list[str]:
    """Write the rows of copies of the templates in one transaction, as `Store.save` and
    `list_rows.py` would; their ids."""
    from sqlalchemy import insert

    from cubemesh.store import tables
    from cubemesh.store.list_rows import Listed, figure_rows, run_row

    first = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    hosts = {machine.machine_id: machine.hostname for machine in store.machines()}
    rows: dict[Any, list[dict[str, Any]]] = {
        table: [] for table in (tables.records, tables.runs, tables.figures)
    }
    ids = []
    for i in numbers:
        like = templates[i % len(templates)]
        run_id = f"{draw.getrandbits(48):012x}"
        started = (first + datetime.timedelta(minutes=i)).isoformat()
        own = {"sequence": i + 1, "run_id": run_id}
        if like.run_id not in _ROWS:
            one = Listed(0, like)
            host = hosts[like.key.machine_id]
            _ROWS[like.run_id] = tables.record_row(like), run_row(one, host), figure_rows(one)
        whole, short, values = _ROWS[like.run_id]
        text = whole["record"].replace(like.run_id, run_id).replace(like.started_utc, started)
        rows[tables.records].append(whole | own | {"started_utc": started, "record": text})
        scale = draw.lognormvariate(0.0, 0.5)
        words = short["words"].replace(like.run_id, run_id)
        listed = short | own | {"words": words, "started_utc": started}
        if listed["samples_per_s"] is not None:
            listed["samples_per_s"] *= scale
        listed["elapsed_s"] *= scale
        rows[tables.runs].append(listed)
        for figure in values:
            rows[tables.figures].append(figure | own | {"value": figure["value"] * scale})
        ids.append(run_id)

    def insert_all(connection: Any) -> None:
        for table, own in rows.items():
            connection.execute(insert(table), own)

    store._database.commit(insert_all)
    return ids


def lists(store: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is listed: a name, and the arguments of `Store.list_runs`."""
    from cubemesh.store.run_list import SORTS, FigureBounds, RunFilter

    machine = store.machines()[3]
    run = store.list_runs(limit=1).rows[0]
    filters = {
        "everything": RunFilter(),
        "network": RunFilter(network="resnet-50"),
        "two networks": RunFilter(network=("resnet-50", "vgg16")),
        "framework": RunFilter(framework="jax"),
        "machine": RunFilter(machine=machine.hostname),
        "workload": RunFilter(workload=run.workload_id),
        "outcome ok": RunFilter(outcome="ok"),
        "outcome oom": RunFilter(outcome="oom"),
        "precision": RunFilter(precision="bf16"),
        "devices": RunFilter(devices=8),
        "experiment": RunFilter(experiment="frameworks"),
        "text, frequent": RunFilter(text="resnet jax"),
        "text, of one run": RunFilter(text=run.run_id),
        "text, of none": RunFilter(text="nothing-has-this"),
        "a day": RunFilter(since="2026-01-03", until="2026-01-03"),
        "since": RunFilter(since="2026-01-03"),
        "figure above": RunFilter(figures=(FigureBounds(name="throughput_per_s", low=1e6),)),
        "network, framework, ok": RunFilter(network="vgg16", framework="jax", outcome="ok"),
    }
    for name, filter in filters.items():
        yield f"filter: {name}", {"filter": filter}
        if name != "everything":
            yield f"filter: {name}, by samples/s", {"filter": filter, "sort": "samples_per_s"}
    for sort in (*SORTS, "figure.throughput_per_s"):
        yield f"sort: {sort}", {"sort": sort}
        yield f"sort: {sort}, ascending", {"sort": sort, "descending": False}


def timed(store: Any, arguments: dict[str, Any], calls: int) -> dict[str, float]:
    """Seconds of the first page, and of one after some others."""
    later = None
    for _ in range(5):
        page = store.list_runs(**arguments, after=later, limit=200)
        if page.next is None:
            break
        later = page.next
    found = {}
    for name, cursor in (("first", None), ("later", later)):
        seconds, processor = [], []
        for _ in range(calls):
            began, used = time.perf_counter(), time.process_time()
            store.list_runs(**arguments, after=cursor, limit=50)
            seconds.append(time.perf_counter() - began)
            processor.append(time.process_time() - used)
        found[f"{name}_cpu_median_s"] = statistics.median(processor)
        found[f"{name}_median_s"] = statistics.median(seconds)
        found[f"{name}_max_s"] = max(seconds)
    return found


def main() -> None:
    """Fill stores and time their lists."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--calls", type=int, default=15)
    parser.add_argument(
        "--store", help="URL of an empty database; default: SQLite in a temporary folder"
    )
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.store and len(asked.runs) > 1:
        parser.error("--store is one database: give one number to --runs")
    from cubemesh.store import Store

    results = []
    for runs in asked.runs:
        with tempfile.TemporaryDirectory() as folder:
            location = asked.store or str(Path(folder) / "results.sqlite")
            began = time.perf_counter()
            fill(location, runs)
            size = 0 if asked.store else os.path.getsize(location)
            print(
                f"\n{runs:,} runs, filled in {time.perf_counter() - began:.0f} s, "
                f"{size / 1e6:,.0f} MB; load {os.getloadavg()[0]:.1f}"
            )
            goal_s = max((g for n, g in GOALS_S.items() if n <= runs), default=0.020)
            missed = []
            with Store.open(location, read_only=True) as store:
                for name, arguments in lists(store):
                    seconds = timed(store, arguments, asked.calls)
                    worst = max(seconds["first_median_s"], seconds["later_median_s"])
                    missed += [name] * (worst > goal_s)
                    results.append({"runs": runs, "list": name, "goal_s": goal_s, **seconds})
                    print(
                        f"{name:<46} first {1e3 * seconds['first_median_s']:7.2f} ms  "
                        f"later {1e3 * seconds['later_median_s']:7.2f} ms  "
                        f"processor {1e3 * seconds['first_cpu_median_s']:6.2f}, "
                        f"{1e3 * seconds['later_cpu_median_s']:6.2f} ms  "
                        f"{'above the goal' if worst > goal_s else ''}",
                        flush=True,
                    )
                began = time.perf_counter()
                store.run_facets()
                print(f"values of all columns with counts: {time.perf_counter() - began:.3f} s")
            own = [r for r in results if r["runs"] == runs]
            medians = [r[f"{page}_median_s"] for r in own for page in ("first", "later")]
            print(
                f"median of {len(medians)} lists {1e3 * statistics.median(medians):.2f} ms, "
                f"slowest {1e3 * max(medians):.2f} ms; goal {1e3 * goal_s:.0f} ms, missed by "
                f"{len(missed)}"
            )
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
