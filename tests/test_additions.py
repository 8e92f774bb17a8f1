"""Additions: a new network, framework, strategy, experiment, warning or device needs the files that
CONTRIBUTING.md names and no others.

Each is added to a copy of the source and used there, in a process of its own.
"""

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from script_server import run_code

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "cubemesh"

RUN = """
import sys
import tempfile
from pathlib import Path
from cubemesh.cli import main
from cubemesh.runs import Executor
from cubemesh.schema import *
from cubemesh.store import Store

MACHINE = Machine(
    hostname="small",
    cpu=Cpu(model="test", usable_cores=2),
    memory=Memory(),
    software=Software(python="3", system="Linux", packages={"numpy": "2.0"}),
)
BUDGET = Budget(steps=4, seconds=0.0, windows=2, warmup_seconds=0.0)
FOLDER = Path(tempfile.mkdtemp())

def train(network="little-cnn", framework="null", placement=Placement(), **program):
    spec = RunSpec(
        work=TrainSteps(network=network, batch_per_device=8),
        placement=placement,
        program=ProgramSettings(framework=framework, **program),
        budget=BUDGET,
    )
    return run([spec])[0]

def run(specs):
    with (
        Store.open(str(FOLDER / "results.db")) as store,
        Executor(store, machine=MACHINE, runs_folder=FOLDER / "runs", wait_s=60.0) as executor,
    ):
        records = executor.run(specs)
    for record in records:
        assert record.outcome.status is Status.OK, record.outcome
    return records

def cubemesh(words):
    sys.argv = ["cubemesh", *words.split()]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, end
"""
"""What proofs use: `train(network, framework, …)`, `run(specs)`, `cubemesh("command line")`."""


@dataclass(frozen=True, kw_only=True)
class Addition:
    """New files, lines inserted below a line of existing files, and code that uses the result."""

    kind: str
    """Its row in CONTRIBUTING.md."""
    names: tuple[str, ...]
    """What the documentation must describe."""
    files: dict[str, str] = field(default_factory=dict)
    lines: dict[str, tuple[tuple[str, str], ...]]
    """File → (an existing line, what is inserted below it)."""
    proof: str


NETWORK = Addition(
    kind="network",
    names=("toy-net",),
    files={
        "networks/zoo/toy.py": """
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network

def toy_net(image_size: int = 8, classes: int = 3) -> Network:
    net = NetworkBuilder("toy-net")
    x = net.flatten(net.input("image", (3, image_size, image_size)))
    net.classify(net.linear(x, classes))
    return net.build()
"""
    },
    lines={
        "networks/__init__.py": (
            (
                "from cubemesh.networks.zoo.resnet import ",
                "from cubemesh.networks.zoo.toy import toy_net",
            ),
            (
                "NETWORKS: dict[str, NetworkEntry] = {",
                '    "toy-net": NetworkEntry(make=toy_net, image_size=8, smallest_image_size=1,'
                ' classes=3, source="a test"),',
            ),
        )
    },
    proof="""
from cubemesh.networks import build
assert [p.shape for p in build("toy-net").parameters.values()] == [(3, 3 * 8 * 8), (3,)]
assert train(network="toy-net").spec.work.network == "toy-net"
""",
)

FRAMEWORK = Addition(
    kind="framework",
    names=("toy-framework",),
    files={
        "frameworks/toy.py": '''
from cubemesh.frameworks.null import program as null
from cubemesh.frameworks.null.program import build, build_ceiling, is_out_of_memory, preload

def capabilities() -> null.Capabilities:
    """Trains on a CPU."""
    return null.Capabilities(
        works=frozenset({"train_steps"}),
        devices=("cpu",),
        precisions={"cpu": frozenset({"fp32"})},
        layouts=frozenset({"nchw"}),
        optimizers=frozenset({"sgd"}),
    )
'''
    },
    lines={
        "frameworks/__init__.py": (
            (
                "FRAMEWORKS: dict[str, FrameworkEntry] = {",
                '    "toy-framework": FrameworkEntry(module="cubemesh.frameworks.toy", title="toy",'
                ' summary="a toy", packages=("numpy",)),',
            ),
        )
    },
    proof="""
assert train(framework="toy-framework").figures["step_s"].value > 0
""",
)

