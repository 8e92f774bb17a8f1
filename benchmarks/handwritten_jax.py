"""Networks written by hand in JAX: pure functions, and a jitted, donated step.

They share no code with cubemesh. Parameters and running statistics are lists in the graph's order,
taken one by one as the network is traced; images are (batch, channels, height, width), and (batch,
height, width, channels) in the computation, as usual in JAX. In bfloat16 everything between the
images and the scores is in low precision except a normalization's arithmetic and statistics;
weights, loss and update stay in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

Arrays = Iterator[jax.Array]
AXES = ("NHWC", "OIHW", "NHWC")
KEEP = 0.9
"""Of a running statistic, in each step."""


def conv(
    x: jax.Array, p: Arrays, stride: int = 1, padding: int = 0, bias: bool = True
) -> jax.Array:
    """A convolution; its weight lies (out, in, height, width)."""
    edges = [(padding, padding)] * 2
    y = lax.conv_general_dilated(x, next(p), (stride, stride), edges, dimension_numbers=AXES)
    return y + next(p) if bias else y


def linear(x: jax.Array, p: Arrays) -> jax.Array:
    """A fully connected layer; its weight lies (out, in)."""
    return x @ next(p).T + next(p)


def max_pool(x: jax.Array, size: int, stride: int, padding: int = 0) -> jax.Array:
    """The largest value of each window."""
    edges = [(0, 0), (padding, padding), (padding, padding), (0, 0)]
    return lax.reduce_window(
        x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), edges
    )


def flat(x: jax.Array) -> jax.Array:
    """Each sample's values in a row, channel by channel, as the weights after them want them."""
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)


def batch_norm(x: jax.Array, p: Arrays, s: Arrays, after: list[jax.Array]) -> jax.Array:
    """Normalize by the batch's statistics, and put the running ones into `after`."""
    n = x.size // x.shape[3]
    low_precision, x = x.dtype, x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = x.mean((0, 1, 2))
    variance = jnp.maximum((x * x).mean((0, 1, 2)) - mean * mean, 0)  # in one pass, as Flax has it
    after += [
        KEEP * next(s) + (1 - KEEP) * mean,
        KEEP * next(s) + (1 - KEEP) * variance * n / (n - 1),
    ]
    scale = next(p) * lax.rsqrt(variance + 1e-5)
    return ((x - mean) * scale + next(p)).astype(low_precision)


def dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    """Zeros in the place of a share `rate` of the values, the others scaled up."""
    return jnp.where(jax.random.bernoulli(key, np.float32(1 - rate), x.shape), x / (1 - rate), 0)


def little_cnn(x: jax.Array, p: Arrays, s: Arrays, key: jax.Array) -> tuple[jax.Array, list]:
    """LittleCNN, of the DGX-1 best practices [001]."""
    one, two, three = jax.random.split(key, 3)
    for block_key in (one, two):
        x = jax.nn.relu(conv(x, p, padding=1))
        x = jax.nn.relu(conv(x, p, padding=1))
        x = dropout(max_pool(x, 2, 2), 0.25, block_key)
    x = dropout(jax.nn.relu(linear(flat(x), p)), 0.5, three)
    return linear(x, p), []


def alexnet(x: jax.Array, p: Arrays, s: Arrays, key: jax.Array) -> tuple[jax.Array, list]:
    """AlexNet in one column."""
    one, two = jax.random.split(key)
    x = max_pool(jax.nn.relu(conv(x, p, 4, 2)), 3, 2)
    x = max_pool(jax.nn.relu(conv(x, p, padding=2)), 3, 2)
    for _ in range(3):
        x = jax.nn.relu(conv(x, p, padding=1))
    x = flat(max_pool(x, 3, 2))
    x = jax.nn.relu(linear(dropout(x, 0.5, one), p))
    x = jax.nn.relu(linear(dropout(x, 0.5, two), p))
    return linear(x, p), []


def resnet_50(x: jax.Array, p: Arrays, s: Arrays, key: jax.Array) -> tuple[jax.Array, list]:
    """ResNet-50, its bottlenecks halving the image in their 3×3 convolutions (v1.5)."""
    after: list[jax.Array] = []

    def conv_norm(x: jax.Array, stride: int = 1, padding: int = 0) -> jax.Array:
        return batch_norm(conv(x, p, stride, padding, bias=False), p, s, after)

    x = max_pool(jax.nn.relu(conv_norm(x, 2, 3)), 3, 2, 1)
    for stage, depth in enumerate((3, 4, 6, 3)):
        for i in range(depth):
            stride = 2 if stage > 0 and i == 0 else 1
            y = jax.nn.relu(conv_norm(x))
            y = conv_norm(jax.nn.relu(conv_norm(y, stride, 1)))
            x = jax.nn.relu(y + (conv_norm(x, stride) if i == 0 else x))
    return linear(x.mean((1, 2)), p), after


NETWORKS = {"little-cnn": little_cnn, "alexnet": alexnet, "resnet-50": resnet_50}


def train_step(
    name: str,
    weights: Sequence[NDArray[np.float32]],
    state: Sequence[NDArray[np.float32]],
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    device: jax.Device,
    rate: float,
    momentum: float,
    precision: str = "highest",
    low_precision: bool = False,
    copies: bool = True,
) -> tuple[Callable[[], None], Callable[[], object]]:
    """(a step on the network `name`, a wait for it): copy the batch where `copies`, forward,
    backward, update. `weights` and `state` are in the network's order; products are of JAX's
    `precision`, and in bfloat16 where `low_precision`."""
    forward = NETWORKS[name]

    def loss_of(p: list, s: list, x: jax.Array, y: jax.Array, key: jax.Array) -> tuple:
        if low_precision:
            p = [w.astype(jnp.bfloat16) for w in p]
        with jax.default_matmul_precision(precision):
            scores, after = forward(x, iter(p), iter(s), key)
        scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
        own = jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], axis=1)
        return -own.mean(), after

    def ready(x: jax.Array) -> jax.Array:
        x = x.transpose(0, 2, 3, 1)
        return x.astype(jnp.bfloat16) if low_precision else x

    def update(carry: tuple, x: jax.Array, y: jax.Array) -> tuple:
        p, s, velocity, key = carry
        x = ready(x) if copies else x
        key, own = jax.random.split(key)
        (loss, s), gradients = jax.value_and_grad(loss_of, has_aux=True)(p, s, x, y, own)
        velocity = [momentum * v + g for v, g in zip(velocity, gradients, strict=True)]
        p = [w - rate * v for w, v in zip(p, velocity, strict=True)]
        return (p, s, velocity, key), loss

    jitted = jax.jit(update, donate_argnums=0)
    put = [jax.device_put(np.array(w), device) for w in weights]
    carry = (
        [jnp.copy(w) for w in put],
        [jnp.copy(jax.device_put(np.array(a), device)) for a in state],
        [jnp.zeros_like(w) for w in put],
        jax.device_put(jax.random.key(0, impl="rbg"), device),
    )
    last: object = None

    def batch() -> tuple[jax.Array, jax.Array]:
        x, y = images.copy(), labels.astype(np.int32)
        return jax.device_put(x, device), jax.device_put(y, device)

    if not copies:
        x, y = batch()
        placed = (jax.jit(ready)(x), y)

    def step() -> None:
        nonlocal carry, last
        carry, last = jitted(carry, *(batch() if copies else placed))

    return step, lambda: jax.block_until_ready((carry, last))
