"""What does a trace of PyTorch's profiler say, as plain events?

The trace is the JSON that Chrome and Perfetto read ("Trace Event Format"), as
`torch.profiler.profile.export_chrome_trace` writes it. Three things are read off it that no event
says by itself:

- *Which layer a forward operator belongs to*: the annotation `LAYER` + name around it.
- *Which layer a backward operator belongs to*: automatic differentiation gives a backward node the
  sequence number of the forward operator it comes from. Several operators may show one number; the
  last of them made the node.
- *Where a kernel belongs*: to the call into the CUDA runtime with its correlation number, and so to
  what stood around that call on the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cubemesh.schema.profile import EventKind, ProfileEvent

LAYER = "cubemesh layer "
"""Annotations that name a layer begin with it."""
_KINDS: Mapping[str, EventKind] = {
    "cpu_op": "operator",
    "user_annotation": "scope",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
}
"""Category of a trace event → kind; events of other categories say nothing of their own."""
_SCOPE = re.compile(
    r"autograd::engine::|torch::autograd::|.*Backward\d*$|Optimizer\.|CompiledFunction|"
    r"Torch-Compiled Region|TorchDynamo|AOTDispatcher|Pregraph bytecode"
)
"""Operators that only stand around others: automatic differentiation, the optimizer's wrapper, and
what calls compiled code."""
_COMPILED_CALL = "## Call CompiledFxGraph"
"""The annotation around the code that TorchInductor wrote: C++ loops, which no event of their own
shows on a CPU."""
_UPDATE = "Optimizer."

Raw = Mapping[str, Any]


def read_trace(trace: Raw, clock_of: Callable[[int], float]) -> tuple[ProfileEvent, ...]:
    """The events of a trace, by their start. `clock_of` turns nanoseconds since 1970 into readings
    of the program's clock."""
    base_ns = int(trace.get("baseTimeNanoseconds", 0))
    raws = [
        raw
        for raw in trace["traceEvents"]
        if raw.get("ph") == "X" and raw.get("cat") in _KINDS and "dur" in raw
    ]
    raws.sort(key=lambda raw: (raw["ts"], -raw["dur"]))
    places = _Places(raws)
    return tuple(
        ProfileEvent(
            name=str(raw["name"]),
            kind=_kind(raw),
            start_s=clock_of(base_ns + round(raw["ts"] * 1e3)),
            duration_s=raw["dur"] / 1e6,
            lane=_lane(raw),
            launch=_launch(raw),
            layer=layer,
            update=update,
            occupancy=_occupancy(raw),
        )
        for raw, (layer, update) in zip(raws, places.found, strict=True)
    )


def _kind(raw: Raw) -> EventKind:
    if str(raw["name"]).startswith(_COMPILED_CALL):
        return "operator"
    kind = _KINDS[raw["cat"]]
    return "scope" if kind == "operator" and _SCOPE.match(str(raw["name"])) else kind


def _lane(raw: Raw) -> int:
    lane = raw["args"].get("stream", raw.get("tid")) if "args" in raw else raw.get("tid")
    return lane if isinstance(lane, int) else hash(str(lane))


def _launch(raw: Raw) -> int | None:
    """0 is the correlation of what was not launched."""
    return raw.get("args", {}).get("correlation") or None


def _occupancy(raw: Raw) -> float | None:
    percent = raw.get("args", {}).get("est. achieved occupancy %")
    return None if percent is None else float(percent) / 100


class _Places:
    """Where each event belongs: (layer, whether to the optimizer's update)."""

    def __init__(self, raws: list[Raw]) -> None:
        host = [r for r in raws if _KINDS[r["cat"]] in ("operator", "scope", "runtime")]
        self._layer_of_sequence = _layers_by_sequence(host)
        places: dict[int, tuple[str, bool]] = {}
        launched: dict[int, tuple[str, bool]] = {}
        for raw, around in _nested(host):
            place = self._place((*around, raw))
            places[id(raw)] = place
            launch = _launch(raw)
            if launch is not None:
                launched[launch] = place
        nowhere = ("", False)
        self.found = [
            places[id(raw)] if id(raw) in places else launched.get(_launch(raw) or 0, nowhere)
            for raw in raws
        ]

    def _place(self, around: tuple[Raw, ...]) -> tuple[str, bool]:
        """The innermost that names a layer decides."""
        update = any(str(raw["name"]).startswith(_UPDATE) for raw in around)
        for raw in reversed(around):
            layer = _layer_named(raw)
            if layer is None and _is_backward(raw):
                layer = self._layer_of_sequence.get(_sequence(raw))
            if layer is not None:
                return layer, update
        return "", update


def _layers_by_sequence(host: list[Raw]) -> dict[int | None, str]:
    found: dict[int | None, str] = {}
    for raw, around in _nested(host):
        sequence = _sequence(raw)
        if sequence is None or _is_backward(raw):
            continue
        named = [layer for outer in around if (layer := _layer_named(outer)) is not None]
        found[sequence] = named[-1] if named else ""
    return found


def _nested(host: Iterable[Raw]) -> Iterable[tuple[Raw, tuple[Raw, ...]]]:
    """Each host event with those that stand around it on its thread, the outermost first."""
    stacks: dict[Any, list[Raw]] = {}
    for raw in host:
        stack = stacks.setdefault(raw.get("tid"), [])
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= raw["ts"]:
            stack.pop()
        yield raw, tuple(stack)
        stack.append(raw)


def _layer_named(raw: Raw) -> str | None:
    name = str(raw["name"])
    return name.removeprefix(LAYER) if name.startswith(LAYER) else None


def _sequence(raw: Raw) -> int | None:
    number = raw.get("args", {}).get("Sequence number")
    return number if isinstance(number, int) and number >= 0 else None


def _is_backward(raw: Raw) -> bool:
    """Backward nodes name the thread of their forward operator; forward operators name none."""
    return bool(raw.get("args", {}).get("Fwd thread id"))
