"""Share bundles: the page of a report with its store in one file, and their text for a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from cubemesh.api.export import Bundle
from cubemesh.api.import_ import CheckedBundle
from cubemesh.store.bundles import bundle_file
from cubemesh.store.bundles.contents import Merged
from cubemesh.untrusted import shown_path
from cubemesh.views.json_output import envelope


def write_bundle(path: Path, bundle: Bundle) -> str:
    """Write a bundle to `path` (its folder is created where it is missing); its checksum, SHA-256.

    UsageError if it is too large, OSError where the file cannot be written, which leaves an earlier
    one.
    """
    from cubemesh.views.report.render import render  # needs the extra `views`

    report = bundle.report
    return bundle_file.write(
        path,
        render(report, bundled=True),
        bundle.parts,
        version=report.version,
        made_utc=report.made_utc,
    )


def created_document(path: Path, bundle: Bundle, sha256: str) -> dict[str, Any]:
    """The JSON of `cubemesh bundle create`."""
    return envelope(
        "bundle",
        file=str(path.resolve()),
        sha256=sha256,
        run_ids=_run_ids(bundle),
        experiment_run_ids=[run.experiment_run_id for run in bundle.experiment_runs],
        files=sum(name.startswith("files/") for name in bundle.parts),
        bytes=path.stat().st_size,
    )


def print_created(console: Console, path: Path, bundle: Bundle) -> None:
    """What was written, and how to use it."""
    files = sum(name.startswith("files/") for name in bundle.parts)
    counts = _counts(len(_run_ids(bundle)), len(bundle.experiment_runs), files)
    _print(
        console,
        f"bundle  {path.resolve()}",
        f"        {counts}, {path.stat().st_size / 1e6:.1f} MB",
        "Open it in a browser, or add it to a store: cubemesh import FILE",
    )


def checked_document(found: CheckedBundle) -> dict[str, Any]:
    """The JSON of `cubemesh bundle verify`."""
    contents = found.contents
    return envelope(
        "bundle",
        file=str(found.file.path.resolve()),
        sha256=found.file.sha256,
        version=found.file.version,
        made_utc=found.file.made_utc,
        run_ids=[run.record.run_id for run in contents.runs],
        experiment_run_ids=[run.experiment_run_id for run in contents.experiment_runs],
        files=sum(len(run.files) for run in contents.runs),
    )


def print_checked(console: Console, found: CheckedBundle) -> None:
    """What a bundle holds."""
    contents = found.contents
    files = sum(len(run.files) for run in contents.runs)
    _print(
        console,
        f"{shown_path(found.file.path)} is complete and unchanged: "
        f"{_counts(len(contents.runs), len(contents.experiment_runs), files)}, made "
        f"{found.file.made_utc} by cubemesh {found.file.version}",
        f"SHA-256 {found.file.sha256}",
    )


def merged_document(merged: Merged) -> dict[str, Any]:
    """The JSON of `cubemesh import` of a bundle."""
    return envelope("import", new=list(merged.new), known=list(merged.known))


def print_merged(console: Console, path: Path, merged: Merged) -> None:
    """What was new."""
    new, known = len(merged.new), len(merged.known)
    before = f"; {known} {'was' if known == 1 else 'were'} stored already" if known else ""
    _print(console, f"{new} run{'' if new == 1 else 's'} of {shown_path(path)} added{before}.")


def _run_ids(bundle: Bundle) -> list[str]:
    return [n[4:-5] for n in bundle.parts if n.startswith("run-")]


def _counts(runs: int, answers: int, files: int) -> str:
    found = [(runs, "run"), (answers, "answer"), (files, "file")]
    return ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in found)


def _print(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
