"""Views: values of `cubemesh.api` as terminal pages, HTML reports, charts and JSON.

Views load nothing and compute no findings. `charts` and `report` need the extra `views`.
"""
