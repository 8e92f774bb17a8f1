"""Which systems are known, and how is one found by name or read from a file?

The systems are TOML files in the folder `systems` beside this one, each called as its system is.
A user's own machine is a file of the same form; NCCL's topology XML and the text of `nvidia-smi
topo -m` are understood as well.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from cubemesh.errors import DataError, UsageError, unknown_name
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.catalogue.system_file import read_system
from cubemesh.machines.topology.nccl_xml import read_nccl_xml
from cubemesh.machines.topology.smi_matrix import read_smi_matrix

MOST_BYTES = 4 << 20
"""A topology file is some kilobytes; what is larger is none."""


@cache
def system_names() -> tuple[str, ...]:
    """The names of all systems in the catalogue, in the order of the alphabet."""
    files = (f.name for f in resources.files(__package__).joinpath("systems").iterdir())
    return tuple(sorted(f.removesuffix(".toml") for f in files if f.endswith(".toml")))


@cache
def system(name: str) -> System:
    """A system of the catalogue; UsageError naming the nearest for one that is not in it."""
    if name not in system_names():
        hint = "A file of your own works too; docs/topology.md tells what it holds."
        raise unknown_name("system of the catalogue", name, system_names(), hint, "systems")
    file = f"{name}.toml"
    text = resources.files(__package__).joinpath("systems", file).read_text("utf-8")
    return read_system(text, file, system)


def load_system(name_or_file: str) -> System:
    """A system by its name in the catalogue, or from a file: a TOML table, NCCL's topology XML
    (.xml), or else the text of `nvidia-smi topo -m` (.txt).

    UsageError for an unknown name, DataError for a file that cannot be read or does not fit.
    """
    path = Path(name_or_file)
    if path.suffix.lower() not in (".toml", ".xml", ".txt"):
        return system(name_or_file)
    text = _text(path)
    if path.suffix.lower() == ".toml":
        return read_system(text, str(path), lambda named: _single(named, path.parent))
    read = read_nccl_xml if path.suffix.lower() == ".xml" else read_smi_matrix
    topology = read(text, str(path))
    what = "NCCL's topology XML" if read is read_nccl_xml else "the text of nvidia-smi topo -m"
    return System(
        name=topology.name,
        title=f"{path.name}, read from {what}",
        sources=(str(path),),
        topology=topology,
        ports=len(topology.of_kind("nic")),
    )


def _single(named: str, folder: Path) -> System:
    """The system that a cluster's file names: of the catalogue, or in a file beside its own."""
    if not named.endswith(".toml"):
        return system(named)
    path = folder / named
    return read_system(_text(path), str(path), _no_cluster)


def _no_cluster(named: str) -> System:
    raise UsageError(f"'{named}' is named by a cluster that is named by a cluster; one is enough.")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    if len(data) > MOST_BYTES:
        raise DataError(f"{path} is larger than {MOST_BYTES >> 20} MiB: it is no topology.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text: byte {error.start} is not UTF-8.") from None
