"""What does a cluster of so many systems need, what crosses its middle, and how far is it across?

And how fast would it train? Forecasts (cluster_throughput.py).

Nothing is measured: a fat tree is laid out for each number of systems and each network
(machines/topology/fat_tree.py, which has the formulas and their sources). Document 002, table 1 and
figure 8: 124 systems with four EDR ports, on leaves of four systems and as many links up as down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cubemesh import networks
from cubemesh.experiments.cluster import report as shown
from cubemesh.experiments.cluster import throughput
from cubemesh.experiments.cluster.designs import Settings, designs, fabrics, named, tree
from cubemesh.experiments.cluster.throughput import Job
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.schema import Answer, RunRecord


def plan(settings: Settings, context: Context) -> Plan:
    """Nothing is measured; that the system is known is checked before anything else."""
    load_system(settings.system)
    yield from ()


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and chart from the settings alone."""
    system = load_system(settings.system)
    laid_out = designs(settings)
    compared = {named(d): tree(settings.compared_at, d) for d in fabrics(settings)}
    jobs = [
        Job(
            network=networks.canonical_name(network),
            batch_per_device=batch,
            precision=precision,
            rate=settings.rate,
            max_devices=settings.max_devices,
        )
        for network in dict.fromkeys(settings.networks)
        for batch in dict.fromkeys(settings.batch_sizes)
        for precision in dict.fromkeys(settings.precisions)
    ]
    compared_designs = {named(design): design for design in fabrics(settings)}
    single = replace(system, cluster=None)
    forecasts = [(throughput.forecasts(single, compared_designs, job), job) for job in jobs]
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=f"Clusters of {system.title} on fat trees",
        findings=(
            *shown.findings(settings, laid_out, compared),
            *(finding for f, job in forecasts for finding in throughput.findings(f, job)),
        ),
        tables=(
            shown.comparison(settings, compared),
            *(shown.sizes(settings, design, system.devices) for design in laid_out),
            *(throughput.table(f, job) for f, job in forecasts),
        ),
        charts=(
            shown.chart(settings),
            *(throughput.chart(f, job, several=len(jobs) > 1) for f, job in forecasts),
        ),
        notes=shown.notes(laid_out[0], compared),
    )


EXPERIMENT = Experiment(
    name="cluster",
    question="What does a cluster of so many systems need, and what crosses its middle?",
    settings=Settings,
    works=(),
    varies={},
    plan=plan,
    answer=answer,
    measures=False,
    documents="002 table 1 and figure 8",
)
