"""Charts. They and the report need the packages of the extra `views`."""

from importlib.util import find_spec

from cubemesh.errors import UsageError

if not all(map(find_spec, ("altair", "jinja2", "vl_convert"))):
    raise UsageError(
        "Charts and reports need packages that are not installed here. "
        "Install them with: pip install 'cubemesh[views]'"
    )
