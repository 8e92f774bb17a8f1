"""Measurement: timing, attribution, telemetry and energy of steps.

The package can be called: `cubemesh.measure(step, samples=32)` measures a training step in the
caller's own process (api/own_step.py).
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """`cubemesh.measure`, a package and a function of the public interface: the import of any file
    below it sets that name to the package."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """See `cubemesh.api.own_step.measure`."""
        return import_module("cubemesh.api.own_step").measure(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
