"""Parser of PyTorch profiler traces (Kineto) into plain events.

The trace is the JSON that Chrome and Perfetto read ("Trace Event Format"), as
`torch.profiler.profile.export_chrome_trace` writes it. Three attributions combine
several events:

- *Which layer a forward operator belongs to*: the annotation `LAYER` + name that encloses it.
- *Which layer a backward operator belongs to*: automatic differentiation gives a backward node the
  sequence number of the forward operator it comes from. Several operators may have one number; the
  last of them created the node.
- *Which layer a kernel belongs to*: that of the CUDA runtime call with its correlation number, i.e.
  of the host events that enclose this call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cubemesh.schema.profile import EventKind, ProfileEvent

LAYER = "cubemesh layer "
"""Prefix of annotations that name a layer."""
_KINDS: Mapping[str, EventKind] = {
    "cpu_op": "operator",
    "user_annotation": "scope",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
}
"""Category of a trace event → kind; other categories are ignored."""
_SCOPE = re.compile(
    r"autograd::engine::|torch::autograd::|.*Backward\d*$|Optimizer\.|CompiledFunction|"
    r"Torch-Compiled Region|TorchDynamo|AOTDispatcher|Pregraph bytecode"
)
"""Operators that only enclose others: autograd, the optimizer's wrapper, calls of compiled code."""
_COMPILED_CALL = "## Call CompiledFxGraph"
"""The annotation around TorchInductor's generated code: on a CPU, C++ loops without events."""
_UPDATE = "Optimizer."

TraceEvent = Mapping[str, Any]


def read_trace(trace: TraceEvent, clock_of: Callable[[int], float]) -> tuple[ProfileEvent, ...]:
    """The events of a trace, by start. `clock_of` converts nanoseconds since 1970 to the program's
    clock."""
    base_ns = int(trace.get("baseTimeNanoseconds", 0))
    events = [
        event
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") in _KINDS and "dur" in event
    ]
    events.sort(key=lambda event: (event["ts"], -event["dur"]))
    return tuple(
        ProfileEvent(
            name=str(event["name"]),
            kind=_kind(event),
            start_s=clock_of(base_ns + round(event["ts"] * 1e3)),
            duration_s=event["dur"] / 1e6,
            lane=_lane(event),
            launch=_launch(event),
            layer=layer,
            update=update,
            occupancy=_occupancy(event),
        )
        for event, (layer, update) in zip(events, _attributions(events), strict=True)
    )


def _kind(event: TraceEvent) -> EventKind:
    if str(event["name"]).startswith(_COMPILED_CALL):
        return "operator"
    kind = _KINDS[event["cat"]]
    return "scope" if kind == "operator" and _SCOPE.match(str(event["name"])) else kind


def _lane(event: TraceEvent) -> int:
    lane = event["args"].get("stream", event.get("tid")) if "args" in event else event.get("tid")
    return lane if isinstance(lane, int) else hash(str(lane))


def _launch(event: TraceEvent) -> int | None:
    """Correlation 0 means not launched."""
    return event.get("args", {}).get("correlation") or None


def _occupancy(event: TraceEvent) -> float | None:
    percent = event.get("args", {}).get("est. achieved occupancy %")
    return None if percent is None else float(percent) / 100


def _attributions(events: list[TraceEvent]) -> Iterable[tuple[str, bool]]:
    """Of each event: its layer, and whether it is in the optimizer's update."""
    host = [r for r in events if _KINDS[r["cat"]] in ("operator", "scope", "runtime")]
    layer_of_sequence = _layers_by_sequence(host)
    by_event: dict[int, tuple[str, bool]] = {}
    by_launch: dict[int | None, tuple[str, bool]] = {}
    for event, enclosing in _nested(host):
        by_event[id(event)] = _attribution((*enclosing, event), layer_of_sequence)
        by_launch[_launch(event)] = by_event[id(event)]
    by_launch[None] = ("", False)
    for event in events:
        yield by_event.get(id(event)) or by_launch.get(_launch(event), ("", False))


def _attribution(
    enclosing: tuple[TraceEvent, ...], layer_of_sequence: Mapping[int | None, str]
) -> tuple[str, bool]:
    """The innermost event that names a layer decides."""
    update = any(str(event["name"]).startswith(_UPDATE) for event in enclosing)
    for event in reversed(enclosing):
        layer = _layer_named(event)
        if layer is None and _is_backward(event):
            layer = layer_of_sequence.get(_sequence(event))
        if layer is not None:
            return layer, update
    return "", update


def _layers_by_sequence(host: list[TraceEvent]) -> dict[int | None, str]:
    found: dict[int | None, str] = {}
    for event, enclosing in _nested(host):
        sequence = _sequence(event)
        if sequence is None or _is_backward(event):
            continue
        named = [layer for outer in enclosing if (layer := _layer_named(outer)) is not None]
        found[sequence] = named[-1] if named else ""
    return found


def _nested(host: Iterable[TraceEvent]) -> Iterable[tuple[TraceEvent, tuple[TraceEvent, ...]]]:
    """Each host event with those that enclose it on its thread, outermost first."""
    stacks: dict[Any, list[TraceEvent]] = {}
    for event in host:
        stack = stacks.setdefault(event.get("tid"), [])
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
            stack.pop()
        yield event, tuple(stack)
        stack.append(event)


def _layer_named(event: TraceEvent) -> str | None:
    name = str(event["name"])
    return name.removeprefix(LAYER) if name.startswith(LAYER) else None


def _sequence(event: TraceEvent) -> int | None:
    number = event.get("args", {}).get("Sequence number")
    return number if isinstance(number, int) and number >= 0 else None


def _is_backward(event: TraceEvent) -> bool:
    """Backward nodes name the thread of their forward operator; forward operators name none."""
    return bool(event.get("args", {}).get("Fwd thread id"))
