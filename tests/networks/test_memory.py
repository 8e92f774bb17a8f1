from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.errors import UsageError
from cubemesh.networks import NETWORKS, build, entry
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.cost import totals
from cubemesh.networks.memory import forecast, largest_batch, recomputable_segments

CIFARNET = build("cifarnet")
MIB = 2**20


def two_layers():
    """image 100 → fc1 50 → relu → fc2 10"""
    net = NetworkBuilder("net")
    x = net.relu(net.linear(net.input("image", (100,)), 50))
    net.classify(net.linear(x, 10))
    return net.build()


def test_a_forecast_worked_out_by_hand():
    first, second = 4 * (100 * 50 + 50), 4 * (50 * 10 + 10)
    needed = forecast(two_layers(), 4)
    assert needed.weight_bytes == needed.optimizer_bytes == first + second
    assert needed.input_bytes == 4 * (4 * 100 + 8)
    # Fullest at the very end: both weight gradients, and the gradient of what fc1 gave.
    assert needed.gradient_bytes == first + second
    assert needed.activation_bytes == 0
    assert needed.workspace_bytes == 4 * 4 * 50


def test_low_precision_copies_are_freed_layer_by_layer_and_gradients_converted_last():
    # When fc1's weight gradient is converted, no low-precision weight is left, nor fc1's result.
    needed = forecast(two_layers(), 4, "bf16")
    assert needed.weight_bytes == needed.optimizer_bytes == 4 * (100 * 50 + 50 + 50 * 10 + 10)
    assert needed.gradient_bytes == 4 * (100 * 50 + 50 * 10 + 10)
    assert needed.workspace_bytes == 2 * (100 * 50 + 50)
    forward = forecast(two_layers(), 4, "bf16", training=False)  # all of them until its end
    assert forward.weight_bytes == (4 + 2) * (100 * 50 + 50 + 50 * 10 + 10)


def test_the_peak_moves_with_the_batch():
    # With 1000 samples it comes as relu's gradient is made: fc2's own is there, fc1's not yet.
    needed = forecast(two_layers(), 1000)
    assert needed.gradient_bytes == 4 * (50 * 10 + 10)
    assert needed.activation_bytes == 4 * 1000 * 50
    assert needed.workspace_bytes == 2 * 4 * 1000 * 50


@pytest.mark.parametrize(
    ("optimizer", "arrays"), [("rmsprop", 1), ("adam", 2), ("adamw", 2), ("lars", 1)]
)
def test_optimizers_have_arrays_as_large_as_the_weights(optimizer, arrays):
    needed = forecast(CIFARNET, 8, optimizer=optimizer)
    assert needed.optimizer_bytes == arrays * 4 * 89_578


