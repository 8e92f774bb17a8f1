"""HTML report."""

import cubemesh.views.charts  # noqa: F401  UsageError without the extra `views`
