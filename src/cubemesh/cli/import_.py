"""`cubemesh import` and `cubemesh bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import AsJson, StoreAt, show, tell
from cubemesh.errors import UsageError, unknown_name

BUNDLE_ACTIONS = ("create", "verify")


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            help="A share bundle, output of nccl-tests or of `cubemesh collectives --json`, or a "
            "training log of another program."
        ),
    ],
    collective: Annotated[
        str | None,
        typer.Option(metavar="OPERATION", help="The operation, if the log does not name it."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="With a training log: what it does not state, such as network=resnet-50.",
        ),
    ] = None,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """Import a share bundle, collectives, or a training log. What is stored is not added again."""
    from cubemesh.api.import_ import import_bundle, import_measurements
    from cubemesh.store.bundles.bundle_file import is_bundle
    from cubemesh.store.imports.import_training import is_training_log
    from cubemesh.views import collectives as view

    bundled = is_bundle(file)
    if settings and bundled:
        raise UsageError(f"--set belongs to a training log; {file} is a bundle.")
    if bundled:
        from cubemesh.views.report import bundle as bundle_view

        if collective is not None:
            raise UsageError(f"--collective belongs to a log of nccl-tests; {file} is a bundle.")
        merged = import_bundle(file, store=store)
        show(
            bundle_view.merged_document(merged),
            as_json,
            lambda console: bundle_view.print_merged(console, file, merged),
        )
        return
    if settings or is_training_log(file):
        if collective is not None:
            raise UsageError(f"--collective belongs to a log of nccl-tests, not to {file}.")
        _import_training(file, settings or [], store, as_json)
        return

    found = import_measurements(file, operation=collective, store=store)
    document = view.document(found) | {"new": list(found.new)}
    show(document, as_json, lambda console: view.print_sweeps(console, found))
    known, sweeps = len(found.records) - len(found.new), len(found.records)
    if known:
        added = f"{len(found.new)} were added" if found.new else "nothing was added"
        tell(f"{known} of {sweeps} sweeps of {file} were stored already; {added}.")


def _import_training(file: Path, settings: list[str], store: str | None, as_json: bool) -> None:
    from cubemesh.api.import_ import import_training_log, training_log_settings
    from cubemesh.networks import NETWORKS
    from cubemesh.views import terminal
    from cubemesh.views.json_output import imported_training_json

    found = import_training_log(file, store=store, **training_log_settings(settings))
    show(
        imported_training_json(found),
        as_json,
        lambda console: terminal.print_record(console, found.record),
    )
    network = getattr(found.record.spec.work, "network", "")
    if network not in NETWORKS:
        tell(f"{network} is not a network of cubemesh, so its operations are not counted.")
    if not found.new:
        tell(f"The training of {file} was stored already; nothing was added.")


def bundle(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="create or verify.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Bundle to write or to check: an HTML file.")
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="With create: only these experiments or papers; default: all.",
            autocompletion=completion.experiments_and_suites,
        ),
    ] = None,
    runs: Annotated[
        list[str] | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Only this run, by its id or unique prefix; may be repeated.",
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(help="Filter by network.", autocompletion=completion.networks),
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(help="Filter by framework.", autocompletion=completion.frameworks),
    ] = None,
    outcome: Annotated[str | None, typer.Option(help="Filter by outcome.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of most recent runs; default: all.")
    ] = None,
    machine_id: Annotated[
        str,
        typer.Option(
            "--machine-id",
            metavar="ID",
            help="Machine id or unique prefix; default: the machine measured last.",
        ),
    ] = "",
    no_files: Annotated[
        bool, typer.Option("--no-files", help="Leave out files of runs, such as traces.")
    ] = False,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """Write runs as one file, or check one. The file is an HTML page for any browser and a store
    for `cubemesh import`."""
    if action not in BUNDLE_ACTIONS:
        raise unknown_name("action of bundle", action, BUNDLE_ACTIONS, "", "actions")
    filters = {"network": network, "framework": framework, "outcome": outcome, "limit": limit}
    if action == "verify":
        given = {**filters, "run": runs, "machine-id": machine_id, "no-files": no_files}
        for name, value in {**given, "store": store}.items():
            if value:
                raise UsageError(f"--{name} belongs to bundle create, not to verify.")
        if names:
            raise UsageError(f"bundle verify takes one file; '{names[0]}' is one too many.")
        from cubemesh.api.import_ import verify_bundle
        from cubemesh.views.report import bundle as view

        checked = verify_bundle(file)
        show(
            view.checked_document(checked),
            as_json,
            lambda console: view.print_checked(console, checked),
        )
        return
    from cubemesh.api.export import bundle as gather
    from cubemesh.views.report import bundle as view

    found = gather(
        *(names or ()),
        run_ids=runs or (),
        network=network,
        framework=framework,
        outcome=outcome,
        limit=limit,
        machine_id=machine_id,
        files=not no_files,
        store=store,
    )
    try:
        sha256 = view.write_bundle(file, found)
    except OSError as error:
        raise UsageError(
            f"{error.filename or file} cannot be written: {error.strerror}. Choose another path."
        ) from None
    show(
        view.created_document(file, found, sha256),
        as_json,
        lambda console: view.print_created(console, file, found),
    )
