from __future__ import annotations

import dataclasses

import pytest

from cubemesh.schema import Answer, Axis, Chart, Figure, Finding, Line
from cubemesh.schema.answer import INTERVAL_MEANING
from cubemesh.views.report.headline import headline, interval_note, lead, ranked, split_text
from cubemesh.views.report.page import cards


def finding(code: str, text: str, value: float | None = 1.0, **fields) -> Finding:
    return Finding(code=code, text=text, value=value, **fields)


def answer(*findings: Finding, **fields) -> Answer:
    return Answer(experiment="x", question="?", title="title", findings=findings, **fields)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("input-cost", "throughput"),
        ("failed-run", "sampling-cost"),
        ("throughput", "wrong-results"),
        ("largest-overhead", "scaling-efficiency"),
        ("unknown-power", "largest-overhead"),
        ("throughput", "machine-ratio"),
    ],
)
def test_a_more_important_code_is_the_headline_wherever_it_is(first, second):
    one, other = finding(first, "First."), finding(second, "Second.")
    assert headline([answer(one), answer(other)], ()) == "Second."
    assert headline([answer(other, one)], ()) == "Second."


def test_a_finding_without_caveats_is_preferred():
    noisy = finding("throughput", "Noisy.", caveats=("drift",))
    assert headline([answer(noisy), answer(finding("throughput", "Quiet."))], ()) == "Quiet."


def test_the_largest_loss_is_preferred():
    losses = [finding("largest-overhead", f"{v} %.", value=v) for v in (3.0, 46.0, 7.0)]
    assert headline([answer(*losses)], ()) == "46.0 %."


def test_a_throughput_with_published_results_is_preferred():
    line = Line(name="H100", points=(), role="published")
    chart = Chart(
        name="c", title="c", kind="line", x=Axis(name="x"), y=Axis(name="y"), lines=(line,)
    )
    known = answer(finding("throughput", "Known."), charts=(chart,))
    assert headline([answer(finding("throughput", "Other.")), known], ()) == "Known."
    check = answer(
        finding("throughput", "gpt2 trains."),
        finding("throughput", "resnet-50 trains."),
        finding("published-ratio", "resnet-50 1.1×."),
    )
    assert headline([check], ()) == "resnet-50 trains."


def test_more_operations_a_second_are_preferred(sample):
    records = list(sample.records.values())
    slow, fast = records[0], records[5]
    found = [
        answer(finding("throughput", text), run_ids=(record.run_id,))
        for text, record in (("Slow.", slow), ("Fast.", fast))
    ]
    assert [one.finding.text for one in ranked(found, records)] == ["Fast.", "Slow."]


def test_a_long_sentence_is_divided_after_its_figure():
    text = (
        "resnet-50 trains at 8,930 ± 110 samples/s (batch size 256, bf16, pytorch-captured): "
        "1.92× (1.91–1.92) the speed of PyTorch eager."
    )
    long = finding("throughput", text, 8930.0, unit="samples/s", low=8820.0, high=9040.0)
    title, conditions, rest = split_text(long)
    assert title == "resnet-50 trains at 8,930 ± 110 samples/s"
    assert conditions == "batch size 256, bf16, pytorch-captured"
    assert rest == "1.92× (1.91–1.92) the speed of PyTorch eager."
    assert lead([answer(long)]) == (rest, "")
    asked = dataclasses.replace(long, question="How fast?")
    (card,) = cards([answer(asked)])
    assert (card.conditions, card.text) == (conditions, rest)
    assert lead([answer(asked)]) == ("", "")


def test_the_headline_of_a_throughput_is_followed_by_its_verdict():
    figure = finding("throughput", "resnet-50 trains.", question="How fast?")
    verdict = finding("verdict", "That is 12 % above.", None, remedy="Train: cubemesh train x")
    assert lead([answer(figure, verdict)]) == (verdict.text, verdict.remedy)
    assert lead([answer(finding("wrong-results", "Wrong."), figure, verdict)]) == ("", "")


def test_the_command_below_the_headline_is_in_no_card():
    figure = finding("throughput", "resnet-50 trains.", question="How fast?")
    verdict = finding("verdict", "Good.", None, remedy="First: cubemesh train x")
    loss = finding("largest-loss", "Loses.", question="Loss?", remedy="To train: cubemesh train x")
    gain = finding("further-gain", "Gains.", question="Gain?", remedy="To try: cubemesh train y")
    shown = cards([answer(figure, verdict, loss, gain)])
    assert [card.remedy for card in shown] == ["", "", gain.remedy]
    assert [card.remedy for card in cards([answer(loss)])] == [loss.remedy]


