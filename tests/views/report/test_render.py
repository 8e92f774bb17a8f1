from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cubemesh.api.report import Report, report
from cubemesh.experiments.analysis.machine_comparison import Side, labels
from cubemesh.schema import RunRecord, Unknown, warn
from cubemesh.schema.serialization import from_plain
from cubemesh.views.charts.files import chart_csv
from cubemesh.views.facts.run import run_facts
from cubemesh.views.report.headline import headline, lead
from cubemesh.views.report.page import caption, cards, chips
from cubemesh.views.report.render import render
from stored_benchmarks import RECORDS

FOUR, OTHER = "2026-11-21-four-h200-scaling", "2026-11-23-one-h200-breakdown"
LOSING = "b56f898af58d"
"""A run of ResNet-50 on four GPUs whose ranks wait for the slowest."""
VOID = {"meta", "link", "br", "img", "path", "line", "rect", "circle"}


class Outline(HTMLParser):
    """The text, the elements and their attributes, and whether every element is closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def lines(self) -> str:
        """The text a line for each element."""
        return "\n".join(filter(None, (" ".join(text.split()) for text in self.text)))


@pytest.fixture(scope="module")
def source(page: Path) -> str:
    return page.read_text("utf-8")


@pytest.fixture(scope="module")
def outline(source: str) -> Outline:
    return Outline(source)


def embedded(source: str) -> dict:
    found = re.search(r'<script type="application/json" id="records">(.*?)</script>', source, re.S)
    return json.loads(found[1])


def test_page_is_whole_and_under_three_megabytes(source, outline):
    assert outline.open == []
    assert len(source.encode()) < 3_000_000
    assert source.count("window.vegaEmbed = vegaEmbed") <= 1


def test_the_text_of_the_page(outline, golden):
    golden.check("page.txt", outline.lines())


def test_nothing_points_to_another_host(outline):
    for tag, attributes in outline.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            address = attributes.get(name)
            if address is not None and not tag.startswith("svg"):
                assert address.startswith(("#", "data:")), f"<{tag} {name}={address}>"


def test_tables_and_drawings_can_be_heard(outline):
    assert all("scope" in a for tag, a in outline.elements if tag == "th")
    stills = [a for tag, a in outline.elements if a.get("class") == "static"]
    assert len(stills) == 3
    assert all(a["aria-label"] for a in stills)
    assert all(
        a.get("aria-label") or a.get("aria-hidden")
        for tag, a in outline.elements
        if tag == "svg" and a.get("class") in ("spark", "panel", "swatch", "mark")
    )


def test_ids_are_unique(outline):
    ids = [a["id"] for _, a in outline.elements if "id" in a]
    assert len(ids) == len(set(ids))


def test_embedded_records_read_back_as_they_were(source, sample):
    document = embedded(source)
    back = [from_plain(RunRecord, record) for record in document["records"]]
    assert back == list(sample.records.values())
    assert document["machine"]["machine_id"] == sample.machine.machine_id


def test_gpus_and_links_are_listed(made, written):
    words = Outline(written(made.sample(gpus=2)).read_text("utf-8")).words()
    assert "NVIDIA H200" in words
    assert "0–1: nvlink, 18 links" in words


def test_a_profiled_step_has_a_bar_of_its_parts(made, written, golden):
    run = made.taken_apart(8)
    source = written(made.sample(), answers=(), records={run.run_id: run}).read_text("utf-8")
    golden.check("profiled.txt", Outline(source).lines())
    assert "flex-grow:20.0000" in source
    assert embedded(source)["records"][0]["parts"][0]["name"] == "compute"


def test_hostile_names_are_escaped(made, written):
    source = written(made.hostile()).read_text("utf-8")
    outline = Outline(source)
    assert outline.open == []
    assert not any(tag == "img" for tag, _ in outline.elements)
    assert not any(name.startswith("on") for _, a in outline.elements for name in a)
    assert made.ATTACK in outline.words()
    assert embedded(source)["records"][0]["spec"]["work"]["network"] == made.ATTACK


def test_an_empty_report(made, written, golden):
    path = written(made.sample(), answers=(), records={}, series={})
    source = path.read_text("utf-8")
    golden.check("empty.txt", Outline(source).lines())
    assert embedded(source)["records"] == []
    assert len(source) < 60_000, "no chart, so no chart library"


def test_what_several_runs_could_not_measure_is_said_once(made, written):
    why = "not measurable: a virtual machine without counters"
    energy = Unknown(what="energy and power", why=why)
    short = Unknown(what="energy and power", why="not measurable: 0.1 s are too short")
    runs = [replace(made.record(b), unmeasured=(energy,)) for b in (8, 16, 32)]
    runs[2] = replace(runs[2], unmeasured=(energy, short))
    page = written(made.sample(), answers=(), records={r.run_id: r for r in runs}, series={})
    words = Outline(page.read_text("utf-8")).words()
    assert (words.count(why), words.count(short.why)) == (1, 1)
    assert why in dict(run_facts(runs[0])).values(), "of one run it is a fact"


def test_a_report_of_failures_has_every_reason(made, written):
    words = Outline(written(made.failed()).read_text("utf-8")).words()
    assert f"× 8; 16; 32; 64; 128; 256 this machine {made.OOM.message}" in words
    # Six times in the table, once under the chart, six times at the runs.
    assert words.count(made.OOM.message) == 13


def test_headline_is_a_finding_and_its_card_does_not_say_it_again(sample):
    top = headline(sample.answers, sample.records.values())
    first = cards(sample.answers)[0]
    assert top == sample.answers[0].findings[0].text
    assert "2,170 images/s" in top
    assert (first.figure, first.unit, first.interval) == ("2,170", "images/s", "± 14")
    assert first.text == sample.answers[0].title
    assert lead(sample.answers) == ("", ""), "its card has the remedy"


def test_a_simulated_answer_is_not_the_headline(sample):
    first, *rest = sample.answers
    warning = warn("simulated", "This run was simulated.", "Measure.")
    simulated = replace(first, warnings=(warning,))
    measured = next(answer for answer in rest if answer.findings)
    assert headline([simulated, measured], ()) == headline([measured], ())
    assert headline([simulated], ()) not in [finding.text for finding in simulated.findings]
    assert lead([simulated]) == ("", "")


def test_warnings_of_one_code_share_a_chip(made):
    made_chips = chips((made.BUSY, made.FEW, made.BUSY))
    assert [chip.label for chip in made_chips] == ["busy host", "few windows"]
    assert len(made_chips[0].seen) == 1
    assert not any(chip.is_condition for chip in made_chips)
    (condition,) = chips((warn("throttled", "A power cap.", "None."),))
    assert condition.is_condition


def test_a_warning_names_the_runs_that_have_it(made, sample):
    record = next(r for r in sample.records.values() if r.warnings)
    warning = record.warnings[0]
    ((_, _, runs),) = chips([warning], list(sample.records.values()))[0].seen
    assert record.run_id in dict(runs)
    assert len(runs) == sum(warning in r.warnings for r in sample.records.values())


def test_several_gpus_are_drawn_with_their_rings(written, sample, made):
    page = written(sample, machine=made.machine(gpus=8)).read_text()
    assert '<figure class="topology"><svg ' in page
    assert "18 × 25 GB/s = 450 GB/s" in page
    assert "fill:var(--accent)" in page
    assert 'class="topology"' not in written(sample, machine=made.machine(gpus=1)).read_text()
    assert Outline(page).open == []


def test_contents_link_to_every_section(outline, sample):
    ids = {a["id"] for _, a in outline.elements if "id" in a}
    (nav,) = [a for tag, a in outline.elements if tag == "nav"]
    assert nav["aria-label"] == "Contents"
    links = [a["href"] for tag, a in outline.elements if tag == "a" and a["href"] != "#answers"]
    assert links[1 : len(sample.answers) + 4] == [
        "#summary",
        *(f"#question-{i}" for i in range(1, len(sample.answers) + 1)),
        "#machine",
        "#runs",
    ]
    assert {link[1:] for link in links} <= ids


def test_a_caption_has_machine_device_precision_and_date(sample, made):
    answer = sample.answers[0]
    line = caption(answer.charts[0], answer, sample.records, sample.machine)
    assert line == f"{sample.machine.hostname} · {sample.machine.cpu.model} · fp32 · 20 Nov 2026"
    assert caption(answer.charts[0], answer, {}, sample.machine) == "", "no run is known"


def test_the_data_of_a_chart_travels_with_it(source, sample):
    found = re.findall(
        r'<script type="application/json" id="question-1-chart-1">(.*?)</script>', source
    )
    saved = json.loads(found[0])["saved"]
    assert saved["csv"] == chart_csv(sample.answers[0].charts[0])
    assert saved["title"] == sample.answers[0].charts[0].title
    assert "20 Nov 2026" in saved["caption"]


def _few(found: Report, *run_ids: str) -> Report:
    """A report of these runs only, without charts, tables and series, which take long to draw."""
    records = {i: replace(found.records[i], breakdowns=()) for i in run_ids}
    answers = [replace(answer, charts=(), tables=()) for answer in found.answers]
    return replace(found, records=records, series={}, answers=answers, partners=())


@pytest.fixture(scope="module")
def two_days(tmp_path_factory: pytest.TempPathFactory) -> Outline:
    """The page of a run on four GPUs, next to a run of another day on one GPU of the same kind."""
    folder = tmp_path_factory.mktemp("stores")
    stores = [shutil.copy(RECORDS / f"{name}.sqlite", folder) for name in (FOUR, OTHER)]
    found = report(store=stores[0], against=stores[1])
    assert found.against is not None
    own, other = _few(found, LOSING), _few(found.against, next(iter(found.against.records)))
    own = replace(own, machine=replace(own.machine, gpus=own.machine.gpus[:1]))
    sides = (Side(machine=own.machine, runs=(), records=r.records) for r in (own, other))
    names = labels(*sides)
    return Outline(render(replace(own, against=replace(other, answers=()), names=names)))


def test_sections_and_machines_of_one_page_have_different_names(two_days):
    links = [a["href"] for tag, a in two_days.elements if tag == "a"]
    assert len(set(links)) > 3
    lines = two_days.lines().splitlines()
    contents = lines[lines.index("Contents") + 1 : lines.index("Runs") + 1]
    assert len(contents) == len(set(contents))
    titles = [line for line in lines if line.startswith("Weak scaling · ")]
    assert {title.rpartition(" · ")[2] for title in titles} == {"resnet-50", "alexnet"}
    own, other = "NVIDIA H200 (21 Nov 2026)", "NVIDIA H200 (23 Nov 2026)"
    runs = lines[len(lines) - 1 - lines[::-1].index("Runs") :]
    assert [line for line in runs if line.startswith("NVIDIA H200")] == [own, other]


def test_dates_say_what_they_are_of(two_days):
    lines = two_days.lines().splitlines()
    assert "measured 21 Nov 2026" in lines
    assert any(line.startswith("page made ") for line in lines)


def test_a_run_of_several_ranks_says_over_which_its_parts_are(two_days):
    words = two_days.words()
    assert "Breakdown of the mean step time, mean over 4 ranks" in words
    assert "15 % launch gaps at batch size 32, mean over 4 ranks; rank 1 is the slowest" in words
    assert re.search(r"straggler wait 1\.24 ms 9\.8 %", words)
    assert "straggler wait, 9.8 % of the step. The largest loss of the step is launch gaps" in words
