"""Own network and own data: what a spec holds of code of the user that a command named.

A network is described when the command names it. The description is complete: counts, forecasts and
answers need neither the source nor PyTorch, so records of such a network are read on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from cubemesh.user_code import short_name


@dataclass(frozen=True, kw_only=True)
class OwnNetwork:
    """Source and description of a PyTorch module."""

    source: str
    """`/folder/model.py:Net` or `package.module:build`."""
    folder: str = ""
    """Folder that the module is imported from; empty for an installed package."""
    digest: str = ""
    """Digest of the source files that are imported, so that a changed file is another network."""
    graph: str
    """Its layers, or the module as one layer, as JSON (networks/graph_text.py)."""
    untraced: str = ""
    """Why the module runs as it is, in words; empty where it became a graph of layers."""
    fault: str = ""
    """Why it cannot be run, as a sentence; empty where it can."""

    @property
    def name(self) -> str:
        """Name of the network: `model.py:Net`, `package.module:build`."""
        return short_name(self.source)


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """Data of the user's own: a data set, or a function that returns one, which a worker
    imports."""

    source: str
    """`/folder/data.py:make` or `package.module:train`."""
    folder: str = ""
    """Folder that the code is imported from; empty for an installed package."""

    @property
    def name(self) -> str:
        """Name of the data: `data.py:make`, `package.module:train`."""
        return short_name(self.source)
