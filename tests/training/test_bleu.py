"""BLEU on cases computed by hand, and the tokens of mteval-v13a."""

import math

import pytest

from cubemesh.training.bleu import BleuCounts, bleu_counts, tokenize


def bleu(*pairs):
    return bleu_counts([one for one, _ in pairs], [other for _, other in pairs])


def test_equal_texts_have_100_and_texts_without_a_common_word_0():
    assert bleu(("a b c d e", "a b c d e")).score == pytest.approx(100)
    assert bleu(("a b c d", "w x y z")).score == 0
    assert bleu(("", "a b")).score == 0
    assert BleuCounts().score == 0
    assert bleu(("a b c", "a b c")).score == 0  # no text has four words


def test_each_word_counts_as_often_as_in_the_reference():
    # Papineni et al., example 2: 2 of 7.
    counts = bleu(("the the the the the the the", "the cat is on the mat"))
    assert counts.matches == (2, 0, 0, 0)
    assert counts.totals == (7, 6, 5, 4)
    # no match of 2, 3 and 4 words counts as 1/2, 1/4 and 1/8
    expected = (2 / 7 * (1 / 2) / 6 * (1 / 4) / 5 * (1 / 8) / 4) ** 0.25
    assert counts.score == pytest.approx(100 * expected)


def test_a_translation_that_is_too_short_is_penalized_and_a_long_one_by_its_precision():
    short = bleu(("a b c d", "a b c d e f"))
    assert short.brevity_penalty == pytest.approx(math.exp(1 - 6 / 4))
    assert short.score == pytest.approx(60.653, abs=1e-3)
    long = bleu(("a b c d e f", "a b c d"))
    assert long.brevity_penalty == 1
    assert long.score == pytest.approx(100 * (4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_counts_of_sentences_add_up_and_their_scores_do_not():
    one, other = ("a b c d e", "a b c d e"), ("a b c x", "a b c d e")
    together = bleu(one, other)
    assert together == bleu(one) + bleu(other)
    assert (together.matches, together.totals) == ((8, 6, 4, 2), (9, 7, 5, 3))
    expected = math.exp(1 - 10 / 9) * (8 / 9 * 6 / 7 * 4 / 5 * 2 / 3) ** 0.25
    assert together.score == pytest.approx(100 * expected)
    assert together.score != pytest.approx((bleu(one).score + bleu(other).score) / 2, abs=1)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello, world!", ["Hello", ",", "world", "!"]),
        ("It costs 1,000.50 dollars.", ["It", "costs", "1,000.50", "dollars", "."]),
        ("in 1990-95 (or so)", ["in", "1990", "-", "95", "(", "or", "so", ")"]),
        ("well-known don't", ["well-known", "don't"]),
        ("&quot;A&amp;B&quot; &lt;x&gt;", ['"', "A", "&", "B", '"', "<", "x", ">"]),
        ("die Tür , schön .", ["die", "Tür", ",", "schön", "."]),
        ("a\nb  c\t<skipped>", ["a", "b", "c"]),
    ],
)
def test_text_is_divided_as_by_mteval(text, tokens):
    assert tokenize(text) == tokens


def test_every_translation_needs_its_reference():
    with pytest.raises(ValueError, match="shorter"):
        bleu_counts(["a", "b"], ["a"])
