"""Two real processes with sharded state against one: on a CPU through gloo, on GPUs through NCCL.

The ranks run this very file as a script: what they do and what one process does is one function."""

import pickle
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode

from cubemesh.batches import Batch
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.frameworks.pytorch import build, join, launch
from cubemesh.measure.attribution.transfers import Transfers
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.memory import forecast
from cubemesh.networks.memory_simulation import Sharding
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.parallel import strategies
from cubemesh.parallel.timed_group import TimedGroup
from cubemesh.parallel.waits import WaitingGroup, Waits
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from script_server import run_script

RANKS, GLOBAL_BATCH, STEPS, UNIT_BYTES = 2, 4, 3, 256
SHARDED = ("fully-sharded", "sharded-gradients")
CASES = [
    ("fully-sharded", "fp64", "sgd", 1),
    ("sharded-gradients", "fp64", "sgd", 1),
    ("sharded-optimizer", "fp64", "sgd", 1),
    ("fully-sharded", "fp64", "adamw", 2),
    ("fully-sharded", "bf16", "sgd", 1),
]
"""Strategy, precision, optimizer, micro-batches."""
BLOCKS = gpt("blocks", 32, 512, width=64, depth=6, heads=4)
PEAKS = [("fully-sharded", "fp32")]
"""Strategy, precision."""
GPUS = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="needs two GPUs"),
    ],
)


def network():
    """Odd sizes, so that a rank has fewer rows; one weight in two segments; a normalization over
    the batch."""
    net = NetworkBuilder("small")
    x = net.input("image", (3, 4, 4))
    with net.segment("features"):
        x = net.relu(net.batch_norm(net.conv(x, 5, kernel=3, bias=True)))
    with net.segment("first"):
        x = net.linear(net.flatten(x), 9, name="in")
        x = net.linear(x, 9, bias=False, name="tied")
    with net.segment("second"):
        x = net.relu(x)  # in place, of another unit's value
        x = net.tanh(net.linear(x, 9, name="middle"))
    with net.segment("third"):
        x = net.linear(x, 9, bias=False, share={"weight": "tied.weight"}, name="again")
        net.classify(net.linear(x, 3, name="out"))
    return net.build()


def batch(seed, part=slice(None)):
    drawn = np.random.default_rng(seed)
    images = drawn.random((GLOBAL_BATCH, 3, 4, 4), dtype=np.float32)
    return Batch(images=images[part], labels=drawn.integers(0, 3, GLOBAL_BATCH)[part])


def train(case, group, device, unit_bytes=UNIT_BYTES):
    """What a rank finds in some steps, with its state saved and restored before the last."""
    sync, precision, optimizer, micro_batches = case
    each = GLOBAL_BATCH // group.size
    part = slice(group.rank * each, (group.rank + 1) * each)
    transfers, waits = Transfers(clock=lambda: 0.0), Waits()
    timed = WaitingGroup(TimedGroup(group, transfers), waits) if group.size > 1 else group
    made = network()
    program = build(
        BuildRequest(
            network=made,
            work=TrainSteps(
                network="small",
                batch_per_device=each,
                optimizer=optimizer,
                accumulation_steps=micro_batches,
            ),
            placement=Placement(devices=group.size),
            program=ProgramSettings(
                precision=precision,
                sync=sync if group.size > 1 else "none",
                batch_norm="device" if micro_batches > 1 else "global",
                deterministic=True,
                bucket_bytes=unit_bytes,
            ),
            sync=strategies.make(sync if group.size > 1 else "none", timed),
            device=device,
            threads=1,
            group=timed,
        )
    )
    program.load(made.draw(1))
    seen = {}
    program.inspected_step(
        program.place(batch(0, part)), lambda kind, name, a: seen.setdefault((kind, name), a)
    )
    losses = [program.loss()]
    for step in range(1, STEPS):
        if step == STEPS - 1:
            saved = program.snapshot()
            program.train_step(program.place(batch(99, part)))
            program.evaluate(program.place(batch(99)))  # gathers weights
            program.restore(saved)
        program.train_step(program.place(batch(step, part)))
        losses.append(program.loss())
    found = {
        "losses": losses,
        "state": program.state(),
        "scores": program.evaluate(program.place(batch(7))),
        "gradients": {n: a for (kind, n), a in seen.items() if kind == "gradient"},
        "own": {n: a for (kind, n), a in seen.items() if kind == "own gradient"},
        "saved": {name: array.shape for name, array in saved.arrays.items()},
        "kinds": program.memory_by_kind(),
        "fingerprint": program.fingerprint(),
        "collectives": [t.size_bytes for t in transfers.cut(-1.0, 1.0)],
        "waited": waits.take(),
    }
    program.close()
    return found


