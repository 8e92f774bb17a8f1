import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import OutOfMemory
from cubemesh.frameworks.null import program as null
from cubemesh.schema.spec import ProgramSettings
from cubemesh.schema.work import Ceiling
from script_server import run_code

SCRIPTED = """
from cubemesh.frameworks.null.program import trigger
from cubemesh.frameworks.null.script import read_script
for step in range(1, 6):
    print(step, flush=True)
    for event in read_script({script!r}).events_at(step):
        trigger(event)
"""


def failure_of(script):
    """How a process of its own ends that has the events of a script."""
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_code(SCRIPTED.format(script=script))
    return failed.value


def test_scripted_time_needs_no_waiting(make_request, make_batch, monkeypatch):
    monkeypatch.setattr(null.time, "sleep", lambda seconds: pytest.fail("slept"))
    request = make_request(script="step=10,per_sample=1")
    before = time.perf_counter()
    program = null.build(request)
    start = program.clock()
    assert before <= start <= time.perf_counter()
    placed = program.place(make_batch(request.network, 4))
    for _ in range(3):
        program.train_step(placed)
    assert program.clock() - start == pytest.approx(3 * 14)


def test_real_time_is_waited_for(make_request, make_batch):
    request = make_request(script="step=0.03,real=1")
    program = null.build(request)
    start = program.clock()
    program.forward(program.place(make_batch(request.network)))
    assert program.clock() - start >= 0.03


def test_jitter_is_the_same_for_the_same_seed(make_request, make_batch):
    def lengths(seed):
        request = make_request(script="jitter=0.1", seed=seed)
        program = null.build(request)
        placed = program.place(make_batch(request.network))
        readings = [program.clock()]
        for _ in range(50):
            program.train_step(placed)
            readings.append(program.clock())
        return np.diff(readings)

    assert np.allclose(lengths(1), lengths(1), rtol=1e-6)
    assert not np.allclose(lengths(1), lengths(2))
    assert 0.05 < lengths(1).std() / 0.001 < 0.2


def test_accuracy_is_exact_over_an_evaluation(make_request, make_batch):
    request = make_request(script="accuracy=0.1:0.7", epochs=3)
    program = null.build(request)
    batches = [make_batch(request.network, n, seed=n) for n in (33, 33, 34)]
    fractions = []
    for _ in range(3):
        program.train_step(program.place(batches[0]))
        right = [
            (program.evaluate(program.place(b)).argmax(axis=1) == b.labels).sum() for b in batches
        ]
        fractions.append(sum(right) / 100)
    assert fractions == [0.1, 0.4, 0.7]


def test_memory_and_loss_are_as_scripted(make_request, make_batch):
    program = null.build(make_request(script="memory=2e9,loss=2:1,nan@2"))
    placed = np.zeros(4, np.int64)
    assert program.peak_memory_bytes() == 2_000_000_000
    assert program.loss() == 2
    program.train_step(placed)
    assert 1 < program.loss() < 2
    program.train_step(placed)
    assert np.isnan(program.loss())
    assert null.build(make_request()).peak_memory_bytes() is None


def test_a_wrong_script_is_refused_at_build(make_request):
    with pytest.raises(UsageError, match="script"):
        null.build(make_request(script="stop=3"))


def test_a_ceiling_has_its_operation_s_size():
    settings = ProgramSettings(framework="null", script="step=0.5")
    product = null.build_ceiling(Ceiling(size=100), settings, "cpu", 1)
    start = product.clock()
    product.call()
    assert product.clock() - start == pytest.approx(0.5)
    assert (product.work_per_call, product.unit) == (2e6, "FLOP/s")
    copy = null.build_ceiling(Ceiling(operation="copy", size=100), settings, "cpu", 1)
    assert (copy.work_per_call, copy.unit) == (200, "byte/s")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("segfault@3", -signal.SIGSEGV),
        ("kill@3", -signal.SIGKILL),
        ("exit@3", 1),
        ("exit:7@3", 7),
    ],
)
def test_the_process_ends_with_its_code(script, code):
    done = failure_of(script)
    assert done.returncode == code
    assert done.stdout.split() == ["1", "2", "3"]


def test_an_error_is_raised():
    *_, last = failure_of("error@2").stderr.splitlines()
    assert last.startswith("RuntimeError: ")
    assert "step 2" in last


def test_allocation_fills_memory():
    limit = 1 << 29

    def limited():
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    command = [sys.executable, "-c", SCRIPTED.format(script="allocate@2")]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limited)
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert "OutOfMemory: " in last
    assert "step 2" in last
    assert null.is_out_of_memory(OutOfMemory())
    assert null.is_out_of_memory(MemoryError())
    assert not null.is_out_of_memory(RuntimeError("out of memory"))


def test_a_hang_never_ends():
    command = [sys.executable, "-c", SCRIPTED.format(script="hang@2")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        child.kill()