STRATEGY = Addition(
    kind="gradient synchronization strategy",
    names=("toy-strategy",),
    files={
        "parallel/toy.py": '''
from cubemesh.parallel.all_reduce import AllReduce

class Toy(AllReduce):
    """All-reduce of large buckets."""

    name = "toy-strategy"
    bucket_bytes = 1 << 28
'''
    },
    lines={
        "parallel/strategies.py": (
            (
                "from cubemesh.parallel.strategy import ",
                "from cubemesh.parallel.toy import Toy",
            ),
            ("        ModelParallel,", "        Toy,"),
        )
    },
    proof="""
two = Placement(device="cpu", devices=2, threads=1, oversubscribe=True)
record = train(framework="pytorch", placement=two, sync="toy-strategy")
assert record.spec.program.sync == "toy-strategy"
assert [rank.rank for rank in record.ranks] == [0, 1]
cubemesh("predict resnet-50 --machine dgx1-p100 --devices 2 --sync toy-strategy --measured 1=219")
""",
)

EXPERIMENT = Addition(
    kind="experiment",
    names=("toy-experiment", "batch_sizes"),
    files={
        "experiments/toy.py": '''
"""Step time over batch size: an experiment to be tested with."""

from dataclasses import dataclass

from cubemesh.experiments.core.experiment import Experiment
from cubemesh.schema import Answer, Finding, ProgramSettings, RunSpec, TrainSteps


@dataclass(frozen=True, kw_only=True)
class Settings:
    batch_sizes: tuple[int, ...] = (1, 2)
    """Batch sizes per device."""


def plan(settings, context):
    yield [
        RunSpec(
            work=TrainSteps(network="little-cnn", batch_per_device=size),
            program=ProgramSettings(framework="null"),
            budget=context.budget,
        )
        for size in settings.batch_sizes
    ]


def answer(settings, records):
    text = f"{len(records)} runs."
    return Answer(
        experiment="toy-experiment", question="Does it run?", title="A toy",
        findings=(Finding(code="run-count", text=text),),
    )


EXPERIMENT = Experiment(
    name="toy-experiment", question="Does it run?", settings=Settings, works=(TrainSteps,),
    varies={"batch_per_device": "batch_sizes"}, plan=plan, answer=answer,
)
'''
    },
    lines={
        "experiments/registry.py": (
            (
                "EXPERIMENT_MODULES: dict[str, str] = {",
                '    "toy-experiment": "experiments.toy",',
            ),
        )
    },
    proof="""
cubemesh(f"run toy-experiment --quick --set batch_sizes=4,8 --store {FOLDER}/results.db")
with Store.open(str(FOLDER / "results.db")) as store:
    assert sorted(r.spec.work.batch_per_device for r in store.records()) == [4, 8]
""",
)

WARNING = Addition(
    kind="warning",
    names=("toy-warning",),
    lines={
        "schema/warning.py": (
            ("WARNINGS: dict[str, str] = {", '    "toy-warning": "a toy was seen",'),
        )
    },
    proof="""
from dataclasses import replace
from cubemesh.schema.warning import warn
seen = warn("toy-warning", "One toy was seen on the desk.", "Put it away.")
with Store.open(str(FOLDER / "other.db")) as store:
    record = replace(train(), warnings=(seen,))
    store.save_machine(MACHINE)
    store.save(record)
cubemesh(f"results {record.run_id} --store {FOLDER}/other.db")
""",
)

DEVICE = Addition(
    kind="device",
    names=(),
    lines={
        "machines/catalogue/nvidia.toml": (
            ("[sources]", 'a-test = "A test (2026)"'),
            (
                "tpu-b200 = ",
                '[toy-1]\nname = "Toy 1"\nkind = "gpu"\nfamily = "Toy 1"\narchitecture = "Toy"\n'
                'named = ["Toy 1"]\n[[toy-1.figures]]\nsource = "a-test"\nfp32 = 1e12\n',
            ),
        )
    },
    proof="""
from cubemesh.machines.catalogue.names import find
assert find("Toy 1").name == "Toy 1"
""",
)

