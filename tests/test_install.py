"""The wheel as users install it: every verb without extras, with each extra, and on each Python.

pip finds and installs the requirements for the newest Python. For that of the tests they are links
to the packages in the environment of the tests, as those of the extras are, on top of the bare one;
for a Python between the two pip installs those that are compiled for one Python.
All verbs run in the bare environments. In that of an extra run `doctor`, what the extra is for, and
what needs other extras: a package that both have must not hide the message. The command lines of an
environment run one after another in a fork of a Python that imported what the bare command does.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
import typer

from cubemesh.cli import app
from cubemesh.inference.device import this_device
from cubemesh.inference.plan_file import FORMAT, ModelNote, PlanDocument, Trial, write_plan
from cubemesh.onnx.graph import Graph, Operator, Value
from cubemesh.onnx.writer import serialized

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
OWN = "{}.{}".format(*sys.version_info)
NULL = ("--set", "framework=null")
FEW = (
    *("--set", "precisions=fp32", "--set", "layouts=nchw", "--set", "script=step=0.01"),
    *("--set", "threads=1", "--set", "losses=8"),
    *("--set", "pinnings=none", "--set", "seconds=0.2"),
)
DISK = (*("--set", "script=step=0.001", "--set", "parts=disk", "--set", "disk_gb_per_s=1"),)
RUN = ("run", "minibatch", *NULL, "--set", "batch_sizes=8,16", "--set", "ceiling=false")
IMPORTED = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Pid   770 on  host device  0 [0x00] NVIDIA H200
#  Rank  1 Pid   770 on  host device  1 [0x01] NVIDIA H200
#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong
   1024    256  float   sum    -1  12.5   0.08   0.08       0  12.4   0.08   0.08       0
"""

WORKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "doctor": ((),),
    "probe": ((), ("--machine", "dgx1-v100", "--draw", "topology.svg")),
    "networks": ((), ("resnet-18",)),
    "experiments": ((), ("minibatch",)),
    "published": (("resnet-50", "--limit", "3"),),
    "run": (RUN[1:],),
    "accept": ((*NULL, *DISK, "--quick", "--burn-in", "0"),),
    "train": (("little-cnn", *NULL, "--epochs", "1"),),
    "tune": (("little-cnn", "--set", "frameworks=null", "--minutes", "100", *FEW),),
    "compare": (("framework=null,batch_per_device=8", "framework=null,batch_per_device=16"),),
    "predict": (("resnet-50", "--machine", "dgx1-v100", "--measured", "1=384"),),
    "launch": (("--slurm", "--dry-run", "--", "run", "quick"),),
    "submit": (("minibatch", *NULL, "--set", "batch_sizes=8"),),
    "agent": (("--until-idle",),),
    "jobs": ((),),
    "watch": (("1",),),
    "results": ((), ("--json",), ("--export", "runs.csv")),
    "audit": ((),),
    "import": (("nccl.log",),),
    "users": ((),),
}
"""Verb → command lines that need no extra, in the order in which they run."""
SLOW = ("run", "input-pipeline", *NULL, "--set", "parts=decode", "--quick")
"""Of what needs an extra the command line that starts a worker first: without its extra it is run
in the bare environments only."""
NEEDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("torch", ("run", "minibatch", "--set", "batch_sizes=8", "--quick")),
    ("torch", ("run", "quick")),
    ("torch", ("train", "little-cnn", "--epochs", "1")),
    ("torch", ("tune", "little-cnn", "--minutes", "0.05", "--set", "frameworks=pytorch")),
    ("torch", ("collectives", "-b", "8", "-e", "8", "-n", "1", "-w", "0")),
    ("images", SLOW),
    ("images", ("prepare", "made-images", "made", "--size", "1MB", "--processes", "1")),
    ("remote", ("prepare", "local://set", "--list")),
    ("onnx", ("export", "little-cnn")),
    ("inference", ("build", "little-cnn")),
    ("onnxruntime", ("infer", "little-cnn.plan")),
    ("views", ("report",)),
    ("views", ("bundle", "create", "bundle.html")),
    ("exports", ("results", "--export", "runs.parquet")),
    ("serve", ("serve", "--host", "0.0.0.0")),
    ("postgresql", ("results", "--store", "postgresql://user@127.0.0.1:1/runs")),
)
"""(extra, command line) of what needs an extra; without it, one line of the output names it."""
READ = {"views", "exports"}
"""Extras for what is stored: a run comes first."""
RELU = Graph(
    name="little-cnn",
    opset=20,
    inputs=(Value(name="image", dtype="float32", shape=("batch", 3, 32, 32)),),
    outputs=(Value(name="scores", dtype="float32", shape=("batch", 3, 32, 32)),),
    operators=(Operator(kind="Relu", inputs=("image",), outputs=("scores",)),),
    constants={},
)
"""The model of `PLAN`."""
PLAN = PlanDocument(
    format=FORMAT,
    network="little-cnn",
    source="little-cnn, seed 0",
    source_digest="",
    inputs=RELU.inputs,
    outputs=("scores",),
    device=this_device(),
    steps=8,
    passes=(),
    models=(ModelNote(name="fp32"),),
    proofs=(),
    trials=(
        Trial(
            batch=1, model="fp32", precision="fp32", engine="onnxruntime", version="1", seconds=1.0
        ),
    ),
    chosen=(0,),
)
"""A plan for an engine that is not installed."""
MANIFEST = {
    "format": "cubemesh image set",
    "version": 1,
    "classes": ["a"],
    "counts": {"train": [0], "validation": [0]},
    "shards": [],
}
"""Of an image set that `prepare --list` reads."""
EXIT_CODES = {
    ("serve", "--host", "0.0.0.0"): 2,
    ("users",): 2,
    ("results", "--store", "postgresql://user@127.0.0.1:1/runs"): 1,
}
"""Of command lines that fail when nothing is missing: a server does not end by itself, a file has
no users, and at port 1 there is no PostgreSQL."""
MOST_LINES = 4
"""Of an output without a measurement: what is missing, a heading, other load on the machine."""
LINKED = (
    *("images", "remote", "views", "exports", "serve"),
    *("onnx", "onnxruntime", "openvino", "loadgen", "postgresql"),
)
"""Extras that have an environment; `inference` is two of them together. PyTorch has a test of its
own; the other frameworks are not in the environment of the tests."""


