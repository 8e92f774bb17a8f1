"""Sphinx configuration of the documentation site: `make docs` builds it from docs/*.md."""

import re
from typing import Any

project = "cubemesh"
author = "The cubemesh authors"
copyright = author
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["site"]
html_theme = "furo"
html_title = "cubemesh"
html_copy_source = False
html_show_sphinx = False
highlight_language = "none"  # indented blocks hold commands and outputs
myst_heading_anchors = 4  # headings can be linked by the names that GitHub gives them


def setup(app: Any) -> None:
    """Pages of the repository outside docs/ (such as benchmarks/LOG.md) become downloads."""
    app.connect("source-read", _as_downloads)


def _as_downloads(app: Any, name: str, source: list[str]) -> None:
    up = "../" * (name.count("/") + 1)
    source[0] = re.sub(rf"\]\(({re.escape(up)}\w[^)#]*\.md)(#[^)]*)?\)", r"](path:\1)", source[0])
