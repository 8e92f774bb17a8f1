"""Recipes: the figures that they show are those of the stored records, and the commands resolve."""

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.experiments.runner import stored_result
from cubemesh.experiments.session import resolve
from cubemesh.measure.attribution.bottlenecks import losses, mean_parts
from cubemesh.schema import RunRecord
from cubemesh.store import Store
from stored_benchmarks import RECORDS

pytestmark = pytest.mark.usefixtures("forked_servers")

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.md"))
ONE, CAPTURED = "2026-11-21-one-h200", "2026-11-22-one-h200-captured"
FOUR = "2026-11-21-four-h200-scaling"


@cache
def records(store: str) -> tuple[RunRecord, ...]:
    with Store.open(str(RECORDS / f"{store}.sqlite"), must_exist=True, read_only=True) as opened:
        return tuple(opened.records())


def find(store: str, network: str, batch: int, devices: int = 1, kind: str = "train_steps") -> Any:
    """The first completed run of a network; with several devices the synchronized one."""
    return next(
        r
        for r in records(store)
        if r.ok
        and getattr(r.spec.work, "network", None) == network
        and r.spec.work.kind == kind
        and r.spec.batch_per_device == batch
        and r.spec.placement.devices == devices
        and (devices == 1 or r.spec.program.sync != "none")
    )


def rate(store: str, network: str, batch: int, devices: int = 1) -> float:
    value = find(store, network, batch, devices).figure("throughput_per_s")
    assert value is not None
    return value


def column(title: str, name: str, **wanted: object) -> float:
    """A cell of the answer about weak scaling of ResNet-50 in the store of four GPUs."""
    with Store.open(str(RECORDS / f"{FOUR}.sqlite"), must_exist=True, read_only=True) as opened:
        run = next(
            r
            for r in opened.experiment_runs("weak-scaling")
            if r.settings["networks"] == ["resnet-50"]
        )
        answer = stored_result(EXPERIMENTS["weak-scaling"], run, opened).answer
    table = next(t for t in answer.tables if t.title.startswith(title))
    names = [c.name for c in table.columns]
    for row in table.rows:
        cells = {n: c.text or c.value for n, c in zip(names, row, strict=True)}
        if all(cells[key] == value for key, value in wanted.items()):
            assert isinstance(cells[name], float)
            return cells[name]
    raise AssertionError(f"no row with {wanted}")