def test_every_verb_is_run():
    verbs = {*WORKS, *(line[0] for _, line in NEEDS)}
    assert verbs == set(typer.main.get_command(app).commands)


def interpreter(version: str) -> Path:
    """A working Python of this version: of the tests, on PATH, or of pyenv; otherwise a skip."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    on_path = shutil.which(f"python{version}")
    found = [Path(sys.executable)] if version == OWN else []
    found += [Path(on_path)] if on_path else []
    found += sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
    ask = "import sys, venv, ensurepip; print('{}.{}'.format(*sys.version_info))"
    for python in found:
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return python
    pytest.skip(f"no Python {version} on PATH or in {pyenv}")


def pip(*words: str | Path, python: Path | None = None) -> None:
    """pip of the tests, for the environment of `python`; a skip where no index answers."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    where = ["--python", str(python)] if python else []
    command = [*pip, *where, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    probe = [*pip, "install", "--dry-run", "--force-reinstall", "--no-deps", "typer"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"no package index answers: {done.stderr.strip().splitlines()[-1]}")
    pytest.fail(done.stderr)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The Python of an environment with the wheel and, on top of it, an extra."""
    shared = tmp_path_factory.mktemp("install")

    @cache
    def wheel() -> Path:
        pip("wheel", "--no-deps", "--wheel-dir", shared, ROOT)
        (found,) = shared.glob("*.whl")
        return found

    @cache
    def make(version: str, extra: str = "") -> Path:
        folder = shared / f"python{version}{extra}"
        python = folder / "bin" / "python"
        words = [interpreter(version), "-m", "venv", "--without-pip", folder]
        subprocess.run(words, check=True, capture_output=True)
        if extra:
            below = site_packages(make(version, "").parents[1])
            (site_packages(folder) / "below.pth").write_text(f"{below}\n")
            link_extra(extra, requirements(below), site_packages(folder))
        elif version != PYTHONS[-1]:
            pip("install", "--no-deps", "--no-compile", wheel(), python=python)
            packages = site_packages(folder)
            compiled = link_extra("", requirements(packages), packages, any_python=version != OWN)
            if compiled:
                pip("install", "--no-deps", "--no-compile", *compiled, python=python)
        else:
            constraints = ("--constraint", ROOT / "constraints.txt", "--no-compile")
            pip("install", *constraints, wheel(), python=python)
        return python

    return make


def site_packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python3.*/site-packages")
    return found


def requirements(folder: Path) -> list[str]:
    """The lines of requirements of the wheel that is installed in site-packages `folder`."""
    (found,) = metadata.distributions(name="cubemesh", path=[str(folder)])
    return found.requires or []


def link_extra(extra: str, lines: list[str], folder: Path, any_python: bool = False) -> list[str]:
    """Links to what an extra requires, or cubemesh without one, in the environment of the tests,
    where pip installed it from the same metadata. With `any_python` only to what runs on any; the
    others are returned, with their versions."""
    compiled = []
    wanted_by = (lambda r: f"'{extra}'" in r) if extra else (lambda r: "extra ==" not in r)
    direct = {required(r) for r in lines if wanted_by(r)}
    wanted, seen = [*direct], set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in direct:
                pytest.skip(f"{name}, of the extra {extra}, is not in the environment of the tests")
            continue  # of another platform
        wanted += [required(line) for line in found.requires or () if "extra ==" not in line]
        if any_python and f"\nTag: cp{OWN.replace('.', '')}-cp" in (found.read_text("WHEEL") or ""):
            compiled.append(f"{name}=={found.version}")
            continue
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            link = folder / top
            if not link.exists() and top != "__pycache__":
                link.symlink_to(Path(str(found.locate_file(top))))
    return compiled


def contained(extra: str, lines: list[str]) -> set[str]:
    """The extras whose packages an extra has, itself included; one engine is enough to build."""
    packages = {e: {required(r) for r in lines if f"'{e}'" in r} for e, _ in NEEDS}
    own = {required(r) for r in lines if f"'{extra}'" in r}
    found = {e for e, needed in packages.items() if extra and needed <= own}
    return found | ({"inference"} if own & {"onnxruntime", "openvino"} else set())


def required(line: str) -> str:
    """The name of a package in a line of requirements."""
    return "".join(c if c.isalnum() or c in "-_." else " " for c in line).split()[0]


Run = Callable[..., list[tuple[int, str]]]


@pytest.fixture(scope="module")
def run_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """(exit code, output) of each command line, run by `python` in an empty folder; with `below` by
    a fork of a Python of that environment, which has imported what its commands import."""
    with ExitStack() as stack:

        @cache
        def server(below: Path) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [below, Path(__file__).parent / "support" / "install_verbs.py"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=inherited(),
            )
            stack.callback(process.wait)
            stack.callback(process.stdin.close)
            return process

        def ask(below: Path, python: Path, folder: Path, lines, **more: bool) -> Path:
            xdg = {name: str(folder / name) for name in XDG}
            for path in xdg.values():
                Path(path).mkdir(mode=0o700)
            environment = python.parents[1]
            request = {
                "python": str(python),
                "prefix": str(environment),
                "packages": str(site_packages(environment)),
                "folder": str(folder),
                "environment": inherited() | xdg,
                "lines": lines,
                "found": str(folder / "found.json"),
                **more,
            }
            process = server(below)
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "0\n"
            return folder / "found.json"

        @cache
        def rehearse(below: Path) -> None:
            folder = tmp_path_factory.mktemp("rehearsal")
            ask(below, below, folder, [("doctor", "--json"), RUN], rehearsal=True)

        def run(python: Path, folder: Path, lines, below: Path | None = None):
            (folder / "nccl.log").write_text(IMPORTED)
            (folder / "set").mkdir()
            (folder / "set" / "manifest.json").write_text(json.dumps(MANIFEST))
            write_plan(folder / "little-cnn.plan", PLAN, {"fp32": serialized(RELU)})
            if below:
                rehearse(below)
            found = ask(below or python, python, folder, lines)
            return [(code, output) for code, output in json.loads(found.read_text())]

        yield run


XDG = ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME")


def inherited() -> dict[str, str]:
    """The environment variables of the tests that say nothing about their Python."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CUBEMESH"))}


