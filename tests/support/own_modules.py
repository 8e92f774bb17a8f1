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


class Gated(nn.Module):
    """A product of values, for which there is no layer type; with statistics and frozen weights."""

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
        super().__init__(nn.Conv2d(3, 4, 3, dilation=2), nn.Flatten(), nn.LazyLinear(10))


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
