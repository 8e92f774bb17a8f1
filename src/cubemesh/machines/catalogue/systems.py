"""Catalogue of systems: found by name, or read from a file.

A system is a TOML file below the folder `systems`, named after the system. A user's own machine is
a file of the same format; NCCL's topology XML and the output of `nvidia-smi topo -m` are read as
well.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from cubemesh.errors import UsageError, unknown_name
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.catalogue.system_file import read_system
from cubemesh.machines.files import read_text
from cubemesh.machines.topology.nccl_xml import read_nccl_xml
from cubemesh.machines.topology.smi_matrix import read_smi_matrix

OTHER_NAMES = {"dgx-h100": "hgx-h100", "dgx-h200": "hgx-h200", "dgx-b200": "hgx-b200"}
"""Servers whose board has the name of a system here."""
MOST_BYTES = 4 << 20
"""Size limit of a topology file, which has some kilobytes."""


@cache
def system_names() -> tuple[str, ...]:
    """The names of all systems in the catalogue, sorted."""
    return tuple(sorted(_files()))


@cache
def _files() -> dict[str, Traversable]:
    folders = resources.files(__package__).joinpath("systems").iterdir()
    files = (file for folder in folders if folder.is_dir() for file in folder.iterdir())
    return {f.name.removesuffix(".toml"): f for f in files if f.name.endswith(".toml")}


@cache
def system(name: str) -> System:
    """A system of the catalogue; UsageError naming the nearest for one that is not in it."""
    name = OTHER_NAMES.get(name, name)
    if name not in _files():
        hint = "A file of your own works too; docs/topology.md describes it."
        raise unknown_name("system of the catalogue", name, system_names(), hint, "systems")
    return read_system(_files()[name].read_text("utf-8"), f"{name}.toml", system)


def load_system(name_or_file: str) -> System:
    """A system by its name in the catalogue, or from a file: a TOML table, NCCL's topology XML
    (.xml), or else the text of `nvidia-smi topo -m` (.txt).

    UsageError for an unknown name, DataError for a file that cannot be read or does not fit.
    """
    path = Path(name_or_file)
    if path.suffix.lower() not in (".toml", ".xml", ".txt"):
        return system(name_or_file)
    text = read_text(path, MOST_BYTES, "topology")
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
    """The system named by a cluster file: of the catalogue, or a file in the same folder."""
    if not named.endswith(".toml"):
        return system(named)
    path = folder / named
    return read_system(read_text(path, MOST_BYTES, "topology"), str(path), _no_cluster)


def _no_cluster(named: str) -> System:
    raise UsageError(f"'{named}' is a cluster within a cluster; only one level is supported.")
