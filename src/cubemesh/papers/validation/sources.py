"""What do published sources call their machines, and how did they run, where tables do not say?

Lambda's rates come with the logs of their runs, whose names have dates, and with the script that
made them (github lambdal/deeplearning-benchmark, pytorch/scripts/benchmark_pytorch.sh). In October
and November 2022 the script set NCCL_P2P_DISABLE=1 (commits 0a684b6, 204fea2, 50f9467), so that
NCCL used neither NVLink nor PCIe between GPUs but the host's memory; in a later version the line is
a comment. When it was taken out is not known. Runs until January 2023 are taken to have had it, the
next ones, of 14 February, not. That is decided by date, not by rate, but for one system: boards of
H100 on PCIe 5 ran on 30 November 2022 and lost 4 % of GNMT's rate on two, where the same boards on
PCIe 4 lost 34 % on that day (two H100 in tf32: 310,658 and 215,851 tokens per second, one 162,431).
They are taken to have had another script. The host there is a generation younger as well (Xeon
8480+), and which of the two it was cannot be told.
"""

from __future__ import annotations

import re

from cubemesh.schema import PublishedFigure
from cubemesh.schema.spec import Precision

MACHINES = (  # what a source calls its system → system of the catalogue
    (r"DGX-1\b.*V100|LambdaCloud.*V100", "dgx1-v100"),
    (r"^NVIDIA DGX-1$", "dgx1-p100"),
    (r"DGX-2", "dgx-2"),
    (r"DGX A100|A100.*SXM4", "dgx-a100"),
    (r"H100.*SXM5", "hgx-h100"),
    (r"H200", "hgx-h200"),
    (r"C4130.*InfiniBand", "c4130-g-edr"),
    (r"C4130", "c4130-b"),
    (r"p2\.8xlarge x N", "p2-8xlarge-10gbe"),
    (r"p2\.8xlarge$|k80x8", "p2-8xlarge"),
    (r"Gen5", "dual-root-pcie5"),
    (r"PCIe|RTX", "dual-root-pcie4"),
)
WITHOUT_PEER_ACCESS = (  # Lambda's systems, the last day they ran, their processors by its logs
    (r"RTX 4090$", "2022-10-21", "AMD Ryzen Threadripper PRO 5995WX"),
    (r"RTX 3090$", "2022-10-25", "AMD Ryzen Threadripper PRO 5995WX"),
    (r"A100 80GB SXM4$", "2022-11-19", "AMD EPYC 7H12"),
    (r"A100 80GB PCIe$", "2022-12-15", "AMD EPYC 7502"),
    (r"RTX A6000$", "2022-12-15", "AMD EPYC-Rome"),
    (r"LambdaCloud.*V100 16GB$", "2022-12-16", "Intel Xeon, Cascade Lake"),
    (r"^2x RTX 6000 Ada$", "2023-01-12", ""),  # four and eight of them ran on 22 March 2023
)
SPELLINGS = (  # how one machine is named in several tables → once
    (r"\b(\d+)G\b", r"\1GB"),  # V100 16G
    (r" \d+GB(?= \()", ""),  # DGX-1 16GB (V100 16GB)
    (r" x N \(8 GPUs/node\), distributed$", ""),
    (r", InfiniBand(?=\)$)", ""),
)
ZEN_2 = r"EPYC (7H12|7502)|EPYC-Rome"
"""Processors of the generation of `epyc-7742`, the one of it in the catalogue."""


def precision_of(text: str) -> Precision:
    """The nearest precision of ours."""
    words = text.casefold()
    if "bf16" in words:
        return "bf16"
    return "fp16" if "16" in words else "tf32" if "tf32" in words else "fp32"


def without_count(system: str) -> str:
    """A system's name without its number of devices: `2x RTX 3090` → `RTX 3090`."""
    return re.sub(r"\b\d+x ?(?=[A-Z])", "", system)


def family(system: str) -> str:
    """The machine behind a system's name, however it is spelled: as its source calls it, with the
    memory of a device, without the number of devices and the network."""
    name = without_count(system)
    for spelled, once in SPELLINGS:
        name = re.sub(spelled, once, name)
    return name


def machine(figure: PublishedFigure) -> str | None:
    """The system of the catalogue that a figure was published for; None where there is none."""
    return next((name for form, name in MACHINES if re.search(form, figure.system)), None)


def peer_access(figure: PublishedFigure) -> bool:
    """Whether the GPUs of a published figure reached one another's memory, as far as is known."""
    return _without(figure) is None


def host_device(figure: PublishedFigure) -> str | None:
    """The processor it ran on, or one of its generation, as the catalogue calls it; None where
    its source does not say, empty where it says one that is not in the catalogue."""
    found = _without(figure)
    if found is None:
        return None
    return "epyc-7742" if re.search(ZEN_2, found) else ""


def _without(figure: PublishedFigure) -> str | None:
    """The processor of a run without peer access; None for all other runs."""
    if not figure.source.startswith("Lambda"):
        return None
    return next(
        (cpu for form, _, cpu in WITHOUT_PEER_ACCESS if re.search(form, figure.system)), None
    )