def test_moments_of_8_bits_take_a_quarter_and_their_update_works_in_chunks():
    """A byte a value and 4 for each 256, twice; small arrays as with AdamW."""
    net = NetworkBuilder("wide")
    net.classify(net.linear(net.input("x", (3000,)), 3000))
    network = net.build()
    needed = forecast(network, 1, optimizer="adamw-8bit")
    blocks = -(-3000 * 3000 // 256)
    assert needed.optimizer_bytes == 2 * (3000 * 3000 + 4 * blocks + 4 * 3000)
    assert needed.workspace_bytes == 8 * 4 * 2**22
    assert forecast(network, 1, optimizer="adamw").optimizer_bytes == 2 * 4 * 3000 * 3001


def test_the_update_can_be_the_peak():
    # One image through AlexNet saves little; RMSprop's square roots are as large as the weights.
    needed = forecast(build("alexnet"), 1, optimizer="rmsprop")
    assert needed.workspace_bytes == needed.gradient_bytes == 4 * 61_100_840
    assert needed.activation_bytes == 0
    assert forecast(build("alexnet"), 1).total_bytes < 0.8 * needed.total_bytes


def test_mixed_precision_has_master_weights_and_halves_activations():
    network = build("resnet-18", 64)
    full, half = forecast(network, 256), forecast(network, 256, "bf16")
    multiplied = network.parameter_count - 9_600  # batch norm stays in fp32
    assert 0 < half.weight_bytes - full.weight_bytes < 2 * multiplied  # freed one by one
    assert half.optimizer_bytes == full.optimizer_bytes
    assert half.input_bytes == full.input_bytes
    # Indices and statistics stay as large, and the image is saved again in low precision.
    assert 0.5 < half.activation_bytes / full.activation_bytes < 0.6
    double = forecast(network, 256, "fp64")
    assert double.weight_bytes == 2 * full.weight_bytes
    assert double.input_bytes == 256 * (3 * 64 * 64 * 8 + 8)
    assert forecast(network, 256, "tf32") == full


def test_without_training_only_the_peak_of_the_forward_pass_counts():
    needed = forecast(CIFARNET, 8, training=False)
    assert needed.gradient_bytes == needed.optimizer_bytes == needed.activation_bytes == 0
    # conv1's output and pool1's: 32 · 32 · 32 and 32 · 16 · 16 values a sample.
    assert needed.workspace_bytes == 8 * 4 * (32 * 32 * 32 + 32 * 16 * 16)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_large_batch_holds_nearly_all_that_the_layers_save(name, precision):
    line = entry(name)
    small = {"image_size": 64} if 0 < line.smallest_image_size <= 64 else {}
    if line.is_of_records:
        small = {"vocabulary": 10}  # else the gradients of tables are the peak
    elif not line.image_size:
        small = {"sequence_length": 64}
    network = build(name, **small)
    saved_bytes = totals(network, 1024, precision).forward.saved_bytes
    needed = forecast(network, 1024, precision)
    held_bytes = needed.activation_bytes + needed.workspace_bytes + needed.gradient_bytes
    least = 0.5 if line.is_of_records else 0.6  # those of the wide top MLP are free at the peak
    assert least * saved_bytes < needed.activation_bytes <= saved_bytes
    assert saved_bytes < held_bytes


@given(st.integers(1, 400 * MIB), st.sampled_from(["sgd", "adam"]))
def test_the_largest_batch_fits_and_the_next_does_not(limit_bytes, optimizer):
    needed = partial(forecast, CIFARNET, optimizer=optimizer)

    batch = largest_batch(needed, limit_bytes)
    assert batch == 0 or needed(batch).total_bytes <= limit_bytes
    assert needed(batch + 1).total_bytes > limit_bytes


def test_more_memory_or_less_width_takes_larger_batches():
    network = build("resnet-50")
    needed = partial(forecast, network)
    batches = [largest_batch(needed, gib * 2**30) for gib in (0, 8, 16, 32)]
    assert batches[0] == 0
    assert batches == sorted(set(batches))
    assert largest_batch(partial(needed, precision="bf16"), 16 * 2**30) > 1.7 * batches[2]


def test_a_batch_below_one_is_refused():
    with pytest.raises(UsageError, match="batch=0 "):
        forecast(CIFARNET, 0)


def test_accumulated_gradients_are_all_there_while_a_micro_batch_runs():
    parameters, batch = 4 * (100 * 50 + 50 + 50 * 10 + 10), 1000
    whole, parts = (
        forecast(two_layers(), batch),
        forecast(two_layers(), batch, accumulation_steps=4),
    )
    assert parts.gradient_bytes == parameters
    assert parts.activation_bytes == whole.activation_bytes / 4
    assert parts.input_bytes == whole.input_bytes
    assert parts.total_bytes < whole.total_bytes
    limit = whole.total_bytes
    needed = partial(forecast, two_layers(), accumulation_steps=4)
    fits = largest_batch(needed, limit, 4)
    assert fits % 4 == 0
    assert fits > batch
    assert needed(fits).total_bytes <= limit


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_recomputed_segments_save_what_they_read_only(device, precision):
    network = build("resnet-18")
    segments = recomputable_segments(network)
    assert segments == tuple(s.name for s in network.segments[:-1])
    usual, less = (
        forecast(network, 64, precision, device=device, recomputed=chosen)
        for chosen in ((), segments)
    )
    assert less.activation_bytes < 0.8 * usual.activation_bytes
    assert less.total_bytes < usual.total_bytes
    assert (less.optimizer_bytes, less.input_bytes) == (usual.optimizer_bytes, usual.input_bytes)
    both = forecast(network, 64, recomputed=segments, accumulation_steps=4, device=device)
    assert both.total_bytes < less.total_bytes or precision == "bf16"
    forward = forecast(network, 64, precision, training=False, device=device)
    assert forward == forecast(
        network, 64, precision, training=False, device=device, recomputed=segments
    )
