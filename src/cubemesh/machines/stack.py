"""Software stacks: what differs between two, item by item.

A stack is everything between the hardware and the training program: operating system, kernel,
container, driver, CUDA with its libraries, Python, packages, C++ compiler, the processor's
instruction sets that the system offers, and the environment variables that change what the
libraries do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cubemesh.schema import Machine, Software

ABSENT = "none"
_LIBRARIES = {
    "driver": "driver",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "cpp_compiler": "C++ compiler",
}


@dataclass(frozen=True, kw_only=True)
class StackDifference:
    """One item that differs."""

    group: str
    """`system`, `hardware`, `libraries`, `packages`, `instruction sets` or `variables`."""
    what: str
    first: str
    second: str


def software_differences(first: Software, second: Software) -> tuple[StackDifference, ...]:
    """What differs between the software of two stacks; `none` is not installed, or unknown."""
    return tuple(_software(first, second))


def stack_differences(first: Machine, second: Machine) -> tuple[StackDifference, ...]:
    """What differs between the stacks of two machines, and the processor and GPUs if they do."""
    found = [
        _difference("hardware", what, a, b)
        for (what, a), (_, b) in zip(_hardware(first), _hardware(second), strict=True)
        if a != b
    ]
    containers = first.container or ABSENT, second.container or ABSENT
    if containers[0] != containers[1]:
        found.append(_difference("system", "container", *containers))
    found += _software(first.software, second.software)
    sets = [set(m.cpu.instruction_sets) for m in (first, second)]
    found += [
        _difference("instruction sets", name, *("yes" if name in own else ABSENT for own in sets))
        for name in sorted(sets[0] ^ sets[1])
    ]
    return tuple(found)


def _hardware(machine: Machine) -> list[tuple[str, str]]:
    gpus = [gpu.name for gpu in machine.gpus]
    names = ", ".join(f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus))
    return [
        ("processor", machine.cpu.model or "unknown"),
        ("usable cores", str(machine.cpu.usable_cores)),
        ("GPUs", names or ABSENT),
        ("virtual machine", machine.virtualization or ABSENT),
    ]


def _software(first: Software, second: Software) -> Iterator[StackDifference]:
    systems = [_system(software) for software in (first, second)]
    for what, a, b in zip(("operating system", "kernel"), *systems, strict=True):
        if a != b:
            yield _difference("system", what, a, b)
    if first.python != second.python:
        yield _difference("packages", "Python", first.python or ABSENT, second.python or ABSENT)
    for name, title in _LIBRARIES.items():
        a, b = (getattr(software, name) or ABSENT for software in (first, second))
        if a != b:
            yield _difference("libraries", title, a, b)
    yield from _mapping("packages", first.packages, second.packages)
    yield from _mapping("variables", first.variables, second.variables)


def _system(software: Software) -> tuple[str, str]:
    """`Debian GNU/Linux 12, Linux 6.1.0` as operating system and kernel."""
    name, comma, kernel = software.system.rpartition(", ")
    return (name or ABSENT, kernel) if comma else (ABSENT, software.system or ABSENT)


def _mapping(
    group: str, first: Mapping[str, str], second: Mapping[str, str]
) -> Iterator[StackDifference]:
    for name in sorted({*first, *second}):
        a, b = first.get(name, ABSENT), second.get(name, ABSENT)
        if a != b:
            yield _difference(group, name, a, b)


def _difference(group: str, what: str, first: str, second: str) -> StackDifference:
    return StackDifference(group=group, what=what, first=first, second=second)
