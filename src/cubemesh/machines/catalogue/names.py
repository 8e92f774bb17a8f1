"""Datasheet lookup by a device's name; all words of the name must match.

A name is split into words. Vendors, brands, memory sizes, watts and clocks do not identify the
model and may be missing from a datasheet's names; all other words must match on both sides: "GTX
1080 Ti" is not "GTX 1080", and "H100" matches neither of its two variants.
"""

from __future__ import annotations

import re

from cubemesh.errors import UsageError, unknown_name
from cubemesh.machines.catalogue.datasheet import Datasheet
from cubemesh.machines.catalogue.load import datasheets

_IGNORED = re.compile(
    r"nvidia|tesla|geforce|intel|habana|amd|radeon|instinct|google|huawei|apple|"
    r"r|tm|cpu|gpu|processor|\d|\d+(?:gb|gib|w|ghz|mhz)"
)
"""A single digit is a part of a clock ("2.20GHz") or of a system's name ("DGX-1")."""
_FORMS = frozenset({"sxm", "sxm2", "sxm4", "sxm5", "pcie", "hbm2", "hbm2e", "hbm3", "gen5", "cts"})
"""Words for variants; no variant outside the catalogue is faster than all in it."""


def find(name: str) -> Datasheet | None:
    """The datasheet of the device that a driver, a kernel or a table calls `name`; None for an
    unknown device, or if the name fits several variants. Of names that are given whole, the one
    with the most words counts: `H100 SXM5 96GB` before `H100 SXM5`."""
    given = _words(name)
    fits = [
        (len(words), sheet)
        for sheet in datasheets().values()
        for own in sheet.named
        if _means(given, words := _words(own), frozenset())
    ]
    most = max((words for words, _ in fits), default=0)
    best = {sheet.id: sheet for words, sheet in fits if words == most}
    return next(iter(best.values())) if len(best) == 1 else None


def load_gpu(name: str) -> Datasheet:
    """The datasheet of a GPU, by its id in the catalogue or by any name of `find`.

    UsageError, with the variants or the nearest names, where it is not one known GPU.
    """
    gpus = {sheet.id: sheet for sheet in datasheets().values() if sheet.kind == "gpu"}
    sheet = gpus.get(name) or find(name)
    if sheet is not None and sheet.kind == "gpu":
        return sheet
    variants = [form for form in forms(name) if form.kind == "gpu"]
    if len(variants) == 1:
        return variants[0]
    if variants:
        names = ", ".join(form.name for form in variants)
        raise UsageError(f"'{name}' fits several GPUs: {names}. Name one of them.")
    raise unknown_name("GPU", name, gpus, "docs/machines.md lists the catalogue.")


def forms(name: str) -> tuple[Datasheet, ...]:
    """The datasheets that `name` may mean: the one of `find`, else every variant of the model;
    none for an unknown model."""
    exact = find(name)
    if exact is not None:
        return (exact,)
    given = _words(name)
    return tuple(s for s in datasheets().values() if _means(given, _words(s.family), _FORMS))


def _means(given: frozenset[str], own: frozenset[str], allowed: frozenset[str]) -> bool:
    """Whether all words of `own` are given, and the others are ignored or in `allowed`."""
    rest = given - own - allowed
    return own <= given and all(_IGNORED.fullmatch(word) for word in rest)


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))
