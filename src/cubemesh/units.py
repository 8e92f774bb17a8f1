"""Formatting and parsing of quantities with units: bytes, rates, durations, counts.

Numbers are rounded to significant digits and written out with thousands separators, never in
scientific notation. Rates, operations, power and energy take SI prefixes (powers of 1,000); memory
takes IEC ones (powers of 1,024). An interval decides the digits of its value by the rule of the
Particle Data Group (Review of Particle Physics, section 5.3): an uncertainty shows two significant
digits when they are 10 to 35, and one above that.

A ratio (its unit begins with ×) has two decimals at most, below 0.1 two significant digits, and no
smaller uncertainty: processes differ by more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Context, Decimal

from cubemesh.errors import UsageError

_SI = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SI_SMALL = (*_SI, (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_IEC = tuple(
    (1024.0**power, prefix) for power, prefix in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki"))
)

_SCALES: dict[str, tuple[tuple[tuple[float, str], ...], str]] = {
    "FLOP": (_SI, "FLOP"),
    "FLOP/s": (_SI, "FLOP/s"),
    "FLOP/B": (((1.0, ""),), "FLOP/B"),
    "B/s": (_SI, "B/s"),
    "bytes/s": (_SI, "B/s"),
    "B": ((*_IEC, (1.0, "")), "B"),
    "bytes": ((*_IEC, (1.0, "")), "B"),
    "Hz": (_SI, "Hz"),
    "W": (_SI_SMALL, "W"),
    "J": (_SI_SMALL, "J"),
    "s": (_SI_SMALL[_SI_SMALL.index((1.0, "")) :], "s"),
}
"""The units that take prefixes, with theirs; every other unit is written as it is."""

_EXACT = Context(prec=1000)
"""Room for every digit between the largest and the smallest float."""


def format_count(count: int) -> str:
    """A whole number, with every digit: `1,234,567`."""
    return f"{count:,d}"


def format_number(value: float, digits: int = 3) -> str:
    """`value` to `digits` significant digits: `2,170`, `0.0312`, `12`. Zeros after the last
    digit behind the point are left out."""
    if not math.isfinite(value):
        return _not_finite(value)
    return _plain_digits(_rounded(value, digits))


def format_quantity(value: float, unit: str, digits: int = 3) -> str:
    """`value` with its unit, with a prefix where the unit takes one.

    `format_quantity(7.8e14, "FLOP/s")` is `780 TFLOP/s`; `B` counts memory (`1.5 GiB`), `B/s` a
    link (`25 GB/s`); seconds are written by `format_seconds`; `samples/s` and every other unit
    stay unscaled: `1,900 samples/s`.
    """
    if unit == "s":
        return format_seconds(value, digits)
    if unit in ("B", "bytes"):
        return format_bytes(value, digits)
    if not math.isfinite(value):
        return _with_unit(_not_finite(value), unit)
    rounded = _rounded(value, digits)
    factor, name = _scale(rounded, unit)
    return _with_unit(_digits_of(value / factor, name, digits), name)


def format_bytes(size: float, digits: int = 3) -> str:
    """Memory in powers of 1,024: `512 B`, `1.5 GiB`, `1,016 MiB`."""
    if not math.isfinite(size):
        return _with_unit(_not_finite(size), "B")
    factor, name = _scale(size, "B")
    number = _rounded(size / factor, digits if abs(size / factor) < 1000 else max(digits, 4))
    if abs(number) >= 1024:  # rounding carried it over: 1,023.99 MiB is 1 GiB
        factor, name = _scale(float(number) * factor, "B")
        number = _rounded(size / factor, digits)
    return _with_unit(_plain_digits(number), name)


def format_seconds(seconds: float, digits: int = 3) -> str:
    """A duration in common units.

    Below a minute `12.3 ms` or `4.5 s`; then `1 min 30 s`, `2 h 5 min` and `12.3 days`, where
    `digits` applies to days only.
    """
    if not math.isfinite(seconds):
        return _with_unit(_not_finite(seconds), "s")
    if seconds < 0:
        return f"-{format_seconds(-seconds, digits)}"
    rounded = _rounded(seconds, digits)
    if rounded < 60:
        factor, name = _scale(rounded, "s")
        return _with_unit(format_number(seconds / factor, digits), name)
    if round(seconds) < 3600:
        return _two_units(round(seconds), 60, "min", "s")
    if round(seconds / 60) < 24 * 60:
        return _two_units(round(seconds / 60), 60, "h", "min")
    days = format_number(seconds / 86400, digits)
    return f"{days} {'day' if days == '1' else 'days'}"


UNCERTAIN = 100
"""Factor between a value and an end of its interval from which the ends are not shown."""


def format_interval(
    value: float, low: float | None = None, high: float | None = None, unit: str = ""
) -> str:
    """A value and its uncertainty: `2,170 ± 14 samples/s`, `12.3 ± 0.4 ms`.

    What follows ± is the longer side of the interval, rounded to its significant digits, and the
    value is rounded to the same place. Without an interval only the value is shown. An interval
    that ± would stretch beyond zero, though it lies above, is shown by its ends: `210 (84 to 530)`;
    so is the interval of a ratio that ± would stretch beyond 1: `1.11× (1.002 to 1.22)`. One that
    spans a factor of `UNCERTAIN` on a side has no ends that help.
    """
    if low is None or high is None:
        return format_quantity(value, unit)
    half = max(high - value, value - low)
    if not (math.isfinite(value) and math.isfinite(half)):
        return f"{format_quantity(value, unit)} ± {_not_finite(half)}"
    factor, name = _scale(value, unit)
    if half <= 0:
        return _with_unit(f"{_digits_of(value / factor, name, 4)} ± 0", name)
    if 0 < low < value <= half:
        number, *ends = (_digits_of(x / factor, name) for x in (value, low, high))
        unknown = max(value / low, high / value) >= UNCERTAIN
        wide = f"(uncertain by {UNCERTAIN}× or more)" if unknown else f"({' to '.join(ends)})"
        return f"{number}× {wide}" if unit == "×" else _with_unit(f"{number} {wide}", name)
    uncertainty = _capped(_rounded_uncertainty(half / factor), value / factor, name)
    place = Decimal(1).scaleb(_last_place(uncertainty))
    shown = Decimal(value / factor).quantize(place, context=_EXACT)
    if unit.startswith("×") and not low <= 1 <= high and abs(shown - 1) <= uncertainty:
        number, *ends = (_other_than_1(x) for x in (value, low, high))
        return f"{number}× ({' to '.join(ends)}){unit[1:]}"
    decimals = max(0, -_last_place(uncertainty))
    return _with_unit(f"{shown:,.{decimals}f} ± {uncertainty:,.{decimals}f}", name)


_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_SIZE = re.compile(rf"({_NUMBER})\s*(?:([kmgtp])(i?b?)|b)?", re.IGNORECASE)
_DURATION_PART = re.compile(rf"\s*({_NUMBER})\s*([a-zµμ]+)")
_DURATION_UNITS = {
    **dict.fromkeys(("ns",), Decimal("1e-9")),
    **dict.fromkeys(("us", "µs", "μs"), Decimal("1e-6")),
    **dict.fromkeys(("ms",), Decimal("1e-3")),
    **dict.fromkeys(("s", "sec", "second", "seconds"), Decimal(1)),
    **dict.fromkeys(("m", "min", "minute", "minutes"), Decimal(60)),
    **dict.fromkeys(("h", "hour", "hours"), Decimal(3600)),
    **dict.fromkeys(("d", "day", "days"), Decimal(86400)),
}


def format_list(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = list(words)
    return f"{', '.join(most)} and {last}" if most else last


def format_devices(devices: int) -> str:
    """`1 device`, `4 devices`."""
    return f"{devices} device{'' if devices == 1 else 's'}"


def parse_size(text: str) -> int:
    """Bytes meant by `8G`, `1GiB`, `512k`, `1.5 GB`, `4096`, to the nearest byte.

    As GNU coreutils read sizes: `k M G T P`, alone or with `iB`, count in 1,024s; `kB MB GB TB PB`
    count in 1,000s; upper and lower case are the same. UsageError for anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"'{text}' is not a size. Write a number and a unit, such as 512k, 8G or 1.5GiB: "
            "k, M, G, T, P (and KiB, MiB, …) count in 1,024s, kB, MB, … in 1,000s; "
            "a number alone is bytes."
        )
    number, prefix, ending = match.groups()
    power = "kmgtp".index(prefix.lower()) + 1 if prefix else 0
    base = 1000 if ending and ending.lower() == "b" else 1024
    return round(Decimal(number.replace(",", "")) * Decimal(base) ** power)


