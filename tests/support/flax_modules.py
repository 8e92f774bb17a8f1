"""Flax modules of a user."""

import flax.linen as nn
import jax
from flax import nnx


class Net(nn.Module):
    """A convolution, batch normalization and dropout, in the older interface."""

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Conv(8, (3, 3))(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        x = nn.Dropout(0.1, deterministic=not train)(x.mean((1, 2)))
        return nn.Dense(10)(x)


class Words(nn.Module):
    """Scores of each position, in a dictionary."""

    @nn.compact
    def __call__(self, tokens):
        return {"logits": nn.Dense(11)(nn.Embed(11, 8)(tokens))}


class NewNet(nnx.Module):
    """The same as `Net` in the newer interface."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv, self.norm = nnx.Conv(3, 8, (3, 3), rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
        self.drop, self.fc = nnx.Dropout(0.1, rngs=rngs), nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.norm(self.conv(x)))
        return self.fc(self.drop(x.mean((1, 2))))


class Plain(nn.Module):
    """Without any mode."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.tanh(nn.Dense(16)(x.reshape(x.shape[0], -1))))


def plain():
    """A function that returns a module."""
    return Plain()


def fails():
    """Raises."""
    raise ValueError("no such size")


class Wrong(nn.Module):
    """Images as its scores."""

    def __call__(self, x):
        return x
