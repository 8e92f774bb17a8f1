"""A recommendation model equals one written by hand as its authors' code is: `EmbeddingBag`s, a
batched product and binary cross-entropy."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: N812
from torch import nn

from cubemesh import networks
from cubemesh.frameworks.pytorch import build
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.frameworks.pytorch.program import total_loss
from cubemesh.networks.assembly import with_sparse_gradients
from cubemesh.networks.memory import forecast
from cubemesh.networks.memory_simulation import gradient_bytes
from layer_samples import trained_weights


class Handwritten(nn.Module):
    def __init__(self, bottom, rows, width, top):
        super().__init__()
        self.bottom = self.mlp(bottom)
        self.bags = nn.ModuleList(nn.EmbeddingBag(n, width, mode="sum") for n in rows)
        vectors = 1 + len(rows)
        self.top = self.mlp((width + vectors * (vectors - 1) // 2, *top))[:-1]

    @staticmethod
    def mlp(widths):
        pairs = itertools.pairwise(widths)
        return nn.Sequential(*(m for pair in pairs for m in (nn.Linear(*pair), nn.ReLU())))

    def forward(self, numbers, categories):
        x = self.bottom(numbers)
        offsets = torch.arange(0, categories[0].numel(), categories.shape[2])
        each = [bag(i.flatten(), offsets) for bag, i in zip(self.bags, categories, strict=True)]
        vectors = torch.stack([x, *each], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = [products[:, i, j] for i in range(vectors.shape[1]) for j in range(i)]
        return self.top(torch.cat([x, torch.stack(pairs, 1)], 1))[:, 0]


@pytest.mark.parametrize("indices", [1, 3])
def test_a_network_equals_one_written_by_hand(indices):
    rows = 20
    network = networks.build("dlrm-small", sequence_length=indices, vocabulary=rows)
    built = build_modules(network, dtype=torch.float64)
    built.load(trained_weights(network))
    tables = [table for name, table in built.parameters.items() if "table" in name]
    sizes = [len(table) for table in tables]
    ours = [p for name, p in built.parameters.items() if "table" not in name]
    model = Handwritten((13, 512, 256, 64, 16), sizes, 16, (512, 256, 1)).double()
    theirs = [*model.bottom.parameters(), *model.top.parameters()]
    with torch.no_grad():
        for own, other in zip((*ours, *tables), (*theirs, *model.bags.parameters()), strict=True):
            other.copy_(own)
    generator = np.random.default_rng(0)
    numbers = torch.from_numpy(generator.random((6, 13)))
    categories = torch.from_numpy(
        generator.integers(0, np.repeat(sizes, indices), (6, 26 * indices))
    )
    labels = torch.tensor([0, 1, 1, 0, 0, 1])
    scores = built.training(numbers, categories)
    logits = model(numbers, categories.view(6, 26, indices).transpose(0, 1))
    assert torch.equal(scores[0][:, 0], torch.zeros(6).double())
    torch.testing.assert_close(scores[0][:, 1], logits, rtol=1e-12, atol=1e-12)
    loss = total_loss(network.heads, scores, labels)
    binary = F.binary_cross_entropy_with_logits(logits, labels.double())
    torch.testing.assert_close(loss, binary, rtol=1e-12, atol=0)
    loss.backward()
    binary.backward()
    for own, other in zip((*ours, *tables), (*theirs, *model.bags.parameters()), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("indices", [1, 3])
def test_sparse_gradients_change_the_weights_as_dense_ones(indices, make_request, make_batch):
    """And have the bytes of the forecast."""
    dense = networks.build("dlrm-small", sequence_length=indices, vocabulary=50)
    sparse = with_sparse_gradients(dense)
    found, batch = [], 8
    for network in (dense, sparse):
        program = build(make_request(network, precision="fp64", momentum=0.0, learning_rate=0.1))
        program.load(network.draw(0))
        for seed in range(3):
            program.train_step(program.place(make_batch(network, batch, seed)))
        gradients = [p.grad for p in program._built.parameters.values()]
        held = program.memory_by_kind()
        found.append((program.state(), program.loss(), gradients, held))
        program.close()
    (wanted, loss, _, before), (state, same_loss, gradients, held) = found
    assert before["gradients"] == before["weights"] == held["weights"]
    assert same_loss == pytest.approx(loss, rel=1e-12)
    for name, array in wanted.items():
        np.testing.assert_allclose(state[name], array, rtol=1e-12, atol=1e-15)
    tables = [g for g in gradients if g.is_sparse]
    assert len(tables) == len(sparse.sparse_gradients) == 26
    size = sum(g._values().nbytes + g._indices().nbytes for g in tables)
    size += sum(g.nbytes for g in gradients if not g.is_sparse)
    forecast_bytes = sum(gradient_bytes(sparse, name, batch, 8) for name in sparse.parameters)
    assert size == forecast_bytes == held["gradients"]
    needed = forecast(sparse, batch, "fp64")
    assert needed.optimizer_bytes == 0
    assert needed.gradient_bytes < forecast(dense, batch, "fp64").gradient_bytes


@pytest.mark.parametrize(
    ("name", "bottom", "top", "rows"),
    [
        ("dlrm-kaggle", (13, 512, 256, 64, 16), (512, 256, 1), 33_762_577),
        ("dlrm-benchmark", (512, 512, 64), (1024, 1024, 1024, 1), 8_000_000),
        ("dlrm-terabyte", (13, 512, 256, 64), (512, 512, 256, 1), 49_126_297),
        ("dlrm-mlperf", (13, 512, 256, 128), (1024, 1024, 512, 256, 1), 187_767_399),
    ],
)
def test_sizes_are_those_of_the_published_command_lines(name, bottom, top, rows):
    """`--arch-mlp-bot`, `--arch-mlp-top` and `--arch-sparse-feature-size` of the authors' scripts;
    the sum of the tables' rows."""
    network = networks.build(name)
    (embeddings,) = (node.layer for node in network.nodes if node.name == "embeddings")
    assert sum(embeddings.rows) == rows
    assert embeddings.features == bottom[-1]
    with torch.device("meta"):
        model = Handwritten(bottom, embeddings.rows, embeddings.features, top)
    assert network.parameter_count == sum(p.numel() for p in model.parameters())