class Held(TorchDispatchMode):
    """The most bytes of arrays, other than `before`, that were referred to at one time; FSDP frees
    and allocates the memory of an array that it goes on to use."""

    def __init__(self, before):
        super().__init__()
        self.peak, self.arrays = 0, {}
        self.before = {a.untyped_storage()._cdata for a in before}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(result):
            if type(value) in (torch.Tensor, torch.nn.Parameter):
                memory = value.untyped_storage()
                if memory._cdata not in self.before:
                    self.arrays[memory._cdata] = weakref.ref(memory)
        alive = [memory for ref in self.arrays.values() if (memory := ref()) is not None]
        self.peak = max(self.peak, sum(memory.nbytes() for memory in alive))
        return result


def peak_of_a_step(group, sync, precision):
    """Bytes of a step of a transformer without weights and optimizer state."""
    program = build(
        BuildRequest(
            network=BLOCKS,
            work=TrainSteps(network="blocks", batch_per_device=2, optimizer="adamw"),
            placement=Placement(devices=RANKS),
            program=ProgramSettings(precision=precision, sync=sync),
            sync=strategies.make(sync, group),
            device="cpu",
            threads=1,
            group=group,
        )
    )
    program.load(BLOCKS.draw(1))
    tokens = np.random.default_rng(group.rank).integers(0, 512, (2, 32))
    placed = program.place(Batch(tokens, labels=tokens))
    rows = [p.to_local() for p in program._built.parameters.values()]
    with Held([*rows, *placed]) as held:
        program._backward(placed)
    program.close()
    return held.peak


def rank(job):
    """What each process does."""
    device, file = job.split(" ", 1)
    torch.set_num_threads(1)
    group = join("cpu", 60.0) if device == "cpu" else None
    if group is None:
        import os

        device = f"cuda:{os.environ['RANK']}"
        torch.cuda.set_device(device)
        group = join(device, 60.0)
    found = {case: train(case, group, device) for case in CASES}
    if device == "cpu":
        found |= {("peak", *case): peak_of_a_step(group, *case) for case in PEAKS}
    with open(f"{file}-{group.rank}", "wb") as out:
        pickle.dump(found, out)
    group.close()


@pytest.fixture(scope="module", params=["cpu", GPUS])
def ranks(request, tmp_path_factory):
    """The device of one process, and what each rank found."""
    file = tmp_path_factory.mktemp("sharded") / "found"
    run_script(__file__, f"{request.param} {file}", imports=["torch._dynamo"])  # by FSDP
    found = [pickle.loads((file.parent / f"found-{n}").read_bytes()) for n in range(RANKS)]
    return ("cpu" if request.param == "cpu" else "cuda:0"), found


@pytest.fixture(scope="module")
def one(ranks):
    """What one process finds."""
    return {case: train(case, SingleProcessGroup(), ranks[0]) for case in CASES if case[3] == 1}


EXACT = [case for case in CASES if case[1] == "fp64" and case[3] == 1]


@pytest.mark.parametrize("case", EXACT, ids=lambda case: case[0])
def test_two_ranks_compute_what_one_device_computes(ranks, one, case):
    both, alone = [found[case] for found in ranks[1]], one[case]
    mean = np.mean([own["losses"] for own in both], axis=0)
    np.testing.assert_allclose(mean, alone["losses"], rtol=1e-10)
    for own in both:
        for name, array in alone["state"].items():
            np.testing.assert_allclose(own["state"][name], array, atol=1e-10, err_msg=name)
        np.testing.assert_allclose(own["scores"], alone["scores"], atol=1e-10)
        for name, array in alone["gradients"].items():
            np.testing.assert_allclose(own["gradients"][name], array, atol=1e-10, err_msg=name)
            own_mean = np.mean([b["own"][name] for b in both], axis=0)
            np.testing.assert_allclose(own_mean, array, atol=1e-10, err_msg=name)
    assert both[0]["fingerprint"] == both[1]["fingerprint"]
    assert both[0]["own"]["middle.weight"] != pytest.approx(both[1]["own"]["middle.weight"])


@pytest.mark.parametrize("case", CASES[:2], ids=SHARDED)
def test_what_is_saved_has_the_format_of_one_device(ranks, one, case):
    for found in ranks[1]:
        assert found[case]["saved"] == one[case]["saved"]


