"""How near do forecasts come to published training rates on several devices?

Every forecast is calibrated with the published rate of one device of the same source, network,
framework, precision and minibatch, and held against that of several. The slowdown by overlap and
the spread of steps are fitted on every second system, in the order of their names; errors are
printed for that half and for the other, by network, with a baseline beside them: a constant
efficiency for each number of devices, fitted on the same half. Rows that cannot be predicted are
listed with the reason. Last, forecasts without any calibration are held against the published
one-device rates.

    python benchmarks/prediction_accuracy.py

Exit code 1 unless the model halves the baseline's mean error on the half it has not seen.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.machines.catalogue import find
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.model import PublishedFigure
from cubemesh.model.spec import Precision
from cubemesh.networks.graph import Network
from cubemesh.predict.calibration import Calibration, defaults
from cubemesh.predict.passes import Speed, passes
from cubemesh.predict.step import Question, predict
from cubemesh.results.published import figures

SOURCES = ("TensorFlow benchmarks", "Dell", "Lambda", "NVIDIA DeepLearningExamples")
MACHINES = (  # what a source calls its system → system of the catalogue
    (r"DGX-1\b.*V100|LambdaCloud.*V100", "dgx1-v100"),
    (r"^NVIDIA DGX-1$", "dgx1-p100"),
    (r"DGX A100|A100.*SXM4", "dgx-a100"),
    (r"H100.*SXM5", "hgx-h100"),
    (r"C4130.*InfiniBand", "c4130-g-edr"),
    (r"C4130", "c4130-b"),
    (r"p2\.8xlarge$|k80x8|PCIe|RTX", "dual-root-pcie"),
)
SLOWDOWNS = tuple(i / 20 for i in range(21))
SPREADS = tuple(i / 400 for i in range(33))
UNFITTED = (0.1, 0.01)
"""What the two factors were taken to be before anything was fitted."""
MOST_EFFICIENT = 1.03
"""More than as many single devices by this is no scaling but another state of the one device."""
DEFAULT_BATCH = 64
"""Where a source states none; it changes how much of an exchange is hidden."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published rate of several devices, and that of one."""

    figure: PublishedFigure
    alone: float
    machine: str
    precision: Precision

    @property
    def devices(self) -> int:
        """How many."""
        return self.figure.devices or 1

    @property
    def efficiency(self) -> float:
        """What was published."""
        return self.figure.value / self.alone / self.devices


@cache
def built(name: str) -> Network:
    """The network at its own size."""
    return networks.build(name)


def family(system: str) -> str:
    """A system's name without its number of devices: all of one family are in the same half."""
    return re.sub(r"\b\d+x ?(?=[A-Z])(?!V100 \d+GB\))", "", system)


def precision_of(text: str) -> Precision:
    """The nearest precision of ours."""
    words = text.casefold()
    return "fp16" if "16" in words else "tf32" if "tf32" in words else "fp32"


def key(f: PublishedFigure) -> tuple[object, ...]:
    """What the rates of one and of several devices share."""
    system = family(f.system)
    exchange = re.sub(r"parameter_server/\w+|replicated.*|independent", "", f.note)
    batch = f.batch_per_device
    return f.source, system, f.device, f.framework, f.network, f.precision, batch, exchange


def rows() -> tuple[list[Row], dict[str, list[PublishedFigure]]]:
    """Those that can be predicted, and the others by their reason."""
    chosen = [f for f in figures() if f.metric == "throughput" and f.source.startswith(SOURCES)]
    alone = {key(f): f.value for f in chosen if f.devices == 1}
    found, left = [], defaultdict(list)
    for f in chosen:
        if (f.devices or 0) < 2:
            continue
        machine = next((name for form, name in MACHINES if re.search(form, f.system)), None)
        one = alone.get(key(f))
        if f.canonical is None:
            left[f"{f.network} is no network of cubemesh"].append(f)
        elif "real" in f.note.casefold():
            left["fed with real data, whose reading is not modelled"].append(f)
        elif machine is None:
            left[f"{f.system} is in no catalogue"].append(f)
        elif one is None:
            left["no rate of one device was published beside it"].append(f)
        elif f.value > MOST_EFFICIENT * one * (f.devices or 1):
            left["faster than as many of one device: a broken run, or another clock"].append(f)
        else:
            precision = precision_of(f.precision)
            found.append(Row(figure=f, alone=one, machine=machine, precision=precision))
    return found, left


def forecast(row: Row, known: Calibration) -> dict[str, float] | None:
    """The parts of the step on so many devices; None where the system has not so many."""
    question = Question(
        network=built(row.figure.canonical or ""),
        system=load_system(row.machine),
        batch_per_device=row.figure.batch_per_device or DEFAULT_BATCH,
        precision=row.precision,
    )
    try:
        found = predict(question, [row.devices], known, {1: row.alone})
    except UsageError:
        return None
    return dict(found.points[0].parts_s)


