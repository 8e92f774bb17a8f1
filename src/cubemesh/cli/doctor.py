"""`cubemesh doctor`."""

from __future__ import annotations

from cubemesh.cli.options import AsJson, show


def doctor(as_json: AsJson = False) -> None:
    """Check the installation and this machine. Each problem has the command that mends it."""
    from cubemesh.api.doctor import doctor as diagnose
    from cubemesh.views import doctor as view

    found = diagnose()
    show(view.document(found), as_json, lambda console: view.print_diagnosis(console, found))
