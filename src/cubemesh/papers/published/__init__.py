"""What did others measure, and what do the five documents claim? Facts, with their sources.

`figures()` are published training figures, `claims()` what documents 000 to 004 state; both are
read once, strictly, from the files beside this one. `nearest` finds the figures that come closest
to a measurement, `peak_share` holds one against its device's datasheet. docs/published.md lists the
sources.
"""

from cubemesh.papers.published.load import claims, figures, stock_figures
from cubemesh.papers.published.nearest import Series, nearest, same_device, sweep
from cubemesh.papers.published.peak import PeakShare, peak_share

__all__ = [
    "PeakShare",
    "Series",
    "claims",
    "figures",
    "nearest",
    "peak_share",
    "same_device",
    "stock_figures",
    "sweep",
]