def parse_duration(text: str) -> float:
    """Seconds meant by `90s`, `5m`, `1h30m`, `1 min 30 s`, `250ms`, `2 days`, `90`.

    Units go from large to small, each once; a number alone is seconds. UsageError for anything
    else.
    """
    stripped = text.strip().lower()
    if re.fullmatch(_NUMBER, stripped):
        return float(stripped.replace(",", ""))
    total, last, position = Decimal(0), Decimal("Infinity"), 0
    while match := _DURATION_PART.match(stripped, position):
        factor = _DURATION_UNITS.get(match[2])
        if factor is None or factor >= last:
            break
        total += Decimal(match[1].replace(",", "")) * factor
        last, position = factor, match.end()
    if position == 0 or position < len(stripped):
        raise UsageError(
            f"'{text}' is not a duration. Write numbers with units from large to small, such as "
            "90s, 5m, 1h30m or 250ms: d, h, m (or min), s, ms, us, ns; a number alone is seconds."
        )
    return float(total)


def _scale(value: float | Decimal, unit: str) -> tuple[float, str]:
    """The factor of the largest prefix that `value` reaches, and the unit with that prefix."""
    size = abs(Decimal(repr(value)) if isinstance(value, float) else Decimal(value))
    scale, name = _SCALES.get(unit, (((1.0, ""),), unit))
    if size == 0:
        return 1.0, name
    for factor, prefix in scale:
        if size >= Decimal(repr(factor)):
            return factor, prefix + name
    factor, prefix = scale[-1]
    return factor, prefix + name


