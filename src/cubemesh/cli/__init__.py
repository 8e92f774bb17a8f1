"""The command line: a file for each verb or topic, over the functions of `cubemesh.api`."""

import signal
import threading

_interrupt = signal.getsignal(signal.SIGINT)
_quiet = (
    _interrupt is signal.default_int_handler
    and threading.current_thread() is threading.main_thread()
)
if _quiet:  # Ctrl-C during the imports has no traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from cubemesh.cli.main import app, main  # noqa: E402

if _quiet:
    signal.signal(signal.SIGINT, _interrupt)

__all__ = ["app", "main"]
