"""Compiled programs: equality with eager, the cache, missing compilers. Networks are tiny."""

import _ctypes
import ctypes
import dataclasses
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks import pytorch as programs
from cubemesh.frameworks.contract.program import NotInstalled
from cubemesh.frameworks.pytorch import compiled
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.schema.spec import Placement, ProgramSettings, RunSpec
from cubemesh.schema.work import TrainSteps
from cubemesh.worker.validation import check_supported
from script_server import run_code

SPEC = RunSpec(
    work=TrainSteps(network="little-cnn", batch_per_device=8),
    program=ProgramSettings(framework="pytorch-compiled"),
)
compiles = pytest.mark.skipif(
    "cpu" not in compiled.capabilities().devices, reason="no C++ compiler here"
)


def small():
    """Two segments, with a batch normalization and a sum."""
    net = NetworkBuilder("small")
    x = net.input("image", (3, 6, 6))
    with net.segment("features"):  # no bias: before a batch normalization its gradient is nothing
        x = net.relu(net.batch_norm(net.conv(x, 4, kernel=3, padding=1, bias=False)))
    with net.segment("classifier"):
        x = net.flatten(net.max_pool(net.add(net.conv(x, 4, kernel=1), x), 2))
        net.classify(net.linear(x, 5))
    return net.build()


def smallest():
    """As `small`, of fewer operations: each is a function in C++ that takes a second to compile."""
    net = NetworkBuilder("smallest")
    x = net.input("image", (3, 4, 4))
    x = net.relu(net.batch_norm(net.conv(x, 4, kernel=3, padding=1, bias=False)))
    net.classify(net.linear(net.flatten(x), 5))
    return net.build()


def dropping():
    """One segment, little more than a dropout."""
    net = NetworkBuilder("dropping")
    x = net.flatten(net.input("image", (3, 6, 6)))
    net.classify(net.linear(net.dropout(x, 0.5), 5))
    return net.build()


def assert_near(one, other):
    scale = max(np.abs(other).max(), 1e-300)
    assert np.abs(one - other).max() <= 1e-9 * scale


@compiles
@pytest.mark.parametrize(
    ("make", "compile_by", "graphs", "backend", "micro_batches"),
    [
        (smallest, "network", 1, "inductor", 1),
        (small, "segment", 2, "aot_eager", 1),  # traced and not made into C++
        (small, "network", 1, "aot_eager", 2),
        pytest.param(small, "network", 1, "inductor", 1, marks=pytest.mark.sweep),
        pytest.param(small, "segment", 2, "inductor", 1, marks=pytest.mark.sweep),
    ],
)
def test_compiled_equals_eager_in_fp64(
    make, compile_by, graphs, backend, micro_batches, make_request, make_batch, monkeypatch
):
    monkeypatch.setattr(compiled, "BACKEND", backend)
    request = make_request(
        make(),
        precision="fp64",
        learning_rate=0.1,
        weight_decay=0.01,
        accumulation_steps=micro_batches,
    )
    settings = dataclasses.replace(request.program, compile_by=compile_by)
    request = dataclasses.replace(request, program=settings)
    eager, ours = programs.build(request), compiled.build(request)
    assert len(ours.staged.stages) == graphs
    weights = request.network.draw(0)
    batches = [make_batch(request.network, seed=s) for s in range(3)]
    assert (ours.compile(ours.place(batches[0])) is not None) == (backend == "inductor")
    assert ours.compile(ours.place(batches[0])) is None
    assert np.isnan(ours.loss())
    for one in (eager, ours):
        one.load(weights)
    for batch in batches:
        for one in (eager, ours):
            one.train_step(one.place(batch))
        assert ours.loss() == pytest.approx(eager.loss(), rel=1e-9)
        gradients = [[p.grad.numpy() for p in x._built.parameters.values()] for x in (ours, eager)]
        for mine, its in zip(*gradients, strict=True):
            assert_near(mine, its)
        state = eager.state()
        for name, array in ours.state().items():
            assert_near(array, state[name])
        scores = [x.evaluate(x.place(batch)) for x in (ours, eager)]
        assert_near(*scores)
    statistics = [name for name in request.network.state if "mean" in name]
    assert statistics
    assert all(not np.array_equal(ours.state()[name], weights[name]) for name in statistics)


@compiles
def test_dropout_differs_between_steps_and_is_equal_for_one_seed(make_request, make_batch):
    request = make_request(dropping(), learning_rate=0.0)
    losses = []
    for precompiled in (True, False):
        ours = compiled.build(request)
        placed = ours.place(make_batch(request.network))
        if precompiled:
            ours.compile(placed)
        ours.load(request.network.draw(0))
        for _ in range(3):
            ours.train_step(placed)
            losses.append(ours.loss())
    assert len(set(losses[:3])) == 3
    assert losses[:3] == losses[3:]


