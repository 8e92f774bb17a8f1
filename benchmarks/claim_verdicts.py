"""Verdicts of the papers' claims from stores of several machines: the measured one of any of them,
else that by forecast or specification.

    python benchmarks/claim_verdicts.py benchmarks/records/*.sqlite --json FILE

A claim is checked on all records of one experiment on one machine, whatever command they are of,
except those with --quick. Of several machines the first that settles a claim counts: those with a
GPU before others, as the papers measured GPUs, then those that completed the experiment, and of
these the one with the latest file. Stores are copied before they are opened. Stores of replays,
named …-doc-000.sqlite, are counted one by one as well. docs/documents.md shows the file.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cubemesh.papers.claims import check_claim, check_records
from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.published import claims
from cubemesh.schema import Basis, Claim, ClaimState, Machine, RunRecord, Verdict
from cubemesh.store import Store

REPLAY = re.compile(r"-doc-(\d{3})\.sqlite$")
Found = dict[tuple[str, str, str], tuple[Machine, dict[str, RunRecord]]]
"""(file, machine id, experiment) → the machine and its records by id."""


def gathered(files: list[Path]) -> Found:
    """The records of all files by machine and experiment, in the order in which they count."""
    found: Found = {}
    complete = set()
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(files, key=lambda file: file.name, reverse=True):
            copy = Path(shutil.copy(file, folder))
            with Store.open(str(copy)) as store:
                for run in store.experiment_runs():
                    machine = store.machine(run.machine_id)
                    if machine is None or run.scale == "quick":
                        continue
                    key = (file.name, run.machine_id, run.experiment)
                    own = found.setdefault(key, (machine, {}))[1]
                    own.update((r.run_id, r) for r in store.records(run.run_ids))
                    if run.complete:
                        complete.add(key)
    return dict(sorted(found.items(), key=lambda one: (not one[1][0].gpus, one[0] not in complete)))


def best(claim: Claim, found: Found) -> tuple[Verdict, str]:
    """The verdict of a claim, and the file that settles it; without one the forecast's, or why it
    cannot be tested."""
    shown: tuple[Verdict, str] | None = None
    for (file, _, experiment), (machine, records) in found.items():
        if experiment != claim.experiment:
            continue
        evidence = Evidence(records=tuple(records.values()), machine=machine)
        verdict = check_records(claim, evidence)
        if verdict.state is not ClaimState.CANNOT_BE_TESTED_HERE:
            return verdict, file
        if verdict.measured is not None and shown is None:
            shown = check_claim(claim, evidence), file
    return shown or (check_claim(claim, Evidence(records=())), "")


def rows(found: Found) -> Iterator[dict[str, Any]]:
    """A row for each claim."""
    for claim in claims():
        verdict, file = best(claim, found)
        settled = verdict.state is not ClaimState.CANNOT_BE_TESTED_HERE
        yield {
            "claim": claim.id,
            "verdict": str(verdict.state),
            "basis": str(verdict.basis) if settled else "",
            "paper": "; ".join(f"{value:g}" for value in claim.values),
            "unit": claim.unit,
            "measured": None if verdict.measured is None else verdict.measured.value,
            "forecast": None if verdict.forecast is None else verdict.forecast.value,
            "reason": verdict.reason,
            "record": file if verdict.basis is Basis.MEASURED else "",
            "noisy": settled and verdict.basis is Basis.MEASURED and bool(verdict.caveats),
        }


def replays(files: list[Path]) -> Iterator[dict[str, Any]]:
    """A row for each store of a replay: what ran, and how many claims of its paper it settles."""
    for file in sorted(files):
        named = REPLAY.search(file.name)
        if named is None:
            continue
        found = gathered([file])
        machine = next(machine for machine, _ in found.values())
        records = {id: record for _, own in found.values() for id, record in own.items()}
        verdicts = [best(claim, found)[0] for claim in claims() if claim.id.startswith(named[1])]
        measured = [verdict for verdict in verdicts if verdict.measured is not None]
        states = Counter(v.state for v in measured if v.basis is Basis.MEASURED)
        with (
            tempfile.TemporaryDirectory() as folder,
            Store.open(str(shutil.copy(file, folder))) as store,
        ):
            begun = {run.experiment: run.complete for run in store.experiment_runs()}
        yield {
            "paper": named[1],
            "record": file.name,
            "machine": machine_name(machine, list(records.values())),
            "runs": len(records),
            "failed": sum(not record.ok for record in records.values()),
            "experiments": len(begun),
            "complete": sum(begun.values()),
            "claims": len(verdicts),
            "with_figure": len(measured),
            "hold": states[ClaimState.HOLDS],
            "do_not_hold": states[ClaimState.DOES_NOT_HOLD],
        }


def machine_name(machine: Machine, records: list[RunRecord]) -> str:
    """`2 of 4 × NVIDIA H200` with the most devices that a run used; `2 cores of AMD EPYC`."""
    if not machine.gpus:
        return f"{machine.cpu.usable_cores} cores of {machine.cpu.model}"
    used = max(record.spec.placement.devices for record in records if record.ok)
    there = len(machine.gpus)
    return f"{'' if used == there else f'{used} of '}{there} × {machine.gpus[0].name}"


def main() -> int:
    """Print the counts, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stores", nargs="+", type=Path)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    table = list(rows(gathered(args.stores)))
    counts = Counter((row["verdict"], row["basis"]) for row in table)
    for (verdict, basis), count in sorted(counts.items()):
        print(f"{count:3} {verdict}{f', {basis}' if basis else ''}")
    if args.json:
        document = {"schema": 2, "rows": table, "replays": list(replays(args.stores))}
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
