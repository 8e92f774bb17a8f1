"""Workbench: `cubemesh serve`, pages and a JSON interface over a store, for a browser.

The pages compute nothing that `cubemesh.api` and `cubemesh.views` do not: they show what the store
holds. Needs the extra `serve`.
"""