def test_a_missing_compiler_has_an_installation_hint(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    able = compiled.capabilities()
    assert able.devices == ()
    assert able.precisions == {}
    with pytest.raises(NotInstalled, match=r"install g\+\+"):
        check_supported(SPEC, able)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in compiled.capabilities().hint


def test_a_gpu_without_a_cpu_compiler_has_a_hint_for_the_cpu():
    able = dataclasses.replace(
        compiled.capabilities(),
        devices=("cuda:0",),
        hint="Install g++ for the CPU.",
        lacking=frozenset({"cpu"}),
    )
    spec = dataclasses.replace(SPEC, placement=Placement(device="cpu"))
    with pytest.raises(NotInstalled, match=re.escape(able.hint)):
        check_supported(spec, able)


def test_memory_refused_inside_the_compiler_is_recognized():
    wrapped = RuntimeError("backend failed")
    wrapped.__cause__ = MemoryError()
    assert compiled.is_out_of_memory(wrapped)
    assert not compiled.is_out_of_memory(RuntimeError("backend failed"))


def test_compiled_code_is_stored_in_the_cache_folder(tmp_path, monkeypatch):
    code = (
        "from cubemesh.frameworks.pytorch import compiled; compiled.set_up_compiler();"
        "from torch._inductor.runtime.cache_dir_utils import cache_dir; print(cache_dir());"
        "from torch._inductor import config; print(config.compile_threads)"
    )
    for name in [name for name in os.environ if name.startswith("TORCHINDUCTOR")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, threads = run_code(code).split()
    assert folder == str(tmp_path / "cubemesh" / "compile" / f"torch-{torch.__version__}")
    assert threads == "1"


COMPILING = """
import numpy as np
from cubemesh.batches import Batch
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.frameworks.pytorch import compiled
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.parallel.strategy import NoSync

net = NetworkBuilder("tiny")
net.classify(net.linear(net.relu(net.flatten(net.input("image", (1, 2, 2)))), 3))
network = net.build()
program = compiled.build(
    BuildRequest(
        network=network,
        work=TrainSteps(network="tiny", batch_per_device=2),
        program=ProgramSettings(framework="pytorch-compiled"),
        placement=Placement(),
        sync=NoSync(),
        device="cpu",
        threads=1,
    )
)
placed = program.place(Batch(np.ones((2, 1, 2, 2), np.float32), labels=np.array([0, 1])))
program.compile(placed)
program.load(network.draw())
program.train_step(placed)
print(program.loss())
"""


def test_truncated_libraries_are_compiled_again(tmp_path):
    """The system's own loader refuses them; `run` stands for what compiles where nothing is."""
    libraries = [tmp_path / name for name in ("forward.so", "backward.so")]
    for library in libraries:
        library.write_bytes(b"")
    made = []

    def run():
        for library in libraries:
            if not library.exists():
                shutil.copyfile(_ctypes.__file__, library)
                made.append(library)
            ctypes.CDLL(str(library))

    compiled.run_with_cache_repair(run, lambda: tmp_path)
    assert made == libraries


def test_a_library_that_stays_damaged_is_an_error(tmp_path):
    library = tmp_path / "kernel.so"

    def run():
        library.write_bytes(b"no library")
        ctypes.CDLL(str(library))

    with pytest.raises(OSError, match=r"kernel\.so"):
        compiled.run_with_cache_repair(run, lambda: tmp_path)


@pytest.mark.sweep
@compiles
def test_truncated_libraries_of_torchinductor_are_compiled_again(tmp_path):
    own = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    own["PYTHONPATH"] = os.pathsep.join(sys.path)
    outputs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", COMPILING], env=own, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
        libraries = list(tmp_path.rglob("*.main.so"))  # the others hold properties of the processor
        assert libraries
        assert all(library.stat().st_size > 0 for library in libraries)
        for library in libraries:
            library.write_bytes(b"")
    assert outputs[0] == outputs[1]


def test_only_libraries_of_the_own_cache_are_deleted(tmp_path):
    cut = tmp_path / "inductor" / "ab" / "cut.so"
    cut.parent.mkdir(parents=True)
    cut.write_bytes(b"")
    said = RuntimeError(f"InductorError: ImportError: {cut}: file too short")
    assert compiled.damaged_cache_library(said, lambda: tmp_path / "inductor") == cut
    assert compiled.damaged_cache_library(said, lambda: tmp_path / "elsewhere") is None
    assert compiled.damaged_cache_library(said, lambda: None) is None
    cut.unlink()
    assert compiled.damaged_cache_library(said, lambda: tmp_path / "inductor") is None


def test_other_errors_do_not_delete_a_library(tmp_path, monkeypatch):
    """Memory may be refused, a symbol may lack; and every other error comes by here as well."""
    whole = tmp_path / "whole.so"
    whole.write_bytes(b"x")

    def unasked():
        raise AssertionError("the cache was looked for")

    for words in (
        f"{whole}: failed to map segment from shared object: Cannot allocate memory",
        f"{whole}: undefined symbol: answer",
        "a network that cannot be traced",
    ):
        assert compiled.damaged_cache_library(RuntimeError(words), unasked) is None
    monkeypatch.setitem(sys.modules, "torch._inductor.runtime.cache_dir_utils", None)
    assert compiled.cache_in_use() is None
