"""Doctor: what is installed, what is missing for what, and what distorts measurements here.

Each missing component and each problem has the command that mends it.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cubemesh import __version__
from cubemesh.cpp_compiler import compiler_setting, cpp_compiler
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.machines.files import Tree
from cubemesh.machines.gpu_checks import gpu_checks
from cubemesh.machines.probe import probe
from cubemesh.machines.software import installed
from cubemesh.machines.system_checks import Check, system_checks
from cubemesh.measure.energy.rapl import PACKAGE, READABLE, RaplReader
from cubemesh.runs.quiet import foreign_load
from cubemesh.schema import Machine


@dataclass(frozen=True, kw_only=True)
class Component:
    """A package or program that cubemesh uses where it is installed."""

    name: str
    version: str | None
    """None where it is not installed; "" where the version is not known."""
    purpose: str
    """What it is for."""
    install: str
    """The command that installs it."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The state of an installation and of its machine."""

    version: str
    """Of cubemesh."""
    python: str
    executable: str
    machine: Machine
    components: tuple[Component, ...]
    checks: tuple[Check, ...]

    @property
    def missing(self) -> tuple[Component, ...]:
        """Components that are not installed."""
        return tuple(c for c in self.components if c.version is None)

    @property
    def problems(self) -> tuple[Check, ...]:
        """Checks that found a problem."""
        return tuple(c for c in self.checks if c.problem)


EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "images": ("image files: input-pipeline, image folders and tar shards", ("pillow",)),
    "remote": ("image sets in object storage (s3://, gs://, …)", ("fsspec",)),
    "hdf5": ("HDF5 and NetCDF-4 files of images", ("h5py",)),
    "views": ("cubemesh report, charts", ("altair", "jinja2", "vl-convert-python")),
    "exports": ("pandas data frames, Parquet files", ("pandas", "pyarrow")),
    "loadgen": ("run inference-load", ("mlcommons-loadgen",)),
    "onnx": ("cubemesh export, cubemesh build", ("onnx",)),
    "serve": ("cubemesh serve", ("starlette", "uvicorn")),
    "postgresql": ("a store on a PostgreSQL server", ("psycopg",)),
}
"""Extra → its purpose and its distributions. Extras of frameworks are in `FRAMEWORKS`."""
MODULES = {
    "mlcommons-loadgen": "mlperf_loadgen",
    "pillow": "PIL",
    "vl-convert-python": "vl_convert",
}
"""Distribution → its module, where that has another name."""


def doctor(*, watch_load: bool = True) -> Diagnosis:
    """Check this Python environment and this machine. Changes nothing. `watch_load` measures for
    one second what other programs use."""
    machine = probe()
    checks = [
        *system_checks(machine, Tree()),
        *gpu_checks(Tree()),
        _cuda_build(machine),
        _cpu_energy(RaplReader()),
        _load() if watch_load else None,
    ]
    return Diagnosis(
        version=__version__,
        python=machine.software.python,
        executable=sys.executable,
        machine=machine,
        components=(*_frameworks(), *_extras(), *_programs()),
        checks=tuple(check for check in checks if check is not None),
    )


def _frameworks() -> Iterator[Component]:
    """Those that one command installs are one component."""
    together: dict[str, list[str]] = {}
    for name, entry in FRAMEWORKS.items():
        if entry.install:
            together.setdefault(entry.install, []).append(name)
    for install, names in together.items():
        first = FRAMEWORKS[names[0]]
        versions = list(installed(first.packages[:-1]).values())  # the last one is NumPy
        yield Component(
            name=names[0],
            version=(versions or [""])[0] if first.installed else None,
            purpose=f"{'framework' if len(names) == 1 else 'frameworks'} {', '.join(names)}",
            install=own_pip(install),
        )


def _extras() -> Iterator[Component]:
    for extra, (purpose, distributions) in EXTRAS.items():
        here = all(find_spec(MODULES.get(name, name)) for name in distributions)
        versions = installed(distributions)
        yield Component(
            name=extra,
            version=", ".join(" ".join(pair) for pair in versions.items()) if here else None,
            purpose=purpose,
            install=own_pip(f"pip install 'cubemesh[{extra}]'"),
        )


def _programs() -> Iterator[Component]:
    yield Component(
        name="C++ compiler",
        version=cpp_compiler(),
        purpose="fused kernels of pytorch-captured on a CPU, and pytorch-compiled",
        install="unset CXX, or set it to a compiler"
        if compiler_setting() and cpp_compiler() is None
        else "sudo apt install g++",
    )
    yield Component(
        name="Slurm",
        version=shutil.which("sbatch"),
        purpose="cubemesh launch --slurm",
        install="on a cluster: load its module, or run on its login node",
    )


def own_pip(command: str) -> str:
    """`command` with the pip of the running Python."""
    python = shlex.quote(sys.executable)
    return (
        command.replace("pip ", f"{python} -m pip ", 1) if command.startswith("pip ") else command
    )


def _cuda_build(machine: Machine) -> Check | None:
    """A PyTorch that cannot use the GPUs which are there."""
    version = machine.software.packages.get("torch", "")
    if not machine.gpus or not version:
        return None
    if not version.endswith("+cpu"):
        return Check(code="cuda-build", problem=False, found=f"PyTorch {version}")
    return Check(
        code="cuda-build",
        problem=True,
        found=f"PyTorch {version} is built for CPUs and cannot use the {len(machine.gpus)} GPUs.",
        remedy=own_pip("pip uninstall torch") + ", then install the CUDA build: pytorch.org/get-"
        "started/locally",
    )


def _cpu_energy(reader: RaplReader) -> Check:
    why = reader.missing.get(PACKAGE)
    if why is None:
        return Check(code="cpu-energy", problem=False, found="RAPL counters are readable")
    remedy = "Energy of the CPU can be measured on bare metal only; that of GPUs is not affected."
    if "only root" in why:
        remedy = READABLE
    elif Path("/sys/class/powercap").is_dir():
        remedy = "sudo modprobe intel_rapl_msr"
    return Check(
        code="cpu-energy",
        problem=True,
        found=f"Energy of the CPU cannot be measured: {why}.",
        remedy=remedy,
    )


def _load() -> Check:
    """Processor time of other programs during one second."""
    load = foreign_load(())
    if load.quiet:
        found = f"other programs use {100 * load.cpu_share:.0f} % of the processors"
        return Check(code="busy-host", problem=False, found=found)
    return Check(
        code="busy-host",
        problem=True,
        found=load.text,
        remedy="Stop them (top -o %CPU lists them), wait for them with cubemesh run --wait-quiet "
        "10m, or give the run processors of its own (taskset, a Slurm allocation).",
    )
