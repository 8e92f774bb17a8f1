"""BERT, Llama-like decoders, ConvNeXt, EfficientNet and U-Net of the zoo against modules and
functions of torch.nn with the same arrays, in fp64: scores, and the gradient of every array."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F  # noqa: N812

from cubemesh import networks
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.networks.layers import BatchNorm
from cubemesh.networks.transformer_sizes import TRANSFORMERS
from cubemesh.networks.zoo.bert import bert
from cubemesh.networks.zoo.convnext import convnext
from cubemesh.networks.zoo.llama import llama
from cubemesh.networks.zoo.unet import unet_of

WORDS, LENGTH, HIDDEN, HEADS, LAYERS = 50, 7, 32, 4, 2
PLACES = torch.arange(LENGTH, dtype=torch.float64)


class Arrays(dict):
    """By name, and the functions that read them by the name of a node."""

    def linear(self, name, x):
        return F.linear(x, self[f"{name}.weight"], self.get(f"{name}.bias"))

    def layer_norm(self, name, x, epsilon):
        return F.layer_norm(x, x.shape[-1:], self[f"{name}.weight"], self[f"{name}.bias"], epsilon)

    def conv(self, name, x, **settings):
        return F.conv2d(x, self[f"{name}.weight"], self.get(f"{name}.bias"), **settings)

    def batch_norm(self, name, x):
        of = {role: self[f"{name}.{role}"] for role in ("weight", "bias")}
        mean, variance = self[f"{name}.running_mean"], self[f"{name}.running_variance"]
        return F.batch_norm(x, mean, variance, **of)


def compare(network, expected, *inputs):
    """`expected` is (arrays, *inputs) → scores."""
    own = build_modules(network, dtype=torch.float64)
    torch.manual_seed(1)
    with torch.no_grad():
        for array in own.parameters.values():
            nn.init.normal_(array, std=0.3)
        for array in own.state.values():
            array.uniform_(0.5, 1.5)
    (found,) = own.evaluation.eval()(*inputs)
    wanted = expected(Arrays(own.parameters | own.state), *inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    pull, arrays = torch.randn_like(wanted), list(own.parameters.values())
    pairs = zip(
        torch.autograd.grad(found, arrays, pull),
        torch.autograd.grad(wanted, arrays, pull),
        strict=True,
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9 * (1 + ours.abs().max()))


def sized(name, **columns):
    sizes = {"hidden": HIDDEN, "layers": LAYERS, "heads": HEADS, "ffn": 48, **columns}
    return dataclasses.replace(TRANSFORMERS[name], **sizes)


def tokens():
    return torch.randint(0, WORDS, (3, LENGTH))


def by_encoder_layers(p, x):
    """BERT with torch.nn's own layer of an encoder."""
    name = "bert.embeddings"
    x = p[f"{name}.word_embeddings.weight"][x] + p[f"{name}.token_type_embeddings.weight"][0]
    x = p.layer_norm(f"{name}.LayerNorm", x + p[f"{name}.position_embeddings.weight"], 1e-12)
    layer = nn.TransformerEncoderLayer(
        *(HIDDEN, HEADS, 48, 0.0, "gelu", 1e-12), batch_first=True, dtype=torch.float64
    )
    for i in range(LAYERS):
        name = f"bert.encoder.layer.{i}"
        of = {
            "linear1": f"{name}.intermediate.dense",
            "linear2": f"{name}.output.dense",
            "norm1": f"{name}.attention.output.LayerNorm",
            "norm2": f"{name}.output.LayerNorm",
            "self_attn.out_proj": f"{name}.attention.output.dense",
        }
        arrays = {f"{k}.{r}": p[f"{n}.{r}"] for k, n in of.items() for r in ("weight", "bias")}
        for role in ("weight", "bias"):
            packed = [p[f"{name}.attention.self.{q}.{role}"] for q in ("query", "key", "value")]
            arrays[f"self_attn.in_proj_{role}"] = torch.cat(packed)
        x = torch.func.functional_call(layer, arrays, (x,))
    name = "cls.predictions"
    x = p.layer_norm(
        f"{name}.transform.LayerNorm", F.gelu(p.linear(f"{name}.transform.dense", x)), 1e-12
    )
    tied = p["bert.embeddings.word_embeddings.weight"]
    return F.linear(x, tied, p[f"{name}.decoder.bias"])


def test_bert_equals_encoder_layers_of_torch():
    network = bert(sized("bert-base", kv_heads=HEADS), LENGTH, WORDS)
    compare(network, by_encoder_layers, tokens())


