"""AcceptanceVerdict, findings, tables and notes of an acceptance test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cubemesh.experiments.acceptance.checks import (
    FEWEST_IN_FLEET,
    AcceptanceVerdict,
    Against,
    Check,
    LeftOut,
    Thresholds,
)
from cubemesh.experiments.acceptance.parts import NEEDS, Part
from cubemesh.schema import Answer, Cell, Column, Figure, Finding, RunRecord, Table
from cubemesh.units import format_count, format_list, format_number, format_quantity

CODES = {
    AcceptanceVerdict.PASS: "acceptance-passed",
    AcceptanceVerdict.FAIL: "acceptance-failed",
    AcceptanceVerdict.NOT_JUDGED: "acceptance-not-judged",
}
"""AcceptanceVerdict → code of the first finding."""
SPEEDS = (Against.DATASHEET, Against.FLEET, Against.NEIGHBOURS)
"""References outside of a device: without a check of one of them a machine does not pass."""
QUESTION = "Is this machine accepted?"
CHECKS = "Checks"
REMEDIES = {
    Against.DATASHEET: "Check the power limit, the clocks and the cooling: cubemesh doctor.",
    Against.FLEET: "Compare the machine and its software with the others: cubemesh compare.",
    Against.NEIGHBOURS: "Check this device's cooling, power limit, error counters and links, or "
    "replace it.",
    Against.START: "Check the cooling and the power supply under load.",
    Against.LINK: "Find what disables the link: NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, a container's "
    "devices, the IOMMU; NCCL_DEBUG=INFO names NCCL's choice.",
    Against.RESULTS: "Do not use results from this machine; check error counters (nvidia-smi -q, "
    "dmesg) and memory before measuring again.",
    Against.COMPLETION: "Show the run and its log: cubemesh results RUN.",
}
WITHOUT_RATIO = {
    Against.LINK: "faster-link-unused",
    Against.RESULTS: "wrong-results",
    Against.COMPLETION: "failed-run",
}
"""Checks without a ratio → code of their finding."""
MOST_NAMED = 3


def verdict_of(answer: Answer) -> AcceptanceVerdict:
    """The verdict of an acceptance test's answer."""
    codes = {finding.code for finding in answer.findings}
    return next((v for v, code in CODES.items() if code in codes), AcceptanceVerdict.NOT_JUDGED)


def title_of(records: Sequence[RunRecord]) -> str:
    """`Acceptance of 2 × NVIDIA H200`."""
    most = max(records, key=lambda r: len(r.ranks), default=None)
    names = [rank.device_name for rank in most.ranks] if most else []
    name = next((one for one in names if one), "")
    if not name:
        return "Acceptance of this machine"
    on_gpus = most is not None and most.ranks[0].device != "cpu"
    return f"Acceptance of {f'{len(names)} × ' if on_gpus and len(names) > 1 else ''}{name}"


def findings(
    checks: Sequence[Check], out: Sequence[LeftOut], missing: Sequence[Part], no_burn_in: bool
) -> Iterator[Finding]:
    """The verdict first, then each failed check."""
    optional = {part for part in NEEDS if part != "burn-in" or no_burn_in}
    unfinished = [part for part in missing if part not in optional]
    failed = [c for c in checks if c.verdict is AcceptanceVerdict.FAIL]
    passed = [c for c in checks if c.verdict is AcceptanceVerdict.PASS]
    inconclusive = [c for c in checks if c.inconclusive]
    judged = len(failed) + len(passed)
    open_checks = len(checks) - judged
    if failed:
        verdict = AcceptanceVerdict.FAIL
        text = f"Fail: {_count(len(failed), 'check')} of {judged} failed: {_named(failed)}."
    elif unfinished:
        verdict = AcceptanceVerdict.NOT_JUDGED
        text = f"Not judged: {format_list(unfinished)} was not measured."
    elif inconclusive:
        verdict = AcceptanceVerdict.NOT_JUDGED
        are = "is" if len(inconclusive) == 1 else "are"
        text = f"Not judged: {_count(len(inconclusive), 'check')} {are} inconclusive: "
        text += f"{_named(inconclusive)}."
    elif not any(c.against in SPEEDS for c in passed):
        verdict = AcceptanceVerdict.NOT_JUDGED
        text = "Not judged: no speed was compared with a datasheet, a fleet or another device."
    else:
        verdict = AcceptanceVerdict.PASS
        text = f"Pass: {len(passed)} of {_count(judged, 'judged check')} passed."
    if without := open_checks - len(inconclusive):
        have = "has" if without == 1 else "have"
        text += f" {_count(without, 'check')} {have} no reference; see the notes of the checks."
    if out or missing:
        were = "was" if len(out) + len(missing) == 1 else "were"
        text += f" {_count(len(out) + len(missing), 'measurement')} {were} left out."
    yield Finding(
        code=CODES[verdict],
        question=QUESTION,
        text=text,
        value=float(len(passed)),
        unit=f"of {_count(judged, 'check')} passed",
        remedy="" if verdict is not AcceptanceVerdict.NOT_JUDGED else _more_evidence(unfinished),
    )
    for check in failed:
        yield _failed(check)


def _more_evidence(unfinished: Sequence[Part]) -> str:
    if unfinished:
        return "Run it to its end: cubemesh accept."
    return (
        "Measure longer, or give references: --set stores=PATH of machines of the same model, or "
        "three acceptance tests of this one."
    )


