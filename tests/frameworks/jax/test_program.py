"""What is JAX's own about the program: types, donation, copies, threads, dropout."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.jax import build, is_out_of_memory
from cubemesh.frameworks.jax.program import make_step
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import Convolution, Linear
from cubemesh.schema.work import Forward, Infer


@pytest.fixture
def tiny():
    """Convolution, batch normalization and dropout at the size of a thumbnail."""
    net = NetworkBuilder("tiny")
    x = net.relu(net.batch_norm(net.conv(net.input("image", (3, 6, 5)), 4, kernel=3)))
    net.classify(net.linear(net.dropout(net.flatten(x), 0.5), 3))
    return net.build()


@pytest.fixture
def loaded(tiny, make_request):
    def make(**fields):
        program = build(make_request(tiny, **fields))
        program.load(tiny.draw(0))
        return program

    return make


@pytest.mark.parametrize(
    ("precision", "products"),
    [("fp64", "f64"), ("fp32", "f32"), ("bf16", "bf16"), ("fp16", "f16")],
)
@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop", "adam", "adamw"])
def test_a_step_computes_in_the_types_of_its_precision(
    precision, products, optimizer, loaded, make_batch, tiny
):
    program = loaded(precision=precision, optimizer=optimizer)
    step = make_step(program._function, program._optimizer, program._scaling)
    text = str(
        jax.make_jaxpr(step)(program._carry, program._rate, *program.place(make_batch(tiny)))
    )
    for operation in ("conv_general_dilated", "dot_general"):
        found = set(re.findall(rf":(\w+)\[[\d,]*\] = {operation}\[", text))
        assert found == {products}, operation
    assert not re.search(r"i64\[\d", text)
    # (JAX's own dropout begins with two scalars of 64 bits and narrows them; they are constants.)
    assert bool(re.search(r"f64\[\d", text)) == (precision == "fp64")
    assert {str(a.dtype) for a in program._carry.parameters.values()} == {
        "float64" if precision == "fp64" else "float32"
    }


def test_a_step_overwrites_its_arrays(loaded, make_batch, tiny):
    program = loaded()
    before = program._carry
    program.train_step(program.place(make_batch(tiny)))
    program.synchronize()
    assert all(array.is_deleted() for array in before.parameters.values())


def test_weights_that_were_read_do_not_change(loaded, make_batch, tiny):
    program = loaded()
    read = program.state()
    copies = {name: array.copy() for name, array in read.items()}
    for _ in range(3):
        program.train_step(program.place(make_batch(tiny)))
    program.synchronize()
    assert all(np.array_equal(read[name], copies[name]) for name in copies)
    assert any(not np.array_equal(program.state()[name], copies[name]) for name in copies)


def test_losses_are_equal_for_one_seed_and_dropout_differs_between_steps(loaded, make_batch, tiny):
    def losses(seed):
        program = loaded(seed=seed, learning_rate=0.0)
        placed = program.place(make_batch(tiny))
        found = []
        for _ in range(3):
            program.train_step(placed)
            found.append(program.loss())
        return found

    first = losses(1)
    assert losses(1) == first
    assert len({*first, *losses(2)}) == 6


def test_the_forward_pass_changes_statistics_only(tiny, make_request, make_batch):
    work = Forward(network="tiny", batch_per_device=4)
    program = build(make_request(tiny, work=work))
    with pytest.raises(UsageError, match="load"):
        program.state()
    program.load(tiny.draw(0))
    placed = program.place(make_batch(tiny))
    program.forward(placed)
    program.forward(placed)
    program.synchronize()
    after, drawn = program.state(), tiny.draw(0)
    assert all(np.array_equal(after[name], drawn[name]) for name in tiny.parameters)
    assert all(not np.array_equal(after[name], drawn[name]) for name in tiny.state)
    with pytest.raises(UsageError, match="forward"):
        program.train_step(placed)


@pytest.mark.parametrize(("precision", "held"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_inference_holds_the_weights_of_products_in_their_type(
    precision, held, tiny, make_request, make_batch
):
    work = Infer(network="tiny", batch_per_device=4)
    program = build(make_request(tiny, work=work, precision=precision))
    program.load(tiny.draw(0))
    products = [n for n in tiny.nodes if isinstance(n.layer, Convolution | Linear)]
    narrow = {name for node in products for name in node.parameters.values()}
    held_in = {name: str(a.dtype) for name, a in program._carry.parameters.items()}
    assert held_in == {name: held if name in narrow else "float32" for name in held_in}
    assert {str(array.dtype) for array in program.state().values()} == {"float32"}
    scores = program.infer(program.place(make_batch(tiny)))
    program.synchronize()
    assert scores.is_ready()


def test_an_xla_without_an_option_infers_without_it(tiny, make_request, make_batch):
    program = build(make_request(tiny, work=Infer(network="tiny", batch_per_device=4)))
    program.load(tiny.draw(0))
    placed = program.place(make_batch(tiny))
    wanted = program.fetch(program.infer(placed))
    plain, unknown = program._scores, {"xla_gpu_enable_command_buffer": "NO_SUCH_KIND"}
    program._captured_scores = jax.jit(program._function.scores, compiler_options=unknown)
    assert np.array_equal(program.fetch(program.infer(placed)), wanted)
    assert program._scores is plain


def test_one_value_a_channel_cannot_be_normalized(make_request, make_batch):
    net = NetworkBuilder("flat")
    x = net.batch_norm(net.linear(net.flatten(net.input("image", (1, 2, 2))), 3))
    net.classify(x)
    network = net.build()
    program = build(make_request(network))
    program.load(network.draw(0))
    with pytest.raises(Unsupported, match="batch of 2"):
        program.train_step(program.place(make_batch(network, 1)))


def test_a_placed_batch_uses_the_copy_in_place(loaded, make_batch, tiny):
    images, labels = loaded().place(make_batch(tiny))
    assert images.unsafe_buffer_pointer() % 64 == 0
    assert (images.dtype, labels.dtype) == (np.float32, np.int32)
    assert loaded(layout="nhwc").place(make_batch(tiny))[0].shape == (4, 6, 5, 3)


def test_xla_s_refusal_of_memory_is_recognized():
    refusal = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.")
    assert is_out_of_memory(refusal)
    assert not is_out_of_memory(jax.errors.JaxRuntimeError("INTERNAL: something else"))


THREADS = """
import os, sys
from cubemesh.frameworks.jax import build_ceiling
from cubemesh.schema.spec import ProgramSettings
from cubemesh.schema.work import Ceiling

settings = ProgramSettings(framework="jax")
program = build_ceiling(Ceiling(size=64), settings, "cpu", int(sys.argv[1]))
program.call()
program.synchronize()
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
print(sum(name.startswith("tf_XLAEigen") for name in names))
"""


@pytest.mark.parametrize("threads", ["1", "3"])
def test_xla_computes_with_the_requested_threads(threads):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", THREADS, threads],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == threads
