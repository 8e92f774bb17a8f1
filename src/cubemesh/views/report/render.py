"""HTML report: one self-contained page with style, charts, data and scripts.

It loads nothing from other hosts; its Content-Security-Policy allows only its own two scripts.
Without scripts, or on paper, only the tooltips are missing.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from rich.console import Console

from cubemesh.api.report import Report
from cubemesh.durable_files import replace_file
from cubemesh.exports.record_json import finite
from cubemesh.schema import Answer, Chart, Machine, RunRecord, Unknown
from cubemesh.schema.serialization import to_plain
from cubemesh.store.stored_series import each_samples
from cubemesh.views import formatting
from cubemesh.views.charts.files import browser_bundle, write_charts
from cubemesh.views.facts import machine as machine_facts
from cubemesh.views.facts.run import repeated_unmeasured
from cubemesh.views.json_output import envelope, machine_json
from cubemesh.views.report import headline, page
from cubemesh.views.report.packing import RECORDS_BYTES, Details, packed
from cubemesh.views.report.style import report_style, template_file
from cubemesh.views.tables import text_table


def write_report(path: Path, report: Report) -> Path:
    """Write the page to `path` (its folder is created where it is missing) and return the path.

    OSError where the file cannot be written, which leaves an earlier one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Names from outside may hold halves of surrogate pairs, which UTF-8 cannot encode.
    replace_file(path, render(report).encode("utf-8", errors="backslashreplace"))
    return path


def write_charts_of(directory: Path, report: Report) -> list[Path]:
    """Write the charts of a report as files and return their paths; OSError as above."""

    def caption(answer: Answer, chart: Chart) -> str:
        return page.caption(chart, answer, report.records, report.machine)

    return write_charts(directory, report.answers, caption=caption)


def document(report: Report, page: Path, charts: Sequence[Path]) -> dict[str, Any]:
    """The JSON of `cubemesh report`: the files it wrote."""
    return envelope(
        "report",
        page=str(page.resolve()),
        charts=[str(chart.resolve()) for chart in charts],
        experiments=[q.experiment for q in report.experiment_runs],
        other_machines=[m.machine_id for m in report.other_machines],
    )


def print_files(console: Console, report: Report, page: Path, charts: Sequence[Path]) -> None:
    """The files, and how to report on the other machines of the store."""
    lines = [f"chart   {chart}" for chart in charts]
    lines.append(f"report  {page.resolve()}")
    lines += [
        f"other machine: {formatting.machine_line(machine)} (--machine-id {machine.machine_id})"
        for machine in report.other_machines
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def render(report: Report, *, bundled: bool = False) -> str:
    """The page as text; one that is `bundled` with a store says how to import it."""
    other = report.against
    by_id = {**report.records, **({} if other is None else other.records)}
    records = tuple(by_id.values())
    sections = page.sections(report)
    scripts = []
    if any(s["charts"] or (s["partner"] or s)["charts"] for s in sections):
        scripts.append(_bundle())
    scripts.append(template_file("report.js"))
    unmeasured = repeated_unmeasured(records)
    details = Details(len(records))
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            bundled=bundled,
            headline=headline.headline(report.answers, records),
            lead=headline.lead(report.answers, records),
            intervals=headline.interval_note(report.answers),
            cards=page.cards(report.answers, records),
            contents=page.contents(report, sections),
            linked=by_id,
            run_address=lambda run_id: f"#run-{run_id}" if run_id in by_id else "",
            interactive=True,
            names=page.names(report),
            sections=sections,
            machines=[
                _machine(r.machine, name, drawn=r is report)
                for r, name in zip((report, other), page.names(report), strict=False)
                if r is not None
            ],
            unmeasured=unmeasured,
            machine_line=formatting.machine_line(report.machine),
            measured=page.measured(report),
            runs=_runs(report, unmeasured, details),
            details=details,
            made=formatting.moment(report.made_utc),
            style=Markup(report_style()),
            scripts=[Markup(script) for script in scripts],
            policy=_policy(scripts),
            records=_raw(report),
            most_plain=RECORDS_BYTES,
            packed=packed,
            script_json=_json,
        )
    )


def _runs(
    report: Report, unmeasured: Collection[Unknown], details: Details
) -> Iterator[dict[str, Any]]:
    """The entries of all runs; the series of a few at a time are in memory."""
    read = each_samples(report.series, report.records)
    shown = dict(report.records)
    if report.against is not None:
        other = report.against
        shown |= other.records
        read = chain(
            read, each_samples(other.series, [i for i in other.records if i not in report.records])
        )
    for run_id, series in read:
        entry = page.run_entry(shown[run_id], series, unmeasured, packed=details.full)
        yield entry | {"side": int(run_id not in report.records)}


def _machine(machine: Machine, name: str, *, drawn: bool) -> dict[str, Any]:
    """The facts of a machine, with the drawing of its topology if it is to be `drawn`."""
    return {
        "name": name,
        "groups": machine_facts.machine_groups(machine),
        "gpus": text_table(machine_facts.gpu_table(machine.gpus)),
        "links": machine_facts.link_sentences(machine.gpu_links),
        "topology": _topology(machine) if drawn else None,
        "unknown": machine.unknown,
    }


def _topology(machine: Machine) -> dict[str, Any] | None:
    """The drawing of several GPUs with its rings, and its facts."""
    found = machine_facts.gpu_topology(machine)
    if found is None:
        return None
    from cubemesh.views.facts.topology import topology_facts  # loads networkx
    from cubemesh.views.topology.drawing import draw_topology

    return {
        "svg": Markup(draw_topology(found.topology, found.rings, in_page=True)),
        "facts": topology_facts(found),
        "notes": found.topology.notes,
    }


def _raw(report: Report) -> Markup:
    """The records as they are stored, as JSON."""
    other = report.against
    second = {} if other is None else {"other_machine": machine_json(other.machine)}
    stored = {**report.records, **({} if other is None else other.records)}
    about = envelope(
        "records",
        version=report.version,
        made_utc=report.made_utc,
        machine=machine_json(report.machine),
        records=[],
        **second,
    )
    before, after = _json(about).split('"records":[]', 1)
    listed = Markup(",").join(map(_record_json, stored.values()))
    return Markup("").join((before, Markup('"records":['), listed, Markup("]"), after))


def _record_json(record: RunRecord) -> Markup:
    plain = to_plain(record)
    try:
        return _json(plain)
    except ValueError:  # NaN or infinity
        return _json(finite(plain))


def _json(data: Any) -> Markup:
    """JSON that is safe in a script element."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _policy(scripts: Sequence[str]) -> str:
    """The Content-Security-Policy: only these scripts, inline style and inline images."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


@functools.cache
def _bundle() -> str:
    return browser_bundle()


@functools.cache
def environment() -> jinja2.Environment:
    """The templates of pages; what they show is escaped."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("cubemesh.views", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["unbroken"] = formatting.unbroken
    return made