def _count(number: int, noun: str) -> str:
    return f"{format_count(number)} {noun}{'' if number == 1 else 's'}"


def _named(checks: Sequence[Check]) -> str:
    """The first of them."""
    names = list(dict.fromkeys(map(_what, checks)))
    more = f", and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{'; '.join(names[:MOST_NAMED])}{more}"


def _what(check: Check) -> str:
    return f"{check.name} on {check.device}" if check.device else check.name


def _failed(check: Check) -> Finding:
    if check.against in WITHOUT_RATIO:
        return Finding(
            code=WITHOUT_RATIO[check.against],
            text=_sentence(f"{_what(check)}: {check.why}"),
            remedy=REMEDIES[check.against],
        )
    assert check.ratio is not None
    assert check.figure is not None
    assert check.threshold is not None
    against = {
        Against.DATASHEET: "of the datasheet's rate",
        Against.FLEET: "of the mean of the fleet",
        Against.NEIGHBOURS: "of the median of the other devices",
        Against.START: "of its rate at the start of the burn-in",
    }[check.against]
    text = (
        f"{_what(check)}: {format_quantity(check.figure.value, check.figure.unit)} is "
        f"{_percent(check.ratio)} {against}, below the threshold of "
        f"{format_number(100 * check.threshold)} %"
    )
    text += f" ({check.why})" if check.why else ""
    return Finding.of(
        code="slow-device" if check.against is Against.NEIGHBOURS else "check-failed",
        text=_sentence(text),
        figure=check.ratio,
        unit="×",
        remedy=REMEDIES[check.against],
    )


def _sentence(text: str) -> str:
    return f"{text.rstrip('.')}."


def _percent(ratio: Figure) -> str:
    """`82.1 % (81.5 to 82.7)`."""
    value = f"{format_number(100 * ratio.value)} %"
    if ratio.low is None or ratio.high is None:
        return value
    return f"{value} ({format_number(100 * ratio.low)} to {format_number(100 * ratio.high)})"


def tables(
    checks: Sequence[Check], out: Sequence[LeftOut], missing: Sequence[Part]
) -> Iterator[Table]:
    """The checks, failed and inconclusive ones first; and what was left out."""
    columns = ("check", "verdict", "measured", "reference", "ratio", "at least", "note")
    if checks:
        yield Table(
            title=CHECKS,
            columns=tuple(Column(name=name) for name in columns),
            rows=tuple(_row(c) for c in sorted(checks, key=_urgency)),
        )
    rows = [
        *((Cell(text=one.name, run_id=one.run_id), Cell(text=one.why)) for one in out),
        *((Cell(text=part), Cell(text=NEEDS.get(part, "not measured"))) for part in missing),
    ]
    if rows:
        yield Table(
            title="Left out",
            columns=(Column(name="measurement"), Column(name="reason")),
            rows=tuple(rows),
        )


def _urgency(check: Check) -> int:
    """Place in the table: failed, inconclusive, passed, without a reference."""
    if check.verdict is AcceptanceVerdict.NOT_JUDGED:
        return 1 if check.inconclusive else 3
    return 0 if check.verdict is AcceptanceVerdict.FAIL else 2


def _row(check: Check) -> tuple[Cell, ...]:
    return (
        Cell(text=_what(check), run_id=check.run_id),
        Cell(text=check.verdict.value),
        _figure_cell(check.figure),
        Cell(text=_reference(check)),
        Cell.of(check.ratio) if check.ratio else Cell(text="–"),
        Cell(text="–") if check.threshold is None else Cell(value=check.threshold),
        Cell(text=check.why or "–"),
    )


def _reference(check: Check) -> str:
    """`fleet: 650 TFLOP/s (± 0.4 %)`."""
    figure = _figure_cell(check.reference).text if check.reference else ""
    return f"{check.against.value}: {figure}" if figure else check.against.value


def _figure_cell(figure: Figure | None) -> Cell:
    """`650 TFLOP/s (± 0.4 %)`; units differ from row to row."""
    if figure is None:
        return Cell(text="–")
    text = format_quantity(figure.value, figure.unit)
    if figure.low is not None and figure.high is not None and figure.value:
        half = max(figure.high - figure.value, figure.value - figure.low) / figure.value
        text += f" (± {format_number(100 * half, 2)} %)"
    return Cell(text=text)


def notes(given: Thresholds) -> Iterator[str]:
    """The rules of the verdict, with the thresholds."""
    thresholds = {
        "the datasheet": given.min_of_datasheet,
        "the fleet": given.min_of_fleet,
        "the other devices": given.min_of_neighbours,
        "the start of the burn-in": given.min_of_start,
    }
    stated = (f"{format_number(100 * share)} % of {name}" for name, share in thresholds.items())
    yield (
        "The ratio is measured ÷ reference. A check passes if the whole 95 % interval of its ratio "
        "is at or above the threshold and fails if the whole interval is below; otherwise it is "
        f"not judged. Thresholds: {format_list(stated)}. The machine fails if one check fails; it "
        "passes only if every check that has a reference passes."
    )
    yield (
        "The reference of the fleet is the geometric mean, with its interval, of at least "
        f"{FEWEST_IN_FLEET} earlier runs of the same work on machines of this model, this one "
        "included."
    )
    yield (
        "Matrix products and copies are measured on the first device. All devices are compared by "
        "a training that runs on each of them at the same time."
    )
