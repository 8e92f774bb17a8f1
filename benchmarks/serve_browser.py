r"""What a browser shows of `cubemesh serve`: paint, bytes, frames and delay, in a real Chromium.

    python benchmarks/serve_browser.py
    python benchmarks/serve_browser.py --runs 10000 --tabs 8 --json browser.json

paint   first contentful paint of the list of runs, and its first row, on the first visit and again
weight  bytes of every page of the table on a first visit, as transferred, and requests elsewhere
frames  frames a second and scripting of four charts that grow to 10^5 points a curve, live
delay   from an event that the process of a job observes to the frame of the tab in front of others

Needs playwright and a Chromium (`--chromium`). The goals: paint 0.4 s, again 0.2 s; 150 kB and no
foreign request; 55 frames/s; 0.3 s median and 1 s for 99 %.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from cubemesh.jobs.lease import Lease
from cubemesh.jobs.queue import FreeDevices, JobQueue
from cubemesh.jobs.recorder import Recorder
from cubemesh.jobs.states import State
from cubemesh.jobs.values import Question, Wants
from cubemesh.schema import RunSpec, TrainSteps
from cubemesh.statistics import percentile
from cubemesh.store import Store
from cubemesh.web.pages import PAGES
from serve import make_store, serving

POINTS = 100_000
SERIES = ("training_loss", "samples_per_s", "gpu_power_watts", "gpu_utilization_percent")
FRAMES = """seconds => new Promise(done => {
  let frames = 0; const begin = performance.now();
  const next = now => {
    frames += 1;
    if (now - begin < 1000 * seconds) requestAnimationFrame(next);
    else done(1000 * frames / (now - begin));
  };
  requestAnimationFrame(next);
})"""
"""Frames a second over some seconds."""
SEEN = """() => {
  window.seen = {};
  const look = () => {
    const text = document.querySelector(".u-legend .u-value")?.textContent.replaceAll(",", "");
    if (text && !(text in window.seen)) window.seen[text] = Date.now();
  };
  new MutationObserver(() => requestAnimationFrame(look)).observe(
    document.querySelector("[data-curves]"),
    { childList: true, characterData: true, subtree: true });
}"""
"""Records when each step is first in the legend of the first chart, at the frame that draws it."""
ARRIVED = """() => {
  window.arrived = {};
  const script = document.querySelector("script[data-worker]").dataset.worker;
  const worker = new SharedWorker(script);
  worker.port.onmessage = ({ data }) => {
    if (data.kind === "points") window.arrived[data.value.points[0][0]] = Date.now();
  };
  worker.port.start();
  const address = document.querySelector("[data-events]").dataset.events;
  worker.port.postMessage({ address, cursor: 0 });
}"""
"""Records when each step reaches a tab. Those behind the one in front draw once a second."""


def find_chromium() -> str:
    """The path of a Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), "")


