"""What did others measure, and what do the five documents claim? Facts, with their sources.

`figures()` are published training figures, `claims()` what documents 000 to 004 state; both are
read once, strictly, from the files beside this one. `nearest` finds the figures that come closest
to a measurement. docs/published.md lists the sources.
"""

from cubemesh.results.published.load import claims, figures
from cubemesh.results.published.nearest import Series, nearest, same_device, sweep

__all__ = ["Series", "claims", "figures", "nearest", "same_device", "sweep"]
