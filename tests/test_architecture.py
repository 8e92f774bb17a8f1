"""Architecture: imports go up the rungs, no circles, small folders, light workers."""

import ast
import functools
import sys
import warnings
from collections import defaultdict
from pathlib import Path

import networkx
import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "cubemesh"
RUNGS = [
    ("errors", "untrusted"),
    (
        *("units", "statistics", "cgroups", "cpp_compiler", "durable_files", "user_folders"),
        *("termination", "user_code"),
    ),
    ("schema",),
    ("networks",),
    ("machines",),
    ("batches",),
    ("detection",),
    ("frameworks.contract", "onnx"),
    ("kernels",),
    ("data", "frameworks", "measure"),
    ("parallel",),
    ("forecast",),
    ("training",),
    ("inference",),
    ("worker",),
    ("store",),
    ("team",),
    ("papers.published",),
    ("runs",),
    ("experiments",),
    ("papers",),
    ("experiments.suites",),
    ("experiments.registry",),
    ("papers.replay",),
    ("audit",),
    ("experiments.runner",),
    ("experiments.session",),
    ("jobs",),
    ("exports",),
    ("api",),
    ("pytest_plugin",),
    ("views",),
    ("web",),
    ("cli",),
]
"""Rooms, lowest first. A module belongs to the longest name that it begins with. It imports its own
room and lower rungs; rooms on one rung do not import one another."""
RUNG = {room: rung for rung, rooms in enumerate(RUNGS) for room in rooms}
ONLY = {"kernels": {"errors", "units", "cpp_compiler", "user_folders", "kernels"}}
"""Rooms that may import less than their rung allows."""
WORKER_ROOMS = {
    *(
        "errors",
        "untrusted",
        "units",
        "statistics",
        "cgroups",
        "cpp_compiler",
        "durable_files",
        "user_folders",
        "user_code",
        "schema",
        "networks",
        "batches",
        "detection",
        "data",
        "kernels",
        "onnx",
        "inference",
    ),
    *("frameworks", "frameworks.contract", "measure", "parallel", "training", "worker"),
}
"""What a worker process imports: the standard library, numpy, psutil and its own framework."""
OWN_LIBRARIES = {
    "pytorch": {"torch", "triton", "safetensors"},
    "kernels": {"torch", "triton"},
    "jax": {"jax", "flax"},
    "tensorflow": {"tensorflow"},
    "keras": {"keras", "tensorflow", "jax", "torch"},
    "decode": {"PIL"},
    "remote": {"fsspec"},
    "hdf5": {"h5py"},
    "onnxruntime": {"onnxruntime"},
    "openvino": {"openvino"},
    "load_test": {"mlperf_loadgen"},
    "training": {"safetensors"},
    "telemetry": {"pynvml"},
    "gpu": {"torch"},
}
MOST_FILES = 20
MOST_LINES = 600
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    """The dotted name below the package; a package's own file is the package."""
    return (
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        .removesuffix("__init__")
        .strip(".")
    )


MODULES = {module_of(path) for path in FILES}


