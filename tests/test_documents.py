"""The page of the five documents: written from its rows, whose evidence exists.

Tests are found by parsing their files, and commands by the command line's own parser and that of
the experiments' settings; nothing is collected or run.
"""

import ast
import json
import re
import runpy
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
import typer

from cubemesh.cli import app
from cubemesh.errors import UsageError
from cubemesh.experiments.registry import EXPERIMENTS, SUITES
from cubemesh.experiments.session import resolve
from cubemesh.machines.catalogue.systems import system
from cubemesh.networks import entry
from cubemesh.networks.transformer_sizes import is_transformer

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "documents.md"
VERBS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
MADE = runpy.run_path(str(ROOT / "docs" / "site" / "documents_page.py"))
CONTENT = MADE["load"]()
ROWS = CONTENT["row"]
KEYS = {"number", "document", "place", "described", "state", "evidence", "lacks", "replacement"}
OF_EXPERIMENT = {"accept": "acceptance", "collectives": "collectives"}
"""Verb → its experiment, where the name is another or has no setting `networks`."""

TAKE_A_NETWORK = ("networks", "train", "tune", "predict", "export", "build", "published")


@cache
def functions(path: str) -> frozenset[str]:
    """Names of the test functions in a file, methods of its classes included."""
    tree = ast.parse((ROOT / path).read_text())
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    return frozenset(
        node.name
        for body in bodies
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@cache
def headings(path: str) -> frozenset[str]:
    """Anchors of the headings of a page."""
    lines = (ROOT / path).read_text().splitlines()
    titles = [line.lstrip("#").strip() for line in lines if line.startswith("#")]
    return frozenset(re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles)


def parse(command: str) -> None:
    """Parse a command with the command line and its settings; raises where it would be refused."""
    program, name, *words = shlex.split(command)
    assert program == "cubemesh"
    given = VERBS[name].make_context(name, list(words)).params
    settings = given.get("settings") or ()
    if name in ("run", "submit", "bundle") and given.get("names"):
        names = [n for n in given["names"] if n in {*EXPERIMENTS, *SUITES} or name != "bundle"]
        resolve(names, settings, None)
    elif name in EXPERIMENTS or name in OF_EXPERIMENT:
        resolve([OF_EXPERIMENT.get(name, name)], settings, None)
    for key, text in (word.split("=", 1) for word in settings):
        if key in ("networks", "network"):
            for network in text.split(","):
                entry(network)
    network = given.get("network") or given.get("name") or ""
    own = not network or re.search("[.:]", network) or is_transformer(network)
    if name in TAKE_A_NETWORK and not own:
        entry(network)
    if given.get("machine"):
        system(given["machine"])
    for change in given.get("what_if") or ():
        if change.startswith("machine="):
            system(change.removeprefix("machine="))


def problem(kind: str, value: str) -> str:
    """Why a reference is not evidence; empty if it is."""
    if kind == "command":
        try:
            parse(value)
        except Exception as error:  # a usage error of Typer or of cubemesh, or an unknown verb
            return f"{value}: {error}"
        return ""
    path, separator, place = value.partition("::" if kind == "test" else "#")
    if not (ROOT / path).is_file():
        return f"{path} does not exist"
    if kind == "test":
        if not (path.startswith("tests/") and place.startswith("test_")):
            return f"{value} names no test"
        return "" if place in functions(path) else f"{path} has no {place}"
    if kind == "record":
        return "" if path.startswith("benchmarks/records/") else f"{path} is no record"
    if kind == "docs":
        return f"{path} has no #{place}" if separator and place not in headings(path) else ""
    return f"{kind} is not test, command, record or docs"


def problems(entries: list[Mapping[str, object]]) -> Iterator[str]:
    """What is wrong with the evidence of rows or results."""
    for one in entries:
        for reference in one["evidence"]:
            for kind, value in reference.items():
                if why := problem(kind, value):
                    yield f"{one.get('number', one.get('statement'))}: {why}"


def faults(row: Mapping[str, object]) -> list[str]:
    """What is wrong with the fields of a row."""
    found = [f"unknown key {key}" for key in row.keys() - KEYS]
    found += [f"no {key}" for key in KEYS - {"lacks", "replacement"} - row.keys()]
    state = row.get("state")
    if state not in MADE["STATES"]:
        found.append(f"state {state}")
    if row.get("document") not in MADE["DOCUMENTS"]:
        found.append(f"document {row.get('document')}")
    if (state != "missing") != bool(row.get("evidence")):
        found.append("evidence of a missing row" if state == "missing" else "no evidence")
    if state == "works" and {*{k for e in row["evidence"] for k in e}} <= {"command", "docs"}:
        found.append("works without a test or a record")
    if (state == "works") == ("lacks" in row):
        found.append("lacks is for every state but works")
    if state == "superseded" and "replacement" not in row:
        found.append("superseded without a replacement")
    found += [f"{k} is no sentence" for k in ("lacks", "replacement") if row.get(k, ".")[-1] != "."]
    return found


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == MADE["documents_page"](), "run `make documents`"


def test_every_row_is_there_once():
    assert [row["number"] for row in ROWS] == list(range(1, 176))


def test_rows_have_what_their_state_needs():
    assert {row["number"]: found for row in ROWS if (found := faults(row))} == {}


def test_the_evidence_of_every_row_exists():
    assert list(problems(ROWS)) == []


def test_statements_that_were_measured_have_their_evidence():
    results = CONTENT["result"]
    assert list(problems(results)) == []
    assert {result["holds"] for result in results} <= {"yes", "no", "not seen"}
    assert all(result["evidence"] for result in results)


def test_every_stored_replay_is_listed():
    records = ROOT / "benchmarks" / "records"
    rows = json.loads(MADE["VERDICTS"].read_text())["replays"]
    assert {row["record"] for row in rows} == {file.name for file in records.glob("*-doc-*.sqlite")}


def test_the_page_counts_the_rows_of_each_state():
    total = next(line for line in PAGE.read_text().splitlines() if line.startswith("| total "))
    counts = [sum(row["state"] == state for row in ROWS) for state in MADE["STATES"]]
    assert [int(cell) for cell in total.split("|")[2:-1]] == [len(ROWS), *counts]


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("test", "tests/test_documents.py::test_that_was_removed", "has no"),
        ("test", "tests/test_that_was_removed.py::test_it", "does not exist"),
        ("test", "tests/test_documents.py::faults", "names no test"),
        ("command", "cubemesh frobnicate", "frobnicate"),
        ("command", "cubemesh run minibatch --fats", "--fats"),
        ("command", "cubemesh run minibatch --set batchsizes=8", "batchsizes"),
        ("command", "cubemesh run minibatch --set batch_sizes=many", "many"),
        ("command", "cubemesh run maxibatch", "maxibatch"),
        ("command", "cubemesh train resnet-51", "resnet-51"),
        ("command", "cubemesh run minibatch --set networks=resnet-51", "resnet-51"),
        ("command", "cubemesh probe --machine dgx-0", "dgx-0"),
        ("record", "benchmarks/records/2016-01-01-k40.sqlite", "does not exist"),
        ("record", "benchmarks/README.md", "no record"),
        ("docs", "docs/experiments.md#maxibatch", "no #maxibatch"),
        ("film", "docs/index.md", "is not"),
    ],
)
def test_evidence_that_is_gone_is_named(kind, value, why):
    assert why in problem(kind, value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state": "done"}, "state done"),
        ({"state": "partial"}, "lacks"),
        ({"evidence": []}, "no evidence"),
        ({"evidence": [{"command": "cubemesh probe"}]}, "without a test"),
        ({"state": "superseded", "lacks": "It."}, "replacement"),
        ({"state": "missing", "lacks": "All."}, "missing row"),
        ({"remark": "x"}, "unknown key"),
    ],
)
def test_a_row_without_what_its_state_needs_is_named(change, why):
    row = next(row for row in ROWS if row["state"] == "works" and "replacement" not in row)
    assert faults(row) == []
    assert any(why in fault for fault in faults({**row, **change}))


def test_a_wrong_setting_is_refused_as_by_the_command():
    with pytest.raises(UsageError, match="batchsizes"):
        parse("cubemesh run minibatch --set batchsizes=8")


def test_the_page_is_linked():
    assert "(documents.md)" in (ROOT / "docs" / "index.md").read_text()
