"""The command line: one file a verb, each a thin skin over the function of `cubemesh.api`."""

from cubemesh.cli.main import app, main

__all__ = ["app", "main"]
