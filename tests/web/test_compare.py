"""Compare: what differs first, which run to choose, ties by name, and the Pareto front."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import report_sample
from cubemesh import compare
from cubemesh.schema import Curve, Figure, Train
from cubemesh.schema.record import ScoredSamples
from cubemesh.store import Store
from cubemesh.training.evaluation import accuracy_figure
from web_pages import Client

HITS = {"a": (944, 90.0), "b": (941, 30.0), "c": (800, 20.0)}
"""Run → right answers of 1,000, and seconds."""


@pytest.fixture
def ids(store: Store) -> dict[str, str]:
    """Three trainings with different learning rates."""
    found = {}
    for place, (name, (hits, wall_s)) in enumerate(HITS.items()):
        one = report_sample.record(8)
        work = Train(
            network="little-cnn",
            batch_per_device=8,
            data="digits",
            learning_rate=0.01 * (place + 1),
        )
        figures = {
            **one.figures,
            "accuracy": accuracy_figure(hits, 1000),
            "wall_s": Figure(value=wall_s, unit="s"),
        }
        spec = dataclasses.replace(one.spec, work=work)
        key = dataclasses.replace(one.key, spec_id=spec.spec_id)
        record = dataclasses.replace(one, run_id=name * 12, spec=spec, key=key, figures=figures)
        store.save(record, ())
        found[name] = record.run_id
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "results.sqlite")) as opened:
        opened.save_machine(report_sample.machine())
        yield opened


def test_the_cheapest_of_the_tied_is_recommended(member: Client, ids: dict[str, str]) -> None:
    query = "&".join(f"id={run}" for run in ids.values())
    found = member.get(f"/api/v1/compare?{query}").json()
    choice = found["choice"]
    assert (choice["best"], choice["chosen"], choice["cost"]) == (ids["a"], ids["b"], "time")
    assert choice["tied"] == [ids["a"], ids["b"]]
    assert choice["standings"][ids["c"]]["verdict"] == "worse"
    assert [one["what"] for one in found["differs"]] == ["learning rate"]
    assert found["pareto"]["front"] == [ids["a"], ids["b"], ids["c"]]
    page = member.get(f"/compare?{query}").text
    assert "take this: tied with the best" in page
    assert "took the least time" in page
    assert page.index("What differs") < page.index("Which is best") < page.index("Figures")


def test_runs_that_do_not_compare_get_no_recommendation(
    member: Client, ids: dict[str, str], store: Store
) -> None:
    other = dataclasses.replace(report_sample.record(8, network="resnet-18"), run_id="d" * 12)
    store.save(other, ())
    query = f"id={ids['a']}&id={other.run_id}"
    found = member.get(f"/api/v1/compare?{query}").json()
    assert found["choice"] is None
    assert "neither" in found["no_choice"]
    assert "No run is recommended" in member.get(f"/compare?{query}").text


def test_one_run_has_nothing_to_choose_from(member: Client, ids: dict[str, str]) -> None:
    for query in ("", f"?id={ids['a']}"):
        assert member.get(f"/compare{query}").status_code == 200
        assert member.get(f"/api/v1/compare{query}").json()["choice"] is None


def test_trainings_that_answered_the_same_samples_are_paired(
    member: Client, ids: dict[str, str], store: Store
) -> None:
    """800 of 1,000 and 780, all of them among the 800: a tie by intervals, not by pairs."""
    for name, hits in (("d", 800), ("e", 780)):
        right = np.packbits(np.arange(1000) < hits)
        scored = ScoredSamples(
            samples_id="same", count=1000, right=base64.b64encode(right.tobytes()).decode()
        )
        one = store.record(ids["c"])
        figures = {**one.figures, "accuracy": accuracy_figure(hits, 1000)}
        store.save(
            dataclasses.replace(one, run_id=name * 12, figures=figures, scored_samples=scored)
        )
    query = f"id={'d' * 12}&id={'e' * 12}"
    standing = member.get(f"/api/v1/compare?{query}").json()["choice"]["standings"]["e" * 12]
    assert standing["verdict"] == "worse"
    assert standing["test"].startswith("McNemar")
    assert (standing["only_best"], standing["only_own"]) == (20, 0)
    page = member.get(f"/compare?{query}").text
    assert "1 run by McNemar" in page
    assert "smallest detectable difference: " in page
    answer = compare("d" * 12, "e" * 12, store=store).answer
    (accuracy,) = [f for f in answer.findings if f.code == "accuracy-difference"]
    assert accuracy.text.startswith("B has a lower accuracy: A 80.00 %, B 78.00 %; -2.00 percent")
    assert "20 only A answers, 0 only B" in accuracy.text
    (higher,) = compare("e" * 12, "d" * 12, store=store).answer.findings[1:]
    assert higher.text.startswith("B has a higher accuracy")
    (unpaired,) = compare("d" * 12, ids["c"], store=store).answer.findings[1:]
    assert unpaired.text.startswith("No significant difference in accuracy")
    assert "Newcombe" in unpaired.text
    mixed = member.get(f"/compare?{query}&id={ids['c']}").text
    assert "by McNemar" in mixed
    assert "by Newcombe" in mixed


def test_curves_of_several_runs_are_lines_of_one_chart(
    member: Client, ids: dict[str, str], store: Store
) -> None:
    for place, name in enumerate("de"):
        one = store.record(ids["c"])
        y = (2.0, math.inf, 1.0 - 0.1 * place)
        loss = Curve(name="training_loss", x_name="step", x=(1.0, 2.0, 3.0), y=y)
        assert isinstance(one.spec.work, Train)
        work = dataclasses.replace(one.spec.work, learning_rate=0.1 * (place + 1))
        spec = dataclasses.replace(one.spec, work=work)
        store.save(dataclasses.replace(one, run_id=name * 12, curves=(loss,), spec=spec), ())
    query = f"id={'d' * 12}&id={'e' * 12}&id={ids['a']}"
    text = member.get(f"/api/v1/compare/curves?{query}").text
    found = json.loads(text, parse_constant=pytest.fail)["curves"]
    (loss,) = [curve for curve in found if curve["name"] == "training loss"]
    assert [(one["place"], one["x"]) for one in loss["lines"]] == [(0, [1, 2, 3]), (1, [1, 2, 3])]
    assert loss["lines"][1]["y"] == [2.0, None, 0.9]
    assert loss["lines"][1]["label"].startswith("learning rate 0.2")
    (rate,) = [curve for curve in found if curve["name"] == "throughput"]
    assert {one["run_id"] for one in rate["lines"]} == {"d" * 12, "e" * 12, ids["a"]}
    assert f'data-curves="/api/v1/compare/curves?{query.replace("&", "&amp;")}"' in (
        member.get(f"/compare?{query}").text
    )
    assert "not finite" in member.get(f"/compare/curves?{query}").text


def test_fifty_runs_are_compared_and_no_more(
    member: Client, ids: dict[str, str], store: Store
) -> None:
    one = store.record(ids["a"])
    many = [f"{place:012x}" for place in range(50)]
    for run_id in many:
        store.save(dataclasses.replace(one, run_id=run_id), ())
    query = ",".join(many)
    found = member.get(f"/api/v1/compare?id={query}").json()
    assert len(found["run_ids"]) == len(found["choice"]["tied"]) == 50
    page = member.get(f"/compare?id={query}")
    assert page.text.count('<th scope="col">') == 51
    curves = member.get(f"/api/v1/compare/curves?id={query}")
    assert {len(curve["lines"]) for curve in curves.json()["curves"]} == {50}
    assert len(curves.content) < 1_000_000
    refused = member.get(f"/api/v1/compare?id={query},{ids['b']}")
    assert refused.status_code == 400
    assert "at most 50" in refused.json()["error"]
