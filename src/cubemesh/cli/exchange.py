"""The verbs about how devices exchange, with the flags of nccl-tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cubemesh.cli.options import AsJson, Hosts, StoreAt, on_hosts, open_store, show

_ALIASES = {"alltoall": "all-to-all", "sendrecv": "send-receive"}


def collectives(
    operations: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPERATION",
            help="all-reduce, reduce-scatter, all-gather, broadcast, reduce, gather, scatter, "
            "all-to-all, send-receive, or all; default: all-reduce.",
        ),
    ] = None,
    minbytes: Annotated[
        str, typer.Option("-b", "--minbytes", metavar="SIZE", help="First size, such as 8 or 1M.")
    ] = "1K",
    maxbytes: Annotated[
        str | None,
        typer.Option(
            "-e",
            "--maxbytes",
            metavar="SIZE",
            help="Last size, such as 8G; default: 1 GiB between GPUs, 16 MiB between processors.",
        ),
    ] = None,
    stepbytes: Annotated[
        str | None,
        typer.Option(
            "-i",
            "--stepbytes",
            metavar="SIZE",
            help="Bytes from a size to the next, in place of -f.",
        ),
    ] = None,
    stepfactor: Annotated[
        int | None,
        typer.Option("-f", "--stepfactor", min=2, help="How often more each size is; default: 2."),
    ] = None,
    iters: Annotated[
        int, typer.Option("-n", "--iters", min=1, help="Operations in a timed group.")
    ] = 20,
    warmup_iters: Annotated[
        int, typer.Option("-w", "--warmup_iters", min=0, help="Operations before, untimed.")
    ] = 5,
    ngpus: Annotated[
        int | None,
        typer.Option(
            "-g", "--ngpus", min=1, help="Devices; default: all GPUs, or two groups of cores."
        ),
    ] = None,
    check: Annotated[
        int, typer.Option("-c", "--check", min=0, help="Checks of each result; 0: none.")
    ] = 1,
    datatype: Annotated[
        str,
        typer.Option(
            "-d",
            "--datatype",
            help="float, double, half, bfloat16, int8, uint8, int32 or int64.",
        ),
    ] = "float",
    op: Annotated[
        str, typer.Option("-o", "--op", help="sum, prod, min, max or avg, where reduced.")
    ] = "sum",
    device: Annotated[str, typer.Option(help="cuda (NCCL), cpu (gloo) or auto.")] = "auto",
    hosts: Hosts = None,
    store: StoreAt = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what is stored already.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """How fast do devices exchange? As nccl-tests asks. Every size, each result checked."""
    from cubemesh.experiments.session import run_names
    from cubemesh.views import collectives as shown
    from cubemesh.views import terminal
    from cubemesh.views.progress import TerminalProgress

    names = [_named(operation) for operation in operations or ["all-reduce"]]
    on_cpu = device == "cpu"
    given = {
        "operations": None if "all" in names else ",".join(names),
        "min_bytes": minbytes,
        "max_bytes": maxbytes or ("16M" if on_cpu else None),
        "step_bytes": stepbytes,
        "factor": stepfactor,
        "steps": iters,
        "warmup_iterations": warmup_iters,
        "devices": ngpus or (2 if on_cpu else None),
        "checks": check,
        "data_type": datatype,
        "reduction": op,
        "device": device,
    }
    with open_store(store) as opened:
        (answered,) = run_names(
            ["collectives"],
            [f"{k}={v}" for k, v in given.items() if v is not None] + on_hosts(hosts),
            scale=None,
            store=opened,
            observer=TerminalProgress(terminal.stderr_console()),
            fresh=fresh,
        )
    records = answered.records
    show(shown.document(records), as_json, lambda console: shown.print_sweeps(console, records))
    failed = any(not r.outcome.status.expected or r.figure("wrong_elements") for r in records)
    raise typer.Exit(1 if failed or not any(r.ok for r in records) else 0)


def _named(operation: str) -> str:
    """`all_reduce_perf`, as nccl-tests calls its programs, is `all-reduce`."""
    name = operation.strip().lower().removesuffix("_perf").replace("_", "-")
    return _ALIASES.get(name, name)


def import_(
    file: Annotated[
        Path, typer.Argument(help="Output of nccl-tests, or of `cubemesh collectives --json`.")
    ],
    collective: Annotated[
        str | None,
        typer.Option(
            metavar="OPERATION", help="Which operation it is, where the log does not name it."
        ),
    ] = None,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """Keep what others measured of collectives. It stands beside what was measured here."""
    from cubemesh.store.import_sweeps import import_file
    from cubemesh.views import collectives as shown

    with open_store(store) as opened:
        records = import_file(opened, file, collective)
    show(shown.document(records), as_json, lambda console: shown.print_sweeps(console, records))