def shown_figures() -> Iterator[tuple[str, str]]:
    """(recipe, the text of a figure as it must be shown)."""
    stock = {b: rate(ONE, "resnet-50", b) for b in (8, 32, 64, 128, 256, 512)}
    captured = {b: rate(CAPTURED, "resnet-50", b) for b in (32, 256, 512)}
    for batch, value in stock.items():
        memory = find(ONE, "resnet-50", batch).figure("peak_memory_bytes") / 2**30
        last = f" {captured[batch]:,.0f} " if batch in captured else " "
        yield "choose-a-batch-size", f"| {batch} | {value:,.0f} | {memory:.1f} |{last}|"
    yield "choose-a-batch-size", f"grows by {100 * (stock[512] / stock[256] - 1):.0f} %"
    yield "choose-a-batch-size", f"{captured[32] / stock[32]:.2f} times as fast there"
    yield "choose-a-batch-size", f"{captured[512] / stock[512]:.2f} times at 512"
    for batch in (16, 1024):
        accuracy = find(ONE, "little-cnn", batch, kind="train").figure("accuracy")
        yield "choose-a-batch-size", f"{100 * accuracy:.1f} % at {'batch size ' * (batch == 16)}"

    ceiling = next(
        r
        for r in records(ONE)
        if r.spec.work.kind == "ceiling" and r.spec.program.precision == "bf16"
    )
    yield "accept-a-machine", f"{ceiling.figure('rate_flops_per_s') / 1e12:.0f} TFLOP/s"
    bus = next(r for r in records(FOUR) if r.spec.work.kind == "collective")
    assert bus.spec.placement.devices == 4
    yield "accept-a-machine", f"{bus.figure('bus_bytes_per_s') / 1e9:.0f} GB/s"
    for batch in (256, 512):
        yield "accept-a-machine", f"| {stock[batch]:,.0f} images/s |"

    for batch in (256, 32):
        one, four = rate(FOUR, "resnet-50", batch), rate(FOUR, "resnet-50", batch, 4)
        relative = column(
            "Weak scaling",
            "vs slowest device without sync",
            **{"mode": "weak", "devices": 4, "batch size per device": batch},
        )
        yield (
            "slow-scaling",
            f"| {batch} | {one:,.0f} | {four:,.0f} | {25 * four / one:.1f} % | {relative:.1f} % |",
        )
        pair = {"network, batch size": f"resnet-50, {batch}", "devices": 4}
        forecast = column("Forecast", "forecast", **pair)
        error = column("Forecast", "forecast error", **pair)
        yield "decide-what-to-buy", f"| {batch} | {four:,.0f} | {forecast:,.0f} |"
        yield "decide-what-to-buy", f"{error:.1f} %"
    yield "accept-a-machine", f"{rate(FOUR, 'resnet-50', 256, 4):,.0f} images/s"
    alone, together = find(FOUR, "resnet-50", 32), find(FOUR, "resnet-50", 32, 4)
    parts = {name: 1e3 * seconds for name, seconds in mean_parts(together).items()}
    one_ms = 1e3 * sum(mean_parts(alone).values())
    yield (
        "slow-scaling",
        f"takes {sum(parts.values()):.1f} ms, the mean over 4 ranks, instead of {one_ms:.1f} ms",
    )
    yield "slow-scaling", f"{parts['straggler_wait']:.2f} ms of it are straggler wait"
    yield "slow-scaling", f"{parts['exposed_communication']:.2f} ms exposed communication"
    shares = [100 * losses(record)["launch_gaps"] for record in (together, alone)]
    yield "slow-scaling", f"{shares[0]:.0f} % of it and {shares[1]:.0f} % on one device"
    concurrent = {"mode": "no sync", "devices": 4, "batch size per device": 32}
    efficiency = column("Weak scaling", "efficiency", **concurrent)
    yield "slow-scaling", f"{efficiency:.1f} % of four times one"

    peers = json.loads((RECORDS / "2026-11-22-one-h200-peers-resnet-50.json").read_text())
    found = next(line["found"] for line in peers["lines"] if "compiled" in line["peer"])
    low, high = found["low"], found["high"]
    yield (
        "catch-a-regression",
        f"as {found['ratio']:.2f}, with an interval of {low:.2f} to {high:.2f}",
    )


def test_figures_are_those_of_the_records():
    pages = {page.stem: " ".join(page.read_text().split()) for page in RECIPES}
    wanted = [(page, " ".join(text.split())) for page, text in shown_figures()]
    assert len(wanted) > 25
    assert [(page, text) for page, text in wanted if text not in pages[page]] == []


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_experiments_and_settings_of_a_recipe_resolve(page: Path):
    """Names, settings and their values, as `cubemesh run` checks them before the first run."""
    lines = re.findall(r"^ {4,}cubemesh run (.+)$", page.read_text(), re.M)
    assert lines
    for line in lines:
        words = shlex.split(line)
        pairs = [b for a, b in pairwise(words) if a == "--set"]
        against = [b for a, b in pairwise(words) if a == "--against"]
        end = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
        assert resolve(words[:end], pairs, None, against)


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_a_recipe_names_the_records_of_its_figures(page: Path):
    for name in re.findall(r"\(\.\./\.\./benchmarks/records/([^)]+)\)", page.read_text()):
        assert (RECORDS / name).exists()
    assert "benchmarks/records/" in page.read_text()
