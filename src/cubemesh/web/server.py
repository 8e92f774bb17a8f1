"""Server: where it listens, and how it starts and ends.

It ends in order at SIGTERM, SIGINT (Ctrl-C) or SIGHUP: it takes no new request, finishes those it
has, closes the store, and exits with 0.
"""

from __future__ import annotations

import errno
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import quote

import uvicorn

from cubemesh.errors import BusyError, CubemeshError, StoreError, UsageError
from cubemesh.jobs.hosted import HostedAgent, runs_here
from cubemesh.jobs.queue import JobQueue
from cubemesh.store import Store
from cubemesh.team.users import Users
from cubemesh.user_folders import state_folder
from cubemesh.web.access import Access, token_of
from cubemesh.web.app import Workbench
from cubemesh.web.demo import demo_store
from cubemesh.web.pages import PAGES
from cubemesh.web.security.connections import TimedProtocol
from cubemesh.web.security.gate import Rules
from cubemesh.web.security.hosts import is_loopback
from cubemesh.web.security.tls import limit_handshakes
from cubemesh.web.team_access import TeamAccess

FIRST_PORT = 8400
"""The port without --port, or the first free one after it."""
_PORTS_TRIED = 50
_FINISH_S = 5
"""How long requests may take to finish when the server ends."""
_MOST_CONNECTIONS = 500


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where a server listens, and what protects it there."""

    host: str = "127.0.0.1"
    port: int | None = None
    """None for the first free one, 0 for any."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    proxies: tuple[str, ...] = ()
    """Addresses of the proxy in front."""
    host_names: tuple[str, ...] = ()

    def check(self) -> None:
        """UsageError for options that do not fit together, or leave other hosts an open door."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError(
                "--tls-cert and --tls-key belong together: give both files, or neither."
            )
        if not is_loopback(self.host) and self.tls_cert is None and not self.proxies:
            raise UsageError(
                f"--host {self.host} can be reached from other machines, which would see the login "
                "unencrypted. Add --tls-cert FILE --tls-key FILE, or --behind-proxy ADDRESS if a "
                "proxy with TLS is in front; or leave --host out and use ssh -L."
            )

    @property
    def scheme(self) -> str:
        """`http` or `https`, of the server itself."""
        return "http" if self.tls_cert is None else "https"


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A server that accepts connections."""

    address: str
    """Of its pages."""
    login: str
    """Of a page that logs in once."""
    token_file: Path


def serve_pages(
    location: str | None,
    listening: Listening,
    ready: Callable[[Ready], None],
    *,
    agent: bool = False,
    demo: bool = False,
    team: bool = False,
    announce: Callable[[str], None] = lambda text: None,
) -> None:
    """Serve the store until a signal ends it; `ready` is called when it accepts connections. With
    `agent`, an agent runs jobs on this host meanwhile, unless one does already; `demo` offers
    demonstrations, in a store of their own unless one is named; with `team` the users of the store
    log in; `announce` gets a sentence.

    BusyError for a port that another program uses, StoreError for a store that cannot be opened,
    UsageError for options that do not fit together.
    """
    listening.check()
    location = demo_store() if demo and location is None else location
    bound = _bind(listening.host, listening.port)
    try:
        port = bound.getsockname()[1]
        token_file = state_folder() / "serve-token"
        secure = listening.tls_cert is not None or bool(listening.proxies)
        token, cookie = token_of(token_file), f"{'__Host-' if secure else ''}cubemesh-{port}"
        rules = Rules(host_names=(listening.host, *listening.host_names), proxies=listening.proxies)
        with _opened(location) as (store, writable):
            access = _team(store, token, cookie) if team else Access(token, cookie=cookie)
            bench = Workbench(
                store, access, rules, secure=secure, token_file=str(token_file), demo=demo
            )
            own = HostedAgent(store.name if location is None else location, announce)
            address = f"{listening.scheme}://{_shown_host(listening.host)}:{port}"
            found = Ready(
                address=address,
                login=f"{address}/login?code={quote(access.new_code())}",
                token_file=token_file,
            )

            def begin() -> None:
                ready(found)
                if agent and writable and not _has_agent(store, announce):
                    own.start()

            try:
                _run(bench, listening, bound, begin)
            finally:
                own.stop()
    finally:
        bound.close()