EXPORT = Addition(
    kind="format of exports",
    names=("toy-format",),
    files={
        "exports/toy.py": '''
from typing import BinaryIO

from cubemesh.exports.contents import ExportedRuns


def write(runs: ExportedRuns, file: BinaryIO) -> None:
    """Write the ids of the runs."""
    file.write("".join(f"{record.run_id}\\n" for record in runs.records).encode())
'''
    },
    lines={
        "exports/__init__.py": (
            ("from cubemesh.errors import ", "from cubemesh.exports import toy"),
            (
                "FORMATS: dict[str, Format] = {",
                '    "toy-format": Format(write=toy.write, suffixes=(".toy",)),',
            ),
        )
    },
    proof="""
record = train()
cubemesh(f"results --store {FOLDER}/results.db --export {FOLDER}/runs.toy")
assert (FOLDER / "runs.toy").read_text() == f"{record.run_id}\\n"
""",
)

IMPORTS = ("cubemesh.cli", "cubemesh.runs")
"""What imports the libraries that stay; the package itself is imported from the copy."""
ADDITIONS = [NETWORK, FRAMEWORK, STRATEGY, EXPERIMENT, WARNING, DEVICE, EXPORT]


def insert_below(text: str, start: str, line: str) -> str:
    """The text with `line` below the one line that begins with `start`."""
    lines = text.splitlines()
    (place,) = [n for n, old in enumerate(lines) if old.startswith(start)]
    return "\n".join([*lines[: place + 1], line, *lines[place + 1 :], ""])


def copy_with(folder: Path, *additions: Addition) -> Path:
    """A copy of the source with additions; files that do not change, and their bytecode, are
    linked."""
    source = folder / "src"
    shutil.copytree(PACKAGE, source / "cubemesh", copy_function=os.link)
    for addition in additions:
        for name, text in addition.files.items():
            path = source / "cubemesh" / name
            assert not path.exists()
            path.write_text(text)
        for name, insertions in addition.lines.items():
            path = source / "cubemesh" / name
            text = path.read_text()
            for start, line in insertions:
                text = insert_below(text, start, line)
            path.unlink()  # a link to the original
            path.write_text(text)
    return source


AS_NEW = """
import os
import sys
for name in [*sys.modules]:
    if name.partition(".")[0] in ("cubemesh", "test_docs"):
        del sys.modules[name]
source, tests = sys.argv[1:]
sys.path[:0] = [source, tests]
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
os.chdir(source)
import forked_servers
forked_servers.fork_from_this_process()
"""
"""Before the code: the copy in place of the package that the tests have imported."""


def run_in(source: Path, code: str) -> str:
    """Run Python code with the package in `source`; what it prints."""
    return run_code(AS_NEW + code, source, Path(__file__).parent, imports=IMPORTS)


def rows() -> dict[str, list[str]]:
    """The table in CONTRIBUTING.md: addition → places of the new file, the entry, the page."""
    table = re.findall(r"^\| ([^|]+) \|(.*)\|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    return {
        kind: [cell.strip().strip("`") for cell in cells.split("|")]
        for kind, cells in table
        if "`" in cells
    }


def test_each_row_of_the_table_is_tested() -> None:
    assert {addition.kind for addition in ADDITIONS} == set(rows())


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda addition: addition.kind)
def test_an_addition_touches_the_files_that_contributing_names(addition: Addition) -> None:
    folder, registry, page = rows()[addition.kind]
    assert [str(Path(name).parent) + "/" for name in addition.files] == ([folder] if folder else [])
    assert list(addition.lines) == [registry]
    assert bool(page) == bool(addition.names)
    assert not page or (ROOT / page).is_file()


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda addition: addition.kind)
def test_an_addition_works_without_other_changes(addition: Addition, tmp_path: Path) -> None:
    printed = run_in(copy_with(tmp_path, addition), RUN + addition.proof)
    if addition is WARNING:
        assert "One toy was seen" in printed
        assert "Put it away." in printed


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the documentation must describe, with all additions."""
    return run_in(
        copy_with(tmp_path_factory.mktemp("all"), *ADDITIONS),
        "import test_docs; print(*test_docs.documented(), sep='\\n')",
    )


@pytest.mark.parametrize(
    "addition", [a for a in ADDITIONS if a.names], ids=lambda addition: addition.kind
)
def test_the_documentation_test_requires_its_description(addition: Addition, wanted: str) -> None:
    page = Path(rows()[addition.kind][2]).name
    assert [n for n in addition.names if str((page, n)) not in wanted] == []