def test_each_rank_has_half_of_what_is_divided(ranks, one):
    for case in CASES[:3]:
        whole = one[case]["kinds"]
        divided = {"gradients", "weights", "optimizer"} if case[0] in SHARDED else {"optimizer"}
        for kind, size in whole.items():
            shares = [found[case]["kinds"][kind] / size for found in ranks[1]]
            expected = 1 if kind in divided else RANKS
            assert sum(shares) == pytest.approx(expected, rel=0.1), (case, kind)


def test_micro_batches_add_up_to_the_batch(ranks):
    """Batch normalization sees one sample at a time in either way of dividing four."""
    case = CASES[3]
    both = [found[case] for found in ranks[1]]
    alone = train((*case[:3], GLOBAL_BATCH), SingleProcessGroup(), ranks[0])
    for name in ("in.weight", "tied.weight", "out.bias"):
        np.testing.assert_allclose(both[0]["gradients"][name], alone["gradients"][name], atol=1e-9)


def test_low_precision_is_near_and_the_same_on_all_ranks(ranks, one):
    case = CASES[4]
    both, alone = [found[case] for found in ranks[1]], one[case]
    # The gradient of a bias before a batch normalization is 0: what is there is rounding.
    whole = np.linalg.norm([np.linalg.norm(array) for array in alone["gradients"].values()])
    for name, array in alone["gradients"].items():
        np.testing.assert_array_equal(both[0]["gradients"][name], both[1]["gradients"][name])
        distance = np.linalg.norm(both[0]["gradients"][name] - array)
        assert distance <= 0.2 * np.linalg.norm(array) + 0.01 * whole, name


def test_collectives_of_a_cpu_are_recorded_with_their_bytes(ranks):
    if ranks[0] != "cpu":
        pytest.skip("the profiler sees those of a GPU")
    for found in ranks[1]:
        weights = 8 * sum(
            np.size(a) for n, a in found[CASES[0]]["state"].items() if "runn" not in n
        )
        sent = {case[0]: sum(found[case]["collectives"]) for case in CASES[:2]}
        assert sent["fully-sharded"] > sent["sharded-gradients"] > 2 * weights
        assert found[CASES[0]]["waited"] > 0


@pytest.mark.parametrize(
    ("sync", "program", "work", "why"),
    [
        ("fully-sharded", {"precision": "fp16"}, {}, "neither loss scaling"),
        ("sharded-gradients", {}, {"optimizer": "lars"}, "norm of whole arrays"),
        ("fully-sharded", {}, {"optimizer": "adamw-8bit"}, "blocks of 256 values of whole arrays"),
        ("sharded-optimizer", {"precision": "fp16"}, {}, "loss scaling"),
    ],
)
def test_what_cannot_be_sharded_is_refused_with_the_way_out(make_request, sync, program, work, why):
    group = SimpleNamespace(rank=0, size=2)
    request = make_request("little-cnn")
    request = replace(
        request,
        group=group,
        sync=strategies.make(sync, group),
        program=replace(request.program, **program),
        work=replace(request.work, **work),
    )
    with pytest.raises(Unsupported, match=f"{why}.*Set "):
        build(request)


@pytest.mark.parametrize(
    ("sync", "module", "version"),
    [("fully-sharded", "fully_sharded", "2.6"), ("tensor-parallel", "tensor_parallel", "2.7")],
)
def test_an_older_pytorch_is_refused(make_request, monkeypatch, sync, module, version):
    name = f"cubemesh.frameworks.pytorch.distributed.{module}"
    monkeypatch.setitem(sys.modules, name, None)  # as if its import failed
    group = SimpleNamespace(rank=0, size=2)
    request = make_request("little-cnn")
    request = replace(request, group=group, sync=strategies.make(sync, group))
    with pytest.raises(Unsupported, match=f"sync={sync} needs PyTorch {version} or later"):
        build(request)


@pytest.mark.parametrize("case", PEAKS, ids="-".join)
def test_the_memory_forecast_of_a_step_is_near(ranks, case):
    if ranks[0] != "cpu":
        pytest.skip("counts the arrays of a CPU")
    sharding = Sharding(ranks=RANKS, zero_stage=strategies.strategy(case[0]).zero_stage)
    expected = forecast(BLOCKS, 2, case[1], "adamw", sharding=sharding)
    before = sharding.part(4 * BLOCKS.parameter_count, 2)
    before += expected.optimizer_bytes + expected.input_bytes
    for found in ranks[1]:
        assert expected.total_bytes - before == pytest.approx(found["peak", *case], rel=0.08)


if __name__ == "__main__":
    assert not launch(rank, sys.argv[1], RANKS)
