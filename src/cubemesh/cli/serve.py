"""`cubemesh serve` and `users`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cubemesh.cli.options import AsJson, StoreAt, show, tell
from cubemesh.errors import UsageError

if TYPE_CHECKING:
    from cubemesh.web.server import Ready

USER_ACTIONS = ("list", "add", "role", "token", "revoke")
_PACKAGES = ("starlette", "uvicorn", "jinja2", "altair", "vl_convert")


def serve(
    store: StoreAt = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port; default: the first free one from 8400."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Private key (PEM).")
    ] = None,
    behind_proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--behind-proxy",
            metavar="ADDRESS",
            help="Answer only this proxy, which adds TLS, and this machine; may be repeated.",
        ),
    ] = None,
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            "--host-name",
            metavar="NAME",
            help="A name of this server besides localhost; may be repeated.",
        ),
    ] = None,
    open_browser: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open a browser; default: where there is a display."),
    ] = None,
    no_agent: Annotated[
        bool, typer.Option("--no-agent", help="Run no jobs; without it an agent runs them here.")
    ] = False,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo", help="Offer three short trainings; without --store in a store of their own."
        ),
    ] = False,
    team: Annotated[
        bool,
        typer.Option(
            "--team", help="Log in the users of a PostgreSQL store, each with a token and a role."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the stored runs, answers and machines in a browser, and run jobs. Ends with Ctrl-C."""
    if not all(map(find_spec, _PACKAGES)):
        raise UsageError(
            "The pages need packages that are not installed here. "
            "Install them with: pip install 'cubemesh[serve]'"
        )
    from cubemesh.web.server import Listening, serve_pages

    listening = Listening(
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        proxies=tuple(behind_proxy or ()),
        host_names=tuple(host_name or ()),
    )
    serve_pages(
        store,
        listening,
        lambda ready: _show(ready, open_browser, as_json),
        agent=not no_agent,
        demo=demo,
        team=team,
        announce=tell,
    )


def _show(ready: Ready, open_browser: bool | None, as_json: bool) -> None:
    """Print the addresses, and open the page in a browser if one is wanted."""
    from cubemesh.exports.record_json import SCHEMA

    document = {
        "schema": SCHEMA,
        "kind": "serve",
        "address": ready.address,
        "login": ready.login,
        "token_file": str(ready.token_file),
    }
    text = f"{ready.address}\nlog in once with: {ready.login}"
    show(document, as_json, lambda console: print(text))
    sys.stdout.flush()
    tell(f"serving; the token is in {ready.token_file}. Ctrl-C ends.")
    if open_browser is False or (open_browser is None and not _has_display()):
        return
    import webbrowser

    if not webbrowser.open(ready.login) and open_browser:
        tell("no browser was found: open the address yourself.")


def _has_display() -> bool:
    """Whether a person sits at this machine."""
    shown = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return sys.stdout.isatty() and shown


def users(
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="list, add, role, token, revoke.")
    ] = "list",
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the user.")] = None,
    role: Annotated[
        str | None,
        typer.Option(help="With add and role: viewer, member or admin; default of add: member."),
    ] = None,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """Manage the users of a team. List the users of a PostgreSQL store, add or revoke one, or
    change a role or token."""
    from cubemesh.api.arguments import open_store
    from cubemesh.errors import unknown_name
    from cubemesh.jobs.submission import submitter
    from cubemesh.team.roles import Role, role_named
    from cubemesh.team.users import Users
    from cubemesh.views.json_output import envelope

    if action not in USER_ACTIONS:
        raise unknown_name("action of users", action, USER_ACTIONS, "", "actions")
    if action != "list" and name is None:
        raise UsageError(f"Which user? Give the name: cubemesh users {action} ann")
    if action == "list" and name is not None:
        raise UsageError(f"list takes no name, and {name} is one. `cubemesh users` lists all.")
    if role is not None and action not in ("add", "role"):
        raise UsageError(f"--role belongs to add and role, not to {action}.")
    if role is None and action == "role":
        raise UsageError(f"Which role? As in: cubemesh users role {name} --role viewer")
    wanted = Role.MEMBER if role is None else role_named(role)
    token = None
    with open_store(store) as opened:
        known = Users(opened.database)
        if name is not None:
            if action == "add":
                token = known.add(name, wanted, who=submitter())
            elif action == "token":
                token = known.new_token(name, who=submitter())
            elif action == "role":
                known.set_role(name, wanted, who=submitter())
            else:
                known.revoke(name, who=submitter())
        found = [one for one in known.all() if name in (None, one.name)]
    listed = [
        {
            "name": one.name,
            "role": one.role.label,
            "made_utc": one.made_utc,
            "revoked_utc": one.revoked_utc,
        }
        for one in found
    ]
    if as_json:
        show(envelope("users", users=listed, token=token), True, lambda console: None)
        return
    for one in listed:
        revoked = f", revoked {one['revoked_utc']}" if one["revoked_utc"] else ""
        print(f"{one['name']}: {one['role']}{revoked}")
    if not listed:
        print("No users. Add one with: cubemesh users add NAME --role member")
    if token is not None:
        print(f"token: {token}")
        tell("this token is shown only once. It logs in to `cubemesh serve --team`.")
