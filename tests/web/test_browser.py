"""The pages in a real Chromium: nothing overflows, light and dark, by keyboard, without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from chromium import FLAGS, find_chromium
from cubemesh.jobs.feed import events_after
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import State
from cubemesh.jobs.values import Question, Wants
from cubemesh.store import Store
from cubemesh.web.access import Access
from cubemesh.web.app import Workbench
from cubemesh.web.pages import PAGES
from cubemesh.web.security.gate import Rules
from held_jobs import running
from patience import PATIENCE_S, wait_until
from served import in_thread
from web_pages import filled_in, known_ids

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_spec("playwright") is None, reason="playwright is not installed"),
    pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium"),
]
LOOKS = ((390, "dark"), (768, "light"), (1400, "light"), (1400, "dark"), (390, "light"))
"""Width and colours in which a page is opened, and those that it then changes to."""
PATIENCE_MS = 1000 * PATIENCE_S
OWN_FLAGS = [flag for flag in FLAGS if "pipe" not in flag and "headless" not in flag]


@pytest.fixture(scope="module")
def site(filled: Path) -> Iterator[tuple[str, Access, dict[str, str]]]:
    """A server in a thread, its login, and ids of what it shows."""
    access = Access("token-of-the-browser")
    with (
        Store.open(str(filled)) as store,
        in_thread(Workbench(store, access, Rules(), secure=False).app) as (_, port),
    ):
        yield f"http://127.0.0.1:{port}", access, known_ids(store)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=find_chromium(), args=OWN_FLAGS, timeout=PATIENCE_MS
        )
        yield browser
        browser.close()


def patient_context(chromium: Any, **options: Any) -> Any:
    """A context whose pages wait for a slow machine."""
    context = chromium.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    return context


@pytest.fixture
def tab(chromium: Any, site: Any) -> Iterator[Any]:
    """Opens pages, logged in; fails at the end for a line on the console or a foreign request."""
    address, access, _ = site
    contexts: list[Any] = []
    complaints: list[str] = []

    def opened(width: int = 1400, scheme: str = "light", scripts: bool = True) -> Any:
        context = patient_context(
            chromium,
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            java_script_enabled=scripts,
        )
        contexts.append(context)
        cookie = {"name": access.cookie, "value": access.new_session(), "url": address}
        context.add_cookies([cookie])
        page = context.new_page()
        page.on("console", lambda line: complaints.append(line.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda asked: asked.url.startswith((address, "data:")) or complaints.append(asked.url),
        )
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def test_every_page_fits_and_loads_nothing_foreign(tab: Any, site: Any) -> None:
    address, _, known = site
    page = tab()

    def look(width: int, scheme: str) -> None:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)

    for one in PAGES:
        if one.module == "report" or one.media != "text/html":  # have tests of their own
            continue
        look(*LOOKS[0])
        page.goto(address + filled_in(one, one.path, known))
        if page.locator("[data-events]").count():  # its stream stays open
            page.wait_for_selector("[data-curves][data-ready]")
        else:
            page.wait_for_load_state("networkidle")
        for width, scheme in LOOKS:
            look(width, scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, one.path
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (background == "rgb(255, 255, 255)") is (scheme == "light")
        assert page.locator("h1").count() == 1
        unnamed = page.evaluate(
            "[...document.querySelectorAll('input:not([type=hidden]), select, button')].filter("
            "e => !e.labels?.length && !e.ariaLabel && !e.textContent.trim() && !e.ariaHidden"
            ").length"
        )
        assert unnamed == 0, one.path


def test_the_report_opens(tab: Any, site: Any) -> None:
    page = tab()
    page.goto(f"{site[0]}/report")
    page.wait_for_selector("figure[data-ready]")


def test_the_curves_of_a_run_are_drawn(tab: Any, site: Any, filled: Path) -> None:
    with Store.open(str(filled), read_only=True) as store:
        run_id = next(
            row.run_id
            for row in store.each_run()
            if any(len(one.times_s) > 1 for one in store.series(row.run_id))
        )
    page = tab()
    page.goto(f"{site[0]}/runs/{run_id}")
    page.wait_for_selector("[data-curves][data-ready] canvas")
    label = page.locator("[data-curves] canvas").first.get_attribute("aria-label")
    assert "against" in label
    plain = tab(scripts=False)
    plain.goto(f"{site[0]}/runs/{run_id}")
    plain.get_by_text("The figures as tables").click()
    plain.wait_for_selector("table.narrow", state="attached")


def test_a_running_job_is_shown_live_in_many_tabs(tab: Any, site: Any, filled: Path) -> None:
    with Store.open(str(filled)) as store:
        lease = running(JobQueue(store.database))
        open_tab = tab()
        pages = [open_tab.context.new_page() for _ in range(8)]
        for page in pages:
            page.goto(f"{site[0]}/jobs/{lease.job_id}")
            page.wait_for_selector("[data-curves][data-ready]")
        for i in range(0, 30, 10):
            points = [[float(x), 1.0 / (x + 1)] for x in range(i, i + 10)]
            value = {"run": 1, "series": "training_loss", "points": points}
            lease.renew({"note": f"step {i}"}, [("points", value)])
        for page in pages:
            page.wait_for_selector("[data-curves] canvas")
            page.get_by_text("step 20").wait_for()
        open_tab.goto(f"{site[0]}/runs")  # another connection is free
        lease.end(State.DONE)
        for page in pages:
            page.locator("b[role=status]", has_text="done").wait_for()
            assert page.get_by_role("button", name="Run again").count() == 1
            assert page.get_by_role("button", name="Pause").count() == 0


@pytest.mark.parametrize("scripts", [True, False])
def test_a_job_is_paused_and_resumed_by_its_buttons(
    tab: Any, site: Any, filled: Path, scripts: bool
) -> None:
    with Store.open(str(filled)) as store:
        queue = JobQueue(store.database)
        job = queue.submit([Question(names=("train",))], [Wants(device="none")])
        page = tab(390, scripts=scripts)
        page.goto(f"{site[0]}/jobs/{job.job_id}")
        page.locator(".edit summary").click()
        page.get_by_label("learning rate").fill("0.25")
        page.get_by_role("button", name="Change the job").click()
        page.locator(".settings", has_text="0.25").wait_for()
        for button, state in (("Pause", "paused"), ("Resume", "queued"), ("Cancel", "stopped")):
            page.get_by_role("button", name=button).click()
            page.locator("b[role=status]", has_text=state).wait_for()
        assert queue.get(job.job_id).state is State.STOPPED


def test_a_schedule_is_made_and_changed_by_keyboard_without_scripts(tab: Any, site: Any) -> None:
    page = tab(390, "dark", scripts=False)
    page.goto(f"{site[0]}/ask/train")
    hour = page.get_by_label("From, UTC")
    assert not hour.is_visible()
    page.get_by_label("framework", exact=True).fill("null")
    page.get_by_label("Run now").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.type("03:15")
    page.keyboard.press("Enter")
    page.wait_for_url("**/schedules#schedule-*")
    number = page.url.rpartition("-")[2]
    own = page.locator(f"#schedule-{number}")
    assert "03:15 to 07:15 UTC, when idle" in own.inner_text()
    for button, then in (("Pause", "Resume"), ("Resume", "Pause")):
        own.get_by_role("button", name=f"{button} schedule {number}").press("Enter")
        own.get_by_role("button", name=f"{then} schedule {number}").wait_for()
    own.get_by_role("button", name="Delete").press("Enter")
    own.wait_for(state="detached")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_runs_are_chosen_and_compared_by_keyboard(tab: Any, site: Any) -> None:
    page = tab()
    page.goto(f"{site[0]}/runs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    button = page.locator("#compare button")
    assert not button.is_visible()
    boxes = page.locator("td.pick input")
    for i in range(2):
        boxes.nth(i).focus()
        page.keyboard.press("Space")
    button.wait_for(state="visible")
    assert button.inner_text() == "Compare 2 runs"
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/compare?id=*&id=*")
    assert page.locator("table.compare thead th").count() == 3
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.type("resnet-50")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=resnet-50")
    page.wait_for_selector("table.list tbody tr")


@pytest.mark.parametrize("scripts", [True, False])
def test_a_filter_narrows_the_list(tab: Any, site: Any, scripts: bool) -> None:
    page = tab(scripts=scripts)
    page.goto(f"{site[0]}/runs")
    page.select_option("select[name=precision]", "bf16")
    if not scripts:
        page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**precision=bf16**")
    cells = page.locator("table.list tbody tr td:nth-child(5)").all_inner_texts()
    assert set(cells) == {"bf16"}
    page.get_by_label("remove Precision bf16").click()
    page.wait_for_url(lambda url: "bf16" not in url)


def test_the_link_logs_in_and_logging_out_works(chromium: Any, site: Any) -> None:
    address, access, _ = site
    context = patient_context(chromium)
    page = context.new_page()
    page.goto(f"{address}/runs")
    assert page.locator("h1").inner_text() == "Log in"
    page.goto(f"{address}/login?code={access.new_code()}")
    assert page.url == f"{address}/"
    assert "code" not in page.evaluate("document.referrer")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    page.goto(f"{address}/runs")
    assert page.locator("h1").inner_text() == "Log in"
    page.fill("#token", "token-of-the-browser")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{address}/")
    context.close()


def test_a_page_of_another_site_can_do_nothing(chromium: Any, site: Any, filled: Path) -> None:
    address, access, _ = site
    context = patient_context(chromium)
    context.add_cookies([{"name": access.cookie, "value": access.new_session(), "url": address}])
    page = context.new_page()
    page.route("http://evil.test/", lambda route: route.fulfill(body="<iframe></iframe>"))
    page.goto("http://evil.test/")
    read = "url => fetch(url, {credentials: 'include'}).then(() => 'read', () => 'refused')"
    assert page.evaluate(read, f"{address}/api/v1/runs") == "refused"
    framed = page.evaluate(
        "url => new Promise(done => { const f = document.querySelector('iframe');"
        "f.onload = () => { try { done(f.contentDocument ? 'empty' : 'blocked'); }"
        "catch { done('blocked'); } }; f.src = url; })",
        f"{address}/runs",
    )
    assert framed == "blocked"
    assert page.frames[1].url in ("chrome-error://chromewebdata/", "about:blank")
    streamed = (
        "url => new Promise(done => { const s = new EventSource(url, {withCredentials: true});"
        "s.onopen = () => done('open'); s.onerror = () => { s.close(); done('refused'); }; })"
    )
    assert page.evaluate(streamed, f"{address}/api/v1/jobs/1/events") == "refused"
    with Store.open(str(filled)) as store:
        before = events_after(JobQueue(store.database), 1)
        page.evaluate(
            "url => fetch(url, {method: 'POST', mode: 'no-cors', credentials: 'include',"
            "body: new URLSearchParams({action: 'stop'})}).catch(() => {})",
            f"{address}/jobs/1",
        )
        assert events_after(JobQueue(store.database), 1) == before
    context.close()


CHARTS = """(() => {
  let made;
  window.charts = [];
  Object.defineProperty(window, "uPlot", { get: () => made, set: (plot) => {
    made = new Proxy(plot, { construct: (target, options) => {
      const chart = new target(...options);
      window.charts.push(chart);
      return chart;
    } });
  } });
})()"""
"""Remembers the charts of a page."""
DRAWN = "[...(window.charts.at(-1)?.data[0] ?? [])]"


def test_a_restart_of_the_server_leaves_every_point_once(chromium: Any, tmp_path: Path) -> None:
    access = Access("token-of-the-browser")
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        lease = running(JobQueue(store.database))

        def learn(begin: int, end: int) -> None:
            points = [[float(x), 1.0 / (x + 1)] for x in range(begin, end)]
            value = {"run": 1, "series": "training_loss", "points": points}
            lease.renew({"note": f"step {end}"}, [("points", value)])

        context = patient_context(chromium)
        page = context.new_page()
        page.add_init_script(CHARTS)
        learn(0, 5)
        bench = Workbench(store, access, Rules(), secure=False)
        with in_thread(bench.app) as (_, port):
            address = f"http://127.0.0.1:{port}"
            cookie = {"name": access.cookie, "value": access.new_session(), "url": address}
            context.add_cookies([cookie])
            page.goto(f"{address}/jobs/{lease.job_id}")
            page.wait_for_selector("[data-curves] canvas")
            learn(5, 10)
            wait_until(lambda: len(page.evaluate(DRAWN)) == 10, "the points are drawn")
            bench.hub.close()
        learn(10, 20)  # while no server runs
        with in_thread(Workbench(store, access, Rules(), secure=False).app, port):
            learn(20, 25)
            wait_until(lambda: len(page.evaluate(DRAWN)) >= 25, "the points are drawn")
            assert page.evaluate(DRAWN) == [float(x) for x in range(25)]
            context.close()


def test_the_curves_of_compared_runs_are_drawn_in_one_chart(tab: Any, site: Any) -> None:
    address, _, known = site
    page = tab(390, "dark")
    page.goto(f"{address}/compare?id={known['run']}&id={known['other']}")
    page.wait_for_selector("[data-curves][data-ready] canvas")
    assert "throughput (samples/s) against seconds" in page.locator("figcaption").all_inner_texts()
    assert page.locator(".key a").count() == 2
    page.locator(".u-over").first.hover()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