def test_the_meaning_of_plus_minus_is_given_once():
    sure = finding("throughput", "x trains.", low=0.9, high=1.1)
    own = f"{INTERVAL_MEANING} Between processes."
    assert interval_note([answer(finding("a", "b"))]) == ""
    assert interval_note([answer(sure, notes=("Other.",))]) == INTERVAL_MEANING
    assert interval_note([answer(sure), answer(notes=("Other.", own))]) == own


def test_an_interval_is_not_a_condition():
    text = (
        "resnet-50 trains fastest with tensorflow, which needs many words: 1.09× (1.05–1.15) eager."
    )
    assert split_text(finding("fastest-framework", text, 1.09)) == (text, "", "")


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (1.12, 1.11, 1.13, ("12 % above published", "good")),
        (0.61, 0.60, 0.62, ("39 % below published", "low")),
        (
            *(1.01, 0.97, 1.05),
            (
                "no significant difference from published: differences below 4 % would not be "
                "detected",
                "equal",
            ),
        ),
        (1.12, None, None, ("", "")),
    ],
)
def test_a_published_ratio_has_a_verdict_by_its_interval(value, low, high, verdict):
    one = finding("published-ratio", "T.", value, low=low, high=high, question="What do others?")
    (card,) = cards([answer(one)])
    assert card.verdict == verdict
    assert [name for name, *_ in card.bars] == ["this machine", "published"]


def test_a_ratio_of_machines_has_the_verdict_of_its_answer():
    """Not that of the ratio by itself: its answer judged it with others."""
    one = finding("machine-ratio", "T.", 1.08, low=1.02, high=1.14, unit="×", question="How fast?")
    equal = "no significant difference (differences below 9.7 % would not be detected)"
    shown = "no significant difference from the other machine: differences below 9.7 % would not"
    for verdict, text, kind in (
        (equal, f"{shown} be detected", "equal"),
        ("faster", "8 % above the other machine", "good"),
        ("not judged: no interval", "not judged: no interval", "equal"),
    ):
        (card,) = cards([answer(dataclasses.replace(one, verdict=verdict))])
        assert card.verdict == (text, kind)


def test_only_a_bracket_at_the_end_is_cut():
    ends = "An inference pass takes from 29 % (resnet-101, pytorch) to 41 % (vgg16, pytorch) of the"
    middle = finding("inference-share", f"{ends} time of a training step.", 41.0, unit="%")
    assert split_text(middle) == (middle.text, "", "")
    twice = "resnet-50 trains fastest with pytorch-captured: 1.48× the speed of a (separate runs),"
    last = finding("fastest-settings", f"{twice} and 8.52× that of b (separate runs).", 9020.0)
    assert split_text(last) == (f"{twice} and 8.52× that of b.", "separate runs", "")


def test_the_headline_is_about_the_workload_of_most_runs(sample):
    records = [r for r in sample.records.values() if r.ok]
    main = records[0]
    other = dataclasses.replace(
        main,
        run_id="other",
        spec=dataclasses.replace(
            main.spec, work=dataclasses.replace(main.spec.work, network="alexnet")
        ),
        figures={**main.figures, "model_flops_per_s": Figure(value=1e18, unit="FLOP/s")},
    )
    again = dataclasses.replace(main, run_id="again")
    network = main.spec.work.network
    found = [
        answer(finding("throughput", f"{name} trains."), run_ids=tuple(ids))
        for name, ids in (("alexnet", ["other"]), (network, [main.run_id, "again"]))
    ]
    assert headline(found, [main, again, other]) == f"{network} trains."
    assert headline(found, [main, other]) == "alexnet trains.", "neither has more than half"


def test_a_question_has_the_card_of_its_most_important_finding():
    weak = finding("scaling-efficiency", "Weak.", caveats=("drift",), question="How far?")
    strong = finding("scaling-efficiency", "Strong.", question="How far?")
    (card,) = cards([answer(weak), answer(strong), answer(finding("speed-ratio", "Top."))])
    assert (card.text, card.anchor) == ("Strong.", "question-2")


def test_a_long_duration_is_in_hours():
    one = finding("training-time", "T.", 12910.0, unit="s", low=12790.0, high=13080.0, question="?")
    (card,) = cards([answer(one)])
    assert (card.figure, card.unit) == ("3 h 35 min", "")
    assert card.interval == "± 3 min"
