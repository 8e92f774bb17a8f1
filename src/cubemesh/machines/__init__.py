"""This machine: probe, advice, topology, and the catalogue of known devices and systems.

`probe()` describes this machine, `advice(machine)` what about it may slow down training. The probe
takes some milliseconds (some tens with NVIDIA GPUs) and imports no framework.
"""

from cubemesh.machines.advice import advice
from cubemesh.machines.probe import probe

__all__ = ["advice", "probe"]
