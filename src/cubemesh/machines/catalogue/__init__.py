"""Catalogue of datasheets: a device's figures with their sources, found by its name.

The datasheets are TOML files in this folder, one table per device. Devices and figures that are not
in them are unknown: measured or reported as unknown, never assumed. docs/machines.md describes how
to add one.
"""

from cubemesh.machines.catalogue.datasheet import PRECISIONS, Datasheet, Peak, Price, Sourced
from cubemesh.machines.catalogue.load import datasheets, read_datasheets
from cubemesh.machines.catalogue.names import find, forms, load_gpu

__all__ = [
    "PRECISIONS",
    "Datasheet",
    "Peak",
    "Price",
    "Sourced",
    "datasheets",
    "find",
    "forms",
    "load_gpu",
    "read_datasheets",
]