@pytest.mark.parametrize(
    ("version", "extra"),
    [*((version, "") for version in PYTHONS), *((OWN, extra) for extra in LINKED)],
)
def test_every_verb_works_or_names_its_extra(environment, run_all, tmp_path, version, extra):
    python, bare = environment(version, extra), environment(version)
    brought = contained(extra, requirements(site_packages(bare.parents[1])))
    works = [(verb, *words) for verb, lines in WORKS.items() for words in lines]
    if extra:
        works = [("doctor", "--json"), *([RUN] if extra in READ else [])]
    needs = [(e, line) for e, line in NEEDS if e not in brought and not (extra and line == SLOW)]
    # What another extra brings is tried with that one.
    given = [line for e, line in NEEDS if e in brought and (e == extra or e not in LINKED)]
    lines = [*works, *(line for _, line in needs), *given]
    answers = dict(
        zip(lines, run_all(python, tmp_path, lines, bare if version == OWN else None), strict=True)
    )
    for line in [*works, *given]:
        code, output = answers[line]
        assert code == EXIT_CODES.get(line, 0), f"{' '.join(line)}: {output}"
    for needed, line in needs:
        code, output = answers[line]
        assert code in (1, 2), f"{' '.join(line)}: {output}"
        named = [part for part in output.splitlines() if "pip install" in part]
        assert len(named) == 1, f"{' '.join(line)}: {output}"
        assert output.count("\n") <= MOST_LINES, output
        assert f"pip install 'cubemesh[{needed}]'" in named[0]
    assert not [line for line, (_, output) in answers.items() if "Traceback" in output]
    if extra:
        components = json.loads(answers[("doctor", "--json")][1])["components"]
        installed = {component["name"] for component in components if component["version"]}
        assert extra in installed
        assert not installed & {e for e, _ in needs}


def test_pytorch_without_other_extras(environment, run_all, tmp_path):
    """PyTorch brings some packages of the extra `views`, and not all."""
    short = ("--set", "ceiling=false", "--set", "seconds=0.01", "--set", "warmup_seconds=0")
    line = ("run", "minibatch", "--quick", "--set", "batch_sizes=2", *short)
    (ran, shown), (code, reported) = run_all(
        environment(OWN, "torch"), tmp_path, [line, ("report",)]
    )
    assert ran == 0, shown
    assert "images/s" in shown
    assert code == 2
    assert "pip install 'cubemesh[views]'" in reported
    assert "Traceback" not in shown + reported
