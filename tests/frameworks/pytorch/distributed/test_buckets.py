"""Gradients that travel together: who is in which bucket, and when it is handed over."""

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
nn = torch.nn

from cubemesh.frameworks.pytorch.distributed.buckets import GradientBuckets, packed
from cubemesh.frameworks.pytorch.precision.master_weight_cast import cast_together

TYPES = {"float32": 4, "float64": 8}
PARAMETERS = st.lists(st.tuples(st.integers(1, 50), st.sampled_from(sorted(TYPES))), max_size=20)


@given(PARAMETERS, st.integers(1, 500))
def test_every_parameter_is_in_one_bucket_last_first(sizes, bucket_bytes):
    parameters = {
        f"p{n}": torch.empty(size, dtype=getattr(torch, kind))
        for n, (size, kind) in enumerate(sizes)
    }
    bytes_of = {name: p.numel() * p.element_size() for name, p in parameters.items()}
    buckets = list(packed(parameters, bucket_bytes))
    assert [name for names in buckets for name in names] == list(reversed(parameters))
    for number, names in enumerate(buckets):
        (kind,) = {parameters[name].dtype for name in names}
        assert sum(bytes_of[name] for name in names[:-1]) < bucket_bytes
        if number + 1 < len(buckets):
            full = sum(bytes_of[name] for name in names) >= bucket_bytes
            assert full or parameters[buckets[number + 1][0]].dtype != kind


