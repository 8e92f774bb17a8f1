"""Catalogue of datasheets: a device's figures with their sources, found by its name.

The datasheets are TOML files beside this one, a table a device. Whoever is not in them is unknown,
and what a datasheet does not state is unknown too: it is measured, or said not to be known, never
assumed. docs/machines.md tells how to add one.
"""

from cubemesh.machines.catalogue.datasheet import PRECISIONS, Datasheet, Peak, Sourced
from cubemesh.machines.catalogue.load import datasheets, read_datasheets
from cubemesh.machines.catalogue.names import find, forms

__all__ = [
    "PRECISIONS",
    "Datasheet",
    "Peak",
    "Sourced",
    "datasheets",
    "find",
    "forms",
    "read_datasheets",
]