def _with_unit(number: str, unit: str) -> str:
    if not unit:
        return number
    return f"{number}{unit}" if unit == "×" else f"{number} {unit}"


def _digits_of(value: float, unit: str, digits: int = 3) -> str:
    return _plain_digits(_capped(_rounded(value, digits), value, unit))


def _other_than_1(ratio: float) -> str:
    """A ratio with as many digits as distinguish it from 1, at least three."""
    rounded = (_rounded(ratio, digits) for digits in range(3, 9))
    return _plain_digits(next((number for number in rounded if number != 1), Decimal(1)))


def _capped(number: Decimal, value: float, unit: str) -> Decimal:
    """`number`, the value or its uncertainty, to the last decimal that a ratio shows."""
    least = Decimal(1).scaleb(min(-2, Decimal(repr(value)).adjusted() - 1) if value else -2)
    if not unit.startswith("×") or _last_place(number) >= _last_place(least):
        return number
    return number.quantize(least, context=_EXACT) or least


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "not a number"
    return "infinite" if value > 0 else "-infinite"


def _rounded(value: float, digits: int) -> Decimal:
    """`value` to `digits` significant digits, from its shortest decimal spelling."""
    exact = Decimal(repr(float(value)))
    if exact == 0:
        return Decimal(0)
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), context=_EXACT)
    if rounded.adjusted() > exact.adjusted():  # 9.99 became 10.0: one place less is enough
        rounded = rounded.quantize(
            Decimal(1).scaleb(rounded.adjusted() - digits + 1), context=_EXACT
        )
    return rounded


def _plain_digits(number: Decimal) -> str:
    text = f"{number:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _rounded_uncertainty(half: float) -> Decimal:
    """By the rule of the Particle Data Group; a carry (0.96 to 1.0) keeps two digits."""
    two, one = _rounded(half, 2), _rounded(half, 1)
    if one.adjusted() > two.adjusted():
        return one.quantize(Decimal(1).scaleb(one.adjusted() - 1), context=_EXACT)
    return two if int(two.scaleb(1 - two.adjusted())) <= 35 else one


def _last_place(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent


def _two_units(count: int, per: int, large: str, small: str) -> str:
    whole, rest = divmod(count, per)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"