def by_complex_numbers(base, key_heads):
    """A Llama-like decoder as its paper has it: positions are complex factors, heads of keys and
    values are repeated, and the mask is written out."""
    size = HIDDEN // HEADS
    angles = torch.outer(PLACES, base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size))
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]
    mask = torch.full((LENGTH, LENGTH), -torch.inf, dtype=torch.float64).triu(1)

    def rotated(x, heads):
        x = x.unflatten(-1, (heads, 2, size // 2)).movedim(-2, -1).contiguous()
        return torch.view_as_real(torch.view_as_complex(x) * turns).movedim(-1, -2).flatten(-2)

    def norm(p, name, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * p[f"{name}.weight"]

    def expected(p, x):
        x = p["model.embed_tokens.weight"][x]
        for i in range(LAYERS):
            name = f"model.layers.{i}"
            y = norm(p, f"{name}.input_layernorm", x)
            q = rotated(p.linear(f"{name}.self_attn.q_proj", y), HEADS)
            k = rotated(p.linear(f"{name}.self_attn.k_proj", y), key_heads)
            v = p.linear(f"{name}.self_attn.v_proj", y).unflatten(-1, (key_heads, size))
            k, v = (part.repeat_interleave(HEADS // key_heads, 2) for part in (k, v))
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / size**0.5 + mask
            y = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)
            x = x + p.linear(f"{name}.self_attn.o_proj", y)
            y = norm(p, f"{name}.post_attention_layernorm", x)
            gate = p.linear(f"{name}.mlp.gate_proj", y)
            y = gate * torch.sigmoid(gate) * p.linear(f"{name}.mlp.up_proj", y)
            x = x + p.linear(f"{name}.mlp.down_proj", y)
        head = "lm_head.weight" if "lm_head.weight" in p else "model.embed_tokens.weight"
        return F.linear(norm(p, "model.norm", x), p[head])

    return expected


@pytest.mark.parametrize(("name", "key_heads"), [("llama3-8b", 2), ("llama-125m", 1)])
def test_a_llama_like_decoder_equals_its_formulas(name, key_heads):
    sizes = sized(name, kv_heads=key_heads)
    network = llama(sizes, LENGTH, WORDS)
    assert ("lm_head.weight" in network.parameters) == (name == "llama3-8b")
    compare(network, by_complex_numbers(float(sizes.rotary_base), key_heads), tokens())


def of_channels(p, name, x):
    return p.layer_norm(name, x.permute(0, 2, 3, 1), 1e-6)


def by_functions(depths):
    """ConvNeXt with permuted axes."""

    def expected(p, x):
        x = of_channels(p, "features.0.1", p.conv("features.0.0", x, stride=4))
        x = x.permute(0, 3, 1, 2)
        for stage, depth in enumerate(depths):
            if stage:
                x = of_channels(p, f"features.{2 * stage}.0", x).permute(0, 3, 1, 2)
                x = p.conv(f"features.{2 * stage}.1", x, stride=2)
            for i in range(depth):
                name = f"features.{2 * stage + 1}.{i}"
                y = p.conv(f"{name}.block.0", x, padding=3, groups=x.shape[1])
                y = p.linear(f"{name}.block.3", of_channels(p, f"{name}.block.2", y))
                y = p.linear(f"{name}.block.5", F.gelu(y)) * p[f"{name}.layer_scale.weight"]
                x = x + y.permute(0, 3, 1, 2)
        x = p.layer_norm("classifier.0", x.mean((2, 3)), 1e-6)
        return p.linear("classifier.2", x)

    return expected


def test_convnext_equals_functions_of_torch():
    depths = (1, 2)
    network = convnext("convnext-t", 32, 5, widths=(8, 12), depths=depths)
    compare(network, by_functions(depths), torch.rand(2, 3, 32, 32, dtype=torch.float64))


def by_table(p, x):
    """EfficientNet-B0 by the rows of table 1 of its paper."""

    def normed(name, x, **settings):
        return p.batch_norm(f"{name}.1", p.conv(f"{name}.0", x, **settings))

    x = F.silu(normed("features.0", x, stride=2, padding=1))
    rows = [(1, 3, 1, 1), (6, 3, 2, 2), (6, 5, 2, 2), (6, 3, 2, 3), (6, 5, 1, 3), (6, 5, 2, 4)]
    for stage, (expansion, kernel, stride, blocks) in enumerate([*rows, (6, 3, 1, 1)], start=1):
        for i in range(blocks):
            name, part, y = f"features.{stage}.{i}.block", 0, x
            if expansion > 1:
                y, part = F.silu(normed(f"{name}.0", y)), 1
            step = {"stride": 1 if i else stride, "padding": kernel // 2, "groups": y.shape[1]}
            y = F.silu(normed(f"{name}.{part}", y, **step))
            gate = F.silu(p.linear(f"{name}.{part + 1}.fc1", y.mean((2, 3))))
            y = y * torch.sigmoid(p.linear(f"{name}.{part + 1}.fc2", gate))[:, :, None, None]
            y = normed(f"{name}.{part + 2}", y)
            x = x + y if x.shape == y.shape else y
    x = F.silu(normed("features.8", x))
    return p.linear("classifier.1", x.mean((2, 3)))


def by_transposed_convolutions(widths):
    """U-Net with the operator of its paper."""

    def expected(p, x):
        def two_convs(name, x):
            for number in (1, 2):
                x = F.relu(p.conv(f"{name}.conv{number}", x, padding=1))
            return x

        passed = []
        for number in range(1, len(widths)):
            x = two_convs(f"down{number}", x)
            passed.append(x)
            x = F.max_pool2d(x, 2)
        x = two_convs("bottom", x)
        for number in range(len(widths) - 1, 0, -1):
            weight = p[f"up{number}.widen.weight"]
            weight = weight.view(-1, 2, 2, weight.shape[1]).permute(3, 0, 1, 2)
            x = F.conv_transpose2d(x, weight, stride=2)
            x = two_convs(f"up{number}", torch.cat([passed.pop(), x], 1))
        return p.conv("classifier", x).flatten(2).transpose(1, 2)

    return expected


def test_unet_equals_transposed_convolutions():
    widths = (4, 6, 8)
    network = unet_of("unet", 16, 3, widths=widths)
    image = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    compare(network, by_transposed_convolutions(widths), image)


def test_efficientnet_equals_its_table():
    network = networks.build("efficientnet-b0", 32, 5)
    assert sum(isinstance(node.layer, BatchNorm) for node in network.nodes) == 49
    compare(network, by_table, torch.rand(2, 3, 32, 32, dtype=torch.float64))