@functools.cache
def parsed(source: str) -> tuple[list[str], list[str]]:
    """Every module a source text imports, with `from a import b` given as a.b, and the classes of
    the module."""
    found = []
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found, [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def imported(source: str) -> list[str]:
    """The first of `parsed`."""
    return parsed(source)[0]


def own(source: str) -> list[str]:
    """The imports of this package, as dotted names below it."""
    return [m.removeprefix("cubemesh.") for m in imported(source) if m.startswith("cubemesh.")]


def room_of(module: str) -> str:
    """The room that a module, or a name in one, belongs to: the longest that it begins with."""
    parts = module.split(".")
    rooms = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((room for room in rooms if room in RUNG), parts[0])


def wrong_way(module: str, source: str) -> list[str]:
    """The imports of `source`, a file called `module`, that the rungs forbid."""
    room = room_of(module)
    wrong = []
    for name in own(source):
        other = room_of(name)
        if other == room or other not in RUNG:
            continue
        if RUNG[other] >= RUNG[room] or other not in ONLY.get(room, {other}):
            wrong.append(name)
    return wrong


def heavy(path: Path, source: str) -> list[str]:
    """The imports of a worker's file that are neither the standard library, numpy or psutil, nor
    the libraries that belong to its folder."""
    parts = {p.removesuffix(".py") for p in path.relative_to(PACKAGE).parts}
    allowed = {"cubemesh", "numpy", "psutil"}.union(
        *(OWN_LIBRARIES[p] for p in parts & set(OWN_LIBRARIES))
    )
    tops = {module.split(".")[0] for module in imported(source)}
    return sorted(tops - allowed - set(sys.stdlib_module_names))


def imported_files(path: Path) -> list[str]:
    """Modules of this package that a file imports anywhere in it."""
    names = own(path.read_text())
    return [name if name in MODULES else name.rpartition(".")[0] for name in names]


def shown(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("room", sorted({room_of(module_of(path)) for path in FILES}))
def test_rooms_import_only_lower_rooms(room: str) -> None:
    wrong = {}
    for path in FILES:
        module = module_of(path)
        if room_of(module) != room:
            continue
        if module in ("", "__main__"):
            known = [m for m in own(path.read_text()) if room_of(m) in ("cli", "api")]
            others = [m for m in own(path.read_text()) if m not in known]
            assert set(others) <= {"inference.collector.Collector", "inference.runtime.Plan"}
            continue
        assert room in RUNG, f"{room} is not a room; see docs/architecture.md"
        wrong[shown(path)] = wrong_way(module, path.read_text())
    assert {path: modules for path, modules in wrong.items() if modules} == {}


@pytest.mark.parametrize("room", sorted(WORKER_ROOMS))
def test_worker_rooms_import_no_other_library(room: str) -> None:
    found = {shown(p): heavy(p, p.read_text()) for p in FILES if room_of(module_of(p)) == room}
    assert found
    assert {path: modules for path, modules in found.items() if modules} == {}


def test_there_are_no_import_cycles() -> None:
    graph = networkx.DiGraph()
    for path in FILES:
        graph.add_edges_from((module_of(path), other) for other in imported_files(path) if other)
    circles = [sorted(c) for c in networkx.strongly_connected_components(graph) if len(c) > 1]
    assert circles == []


def test_folders_hold_at_most_twenty_files() -> None:
    count: dict[Path, int] = defaultdict(int)
    for path in PACKAGE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            count[path.parent] += 1
    assert {shown(f): n for f, n in count.items() if n > MOST_FILES} == {}


def test_packages_nest_at_most_three_levels() -> None:
    assert [shown(p) for p in FILES if len(p.relative_to(PACKAGE).parts) > 4] == []


def test_no_public_class_name_is_used_twice_in_a_room() -> None:
    """Homonyms: a class name means one thing within a room."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in FILES:
        room = module_of(path).split(".")[0]
        for name in parsed(path.read_text())[1]:
            if not name.startswith("_"):
                places[room, name].append(shown(path))
    allowed = {"Settings"}  # each experiment has its own, under one name by contract
    assert {k: v for k, v in places.items() if len(v) > 1 and k[1] not in allowed} == {}


def test_long_files_are_named_as_a_warning() -> None:
    long = {shown(p): n for p in FILES if (n := p.read_text().count("\n")) > MOST_LINES}
    for name, lines in long.items():
        warnings.warn(f"{name} has {lines} lines: does it hold one idea?", stacklevel=1)
    assert all(lines < 2 * MOST_LINES for lines in long.values())


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("schema.spec", "from cubemesh.networks import build"),
        ("data.feed", "from cubemesh.frameworks.pytorch import build"),
        ("measure.validity", "import cubemesh.data.digits"),
        ("runs.executor", "def f():\n    from cubemesh.views import terminal"),
        ("store.store", "from cubemesh import runs"),
        ("kernels.cpu.winograd", "from cubemesh.schema.spec import RunSpec"),
        ("experiments.power.report", "from cubemesh.experiments.registry import EXPERIMENTS"),
    ],
)
def test_the_rung_test_detects_a_wrong_import(module: str, source: str) -> None:
    assert wrong_way(module, source)


def test_the_rung_test_accepts_the_contract_of_frameworks() -> None:
    assert not wrong_way("data.feed", "from cubemesh.frameworks.contract.program import Program")


def test_the_library_test_detects_a_heavy_import() -> None:
    path = PACKAGE / "worker" / "server.py"
    assert heavy(path, "import pydantic\nfrom sqlalchemy import text") == ["pydantic", "sqlalchemy"]
    assert heavy(PACKAGE / "data" / "feed.py", "import torch") == ["torch"]
