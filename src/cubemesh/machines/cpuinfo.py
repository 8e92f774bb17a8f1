"""Parser of /proc/cpuinfo: processor models and their common instruction sets.

On x86 the file names the model. On Arm it gives the implementer's and the part's number instead,
which are looked up in the tables below (Arm's MIDR_EL1 register; numbers from the Linux kernel's
arch/arm64/include/asm/cputype.h). A part that is not in the table is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cubemesh.machines.files import Tree, whole_number

_X86 = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
)
_ARM = ("bf16", "i8mm", "sve", "sve2", "sme")
INSTRUCTION_SETS: dict[str, str] = {
    **{name: name for name in _X86},
    "neon": "neon",  # 32-bit
    "asimd": "neon",  # the same instructions' name on 64-bit
    "asimdhp": "fp16",
    "asimddp": "dotprod",
    **{name: name for name in _ARM},
}
"""The kernel's flag (x86) or feature (Arm) → name here, for those that matter to training."""

ARM_IMPLEMENTERS: dict[int, str] = {
    0x41: "ARM",
    0x42: "Broadcom",
    0x43: "Cavium",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x50: "APM",
    0x51: "Qualcomm",
    0x61: "Apple",
    0x6D: "Microsoft",
    0xC0: "Ampere",
}

ARM_PARTS: dict[tuple[int, int], str] = {
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD04): "Cortex-A35",
    (0x41, 0xD05): "Cortex-A55",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD09): "Cortex-A73",
    (0x41, 0xD0A): "Cortex-A75",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD0D): "Cortex-A77",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD41): "Cortex-A78",
    (0x41, 0xD42): "Cortex-A78AE",
    (0x41, 0xD44): "Cortex-X1",
    (0x41, 0xD46): "Cortex-A510",
    (0x41, 0xD47): "Cortex-A710",
    (0x41, 0xD48): "Cortex-X2",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4B): "Cortex-A78C",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x46, 0x001): "A64FX",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1A",
}


@dataclass(frozen=True)
class Cpuinfo:
    """The file's entries, one dict per logical processor that is online."""

    processors: tuple[dict[str, str], ...] = ()

    @property
    def model(self) -> str | None:
        """The model's name; several joined by " + " where the processors differ."""
        return _joined(_model(p) for p in self.processors)

    @property
    def vendor(self) -> str | None:
        """`GenuineIntel`, `AuthenticAMD`, `ARM`, …"""
        return _joined(_vendor(p) for p in self.processors)

    @property
    def is_x86(self) -> bool:
        """Whether the processors are x86, whose flags include that of a hypervisor."""
        return bool(self.processors) and all("flags" in p for p in self.processors)

    @property
    def flags(self) -> frozenset[str]:
        """The kernel's flags that every processor has."""
        texts = {p.get("flags") or p.get("Features") or "" for p in self.processors}
        sets = [frozenset(t.split()) for t in texts]
        return frozenset.intersection(*sets) if sets else frozenset()

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """The instruction sets that matter to training and that every processor has."""
        flags = self.flags
        return tuple(dict.fromkeys(n for word, n in INSTRUCTION_SETS.items() if word in flags))

    def numbers(self) -> tuple[int, ...]:
        """The numbers of the logical processors."""
        return tuple(n for p in self.processors if (n := whole_number(p["processor"])) is not None)

    def places(self) -> dict[int, tuple[str, str]]:
        """(socket, core) of each logical processor, if the file has both."""
        return {
            number: (p["physical id"], p["core id"])
            for p in self.processors
            if "physical id" in p
            and "core id" in p
            and (number := whole_number(p["processor"])) is not None
        }


def read_cpuinfo(tree: Tree) -> Cpuinfo:
    """The processors /proc/cpuinfo lists; none where it is missing."""
    processors: list[dict[str, str]] = []
    for block in (tree.text("/proc/cpuinfo") or "").split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        entry = {key.strip(): value.strip() for key, colon, value in pairs if colon}
        if "processor" in entry:
            processors.append(entry)
    return Cpuinfo(tuple(processors))


def _model(processor: dict[str, str]) -> str | None:
    named = processor.get("model name") or processor.get("cpu")  # "cpu" on POWER
    if named and named.lower() != "unknown":
        return named
    return ARM_PARTS.get((_hex(processor, "CPU implementer"), _hex(processor, "CPU part")))


def _vendor(processor: dict[str, str]) -> str | None:
    named = processor.get("vendor_id")
    return named or ARM_IMPLEMENTERS.get(_hex(processor, "CPU implementer"))


def _hex(processor: dict[str, str], key: str) -> int:
    try:
        return int(processor.get(key, ""), 16)
    except ValueError:
        return -1


def _joined(names: Iterable[str | None]) -> str | None:
    """The different names in order; None if one is unknown or there is none."""
    every = list(dict.fromkeys(names))
    known = [name for name in every if name is not None]
    return " + ".join(known) if known and len(known) == len(every) else None
