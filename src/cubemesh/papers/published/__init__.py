"""Published results and claims of five papers, with their sources.

`figures()` are published training figures, `claims()` the statements of the papers; both are read
once, strictly, from the data files of this package. `nearest` finds the figures closest to a
measurement, `peak_share` compares one with its device's datasheet. docs/published.md lists the
sources.
"""

from cubemesh.papers.published.load import (
    claims,
    figures,
    scaling_figures,
    scaling_files,
    stock_figures,
)
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
    "scaling_figures",
    "scaling_files",
    "stock_figures",
    "sweep",
]