class Chain(nn.Module):
    """Three products; the middle weight is used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.tied, self.last = (nn.Linear(4, 4).double() for _ in range(3))

    def forward(self, x):
        return self.last(self.tied(self.tied(self.first(x).tanh()).tanh())).square().sum()


def bucketed(module, bucket_bytes):
    """(buckets, what was handed over so far)"""
    handed = []
    parameters = dict(module.named_parameters())
    return GradientBuckets(parameters, bucket_bytes, handed.append), handed


def plain_gradients(x):
    module = Chain()
    module(x).backward()
    return {name: p.grad for name, p in module.named_parameters()}


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("bucket_bytes", [1, 10_000])
def test_gradients_sent_in_low_precision_are_fp32_for_the_optimizer(bucket_bytes, placed):
    weights = {n: nn.Parameter(torch.randn(4, 3)) for n in ("first", "second")}
    handed = []
    buckets = GradientBuckets(
        weights, bucket_bytes, handed.append, low_precision_dtype=torch.bfloat16
    )
    x = torch.randn(5, 4, dtype=torch.bfloat16)
    for _ in range(2):
        handed.clear()
        buckets.start()
        for weight in weights.values():
            weight.grad = None
        place_of = {"place_of": buckets.place_of} if placed else {}
        made = cast_together(list(weights.values()), torch.bfloat16, **place_of)
        loss = sum((x @ weight).square().mean() for weight in made)
        wanted = torch.autograd.grad(loss, made, retain_graph=True)
        loss.backward()
        buckets.check_complete()
        for bucket in handed:
            assert bucket.gradients.dtype == torch.bfloat16
            assert bucket.size_bytes == 2 * bucket.gradients.numel()
            bucket.gradients.mul_(2)  # what an exchange leaves there
        buckets.restore_precision(buckets.buckets)
        for weight, gradient in zip(weights.values(), wanted, strict=True):
            assert torch.equal(weight.grad, 2 * gradient.float())
    assert sum(bucket.gradients.numel() for bucket in handed) == 24


def test_two_gradients_of_a_weight_with_a_destination_are_an_error():
    weight = nn.Parameter(torch.randn(4, 3))
    buckets = GradientBuckets(
        {"tied": weight}, 1, lambda bucket: None, low_precision_dtype=torch.bfloat16
    )
    (made,) = cast_together([weight], torch.bfloat16, place_of=buckets.place_of)
    loss = made.square().sum() + weight.square().sum()
    with pytest.raises(AssertionError, match=r"^tied\b"):
        loss.backward()


def test_closed_buckets_free_their_memory():
    module = Chain()
    buckets, _ = bucketed(module, 100)
    seen = weakref.ref(buckets.buckets[0].gradients.untyped_storage())
    buckets.close()
    del buckets, _
    gc.collect()
    assert seen() is None


def test_buckets_are_in_the_memory_that_the_strategy_allocates():
    module, handed, made = Chain(), [], []

    def room(numbers, like):
        made.append(torch.zeros(2 * numbers, dtype=like.dtype)[:numbers])
        return made[-1]

    buckets = GradientBuckets(dict(module.named_parameters()), 100, handed.append, room)
    assert [b.gradients.data_ptr() for b in buckets.buckets] == [one.data_ptr() for one in made]
    assert buckets.external_bytes == sum(b.size_bytes for b in buckets.buckets) > 0
    assert bucketed(Chain(), 100)[0].external_bytes == 0
    x = torch.randn(2, 4, dtype=torch.float64)
    wanted = plain_gradients(x)
    buckets.start()
    module(x).backward()
    assert len(handed) == len(made) > 1
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter.grad, wanted[name])
        assert any(
            parameter.grad.untyped_storage().data_ptr() == one.untyped_storage().data_ptr()
            for one in made
        )


@pytest.mark.parametrize("bucket_bytes", [1, 60, 10_000])
def test_a_gradient_written_to_its_destination_is_not_copied(bucket_bytes):
    weights = {n: nn.Parameter(torch.randn(4, 3)) for n in ("first", "second", "third")}
    weights["third"].data = weights["third"].data.t().contiguous().t()  # as channels last are
    came = {}
    for name, weight in weights.items():
        weight.register_post_accumulate_grad_hook(
            lambda p, name=name: came.update({name: p.grad.data_ptr()})
        )
    handed = []
    buckets = GradientBuckets(weights, bucket_bytes, handed.append)
    x = torch.randn(5, 4, dtype=torch.bfloat16)
    for _ in range(2):
        buckets.start()
        for weight in weights.values():
            weight.grad = None
        made = cast_together(list(weights.values()), torch.bfloat16, place_of=buckets.place_of)
        loss = sum((x @ weight).square().mean() for weight in made)
        wanted = torch.autograd.grad(loss, made, retain_graph=True)
        loss.backward()
        buckets.check_complete()
        for (name, weight), gradient in zip(weights.items(), wanted, strict=True):
            assert torch.equal(weight.grad, gradient.float())
            assert weight.grad.data_ptr() == came[name], "autograd took it as it was"
            flat = buckets.buckets[buckets._bucket_of[name]].gradients
            assert weight.grad.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    assert len(handed) == 2 * len(buckets.buckets)
    assert buckets.place_of(torch.empty(4, 3)) is None


@pytest.mark.parametrize("bucket_bytes", [1, 150, 10_000])
def test_the_optimizer_reads_gradients_from_their_bucket(bucket_bytes):
    x = torch.randn(5, 4, dtype=torch.float64)
    expected = plain_gradients(x)
    module = Chain()
    buckets, handed = bucketed(module, bucket_bytes)
    for _ in range(2):  # a second step finds nothing of the first
        module.zero_grad(set_to_none=True)
        handed.clear()
        buckets.start()
        module(x).backward()
        buckets.check_complete()
        assert [bucket.index for bucket in handed] == list(range(len(buckets.buckets)))
        for name, p in module.named_parameters():
            torch.testing.assert_close(p.grad, expected[name], rtol=0, atol=0)
    for bucket in buckets.buckets:
        assert bucket.size_bytes == bucket.gradients.numel() * 8
        bucket.gradients.fill_(7.0)  # as an exchange does, in place
    assert all((p.grad == 7.0).all() for p in module.parameters())


def test_buckets_are_synchronized_in_order_whatever_the_order_of_gradients():
    class Backwards(nn.Module):
        """Registered the other way round than they are used, so the first bucket fills last."""

        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(3, 1), nn.Linear(3, 3)

        def forward(self, x):
            return self.last(self.first(x)).sum()

    module = Backwards()
    _, handed = bucketed(module, bucket_bytes=1)
    came = []
    for name, p in module.named_parameters():
        p.register_post_accumulate_grad_hook(lambda _, name=name: came.append((name, len(handed))))
    module(torch.randn(2, 3)).backward()
    assert [bucket.parameters for bucket in handed] == [
        ("first.bias",),
        ("first.weight",),
        ("last.bias",),
        ("last.weight",),
    ]
    before = dict(came)
    assert before["last.bias"] == before["last.weight"] == 0, "they waited for the first's"


def test_a_missing_gradient_is_an_error():
    module = Chain()
    buckets, handed = bucketed(module, bucket_bytes=1)
    module.last(torch.randn(1, 4, dtype=torch.float64)).sum().backward()
    assert [bucket.parameters for bucket in handed] == [("last.bias",), ("last.weight",)]
    with pytest.raises(RuntimeError, match=r"\b1 of 1\b.*bucket 2"):
        buckets.check_complete()


def test_a_gradient_has_the_strides_of_its_parameter():
    torch.manual_seed(0)
    module = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    module(x).square().sum().backward()
    expected = module.weight.grad.clone()
    buckets, _ = bucketed(module, bucket_bytes=1 << 20)
    module.zero_grad(set_to_none=True)
    module(x).square().sum().backward()
    torch.testing.assert_close(module.weight.grad, expected)
    assert module.weight.grad.stride() == module.weight.stride() != (27, 9, 3, 1)
    (bucket,) = buckets.buckets
    assert module.weight.grad.untyped_storage().data_ptr() == bucket.gradients.data_ptr()
