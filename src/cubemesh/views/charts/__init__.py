"""Charts. They and the report need the packages of the extra `views`."""

import os
from importlib.util import find_spec
from pathlib import Path

from cubemesh.errors import UsageError

if not all(map(find_spec, ("altair", "jinja2", "vl_convert"))):
    raise UsageError(
        "Charts and reports need packages that are not installed here. "
        "Install them with: pip install 'cubemesh[views]'"
    )

try:
    Path.home()
except RuntimeError:  # altair asks for the home folder as it is imported, for data sets
    os.environ["HOME"] = os.sep
    try:
        import altair as _altair  # noqa: F401
    finally:
        del os.environ["HOME"]