def efficiency(parts: dict[str, float], slowdown: float, spread: float) -> float:
    """One device's step over that of several, with other values of the two factors; `parts` are
    those of the default ones."""
    own = parts["forward"] + parts["backward"] + parts["update"]
    slow = parts["slowdown"] / defaults()["overlap_slowdown"] * slowdown
    wait = parts["waiting"] / defaults()["step_spread"] * spread
    return own / (own + slow + wait + parts["exposed"])


def mean(values: Iterable[float]) -> float:
    """Of one value at least."""
    listed = list(values)
    return sum(listed) / len(listed)


def summary(name: str, judged: Sequence[Row], of: Callable[[Row], float]) -> float:
    """Print the errors of a way to predict efficiency; their mean."""
    errors = sorted(abs(of(row) / row.efficiency - 1) for row in judged)
    ninth = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    print(f"  {name:<34}{100 * mean(errors):6.2f} %{100 * ninth:8.2f} %{len(errors):6d}")
    return mean(errors)


def without_calibration() -> None:
    """Hold forecasts from datasheets alone against the published rates of one device."""
    known, within, total = defaults(), 0, 0
    band = known["band_uncalibrated"]
    for f in figures():
        sheet, precision = find(f.device), precision_of(f.precision)
        if f.metric != "throughput" or f.devices != 1 or f.unit != "images/s" or sheet is None:
            continue
        peak, bandwidth = sheet.peak(precision), sheet.value("memory_bytes_per_s")
        if f.canonical is None or not f.batch_per_device or peak is None or bandwidth is None:
            continue
        at = Speed(
            flops_per_s=peak.flops_per_s * known["attained_flops"],
            bytes_per_s=bandwidth * known["attained_bytes"],
            source=sheet.name,
        )
        step_s = passes(built(f.canonical), f.batch_per_device, precision, at).step_s
        total += 1
        within += 1 / band <= f.batch_per_device / step_s / f.value <= band
    print(f"Without calibration: {within} of {total} one-device rates are within a factor {band}.")


def main() -> int:
    """Fit, judge and print; 1 where the model does not halve the baseline."""
    found, left = rows()
    parts = {}
    for row in found:
        known = forecast(row, defaults())
        if known is None:
            left[f"{row.machine} has not so many devices"].append(row.figure)
        else:
            parts[row] = known
    systems = sorted({family(row.figure.system) for row in parts})
    fitted_on = systems[::2]
    print("Fitted on:", "; ".join(fitted_on))
    print("Judged on:", "; ".join(systems[1::2]))
    seen = [row for row in parts if family(row.figure.system) in fitted_on]
    unseen = [row for row in parts if family(row.figure.system) not in fitted_on]
    slowdown, spread = min(
        ((a, b) for a in SLOWDOWNS for b in SPREADS),
        key=lambda pair: mean(
            abs(efficiency(parts[row], *pair) / row.efficiency - 1) for row in seen
        ),
    )
    print(f"Fitted: overlap_slowdown {slowdown}, step_spread {spread}; all else is assumed.")
    by_count = defaultdict(list)
    for row in seen:
        by_count[row.devices].append(row.efficiency)
    constant = {count: mean(values) for count, values in by_count.items()}

    def baseline(row: Row) -> float:
        return constant[min(constant, key=lambda count: abs(count - row.devices))]

    def assumption(row: Row) -> float:
        return efficiency(parts[row], *UNFITTED)

    def model(row: Row) -> float:
        return efficiency(parts[row], slowdown, spread)

    print(f"  {'error of':<36}mean  90th percentile  rows")
    model_error = base_error = 0.0
    beyond = [row for row in parts if row.devices > load_system(row.machine).devices]
    halves = (("fitted half", seen), ("other half", unseen))
    for name, judged in (("beyond one machine", beyond), *halves):
        local = [row for row in judged if name.startswith("beyond") or row not in beyond]
        summary(f"nothing fitted, {name}", local, assumption)
        model_error = summary(f"model, {name}", local, model)
        base_error = summary(f"constant efficiency, {name}", local, baseline)
    for name in sorted({row.figure.canonical or "" for row in unseen}):
        alike = [row for row in unseen if row.figure.canonical == name]
        summary(f"model, other half, {name}", alike, model)
        summary(f"constant, other half, {name}", alike, baseline)
    print("Not predicted:")
    for reason, figures_left in sorted(left.items()):
        where = Counter(f.source for f in figures_left)
        print(f"  {len(figures_left):4d}  {reason} ({', '.join(sorted(where))})")
    without_calibration()
    print(f"The model's error is {model_error / base_error:.2f} of the baseline's; goal: 0.5.")
    return int(model_error > base_error / 2)


if __name__ == "__main__":
    sys.exit(main())
