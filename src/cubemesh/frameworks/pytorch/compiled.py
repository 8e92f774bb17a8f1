"""PyTorch with `torch.compile`: the eager program, compiled as a whole or by segment.

Forward, backward and loss are compiled by TorchInductor for the fixed shapes of a run: C++ on a
CPU, Triton on a GPU. Batches, weights, precision, layout and optimizer are the eager program's; so
is evaluation, which is not part of the step and has a shorter last batch.

Compiled code is cached in `$XDG_CACHE_HOME/cubemesh/compile/torch-VERSION`, or in
TORCHINDUCTOR_CACHE_DIR, for later runs.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cubemesh.batches import Array
from cubemesh.cpp_compiler import missing_compiler
from cubemesh.frameworks.contract.gradient_sync import SyncFeature
from cubemesh.frameworks.contract.program import BuildRequest, Capabilities, Unsupported
from cubemesh.frameworks.pytorch import runtime
from cubemesh.frameworks.pytorch.captured_pass import CapturedPass
from cubemesh.frameworks.pytorch.ceiling import build_ceiling
from cubemesh.frameworks.pytorch.distributed.graph_partition import build_stages
from cubemesh.frameworks.pytorch.distributed.group import join
from cubemesh.frameworks.pytorch.distributed.launch import launch
from cubemesh.frameworks.pytorch.experts import check_capture
from cubemesh.frameworks.pytorch.factory import divided_program
from cubemesh.frameworks.pytorch.input.host_to_device import Placed
from cubemesh.frameworks.pytorch.program import PyTorchProgram, layer_passes, total_loss
from cubemesh.frameworks.pytorch.runtime import setup_process
from cubemesh.kernels.cpu.allocator import release_freed_memory
from cubemesh.kernels.cpu.compiler import compile_folder, damaged_libraries
from cubemesh.networks.graph import Network
from cubemesh.networks.opaque import Opaque
from cubemesh.schema.work import ForwardBackward, Infer, InferLoad

__all__ = [
    "build",
    "build_ceiling",
    "capabilities",
    "is_out_of_memory",
    "join",
    "launch",
    "preload",
    "release_freed_memory",
    "setup_process",
]

REPLICA_SYNC_FEATURES: frozenset[SyncFeature] = frozenset({"all-reduce", "hooks", "cpu-server"})
"""Synchronization outside a step that is compiled, or captured, as a whole."""
SYNC_FEATURES: frozenset[SyncFeature] = REPLICA_SYNC_FEATURES.union(
    frozenset[SyncFeature]({"tensor-parallel", "context-parallel", "sharded"})
)
"""Synchronization outside, or between compiled functions."""
BACKEND = "inductor"
"""Of torch.compile."""
MAX_COMPILER_PROCESSES = 16
_first_program = True
"""Whether no program of this process was compiled yet."""
_C_COMPILERS = ("gcc", "clang", "cc")
_VOLTA = (7, 0)
"""The first compute capability that Triton supports (README of triton-lang/triton)."""
_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


class CompilesStep(PyTorchProgram):
    """A program whose step has compiled functions."""

    overwrites = False  # the compiler decides; a stage that mutates its input would copy it back
    profiles_layers = False  # a compiled kernel may compute several layers

    def compile(self, placed: Placed) -> bool | None:
        """Compile by one run without an update, on uninitialized weights; whether all of it came
        from the cache. Call `load` after it."""
        hits, misses = _cache_counts()
        with compiler_processes(self._kind):
            self._compile_by_running(placed)
            self.synchronize()
        self._loss = torch.full((), float("nan"))
        torch.manual_seed(self._seed)  # so that dropout draws the same numbers
        now_hits, now_misses = _cache_counts()
        if (now_hits, now_misses) == (hits, misses):
            return None
        return now_misses == misses

    def _compile_by_running(self, placed: Placed) -> None:
        """Run once. Ranks that communicate in it do not repeat it alone."""
        self._run_once(placed)

    def _run_once(self, placed: Placed) -> None:
        """A forward pass and, if the work has one, a backward pass."""
        if isinstance(self._work, ForwardBackward):
            self.forward_backward(placed)
            return
        if self._optimizer is None:
            self.forward(placed)
            return
        if self._gradients is not None:
            self._gradients.paused = True  # these gradients are not synchronized
        self._forward(self._split(placed)[0]).backward()  # type: ignore[no-untyped-call]
        for parameter in self._built.parameters.values():
            parameter.grad = None
        if self._gradients is not None:
            self._gradients.paused = False


def prepare_to_compile(request: BuildRequest) -> None:
    """Set up the compiler. Unsupported for precisions that it does not compute."""
    set_up_compiler()
    if request.program.precision_of:
        if layer_passes(request):
            raise Unsupported(
                "pytorch-compiled has one precision for both passes of a layer, of 32 or 16 bits. "
                "Leave fp64 and forward/backward out of precision_of, or set framework=pytorch."
            )
        _trace_backward_without_autocast()


class CompiledProgram(CompilesStep):
    """The eager program, its forward pass, loss and backward pass compiled."""

    def __init__(self, request: BuildRequest) -> None:
        prepare_to_compile(request)
        if isinstance(request.work, Infer | InferLoad):
            check_capture(request)
        super().__init__(request)
        compiled = compiler(request.network)
        self._frozen = compiled(self._built.evaluation.run, options={"freezing": True})
        """The evaluation, compiled at its first pass with the weights as constants."""
        self._captured = CapturedPass(self._scores, self.device) if self._kind == "cuda" else None
        loss = partial(total_loss, self._heads)
        self.staged = build_stages(self._built, loss, compiled, request.program.compile_by)
        """The compiled function; `staged.code` is its Python."""

    def compile(self, placed: Placed) -> bool | None:
        """See `CompilesStep`."""
        if isinstance(self._work, Infer | InferLoad):
            return None  # the first pass compiles, with the weights
        return super().compile(placed)

    def _compile_by_running(self, placed: Placed) -> None:
        run_with_cache_repair(lambda: self._run_once(placed), cache_in_use)

    def infer(self, placed: Placed) -> Tensor:
        """See `SupportsInference`. On a GPU the pass is one CUDA graph."""
        with torch.no_grad():
            return (self._captured or self._scores)(*placed[:-1])

    def _scores(self, *inputs: Tensor) -> Tensor:
        scores: Tensor = self._frozen(*inputs)[0]
        return scores

    def load(self, weights: Mapping[str, Array]) -> None:
        """See `Program`."""
        super().load(weights)
        if self._captured is not None:
            self._captured.reset()

    def _forward(self, placed: Placed) -> Tensor:
        with self._autocast:
            return self.staged.run(*placed)

    def close(self) -> None:
        """Drop every array and the compiled code."""
        del self.staged, self._frozen, self._captured
        super().close()


def build(request: BuildRequest) -> PyTorchProgram:
    """The program for `request`; its first step compiles, unless `compile` did."""
    return divided_program(request, compiled=True) or CompiledProgram(request)


def capabilities() -> Capabilities:
    """Those of eager PyTorch, on the devices that can be compiled for here."""
    able = runtime.capabilities()
    devices, reasons, lacking = [], [], set()
    for device in able.devices:
        if _is_too_old(device):
            reasons.append(f"{device} is older than compute capability 7.0, Triton's first.")
        elif missing := _missing_for(device):
            reasons.append(missing)
            lacking.add(device.split(":")[0])
        else:
            devices.append(device)
    kinds = {device.split(":")[0] for device in devices}
    return replace(
        able,
        works=able.works - {"first_steps", "infer_precision", "own_step"},
        devices=tuple(devices),
        precisions={kind: able.precisions[kind] for kind in able.precisions if kind in kinds},
        sync_features=SYNC_FEATURES,
        hint=" ".join(dict.fromkeys(reasons)),
        lacking=frozenset(lacking),
        compiles_segments=True,
        batch_norms=frozenset({"device"}),  # no communication inside the compiled step
        deterministic=False,
        checkpoints_activations=False,
        sparse_gradients=False,
    )


def compiler_for(device: str) -> tuple[Callable[..., Any] | None, str]:
    """What compiles a function for a device, for fixed shapes, at its first call; None where that
    is impossible, with what must be installed, if that helps."""
    if _is_too_old(device):
        return None, ""
    missing = _missing_for(device)
    return (None, missing) if missing else (compiler(), "")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` or its cause means that memory was refused: the compiler wraps errors."""
    seen: BaseException | None = error
    while seen is not None:
        if runtime.is_out_of_memory(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def preload() -> None:
    """Import the compiler too, set to use no other process, so that none outlives a worker."""
    set_up_compiler()
    runtime.preload()
    with runtime.nvml_device_check():
        for name in ("compile_fx", "codegen.cpp", "codegen.cpp_wrapper_cpu", "codegen.triton"):
            importlib.import_module(f"torch._inductor.{name}")


def compiler(network: Network | None = None) -> Callable[..., Any]:
    """`torch.compile` for fixed shapes; a module that could not become a graph may have code that
    it cannot compile, which then runs as it is."""
    opaque = network is not None and any(isinstance(n.layer, Opaque) for n in network.nodes)
    return partial(torch.compile, dynamic=False, fullgraph=not opaque, backend=BACKEND)


def set_up_compiler() -> None:
    """Set the compiler's cache and that it compiles in this process. It reads its cache folder at
    import, so this comes before any import of it."""
    if _CACHE_VARIABLE not in os.environ:
        os.environ[_CACHE_VARIABLE] = str(compile_folder() / f"torch-{torch.__version__}")
    config = importlib.import_module("torch._inductor.config")
    config.compile_threads = 1  # type: ignore[attr-defined]
    dynamo = importlib.import_module("torch._dynamo.config")
    dynamo.allow_rnn = True  # type: ignore[attr-defined]  # decomposed


@contextmanager
def compiler_processes(kind: str) -> Iterator[None]:
    """Compile the kernels of the first program of a GPU in one process per usable core, which end
    with the block: on one core they take most of the time. Later programs are mostly in the cache,
    and starting the processes takes seconds. The C++ of a CPU is one library."""
    global _first_program
    if kind != "cuda" or not _first_program:
        yield
        return
    _first_program = False
    config = importlib.import_module("torch._inductor.config")
    pools = importlib.import_module("torch._inductor.async_compile")
    config.compile_threads = min(MAX_COMPILER_PROCESSES, len(os.sched_getaffinity(0)))  # type: ignore[attr-defined]
    try:
        yield
    finally:
        pools.shutdown_compile_workers()
        config.compile_threads = 1  # type: ignore[attr-defined]


def _trace_backward_without_autocast() -> None:
    """Compile backward passes in the dtypes of their forward pass, as in eager mode. By default the
    compiler traces them under the forward pass's autocast, which would cast the gradients of an
    fp32 layer to 16 bits."""
    config = importlib.import_module("torch._functorch.config")
    if not hasattr(config, "backward_pass_autocast"):
        raise Unsupported(
            f"PyTorch {torch.__version__} compiles backward passes under the surrounding autocast, "
            "without precision by layer. Leave precision_of out, or upgrade PyTorch."
        )
    config.backward_pass_autocast = "off"  # type: ignore[attr-defined]


def run_with_cache_repair(run: Callable[[], Any], cache_in_use: Callable[[], Path | None]) -> Any:
    """Call `run`, which compiles; if a library of the cache cannot be loaded, delete it and call
    `run` again. Other errors, and a second one for the same library, are raised."""
    discarded: set[Path] = set()
    while True:
        try:
            return run()
        except Exception as error:
            broken = damaged_cache_library(error, cache_in_use)
            if broken is None or broken in discarded:
                raise
            broken.unlink()
            discarded.add(broken)


def damaged_cache_library(
    error: BaseException, cache_in_use: Callable[[], Path | None]
) -> Path | None:
    """The damaged library in the cache that `error` names, e.g. from a process killed while writing
    it; None if it names none."""
    named = damaged_libraries(error)
    cache = cache_in_use() if named else None
    if cache is None:
        return None
    return next((path for path in named if path.is_relative_to(cache) and path.is_file()), None)


def cache_in_use() -> Path | None:
    """TorchInductor's cache folder, which it reads at its first import: call `set_up_compiler`
    before. None if this PyTorch has no such function."""
    try:
        found = importlib.import_module("torch._inductor.runtime.cache_dir_utils")
    except ImportError:
        return None
    return Path(found.cache_dir())


def _cache_counts() -> tuple[int, int]:
    """Graphs (from the cache, compiled) so far in this process."""
    counters = importlib.import_module("torch._dynamo.utils").counters
    graphs = counters["inductor"]
    misses = graphs["fxgraph_cache_miss"] + graphs["fxgraph_cache_bypass"]
    return graphs["fxgraph_cache_hit"], misses


def _is_too_old(device: str) -> bool:
    return device != "cpu" and torch.cuda.get_device_capability(device) < _VOLTA


def _missing_for(device: str) -> str | None:
    """What must be installed to compile for a device; None if nothing."""
    if device == "cpu":
        return missing_compiler() or _missing_headers("CPU")
    if find_spec("triton") is None:
        return "Compiling for the GPU needs Triton: pip install triton."
    compiler = os.environ.get("CC")
    if not any(shutil.which(name) for name in ((compiler,) if compiler else _C_COMPILERS)):
        return "Compiling for the GPU needs a C compiler: install gcc (apt install gcc)."
    return _missing_headers("GPU")


def _missing_headers(kind: str) -> str | None:
    if Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return None
    return (
        f"Compiling for the {kind} needs Python's header files: install them (apt install "
        "python3-dev)."
    )
