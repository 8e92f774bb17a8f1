"""This machine: probe, advice, topology, and the catalogue of known devices and systems.

`probe()` finds out what there is, `advice(machine)` says what about it may slow training down.
Reading takes some milliseconds (some tens with NVIDIA GPUs) and imports no framework.
"""

from cubemesh.machines.advice import advice
from cubemesh.machines.probe import probe

__all__ = ["advice", "probe"]
