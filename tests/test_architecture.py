"""The house stands as docs/architecture.md says: imports go up the rungs, workers stay light."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "cubemesh"
RUNGS = [
    ("errors",),
    ("units", "statistics"),
    ("model",),
    ("networks",),
    ("machines",),
    ("predict",),
    ("data",),
    ("frameworks",),
    ("measure",),
    ("parallel",),
    ("training",),
    ("worker",),
    ("results",),
    ("runs",),
    ("experiments",),
    ("views",),
    ("cli",),
]
RUNG = {room: rung for rung, rooms in enumerate(RUNGS) for room in rooms}
SHARED_BASES = {"cubemesh.data.base", "cubemesh.frameworks.base", "cubemesh.measure.base"}
NEIGHBOURS = ("data", "frameworks", "measure")
WORKER_ROOMS = {"errors", "units", "statistics", "model", "networks", "data", "frameworks"} | {
    *("measure", "parallel", "training", "worker")
}
FILES = sorted(PACKAGE.rglob("*.py"))


def imported_modules(source: str) -> list[str]:
    """Every module a source text imports, with `from a import b` given as a.b and as a."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def wrong_way(room: str, source: str) -> list[str]:
    """The imports of `source`, a file of `room`, that the rungs forbid."""
    wrong = []
    for module in imported_modules(source):
        parts = module.split(".")
        if parts[0] != "cubemesh" or len(parts) < 2 or parts[1] not in {*RUNG} - {room}:
            continue
        if room in NEIGHBOURS and any(module.startswith(base) for base in SHARED_BASES):
            continue
        if RUNG[parts[1]] >= RUNG[room] or (room in NEIGHBOURS and parts[1] in NEIGHBOURS):
            wrong.append(module)
    return wrong


def heavy(path: Path, source: str) -> list[str]:
    """The imports of a worker's file that are not the standard library, numpy or psutil, nor the
    framework (or decoder) in whose own folder or file it stands."""
    own = {
        "pytorch": {"torch", "triton"},
        "jax": {"jax"},
        "tensorflow": {"tensorflow"},
        "keras": {"keras", "tensorflow"},
        "decode": {"PIL"},
    }
    parts = {p.removesuffix(".py") for p in path.relative_to(PACKAGE).parts}
    allowed = {"cubemesh", "numpy", "psutil"}.union(*(own[p] for p in parts & set(own)))
    tops = {module.split(".")[0] for module in imported_modules(source)}
    return sorted(tops - allowed - set(sys.stdlib_module_names))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_up_the_rungs(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__"):
        assert imported_modules(path.read_text()) in ([], ["cubemesh.cli.main"])
        return
    assert room in RUNG, f"{room} is no room of the house"
    assert wrong_way(room, path.read_text()) == []


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) in WORKER_ROOMS], ids=str)
def test_what_a_worker_needs_imports_no_library_of_the_edges(path: Path) -> None:
    assert heavy(path, path.read_text()) == []


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("model", "from cubemesh.networks import build"),
        ("data", "from cubemesh.frameworks.pytorch import build"),
        ("measure", "import cubemesh.data.digits"),
        ("runs", "def f():\n    from cubemesh.views import terminal"),
        ("results", "from cubemesh import runs"),
    ],
)
def test_the_rung_test_sees_a_wrong_import(room: str, source: str) -> None:
    assert wrong_way(room, source)


def test_the_rung_test_lets_neighbours_share_their_bases() -> None:
    assert not wrong_way("data", "from cubemesh.frameworks.base import Batch")


def test_the_weight_test_sees_a_heavy_import() -> None:
    path = PACKAGE / "worker" / "run.py"
    assert heavy(path, "import pydantic\nfrom sqlalchemy import text") == ["pydantic", "sqlalchemy"]
    assert heavy(PACKAGE / "data" / "feed.py", "import torch") == ["torch"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_hold_one_idea(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines <= 350, f"{path.name} has {lines} lines; split it by idea"
    assert len(path.relative_to(PACKAGE).parts) <= 3, "two levels of packages at most"