def log_in(browser: Browser, ready: dict[str, Any]) -> BrowserContext:
    """A context that has logged in and has nothing in its cache."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.goto(f"{ready['address']}/login")
    page.fill("#token", ready["token"])
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{ready['address']}/")
    page.close()
    return context


def paint_s(page: Page, address: str) -> tuple[float, float]:
    """Seconds from the request to the first contentful paint, and to the first row of a list."""
    page.goto(address, wait_until="commit")
    page.wait_for_selector("table.list tbody tr")
    row = page.evaluate("performance.now()")
    painted = page.evaluate(
        "new Promise(done => new PerformanceObserver(list => done(list.getEntries()[0].startTime))"
        ".observe({type: 'paint', buffered: true}))"
    )
    return painted / 1e3, row / 1e3


def measure_paint(browser: Browser, ready: dict[str, Any], times: int) -> dict[str, Any]:
    """Medians of several first visits, each in a context of its own, and of the visit after it."""
    first, again = [], []
    for _ in range(times):
        context = log_in(browser, ready)
        page = context.new_page()
        first.append(paint_s(page, f"{ready['address']}/runs"))
        again.append(paint_s(page, f"{ready['address']}/runs"))
        context.close()
    return {
        f"{name}_{what}_s": statistics.median(one[place] for one in found)
        for name, found in (("first", first), ("again", again))
        for place, what in enumerate(("paint", "row"))
    }


def measure_weight(browser: Browser, ready: dict[str, Any], store: Store) -> dict[str, Any]:
    """Of each page the bytes that a first visit transfers; and all requests to other hosts."""
    answer = next(one for one in store.experiment_runs() if one.run_ids)
    known = {"run_id": answer.run_ids[0], "machine_id": answer.machine_id, "job_id": "1"}
    known |= {"experiment_run_id": answer.experiment_run_id, "experiment": "train"}
    ids = "&".join(f"id={run}" for run in answer.run_ids[:3])
    pages, requested = {}, list[str]()
    for one in PAGES:
        query = f"?{ids}" if one.path.startswith("/compare") else ""
        context = log_in(browser, ready)
        page = context.new_page()
        client = context.new_cdp_session(page)
        client.send("Network.enable")
        client.send("Network.setCacheDisabled", {"cacheDisabled": True})
        sizes: list[float] = []
        client.on("Network.loadingFinished", lambda e, s=sizes: s.append(e["encodedDataLength"]))
        page.on("request", lambda asked: requested.append(asked.url))
        page.goto(ready["address"] + one.path.format(**known) + query)
        page.wait_for_load_state("load")
        page.wait_for_timeout(500)
        pages[one.path] = {"bytes": sum(sizes), "requests": len(sizes)}
        context.close()
    own = (ready["address"], "data:", "blob:")
    return {"pages": pages, "foreign": [url for url in requested if not url.startswith(own)]}


@contextmanager
def running_job(queue: JobQueue, folder: Path) -> Iterator[tuple[int, Recorder]]:
    """A job that this process runs, with its recorder."""
    job_id = queue.submit([Question(names=("train",))], [Wants(device="none")]).job_id
    job = queue.claim("benchmark", FreeDevices(hostname="benchmark"), lease_s=10**6)
    if job is None or job.job_id != job_id:
        sys.exit("another job of the store was claimed")
    lease = Lease(queue=queue, job_id=job_id, fence=job.fence, seconds=1e6)
    lease.run_started()
    spec = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=64))
    with Recorder(lease, folder / "pause") as recorder:
        recorder.start(spec)
        yield job_id, recorder
    lease.end(State.DONE)


def watch(page: Page, address: str, job_id: int) -> None:
    """Open the page of a job, with its charts."""
    page.goto(f"{address}/jobs/{job_id}")
    page.wait_for_selector("[data-curves][data-ready]")


def measure_frames(
    browser: Browser, ready: dict[str, Any], queue: JobQueue, folder: Path, seconds: float
) -> dict[str, Any]:
    """Frames a second while four charts of 10^5 points grow five times a second."""
    with running_job(queue, folder) as (job_id, recorder):
        for begin in range(0, POINTS, 10_000):
            for series in SERIES:
                points = [[float(x), 1.0 + (x * 7919 % 1000) / 1000]
                          for x in range(begin, begin + 10_000)]  # fmt: skip
                value = {"run": 1, "series": series, "points": points}
                recorder._add("points", value)
        context = log_in(browser, ready)
        page = context.new_page()
        time.sleep(2.0)  # until they are stored
        watch(page, ready["address"], job_id)
        page.wait_for_selector("[data-curves] canvas")
        page.evaluate(f"window.found = ({FRAMES})({seconds})")
        client = context.new_cdp_session(page)
        client.send("Performance.enable")
        before, end, step = _scripted(client), time.monotonic() + seconds, POINTS
        while time.monotonic() < end:
            for series in SERIES:
                value = {"run": 1, "series": series, "points": [[float(step), 1.5]]}
                recorder._add("points", value)
            step += 1
            time.sleep(0.2)
        found = float(page.evaluate("window.found"))
        scripted = _scripted(client) - before
        canvases = page.locator("[data-curves] canvas").count()
        context.close()
    return {
        "frames_per_s": found,
        "script_ms_a_frame": 1e3 * scripted / (found * seconds),
        "charts": canvases,
        "points": POINTS,
    }


def _scripted(client: Any) -> float:
    metrics = client.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "ScriptDuration"))


def measure_delay(
    browser: Browser, ready: dict[str, Any], queue: JobQueue, folder: Path, tabs: int, events: int
) -> dict[str, Any]:
    """Seconds from an event to the frame that shows it in the tab in front, and until all tabs have
    it."""
    with running_job(queue, folder) as (job_id, recorder):
        context = log_in(browser, ready)
        pages = [context.new_page() for _ in range(tabs)]
        for step in (1, 2):  # a chart begins with two points
            recorder.worker_event({"event": "loss", "of_rank": 0, "step": step, "loss": 1.0})
        time.sleep(2.0)
        for page in pages:
            watch(page, ready["address"], job_id)
            page.wait_for_selector("[data-curves] canvas")
            page.evaluate(ARRIVED)
        front = pages[-1]
        front.bring_to_front()
        front.evaluate(SEEN)
        sent = {}
        for step in range(3, 3 + events):
            sent[str(step)] = time.time()
            recorder.worker_event({"event": "loss", "of_rank": 0, "step": step, "loss": 1 / step})
            time.sleep(0.5 + (step * 37 % 100) / 100)  # no rhythm of the polls
        time.sleep(3.0)
        drawn = _delays(sent, front.evaluate("window.seen"))
        each = [page.evaluate("window.arrived") for page in pages]
        context.close()
    arrived = [delay for one in each for delay in _delays(sent, one)]
    return {
        "tabs": tabs,
        "drawn_median_s": statistics.median(drawn),
        "drawn_p99_s": percentile(drawn, 99),
        "not_drawn": events - len(drawn),
        "arrived_median_s": statistics.median(arrived),
        "arrived_most_s": max(arrived),
        "not_arrived": tabs * events - len(arrived),
    }


def _delays(sent: dict[str, float], seen: dict[str, float]) -> list[float]:
    return [seen[step] / 1e3 - at for step, at in sent.items() if step in seen]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--visits", type=int, default=7)
    parser.add_argument("--tabs", type=int, default=8)
    parser.add_argument("--events", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--chromium", default=find_chromium())
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        folder = Path(name)
        path = folder / "results.sqlite"
        make_store(path, given.runs)
        browser = driver.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
        with serving(path, "--no-agent") as (_, ready), Store.open(str(path)) as store:
            queue = JobQueue(store.database)
            found = {
                "delay": measure_delay(browser, ready, queue, folder, given.tabs, given.events),
                "frames": measure_frames(browser, ready, queue, folder, given.seconds),
                "weight": measure_weight(browser, ready, store),
                "paint": measure_paint(browser, ready, given.visits),
            }
        browser.close()
    for kind in ("paint", "delay", "frames"):
        print(kind, ", ".join(f"{name} {value:.4g}" for name, value in found[kind].items()))
    for path_of, one in found["weight"]["pages"].items():
        print(f"  {path_of:28} {one['bytes'] / 1e3:7.1f} kB in {one['requests']} requests")
    print(f"requests to other hosts: {found['weight']['foreign']}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
