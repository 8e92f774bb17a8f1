"""Engines of plans: those that run ONNX models on a CPU, and own kernels on a GPU and on a CPU.

To add one, write a module that has the functions of `Engine`, and add a line to `ENGINES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cubemesh.batches import Array
from cubemesh.errors import CubemeshError, UsageError
from cubemesh.kernels.cpu.int8.library import VERSION
from cubemesh.onnx.engines import ENGINES as OF_ONNX
from cubemesh.onnx.engines import EngineError, EngineLine, Session
from cubemesh.untrusted import clean

__all__ = ["ENGINES", "EngineError", "Session", "engine_errors", "title"]

ENGINES: dict[str, EngineLine] = {
    "triton": EngineLine(
        title="cubemesh's Triton kernels",
        module="cubemesh.inference.gpu.engine",
        package="triton",
        extra="torch",
        kind="cuda",
    ),
    "cpu-int8": EngineLine(
        title="cubemesh's INT8 kernels",
        module="cubemesh.inference.cpu.engine",
        package="cubemesh",
        extra="inference",
        own_version=VERSION,
        integers_only=True,
    ),
    **OF_ONNX,
}
"""Name → engine, in the order in which equally fast ones are chosen."""


def title(name: str) -> str:
    """The title of an engine; the name of one that is not known."""
    return ENGINES[name].title if name in ENGINES else clean(name, 80)


@contextmanager
def engine_errors(name: str, network: str) -> Iterator[None]:
    """Make what an engine raises, of classes of its own, one sentence."""
    try:
        yield
    except CubemeshError:
        raise
    except Exception as error:
        reason = " ".join(clean(str(error), 200).split()).rstrip(" .:")
        raise EngineError(f"{title(name)} cannot run {network}: {reason}.") from error


def open_engine(
    name: str,
    content: bytes | Path,
    *,
    threads: int,
    device: str,
    precision: str,
    batch: int | None,
    kernels: Mapping[str, tuple[int, ...]] | None = None,
    tune: bool = False,
) -> Session:
    """A session of an engine on a device. `kernels` and `tune` are for own kernels."""
    line = ENGINES[name]
    module: Any = line.load()
    more: dict[str, Any] = {"kernels": kernels, "tune": tune} if line.kind == "cuda" else {}
    session: Session = module.open_session(
        content, threads=threads, precision=precision, device=device, batch=batch, **more
    )
    return session


def computation(session: Session, inputs: Mapping[str, Array]) -> Callable[[], object]:
    """A call that computes the outputs of `inputs` and waits for them. On a GPU the inputs are
    there already, and the outputs stay."""
    put: Any = getattr(session, "put", None)
    if put is None:
        return lambda: session.run(inputs)
    put(inputs)
    replay: Callable[[], object] = session.replay  # type: ignore[attr-defined]
    return replay


def kernels_of(session: Session) -> dict[str, tuple[int, ...]]:
    """The tilings of own kernels in a session; empty for other engines."""
    return dict(getattr(session, "kernels", {}))


def of_device(kind: str) -> tuple[str, ...]:
    """The engines for a kind of device, `cpu` or `cuda`, that are installed."""
    return tuple(name for name, line in ENGINES.items() if line.kind == kind and line.installed)


def float_engines(names: Iterable[str]) -> tuple[str, ...]:
    """The engines that compute models in floating point too."""
    return tuple(name for name in names if not ENGINES[name].integers_only)


def unsupported(name: str) -> str:
    """Why this machine cannot run an engine that is installed; '' where it can."""
    if not ENGINES[name].integers_only:
        return ""
    module: Any = ENGINES[name].load()
    reason: str = module.unsupported()
    return reason


def check_kind(name: str, kind: str) -> None:
    """UsageError where an engine does not run on a kind of device."""
    if ENGINES[name].kind != kind:
        where = "an NVIDIA GPU: --device cuda:0" if kind == "cpu" else "the CPU: --device cpu"
        raise UsageError(f"The engine {name} runs on {where}.")
