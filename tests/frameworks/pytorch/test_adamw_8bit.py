"""AdamW with 8-bit moments: its codes, its distance to fp32 AdamW, its memory, its checkpoints."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.batches import Batch
from cubemesh.data.images.digits import open_digits
from cubemesh.frameworks.pytorch import build, captured
from cubemesh.frameworks.pytorch.adamw_8bit import (
    AdamW8bit,
    _nearest,
    dequantize,
    dynamic_codes,
    quantize,
)
from cubemesh.frameworks.pytorch.optimizers import _AdamW
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.memory import EIGHT_BIT_BLOCK, forecast

RATE = 2e-3


def classifier():
    net = NetworkBuilder("classifier")
    x = net.relu(net.conv(net.input("image", (1, 8, 8)), 16, kernel=3))
    x = net.relu(net.conv(x, 40, kernel=3))
    net.classify(net.linear(net.relu(net.linear(net.flatten(x), 48)), 10))
    return net.build()


@pytest.fixture
def program_of(make_request):
    made = []

    def make(optimizer, network=None, **settings):
        request = make_request(
            network or classifier(),
            optimizer=optimizer,
            learning_rate=RATE,
            weight_decay=0.01,
            **settings,
        )
        made.append(build(request))
        return made[-1]

    yield make
    for program in made:
        program.close()


def batches(count, size=64, seed=0):
    source = open_digits("train", (1, 8, 8), 10)
    order = np.random.default_rng(seed)
    for _ in range(count):
        yield source.batch(order.choice(source.samples, size, replace=False))


def of_blocks(x, signed):
    blocks = -(-len(x) // EIGHT_BIT_BLOCK)
    into, scales = torch.empty(len(x), dtype=torch.uint8), torch.empty(blocks, dtype=x.dtype)
    quantize(x, signed, into, scales)
    return into, scales


@pytest.mark.parametrize("signed", [True, False])
def test_a_code_is_dynamic_tree_quantization(signed):
    codes = dynamic_codes(signed)
    assert len(codes) == len(set(codes)) == 256
    assert codes == tuple(sorted(codes))
    assert {0.0, 1.0} <= set(codes)
    middles = {c for c in codes if c > 0 and c != 1}
    parts = [2 ** (n + (not signed)) for n in range(7)]
    found = [sum(10 ** (n - 7) < c < 10 ** (n - 6) for c in middles) for n in range(7)]
    assert found == parts
    assert {-c for c in codes if c < 0} == (middles if signed else set())


@pytest.mark.parametrize("signed", [True, False])
def test_a_value_becomes_the_nearest_code_of_its_block(signed):
    torch.manual_seed(0)
    x = torch.randn(3 * EIGHT_BIT_BLOCK - 40, dtype=torch.float64) * 10 ** torch.linspace(
        -9, 3, 728
    )
    x = x if signed else x.abs()
    into, scales = of_blocks(x, signed)
    codes = torch.tensor(dynamic_codes(signed), dtype=torch.float64)
    rows = torch.nn.functional.pad(x, (0, 40)).view(3, EIGHT_BIT_BLOCK)
    assert torch.equal(scales, rows.abs().amax(1))
    values = (rows / scales[:, None]).flatten()[: len(x)]
    nearest = (values[:, None] - codes).abs().min(1).values
    error = (values - codes[into.long()]).abs()
    apart = error > nearest + 1e-12
    if not signed:  # what is above 0 is not rounded to 0
        assert (codes[into.long()] > 0).all()
        apart &= values > 1e-6
    assert not apart.any()
    torch.testing.assert_close(
        dequantize(into, scales, signed),
        codes[into.long()] * scales.repeat_interleave(EIGHT_BIT_BLOCK)[: len(x)],
    )


@pytest.mark.parametrize("signed", [True, False])
def test_the_table_of_fp32_finds_the_nearest_code(signed):
    codes = torch.tensor(dynamic_codes(signed), dtype=torch.float64)
    borders = ((codes[1:] + codes[:-1]) / 2).float()
    around = [borders, borders.nextafter(torch.tensor(2.0)), borders.nextafter(torch.tensor(-2.0))]
    drawn = torch.rand(20000) * 10 ** (-8 * torch.rand(20000))
    x = torch.cat([*around, drawn, -drawn if signed else drawn, torch.tensor([0.0, 1.0])])
    assert torch.equal(_nearest(x, signed), torch.bucketize(x, borders, out_int32=True))


def test_a_block_of_zeros_stays_zeros():
    for signed in (True, False):
        into, scales = of_blocks(torch.zeros(300), signed)
        assert torch.equal(dequantize(into, scales, signed), torch.zeros(300))


def test_small_arrays_have_the_bits_of_fp32_adamw():
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Parameter(torch.ones(50, 50)) for _ in range(2))
    pair = (
        AdamW8bit([ours], _AdamW, rate=RATE, decay=0.1),
        _AdamW([theirs], lr=RATE, weight_decay=0.1, fused=True),
    )
    for _ in range(3):
        gradient = torch.randn(50, 50)
        for parameter, optimizer in zip((ours, theirs), pair, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    assert torch.equal(ours, theirs)


def test_parameters_may_come_in_groups():
    """As from `ZeroRedundancyOptimizer`."""
    parameter = torch.nn.Parameter(torch.ones(8192))
    grouped = AdamW8bit([{"params": [parameter]}], _AdamW, rate=RATE, decay=0.1)
    parameter.grad = torch.ones(8192)
    grouped.step()
    assert float(parameter.detach().max()) < 1


def test_a_first_step_is_that_of_adamw_in_any_layout_and_chunks(monkeypatch):
    """The rounding of a step reaches the next one alone."""
    monkeypatch.setattr("cubemesh.frameworks.pytorch.adamw_8bit.EIGHT_BIT_CHUNK", 1024)
    torch.manual_seed(0)
    start, gradient = torch.randn(2, 40, 16, 3, 3, dtype=torch.float64)
    theirs = torch.nn.Parameter(start.clone())
    reference = _AdamW([theirs], lr=RATE, weight_decay=0.1)
    theirs.grad = gradient
    reference.step()
    for layout in (torch.contiguous_format, torch.channels_last):
        ours = torch.nn.Parameter(start.clone().to(memory_format=layout))
        ours.grad = gradient.clone()
        optimizer = AdamW8bit([ours], _AdamW, rate=RATE, decay=0.1)
        optimizer.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        assert optimizer.state[ours]["exp_avg"].dtype == torch.uint8


def test_training_ends_at_the_loss_of_fp32_adamw(program_of):
    """Pairs of one seed: the same weights and batches."""
    ratios = []
    for seed in range(2):
        final = {}
        for optimizer in ("adamw", "adamw-8bit"):
            program = program_of(optimizer)
            program.load(classifier().draw(seed))
            losses = []
            for batch in batches(40, 32, seed):
                program.train_step(program.place(batch))
                losses.append(program.loss())
            final[optimizer] = np.mean(losses[-15:])
            assert final[optimizer] < 0.7 * losses[0]
        ratios.append(final["adamw-8bit"] / final["adamw"])
    assert all(0.97 < ratio < 1.03 for ratio in ratios), ratios


def test_the_memory_of_its_state_is_forecast(program_of):
    program = program_of("adamw-8bit")
    network = classifier()
    program.load(network.draw(0))
    (batch,) = batches(1)
    program.train_step(program.place(batch))
    arrays = program.snapshot().arrays
    state = [a for n, a in arrays.items() if n.startswith("optimizer.") and ".step" not in n]
    needed = forecast(network, 64, optimizer="adamw-8bit")
    assert needed.optimizer_bytes == sum(a.nbytes for a in state)
    assert needed.optimizer_bytes < 0.3 * forecast(network, 64, optimizer="adamw").optimizer_bytes
    assert needed.workspace_bytes > 0
    kinds = program.memory_by_kind()
    counts = sum(a.nbytes for n, a in arrays.items() if ".step" in n)
    assert kinds["optimizer"] == needed.optimizer_bytes + counts
    assert kinds["weights"] == needed.weight_bytes


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_restored_training_has_the_bits_of_an_uninterrupted_one(program_of, layout):
    network = classifier()
    whole, parts = (program_of("adamw-8bit", layout=layout) for _ in range(2))
    whole.load(network.draw(0))
    fed: list[Batch] = list(batches(4))
    for number, batch in enumerate(fed):
        if number == 2:
            parts.restore(whole.snapshot())
        whole.train_step(whole.place(batch))
        if number >= 2:
            parts.train_step(parts.place(batch))
    ours, theirs = (p.snapshot() for p in (whole, parts))
    assert any(array.dtype == np.uint8 and "exp_avg" in n for n, array in ours.arrays.items())
    for name, array in {**ours.weights, **ours.arrays}.items():
        other = {**theirs.weights, **theirs.arrays}[name]
        assert (array.dtype, array.tobytes()) == (other.dtype, other.tobytes()), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here")
def test_a_gpu_takes_the_steps_of_a_cpu(program_of):
    network, states = classifier(), {}
    for device in ("cpu", "cuda:0"):
        program = program_of("adamw-8bit", device=device, precision="fp64")
        program.load(network.draw(0))
        for batch in batches(3):
            program.train_step(program.place(batch))
        states[device] = program.state()
    for name, array in states["cpu"].items():
        np.testing.assert_allclose(states["cuda:0"][name], array, rtol=0, atol=2 * RATE)
        distance = np.abs(states["cuda:0"][name] - array)
        assert np.median(distance) < 1e-9, name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here")
def test_a_captured_step_has_the_losses_of_an_eager_one(make_request):
    network, losses = classifier(), {}
    request = make_request(
        network, device="cuda:0", optimizer="adamw-8bit", learning_rate=RATE, weight_decay=0.01
    )
    fed = next(iter(batches(1)))
    for name, make in (("eager", build), ("captured", captured.build)):
        program = make(request)
        program.load(network.draw(0))
        placed = program.place(fed)
        losses[name] = []
        for _ in range(8):
            program.train_step(placed)
            losses[name].append(program.loss())
        program.close()
    np.testing.assert_allclose(losses["captured"], losses["eager"], rtol=0.02)
