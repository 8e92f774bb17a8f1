"""`cubemesh collectives`, with the flags of nccl-tests."""

from __future__ import annotations

from typing import Annotated

import typer

from cubemesh.cli.options import AsJson, Hosts, NoCache, StoreAt, Wait, show


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
            help="Difference between successive sizes, in place of -f.",
        ),
    ] = None,
    stepfactor: Annotated[
        int | None,
        typer.Option(
            "-f", "--stepfactor", min=2, help="Ratio between successive sizes; default: 2."
        ),
    ] = None,
    iters: Annotated[
        int, typer.Option("-n", "--iters", min=1, help="Operations per timed group.")
    ] = 20,
    warmup_iters: Annotated[
        int, typer.Option("-w", "--warmup_iters", min=0, help="Untimed warm-up operations.")
    ] = 5,
    ngpus: Annotated[
        int | None,
        typer.Option(
            "-g", "--ngpus", min=1, help="Devices; default: all GPUs, or two groups of cores."
        ),
    ] = None,
    check: Annotated[
        int, typer.Option("-c", "--check", min=0, help="Checks per result; 0: none.")
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
        str, typer.Option("-o", "--op", help="Reduction: sum, prod, min, max or avg.")
    ] = "sum",
    device: Annotated[str, typer.Option(help="cuda (NCCL), cpu (gloo) or auto.")] = "auto",
    hosts: Hosts = None,
    store: StoreAt = None,
    no_cache: NoCache = False,
    wait: Wait = "0",
    as_json: AsJson = False,
) -> None:
    """Measure collectives as nccl-tests does. Every result is checked."""
    from cubemesh.api.collectives import collectives as measure
    from cubemesh.views import collectives as view
    from cubemesh.views.progress import TerminalProgress
    from cubemesh.views.terminal import stderr_console

    found = measure(
        *(operations or ()),
        min_bytes=minbytes,
        max_bytes=maxbytes,
        step_bytes=stepbytes,
        factor=stepfactor,
        iterations=iters,
        warmup_iterations=warmup_iters,
        devices=ngpus,
        checks=check,
        data_type=datatype,
        reduction=op,
        device=device,
        hosts=() if hosts is None else hosts,
        store=store,
        no_cache=no_cache,
        wait=wait,
        observer=TerminalProgress(stderr_console()),
    )
    show(view.document(found), as_json, lambda console: view.print_sweeps(console, found))
    raise typer.Exit(found.exit_code)
