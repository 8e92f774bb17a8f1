"""Click records: their form, what can be learned from them, and what does not take them."""

import numpy as np
import pytest

from cubemesh import data
from cubemesh.data.records import generated_clicks, takes_records
from cubemesh.data.records.generated_clicks import SAMPLES, best_scores
from cubemesh.errors import UsageError
from cubemesh.networks import build
from cubemesh.statistics.roc import roc_area

NETWORK = build("dlrm-small", sequence_length=2, vocabulary=500)


def whole(name, split="validation", network=NETWORK, seed=0):
    source = data.open_for(network, name, None, split, seed=seed)
    assert (source.name, source.samples, source.classes) == (name, SAMPLES[split], 2)
    return source.batch(np.arange(source.samples))


@pytest.mark.parametrize("name", ["synthetic", "generated-clicks"])
def test_every_index_is_a_row_of_its_table(name):
    batch = whole(name)
    numbers, categories = batch.inputs
    assert (numbers.dtype, categories.dtype, batch.labels.dtype) == ("f4", "i8", "i8")
    assert numbers.shape == (SAMPLES["validation"], 13)
    assert categories.shape == (SAMPLES["validation"], 2 * 26)
    assert np.isfinite(numbers).all()
    assert categories.min() == 0
    assert (categories < np.array(NETWORK.inputs[1].vocabularies)).all()
    assert set(batch.labels.tolist()) == {0, 1}


def test_records_follow_from_seed_and_split():
    same, again = whole("generated-clicks"), whole("generated-clicks")
    others = whole("generated-clicks", seed=1), whole("generated-clicks", "train")
    for one, two in zip((*same.inputs, same.labels), (*again.inputs, again.labels), strict=True):
        assert np.array_equal(one, two)
    for other in others:
        assert not np.array_equal(same.inputs[0], other.inputs[0][: len(same.labels)])


def test_a_batch_fills_the_arrays_that_it_is_given():
    source = data.open_for(NETWORK, "generated-clicks", None, "validation", seed=0)
    into = source.empty(3)
    assert source.batch(np.array([5, 0, 7]), into) is into
    assert np.array_equal(into.inputs[1][1], whole("generated-clicks").inputs[1][0])
    with pytest.raises(IndexError):
        source.batch(np.array([source.samples]))


def test_the_rule_decides_as_much_as_documented_and_synthetic_labels_are_chance():
    clicks = whole("generated-clicks")
    odds = best_scores(*clicks.inputs)
    assert 0.2 < clicks.labels.mean() < 0.3
    assert 0.82 < ((odds > 0) == clicks.labels).mean() < 0.9
    assert 0.85 < roc_area(odds, clicks.labels == 1).area < 0.92
    by_chance = whole("synthetic")
    assert abs(roc_area(best_scores(*by_chance.inputs), by_chance.labels == 1).area - 0.5) < 0.05


def test_few_values_are_frequent_and_most_are_rare():
    first = whole("generated-clicks", network=build("dlrm-small")).inputs[1][:, 2]
    shares = np.bincount(first, minlength=10_000) / len(first)
    assert shares[:100].sum() == pytest.approx(0.5, abs=0.05)  # log 101 / log 10,001
    assert shares[1:3].sum() > 100 * shares[5000:5002].sum()


def test_wide_records_are_fewer_and_a_large_batch_has_enough(monkeypatch):
    monkeypatch.setattr(generated_clicks, "CACHE_BYTES", 10_000)
    each = 4 * 13 + 8 * 2 * 26 + 8
    for needed, samples in ((1, 10_000 // each), (30, 30)):
        source = data.open_for(NETWORK, "synthetic", None, "train", seed=0, samples_needed=needed)
        assert source.samples == samples


def test_records_and_their_networks_need_each_other():
    assert takes_records(NETWORK)
    for name in ("resnet-18", "gpt2", "translator", "captioner", "unet"):
        with pytest.raises(UsageError, match=f"has records .*{name} .*dlrm-small"):
            data.check_feeds("generated-clicks", build(name))
    for name in ("digits", "generated-sentences", "documents", "generated-shapes"):
        with pytest.raises(UsageError, match=r"(records|documents).*synthetic"):
            data.check_feeds(name, NETWORK)
