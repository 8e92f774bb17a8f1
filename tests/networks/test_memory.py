from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.errors import UsageError
from cubemesh.networks import NETWORKS, build
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.cost import totals
from cubemesh.networks.memory import forecast, largest_batch

CIFARNET = build("cifarnet")
MIB = 2**20


def test_a_forecast_worked_out_by_hand():
    # image 100 → fc1 50 → relu → fc2 10, batch 4, fp32
    net = NetworkBuilder("net")
    x = net.relu(net.linear(net.input("image", (100,)), 50))
    net.classify(net.linear(x, 10))
    parameters = 100 * 50 + 50 + 50 * 10 + 10
    needed = forecast(net.build(), 4)
    assert needed.weight_bytes == needed.gradient_bytes == 4 * parameters
    assert needed.optimizer_bytes == 4 * parameters
    assert needed.input_bytes == 4 * (4 * 100 + 8)
    # Kept: what relu gives, and the log-probabilities.
    assert needed.activation_bytes == 4 * 4 * (50 + 10)
    # Most is alive while fc1's weight gradient is new: it, and the gradient of fc1's output.
    assert needed.workspace_bytes == 4 * (5050 + 4 * 50) - needed.activation_bytes


@pytest.mark.parametrize(("optimizer", "arrays"), [("sgd", 1), ("rmsprop", 1), ("adam", 2)])
def test_optimizers_keep_arrays_as_large_as_the_weights(optimizer, arrays):
    needed = forecast(CIFARNET, 8, optimizer=optimizer)
    assert needed.optimizer_bytes == arrays * 4 * 89_578


def test_the_update_can_be_the_peak():
    # One image through AlexNet keeps little; Adam's square roots take as much as the weights.
    network = build("alexnet")
    sgd, adam = forecast(network, 1), forecast(network, 1, optimizer="adam")
    assert adam.activation_bytes + adam.workspace_bytes == 4 * network.parameter_count
    assert sgd.activation_bytes + sgd.workspace_bytes < adam.workspace_bytes


def test_mixed_precision_keeps_master_weights_and_halves_activations():
    network = build("resnet-18", 64)
    full, half = forecast(network, 8), forecast(network, 8, "bf16")
    multiplied = network.parameter_count - 9_600  # batch norm stays in fp32
    assert half.weight_bytes == full.weight_bytes + 2 * multiplied
    assert half.gradient_bytes == full.gradient_bytes
    assert half.optimizer_bytes == full.optimizer_bytes
    assert half.input_bytes == full.input_bytes
    # Indices and statistics stay wide, and the image is kept a second time, narrow.
    assert 0.5 < half.activation_bytes / full.activation_bytes < 0.6
    double = forecast(network, 8, "fp64")
    assert double.weight_bytes == 2 * full.weight_bytes
    assert forecast(network, 8, "tf32") == full


def test_without_training_only_the_widest_moment_counts():
    needed = forecast(CIFARNET, 8, training=False)
    assert needed.gradient_bytes == needed.optimizer_bytes == needed.activation_bytes == 0
    # conv1's output and pool1's: 32 · 32 · 32 and 32 · 16 · 16 values a sample.
    assert needed.workspace_bytes == 8 * 4 * (32 * 32 * 32 + 32 * 16 * 16)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_are_what_the_layers_say_they_save(name, precision):
    network = build(name)
    saved = totals(network, 3, precision).forward.saved_bytes
    needed = forecast(network, 3, precision)
    assert needed.activation_bytes == saved
    assert needed.workspace_bytes > 0


@given(st.integers(1, 400 * MIB), st.sampled_from(["sgd", "adam"]))
def test_the_largest_batch_fits_and_the_next_does_not(limit_bytes, optimizer):
    def total(batch):
        return forecast(CIFARNET, batch, optimizer=optimizer).total_bytes

    batch = largest_batch(CIFARNET, limit_bytes, optimizer=optimizer)
    assert batch == 0 or total(batch) <= limit_bytes
    assert total(batch + 1) > limit_bytes


def test_more_memory_or_less_width_takes_larger_batches():
    network = build("resnet-50")
    batches = [largest_batch(network, gib * 2**30) for gib in (0, 8, 16, 32)]
    assert batches[0] == 0
    assert batches == sorted(set(batches))
    assert largest_batch(network, 16 * 2**30, "bf16") > 1.7 * batches[2]


def test_a_batch_below_one_is_refused():
    with pytest.raises(UsageError, match="batch=0 is too small"):
        forecast(CIFARNET, 0)
