"""Machine: hardware and software, and its throughput over time, workload by workload."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from markupsafe import Markup

from cubemesh.api.arguments import value_text
from cubemesh.experiments.acceptance.checks import AcceptanceVerdict
from cubemesh.jobs.schedules import Schedule, Schedules
from cubemesh.schema import Machine
from cubemesh.schema.serialization import to_plain
from cubemesh.statistics.change_points import FEWEST, change_points
from cubemesh.store import Store
from cubemesh.store.compare import differences
from cubemesh.store.run_list import RunFilter, RunRow
from cubemesh.team.roles import Role
from cubemesh.untrusted import clean
from cubemesh.views.charts.sparkline import sparkline
from cubemesh.views.facts.acceptance import badge_svg
from cubemesh.views.facts.machine import gpu_table, gpu_topology, link_sentences, machine_groups
from cubemesh.views.formatting import day, machine_line, machine_name, words
from cubemesh.views.job_pages import schedule_json
from cubemesh.views.json_output import answer_json, envelope, machine_json
from cubemesh.views.tables import text_table
from cubemesh.web.listing import name_of, plain_row, rate_text
from cubemesh.web.page import Asked, Parameter
from cubemesh.web.question_form import hosts_of
from cubemesh.web.queued import queue_of, schedule_rows
from cubemesh.web.stored import Acceptance, last_acceptance, machine_of

PARAMETERS = (Parameter(name="runs", summary="Newest runs of the history, 1 to 1000."),)
_RUNS, _MOST = 500, 1000
_SHOWN = 30
"""Workloads whose history is shown."""
_MOST_NAMED = 4
"""Most settings that are named where workloads share a name."""


def _histories(store: Store, machine_id: str, most: int) -> list[list[RunRow]]:
    """The runs with a throughput, of one workload each, oldest first; the workload that was
    measured last is the first."""
    page = store.list_runs(RunFilter(machine=machine_id, outcome="ok"), limit=most)
    found: dict[str, list[RunRow]] = {}
    for row in page.rows:
        if row.samples_per_s is not None:
            found.setdefault(row.workload_id, []).append(row)
    return [rows[::-1] for rows in found.values()]


def document(asked: Asked) -> dict[str, Any]:
    """The machine, its last acceptance test, the nightly schedules that it may run, and the
    throughput of its newest runs by workload, with change points and what differs between the runs
    before and after each."""
    machine = machine_of(asked)
    accepted = last_acceptance(asked.store, machine.machine_id)
    most = asked.number("runs", _RUNS, _MOST)
    return envelope(
        "machine-history",
        machine=machine_json(machine),
        acceptance=None if accepted is None else _plain_acceptance(accepted),
        schedules=[schedule_json(one) for one in _schedules(asked, machine)],
        history=[
            {
                "workload_id": rows[0].workload_id,
                "name": name_of(rows[0]),
                "runs": [plain_row(row) for row in rows],
                "changes": changes,
            }
            for rows, changes in _with_changes(asked.store, machine, most)
        ],
    )


def _schedules(asked: Asked, machine: Machine) -> list[Schedule]:
    """The nightly schedules whose job the host of a machine may run; none where it has no agent."""
    queue = queue_of(asked)
    if machine.hostname not in hosts_of(queue):
        return []
    return Schedules(queue).list(machine.hostname)


def _with_changes(
    store: Store, machine: Machine, most: int
) -> list[tuple[list[RunRow], list[dict[str, Any]]]]:
    """Each history with its change points and what differs between the runs at them. They are
    significant at 5 %, corrected for the number of histories (Bonferroni)."""
    histories = _histories(store, machine.machine_id, most)
    level = 0.05 / max(1, sum(len(rows) >= 2 * FEWEST for rows in histories))
    return [(rows, _changes(store, machine, rows, level)) for rows in histories]


def _changes(
    store: Store, machine: Machine, rows: list[RunRow], level: float
) -> list[dict[str, Any]]:
    alone = [row for row in rows if not row.interleaved and row.samples_per_s]
    found = []
    for one in change_points([row.samples_per_s or 0.0 for row in alone], level):
        before, after = (store.record(alone[i].run_id) for i in (one.place - 1, one.place))
        differs = differences([before], [after], [machine, machine])
        found.append(
            {
                "run_id": after.run_id,
                "started_utc": after.started_utc,
                "ratio": one.ratio,
                "low": one.low,
                "high": one.high,
                "differs": [asdict(difference) for difference in differs],
            }
        )
    return found


def view(asked: Asked) -> dict[str, Any]:
    """Facts as in the report, and a small chart for each workload that was measured twice."""
    machine = machine_of(asked)
    histories = _with_changes(asked.store, machine, asked.number("runs", _RUNS, _MOST))
    histories.sort(key=lambda pair: len(pair[0]), reverse=True)
    shown = histories[:_SHOWN]
    details = _details(asked.store, [rows[-1] for rows, _ in shown])
    return {
        "title": machine_name(machine),
        "machine": machine,
        "line": machine_line(machine),
        "acceptance": _acceptance(last_acceptance(asked.store, machine.machine_id)),
        "schedules": schedule_rows(_schedules(asked, machine), asked.person),
        "member": asked.person.role >= Role.MEMBER,
        "has_agent": machine.hostname in hosts_of(queue_of(asked)),
        "groups": machine_groups(machine),
        "gpus": text_table(gpu_table(machine.gpus)),
        "links": link_sentences(machine.gpu_links),
        "topology": _drawing(machine),
        "histories": [
            _history(rows)
            | {"detail": detail, "changes": [_change_text(change) for change in changes]}
            for (rows, changes), detail in zip(shown, details, strict=True)
        ],
        "more": max(0, len(histories) - _SHOWN),
    }


def _plain_acceptance(found: Acceptance) -> dict[str, Any]:
    return {
        "verdict": found.verdict.value,
        "started_utc": found.started_utc,
        "experiment_run_id": found.experiment_run_id,
        "answer": answer_json(found.answer),
    }


def _acceptance(found: Acceptance | None) -> dict[str, Any] | None:
    """The verdict, the sentence about it, and a row for each check."""
    if found is None:
        return None
    table = found.checks
    return {
        "badge": Markup(badge_svg(found.verdict, found.started_utc)),
        "failed": found.verdict is AcceptanceVerdict.FAIL,
        "text": clean(found.answer.findings[0].text, 600),
        "experiment_run_id": found.experiment_run_id,
        "checks": None if table is None else text_table(table),
    }


def _change_text(change: dict[str, Any]) -> dict[str, Any]:
    """A change in words: `-4.1 % (-4.7 to -3.5) since 21 Nov: torch 2.11.0 → 2.13.0`."""
    value, low, high = (100 * (change[name] - 1) for name in ("ratio", "low", "high"))
    causes = [f"{one['what']} {one['first']} → {one['second']}" for one in change["differs"]]
    return {
        "run_id": change["run_id"],
        "text": f"{value:+.1f} % ({low:+.1f} to {high:+.1f}) since {day(change['started_utc'])}",
        "slower": change["ratio"] < 1,
        "causes": clean("; ".join(causes) or "nothing that is recorded differs", 300),
    }


def _drawing(machine: Any) -> Markup:
    found = gpu_topology(machine)
    if found is None:
        return Markup("")
    from cubemesh.views.topology.drawing import draw_topology

    return Markup(draw_topology(found.topology, found.rings, in_page=True))


def _details(store: Store, rows: list[RunRow]) -> list[str]:
    """Framework, precision and device of workloads; where several of one name have the same, the
    settings in which they differ, too."""
    texts = [clean(f"{row.framework} · {row.precision} · {row.device}") for row in rows]
    alike: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(rows):
        alike.setdefault((name_of(row), texts[place]), []).append(place)
    for places in alike.values():
        if len(places) < 2:
            continue
        specs = [store.record(rows[place].run_id).spec for place in places]
        plain = [
            {**to_plain(one.placement), **to_plain(one.program), **to_plain(one.work)}
            for one in specs
        ]
        names = [name for name in plain[0] if any(p.get(name) != plain[0][name] for p in plain)]
        for place, own in zip(places, plain, strict=True):
            differs = (f"{words(name)} {value_text(own.get(name))}" for name in names[:_MOST_NAMED])
            texts[place] = clean(" · ".join((texts[place], *differs)), 300)
    return texts


def _history(rows: list[RunRow]) -> dict[str, Any]:
    """A workload's throughputs: the newest, and how it changed over the newest version."""
    rates = [row.samples_per_s or 0.0 for row in rows]
    name, last = name_of(rows[0]), rows[-1]
    change = rates[-1] / rates[-2] - 1 if len(rates) > 1 and rates[-2] > 0 else None
    label = f"throughput of {name} over {len(rows)} runs"
    svg = sparkline(
        rates, label=label, width=220, height=48, low=0.9 * min(rates), high=1.1 * max(rates)
    )
    return {
        "name": name,
        "workload_id": last.workload_id,
        "runs": len(rows),
        "svg": Markup(svg),
        "latest": rate_text(last),
        "latest_id": last.run_id,
        "from": day(rows[0].started_utc),
        "to": day(last.started_utc),
        # Adding 0.0 makes -0.0 positive.
        "change": ""
        if change is None
        else f"{round(100 * change, 1) + 0.0:+.1f} % from the run before",
        "software": len({row.software_id for row in rows}),
        "versions": len({row.code_version for row in rows}),
    }
