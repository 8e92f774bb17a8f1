"""`cubemesh audit`."""

from __future__ import annotations

import typer

from cubemesh.cli.options import AsJson, StoreAt, show


def audit(store: StoreAt = None, as_json: AsJson = False) -> None:
    """Check stored figures for contradictions. Exits with 1 if any is inconsistent."""
    from cubemesh.api.audit import audit_store
    from cubemesh.views.audit import audit_json, print_audit

    found = audit_store(store=store)
    show(audit_json(found), as_json, lambda console: print_audit(console, found))
    raise typer.Exit(0 if found.ok else 1)
