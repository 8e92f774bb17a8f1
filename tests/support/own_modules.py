"""Modules of a user: those that become a graph, those that do not, and broken ones."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Block(nn.Module):
    """A residual block with a shortcut of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.shortcut = nn.Sequential(nn.Conv2d(4, 8, 1, 2, bias=False), nn.BatchNorm2d(8))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.fc = nn.Conv2d(3, 4, 3, 1, 1), Block(), nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.block(self.stem(x)).mean([2, 3]))


class Branches(nn.Module):
    """Concatenation, pooling, dropout and a flattening by `view`; its scores are in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding="same"), nn.Conv2d(3, 2, 1)
        self.pool, self.drop, self.fc = nn.AdaptiveAvgPool2d(1), nn.Dropout(0.1), nn.Linear(6, 5)

    def forward(self, x):
        x = torch.cat([F.relu(self.a(x)), self.b(x)], 1)
        x = self.pool(F.max_pool2d(x, 2))
        return self.fc(self.drop(x.view(x.shape[0], -1))), x


class Vision(nn.Module):
    """A vision transformer of PyTorch's own encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.places = nn.Parameter(torch.randn(1, 5, 8) * 0.02)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.encoder(x)[:, 0])


class Language(nn.Module):
    """A decoder with packed heads, learned positions and tied weights, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.norm, self.attention, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        batch, length, width = x.shape
        heads = (
            part.view(batch, length, 2, width // 2).transpose(1, 2)
            for part in self.attention(self.norm(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return {"logits": self.head(x)}


class Gates(nn.Module):
    """Gates of channels and of values, functions by several operators, and stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.depthwise = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.down, self.up, self.fc = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1), nn.Linear(8, 10)

    def forward(self, x):
        x = self.conv(x)
        x = x * torch.sigmoid(x)
        y = F.hardswish(self.depthwise(x), inplace=True)
        gate = self.up(F.relu6(self.down(y.mean((2, 3), keepdim=True))))
        y = F.hardsigmoid(gate) * y
        if self.training:
            noise = torch.empty(len(x), 1, 1, 1).bernoulli_(0.75)
            y = y * noise.div_(0.75)
        y = y + x
        return self.fc(self.written_gelu(y).mean((2, 3)) * y.mean((2, 3)))

    def written_gelu(self, x):
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


class Shuffled(nn.Module):
    """Halves of channels that are shuffled, as in ShuffleNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 1), nn.Conv2d(4, 4, 1)
        self.fc = nn.Linear(4, 10)

    def forward(self, x):
        one, other = self.stem(x).chunk(2, 1)
        x = torch.cat([one, self.conv(other)], 1)
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape)
        return self.fc(x.chunk(2, 1)[0].mean((2, 3)))


class Halves(nn.Module):
    """One half of the features gates the other, as in a gated linear unit."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(192, 12), nn.Linear(6, 10)

    def forward(self, x):
        values, gate = self.fc(x.flatten(1)).chunk(2, -1)
        return self.head(values * torch.sigmoid(gate))


class ChannelsLast(nn.Module):
    """A block with the channels last and a learned scale of its branch, as in ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.linear = nn.Conv2d(3, 6, 2, 2), nn.LayerNorm(6), nn.Linear(6, 6)
        self.scale, self.fc = nn.Parameter(torch.full((6, 1, 1), 0.1)), nn.Linear(6, 10)

    def forward(self, x):
        x = self.stem(x)
        y = self.linear(self.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return self.fc((x + self.scale * y).mean((2, 3)))


class Mixer(nn.Module):
    """A product across positions, and the mean of all positions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mix, self.fc = nn.Conv2d(3, 6, 2, 2), nn.Linear(16, 16), nn.Linear(6, 10)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.fc((x + self.mix(x.transpose(1, 2)).transpose(1, 2)).mean(1))


class Decoder(nn.Module):
    """Rotary positions, grouped queries, a constant mask, gated products and two more tables."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.types, self.places = (nn.Embedding(n, 16) for n in (11, 2, 20))
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.norm, self.scale = nn.RMSNorm(16, 1e-5), nn.Parameter(torch.ones(16))
        self.gate, self.up, self.head = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 11)

    def forward(self, tokens):
        batch, length = tokens.shape
        x = self.words(tokens) + self.types(torch.ones(1, length, dtype=torch.long))
        x = self.norm(x + self.places(torch.arange(3, 3 + length)))
        q, k, v = (
            part(x).view(batch, length, -1, 4).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        angles = torch.outer(torch.arange(length), 500.0 ** (-torch.arange(0, 4, 2) / 4))
        cos, sin = (torch.cat([f, f], -1) for f in (angles.cos(), angles.sin()))
        q, k = ((part * cos) + (self.turned(part) * sin) for part in (q, k))
        k, v = self.repeated(k), self.repeated(v)
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        dropout = 0.1 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
        x = x + y.transpose(1, 2).reshape(batch, length, 16)
        x = self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return self.head(F.silu(self.gate(x)) * self.up(x))

    def turned(self, x):
        return torch.cat([-x[..., 2:], x[..., :2]], -1)

    def repeated(self, x):
        every = x[:, :, None].expand(-1, -1, 2, -1, -1)
        return every.reshape(len(x), -1, *x.shape[2:])


class Softmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 10)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def changed(self, x):
        return x.softmax(1)

    def forward(self, x):
        return self.fc(self.changed(self.conv(x)).mean((2, 3)))


class Rooted(Softmax):
    """A function of each value that is no activation."""

    def changed(self, x):
        return x**3 + 1


class Gated(nn.Module):
    """A product with frozen weights, for which there is no layer type; with statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 10)
        self.frozen = nn.Parameter(torch.full((4, 1, 1), 2.0), requires_grad=False)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return self.fc((x * torch.sigmoid(x) * self.frozen).mean((2, 3)))


class Branching(Gated):
    """Its operators depend on its values."""

    def forward(self, x):
        return super().forward(-x if x.mean() < 0 else x)


class OnlyInTraining(Residual):
    def forward(self, x):
        return super().forward(F.relu(x) if self.training else x)


class Dilated(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 4, 3, dilation=(2, 1), padding="same"),
            nn.Conv2d(4, 4, (3, 2), dilation=2),
            nn.Flatten(),
            nn.LazyLinear(10),
        )


ready = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
number = 3


def residual():
    return Residual()


def no_module():
    return [Residual()]


def raises():
    raise RuntimeError("no\nweights here")


def wrong_shape():
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 10))


def map_of_scores():
    return nn.Conv2d(3, 4, 3)


def nothing_trained():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).requires_grad_(False)


def exits():
    raise SystemExit("enough")


def loops():
    while True:
        pass