def _team(store: Store, token: str, cookie: str) -> TeamAccess:
    users = Users(store.database)
    if all(user.revoked_utc for user in users.all()):
        raise UsageError(
            "The store has no users who could log in. Add one with: cubemesh users add NAME "
            "--role member"
        )
    return TeamAccess(users, token, cookie=cookie)


@contextmanager
def _opened(location: str | None) -> Iterator[tuple[Store, bool]]:
    """The store, made where there is none, and whether it can be written."""
    try:
        store, writable = Store.open(location), True
    except StoreError:
        store, writable = Store.open(location, must_exist=True, read_only=True), False
    with store:
        yield store, writable


def _has_agent(store: Store, announce: Callable[[str], None]) -> bool:
    """Whether jobs of the store are run on this host already, or cannot be."""
    try:
        found = runs_here(JobQueue(store.database))
    except CubemeshError as error:
        announce(f"no agent is started: {error}")
        return True
    if found:
        announce("an agent of this store runs on this host already; no other is started.")
    return found


def _shown_host(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _bind(host: str, port: int | None) -> socket.socket:
    """A listening socket: at this port, or at the first free one from `FIRST_PORT`."""
    ports = range(FIRST_PORT, FIRST_PORT + _PORTS_TRIED) if port is None else (port,)
    for one in ports:
        try:
            return _listening(host, one)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            why = error.strerror or str(error)
            raise UsageError(
                f"Cannot listen on {host}, port {one}: {why}. Give an address of this machine with "
                "--host, and a port above 1023 with --port."
            ) from None
    if port is None:
        raise BusyError(
            f"The ports {FIRST_PORT} to {FIRST_PORT + _PORTS_TRIED - 1} of {host} are in use. Give "
            "another one with --port, or --port 0 for any."
        )
    raise BusyError(
        f"Port {port} of {host} is in use by another program. Give another one with --port, or "
        "leave it out: then the first free one is used."
    )


def _listening(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()
        bound.set_inheritable(False)
    except OSError:
        bound.close()
        raise
    return bound


class _Server(uvicorn.Server):
    """Ends in order at the first signal, at once at the second; and returns."""

    def __init__(
        self, config: uvicorn.Config, started: Callable[[], None], ending: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._started, self._ending = started, ending

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
            numbers = numbers[:2]
        before = {one: signal.signal(one, self.handle_exit) for one in numbers}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ask the server to end; the second time, without waiting."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, and say so."""
        await super().startup(sockets)
        if self.started:
            self._started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish what is open, without waiting for streams that have no end."""
        self._ending()
        await super().shutdown(sockets)


def _run(
    bench: Workbench, listening: Listening, bound: socket.socket, started: Callable[[], None]
) -> None:
    config = uvicorn.Config(
        bench.app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        http=TimedProtocol,
        loop="asyncio",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_FINISH_S,
        ssl_certfile=listening.tls_cert,
        ssl_keyfile=listening.tls_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"The certificate {listening.tls_cert} with the key {listening.tls_key} cannot be "
            f"used: {error}. Give PEM files that belong together."
        ) from None

    handshakes = limit_handshakes(config)

    def begin() -> None:
        started()
        threading.Thread(target=_load_pages, daemon=True).start()

    def end() -> None:
        bench.hub.close()
        if handshakes is not None:
            handshakes.close()

    server = _Server(config, begin, end)
    server.run(sockets=[bound])
    if not server.started:
        raise CubemeshError("The server could not start.")


def _load_pages() -> None:
    """Import the files of the pages, so that the first visit to each does not wait for it."""
    for page in PAGES:
        page.load()
