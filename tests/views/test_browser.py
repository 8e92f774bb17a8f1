"""The report in a real browser: drawings, tooltips, console and network requests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cubemesh.schema import Series
from cubemesh.views.charts.files import chart_csv
from cubemesh.views.report.timeline import WIDTH
from patience import wait_until

pytestmark = pytest.mark.browser

RECORDS = Path(__file__).parents[2] / "benchmarks" / "records"
KEPT = (
    "2026-11-21-one-h200",
    "2026-11-21-one-h200-feeding-power",
    "2026-11-21-four-h200-scaling",
    "2026-11-21-cpu-experiments",
    "2026-11-26-one-h200-performance-check",
    "2026-11-24-two-cores-performance-check",
    "2026-11-26-one-h100-doc-000",
)
ONLY_ITSELF = ("file:", "data:", "blob:")


def assert_quiet(browser: Any) -> None:
    """Nothing on the console, no request to another host."""
    assert browser.console() == []
    assert [url for url in browser.requests() if not url.startswith(ONLY_ITSELF)] == []


def test_charts_are_drawn_with_marks_and_findings_are_there(
    browser: Any, page: Path, sample: Any, made: ModuleType
) -> None:
    browser.open(page, width=1180)
    assert_quiet(browser)
    assert browser.requests() == [page.as_uri()]
    charts = "document.querySelectorAll('figure.drawn .live svg')"
    assert browser.evaluate(f"{charts}.length") == 3
    # Six measured points, three published and one missing, each drawn; and a place for the
    # pointer on the nine that have a figure.
    assert browser.evaluate(f"{charts}[0].querySelectorAll('.mark-symbol path').length") == 19
    assert browser.evaluate(f"{charts}[0].querySelectorAll('.mark-line path').length") == 2
    bars = "[aria-roledescription='bar']"
    assert browser.evaluate(f'{charts}[2].querySelectorAll("{bars}").length') == 2
    text = browser.evaluate("document.body.innerText")
    for finding in sample.answers[0].findings:
        assert finding.text in text
    assert "2,169 ± 14" in text
    assert "2,170 images/s" in text
    assert made.OOM.message in text
    for unknown in sample.machine.unknown:
        assert unknown.why in text


def _middle_of_point(browser: Any, chart: int, label: str) -> dict[str, float]:
    place = browser.evaluate(
        f"""(() => {{
          const chart = document.querySelectorAll('figure[data-spec]')[{chart}];
          chart.scrollIntoView({{block: 'center', behavior: 'instant'}});
          const mark = [...chart.querySelectorAll('.live [aria-label]')]
            .find((m) => m.getAttribute('aria-label').includes({json.dumps(label)}));
          if (!mark) return null;
          const box = mark.getBoundingClientRect();
          return {{x: box.x + box.width / 2, y: box.y + box.height / 2}};
        }})()"""
    )
    assert place is not None, f"no mark is labelled {label!r}"
    found: dict[str, float] = place
    return found


def test_the_tooltip_of_a_point_has_figure_interval_and_run(browser: Any, page: Path) -> None:
    browser.open(page, width=1180)
    spot = _middle_of_point(browser, 0, "batch size 128")
    browser.move(spot["x"] - 60, spot["y"] - 60)
    browser.move(spot["x"], spot["y"])
    browser.wait_for("document.querySelector('#vg-tooltip-element.visible') !== null")
    tip = browser.evaluate("document.querySelector('#vg-tooltip-element').innerText")
    assert "this machine · batch size 128" in tip
    assert "2,169 ± 14 images/s" in tip
    assert "2,155 to 2,183" in tip
    assert "0080c9d2b7a1" in tip
    assert_quiet(browser)


def test_the_tooltip_of_a_missing_point_has_its_reason(
    browser: Any, page: Path, made: ModuleType
) -> None:
    browser.open(page, width=1180)
    spot = _middle_of_point(browser, 0, "out of memory")
    browser.move(spot["x"] - 60, spot["y"] - 60)
    browser.move(spot["x"], spot["y"])
    browser.wait_for("document.querySelector('#vg-tooltip-element.visible') !== null")
    tip = browser.evaluate("document.querySelector('#vg-tooltip-element').innerText")
    assert "batch size 4,096" in tip
    assert made.OOM.message in tip


def test_dark_page_has_dark_charts(browser: Any, page: Path) -> None:
    line = "getComputedStyle(document.querySelector('.live .mark-line path')).stroke"
    paper = "getComputedStyle(document.body).backgroundColor"
    browser.open(page, width=1180)
    assert browser.evaluate(line) == "rgb(11, 110, 79)"
    assert browser.evaluate(paper) == "rgb(255, 255, 255)"
    # The page follows a change of the scheme while it is open, charts included.
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", media="", features=[scheme])
    assert browser.evaluate(line) == "rgb(62, 207, 154)"
    assert browser.evaluate(paper) == "rgb(18, 22, 28)"
    assert_quiet(browser)


OVERFLOWS = """(() => {
  const found = [], text = (e) => e.textContent.trim();
  const inside = (e, box) => {
    const [a, b] = [e.getBoundingClientRect(), box.getBoundingClientRect()];
    return a.left >= b.left - 6 && a.right <= b.right + 6;
  };
  if (document.scrollingElement.scrollWidth > innerWidth) found.push('the page');
  for (const table of document.querySelectorAll('table')) {
    const box = table.closest('.scroll');
    if (!box || getComputedStyle(box).overflowX !== 'auto' || !inside(box, document.body))
      found.push(`table ${text(table).slice(0, 60)}`);
  }
  for (const chart of document.querySelectorAll('.live svg.marks')) {
    const title = text(chart.closest('figure').querySelector('.chart-title'));
    const figure = chart.closest('figure');
    const all = [...chart.querySelectorAll('text')]
      .filter((t) => text(t) && getComputedStyle(t).opacity !== '0');
    for (const t of all) if (!inside(t, figure)) found.push(`${title}: ${text(t)} outside`);
    const shown = all.filter((t) => !t.matches('.role-mark text'))
      .map((t) => [t, t.getBoundingClientRect()]);
    for (const [i, [one, a]] of shown.entries()) for (const [other, b] of shown.slice(i + 1))
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
        found.push(`${title}: ${text(one)} on ${text(other)}`);
  }
  return found;
})()"""
"""What is wider than its place, and labels of axes that overlap."""


@pytest.mark.parametrize("width", [390, 768, 1400, 2200])
def test_nothing_overflows_at_any_width(browser: Any, page: Path, width: int) -> None:
    browser.open(page, width=width)
    browser.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    assert browser.evaluate(OVERFLOWS) == []
    assert_quiet(browser)


@pytest.fixture(scope="module", params=KEPT)
def kept_page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a kept store."""
    from cubemesh.api.report import report
    from cubemesh.views.report.render import write_report

    folder = tmp_path_factory.mktemp("kept")
    store = shutil.copy(RECORDS / f"{request.param}.sqlite", folder)
    return write_report(folder / "page.html", report(store=store))


