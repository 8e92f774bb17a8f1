"""Pages, one file each. A new page is a file here, its template, and a line in `PAGES`."""

from __future__ import annotations

from cubemesh.web.page import Page

PAGES: tuple[Page, ...] = (
    Page(
        path="/",
        title="Home",
        module="home",
        summary="The latest findings and runs.",
    ),
    Page(
        path="/runs",
        title="Runs",
        module="runs",
        summary="Stored runs, filtered and sorted, a page at a time.",
        menu=True,
    ),
    Page(
        path="/runs/{run_id}",
        title="Run",
        module="run",
        summary="Everything about one run.",
        styled=True,
    ),
    Page(
        path="/runs/{run_id}/curves",
        title="Curves",
        module="curves",
        summary="Curves and telemetry of a run, thinned to so many points.",
    ),
    Page(
        path="/compare",
        title="Compare",
        module="compare",
        summary="Several runs: what differs, and which differences are significant.",
        menu=True,
    ),
    Page(
        path="/what-if",
        title="What if",
        module="what_if",
        summary="Time, energy and cost of a training on other devices, machines and precisions.",
    ),
    Page(
        path="/answers",
        title="Answers",
        module="answers",
        summary="Stored experiment runs.",
        menu=True,
    ),
    Page(
        path="/answers/{experiment_run_id}",
        title="Answer",
        module="answer",
        summary="The answer of one experiment run.",
        styled=True,
    ),
    Page(
        path="/ask",
        title="Ask",
        module="ask",
        summary="Experiments with the questions that they answer.",
        menu=True,
    ),
    Page(
        path="/ask/{experiment}",
        title="Ask one",
        module="ask_form",
        summary="The form of an experiment, which queues it as a job.",
        acts=True,
    ),
    Page(
        path="/jobs",
        title="Jobs",
        module="jobs",
        summary="Jobs of the queue by state, newest first, a page at a time, the agents, and the "
        "nightly schedules, which a form ends.",
        menu=True,
        acts=True,
    ),
    Page(
        path="/jobs/{job_id}",
        title="Job",
        module="job",
        summary="One job: state, time left, curves, log, runs; forms that pause, resume, stop, "
        "clone and reorder it.",
        acts=True,
    ),
    Page(
        path="/jobs/{job_id}/curves",
        title="Job curves",
        module="job_curves",
        summary="Curves of a job so far, thinned to so many points.",
    ),
    Page(
        path="/jobs/{job_id}/events",
        title="Job events",
        module="job_events",
        summary="Events of a job after a cursor; with Accept: text/event-stream as they happen.",
        streams=True,
    ),
    Page(
        path="/machines",
        title="Machines",
        module="machines",
        summary="Machines that measured something.",
        menu=True,
    ),
    Page(
        path="/machines/{machine_id}",
        title="Machine",
        module="machine",
        summary="One machine: its acceptance, its hardware and software, and its throughput over "
        "time.",
        styled=True,
    ),
    Page(
        path="/machines/{machine_id}/badge.svg",
        title="Badge",
        module="badge",
        summary="The verdict of the machine's last acceptance test, with its date, as an image.",
        media="image/svg+xml",
    ),
    Page(
        path="/report",
        title="Report",
        module="report",
        summary="The latest answers on one machine, as one file.",
        menu=True,
    ),
    Page(
        path="/search",
        title="Search",
        module="search",
        summary="Runs, machines, experiments and networks by a part of their name or id.",
    ),
)