@pytest.fixture(scope="module")
def two_machines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one kept store against another of the same experiment."""
    from cubemesh.api.report import report
    from cubemesh.views.report.render import write_report

    folder = tmp_path_factory.mktemp("two")
    days = ("2026-11-22", "2026-11-21")
    stores = [shutil.copy(RECORDS / f"{day}-one-h200-captured.sqlite", folder) for day in days]
    return write_report(folder / "page.html", report(store=stores[0], against=stores[1]))


def test_pages_of_kept_stores_overflow_nowhere(browser: Any, kept_page: Path) -> None:
    for width in (390, 768, 1400, 2200):
        browser.open(kept_page, width=width)
        assert browser.evaluate(OVERFLOWS) == [], f"at {width} pixels"
        assert_quiet(browser)


@pytest.mark.parametrize("width", [390, 768, 1400, 2200])
def test_two_machines_fit_on_a_page(browser: Any, two_machines: Path, width: int) -> None:
    browser.open(two_machines, width=width, dark=True)
    assert browser.evaluate(OVERFLOWS) == []
    sides = "[...document.querySelectorAll('.machines > div')].map((d) => d.offsetTop)"
    tops = browser.evaluate(sides)
    assert len(tops) == 2
    assert (tops[0] == tops[1]) is (width >= 1180), "next to each other on a wide screen"
    assert browser.evaluate("document.querySelectorAll('#runs .machine-name').length") == 2
    links = "[...document.querySelectorAll('#question-1 td a')]"
    assert browser.evaluate(f"{links}.every((a) => document.querySelector(a.hash))")
    ids = "[...document.querySelectorAll('[id]')].map((e) => e.id)"
    assert browser.evaluate(f"new Set({ids}).size === {ids}.length")
    assert_quiet(browser)


def test_the_contents_stay_in_view_and_mark_the_section(browser: Any, page: Path) -> None:
    browser.open(page, width=1400)
    current = "document.querySelector('nav a[aria-current]').hash"
    assert browser.evaluate(current) == "#summary"
    browser.evaluate("document.getElementById('machine').scrollIntoView({behavior: 'instant'})")
    browser.wait_for(f"{current} === '#machine'")
    top = "document.querySelector('nav').getBoundingClientRect().top"
    assert 0 <= browser.evaluate(top) <= 40
    browser.open(page, width=768)
    assert browser.evaluate("document.querySelector('.contents').open") is False


def test_the_contents_work_by_keyboard(browser: Any, page: Path) -> None:
    browser.open(page, width=1400)
    browser.evaluate("document.querySelector('nav a[href=\"#runs\"]').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r")
    browser.wait_for("location.hash === '#runs'")


@pytest.mark.parametrize("kind", ["png", "svg", "csv"])
def test_a_chart_is_saved_with_title_caption_and_legend(
    browser: Any, page: Path, tmp_path: Path, sample: Any, kind: str
) -> None:
    browser.open(page, width=1180, dark=True)
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.evaluate(f"document.querySelector('.menu [data-save={kind}]').click()")
    file = tmp_path / f"{sample.answers[0].charts[0].name}.{kind}"
    wait_until(lambda: file.exists() and file.stat().st_size, "the file is saved")
    browser.wait_for("document.querySelector('.menu output').textContent === 'Saved.'")
    data = file.read_bytes()
    if kind == "png":
        assert data.startswith(b"\x89PNG")
        assert int.from_bytes(data[16:20]) > 1200, "at twice the resolution"
    elif kind == "svg":
        text = data.decode()
        assert "var(" not in text
        assert "20 Nov 2026" in text
        assert "#0b6e4f" in text, "in the colours of paper"
        for line in sample.answers[0].charts[0].lines:
            assert line.name in text
    else:
        assert data.decode() == chart_csv(sample.answers[0].charts[0])
    assert_quiet(browser)


def test_charts_follow_a_window_that_changes_its_width(browser: Any, page: Path) -> None:
    width = "document.querySelector('.live svg').getBoundingClientRect().width"
    browser.open(page, width=1180)
    before = browser.evaluate(width)
    browser.resize(380, 900)
    browser.wait_for(f"{width} < 345")
    assert before > 400


def test_a_figure_links_to_its_run_and_opens_it(browser: Any, page: Path) -> None:
    browser.open(page, width=1180)
    run = "document.getElementById('run-0040c9d2b7a1')"
    assert browser.evaluate(f"{run}.open") is False
    browser.evaluate("document.querySelector('a[href=\"#run-0040c9d2b7a1\"]').click()")
    browser.wait_for(f"{run}.open")
    assert browser.evaluate(f"{run}.querySelectorAll('.phase-list li').length") == 4


def test_records_can_be_saved(browser: Any, page: Path, tmp_path: Path) -> None:
    browser.open(page, width=1180)
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.evaluate("document.getElementById('download').click()")
    file = tmp_path / "cubemesh-records.json"
    wait_until(lambda: file.exists() and file.stat().st_size, "the file is saved")
    document = json.loads(file.read_text("utf-8"))
    assert document["schema"] == 1
    assert len(document["records"]) == 9
    assert_quiet(browser)


def test_reads_with_scripts_off(browser: Any, page: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page, width=1180)
        # Asking the page itself still works: only its own scripts are off.
        shown = "getComputedStyle(document.querySelector('figure .{}')).display"
        assert browser.evaluate(shown.format("static")) == "block"
        assert browser.evaluate(shown.format("live")) == "none"
        assert browser.evaluate("document.querySelectorAll('.static svg').length") == 3
        assert browser.evaluate("document.getElementById('download').hidden") is True
        assert "372.1 ± 2.4" in browser.evaluate("document.body.innerText")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_paper_shows_still_charts_on_white(browser: Any, page: Path) -> None:
    browser.open(page, width=1180, dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    shown = "getComputedStyle(document.querySelector('figure .{}')).display"
    assert browser.evaluate(shown.format("static")) == "block"
    assert browser.evaluate(shown.format("live")) == "none"
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )


def test_hostile_names_stay_text(
    browser: Any, made: ModuleType, written: Callable[..., Path]
) -> None:
    browser.open(written(made.hostile()), width=1180)
    others = "document.querySelectorAll('details:not(.menu)')"
    browser.evaluate(f"for (const d of {others}) d.open = true")
    spot = _middle_of_point(browser, 0, ": 3 ")
    browser.move(spot["x"] - 80, spot["y"])
    browser.move(spot["x"], spot["y"])
    browser.wait_for("document.querySelector('#vg-tooltip-element.visible') !== null")
    assert made.ATTACK in browser.evaluate("document.body.innerText")
    assert browser.evaluate("document.images.length") == 0
    assert_quiet(browser)


def test_the_policy_forbids_a_script_that_is_not_the_pages_own(browser: Any, page: Path) -> None:
    browser.open(page, width=1180)
    browser.evaluate(
        "document.body.append(Object.assign(document.createElement('script'),"
        " {textContent: 'window.broken = true'}))"
    )
    assert browser.evaluate("window.broken === undefined") is True
    assert any("Content Security Policy" in line for line in browser.console())


@pytest.mark.parametrize("what", ["empty", "failed"])
def test_a_page_without_figures_is_quiet_too(
    browser: Any, made: ModuleType, written: Callable[..., Path], what: str
) -> None:
    if what == "empty":
        path = written(made.sample(), answers=(), records={}, series={})
    else:
        path = written(made.failed())
    for width in (1180, 380):
        browser.open(path, width=width)
        assert_quiet(browser)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_packed_details_are_shown_when_a_run_is_opened(
    browser: Any, written: Callable[..., Path], made: ModuleType, monkeypatch: Any
) -> None:
    monkeypatch.setattr("cubemesh.views.report.packing.DETAILS_BYTES", 0)
    run = made.record(64)
    times = tuple(float(i) for i in range(2000))
    flat = tuple(float(i % 50) for i in range(2000))
    series = {run.run_id: (Series(name="gpu_power_watts", times_s=times, values=flat),)}
    page = written(made.sample(), answers=(), records={run.run_id: run}, series=series)
    browser.open(page, width=1180)
    body = f"document.querySelector('#run-{run.run_id} .run-body')"
    assert browser.evaluate(f"{body}.innerText.trim()") == ""
    browser.evaluate(f"location.hash = '#run-{run.run_id}'")
    browser.wait_for(f"{body}.innerText.includes('median step time')")
    path = browser.evaluate(f"{body}.querySelector('path[data-curve]').getAttribute('d')")
    assert path.startswith("M2 ")
    assert path.count("L") > WIDTH
    assert_quiet(browser)


def test_packed_records_can_be_saved(
    browser: Any, written: Callable[..., Path], made: ModuleType, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr("cubemesh.views.report.render.RECORDS_BYTES", 0)
    page = written(made.sample())
    assert 'type="application/gzip" id="records"' in page.read_text("utf-8")
    browser.open(page, width=1180)
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.evaluate("document.getElementById('download').click()")
    file = tmp_path / "cubemesh-records.json"
    wait_until(lambda: file.exists() and file.stat().st_size, "the file is saved")
    document = json.loads(file.read_text("utf-8"))
    assert document["schema"] == 1
    assert len(document["records"]) == 9
    assert_quiet(browser)
