"""Reason of a call: the operator, the layout it needed, the candidates, and the steps.

An operator on distributed tensors needs an argument in another layout. A redistribution takes it
there, in one or more steps, each of them a call:

    aten.mm.default needs self f32[8,16] dp:S(0) tp:S(1) -> f32[8,16] dp:S(0) tp:R
        considered  tp: R, S(1) -> S(1)  100 us (chosen)    tp: S(1), S(0) -> P(sum)  200 us
        steps       all_gather on tp
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd

from commtrace.analyze.findings.layouts import layout
from commtrace.analyze.measures.census import census
from commtrace.analyze.run.carried import is_too_small
from commtrace.analyze.run.frame import Frames
from commtrace.schema import HARNESS

BY_NAME = {
    "redistribute": "No candidates: the program requested this layout explicitly.",
    "redistribute.backward": "No candidates: a gradient is redistributed to the layout of its "
    "tensor.",
    "distribute_tensor": "No candidates: the program requested this layout explicitly.",
}
"""Sentences shown instead of candidates for operators that ask for a layout explicitly."""

_NOTE = re.compile(r": \w+ on \S+ \((.+)\)$")
_CANDIDATES_UNKNOWN = "The candidates are unknown: only dtensor_core announces them."

_SAME_REDISTRIBUTION = (
    *("op", "op_id", "argument", "source_spec", "target_spec"),
    *("step", "phase", "module", "module_call", "source_file", "source_line"),
)
_TERMS = {"avg": "average"}


@dataclass(frozen=True, slots=True)
class EnclosingOperator:
    """An operator during which the call was made."""

    id: int
    op: str
    level: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy for the operator along a mesh axis: argument layouts -> result layouts."""

    axis: str
    layouts: str
    cost_s: float
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Step:
    """A call of the redistribution that the explained call belongs to."""

    id: int
    kind: str
    axis: str
    payload_bytes: int
    wire_bytes: int
    blocked_ns: int


@dataclass(frozen=True, slots=True)
class CallReason:
    """The reason of a call; text is empty if the trace has none.

    Attributes:
        sentence: The reason as recorded.
        note: Its trailing remark, beyond operator, argument, layouts and step.
        operators: Operators during which the call was made, the outermost first.
        source_spec: Layout before the redistribution; `source_words` describes it in words.
        target_spec: Layout after the redistribution; `target_words` describes it in words.
        candidates: Strategies considered for the operator.
        steps: All calls of the redistribution.
        carries: Data of a library that is sent, such as gradients.
        parameters: Names of the parameters concerned.
    """

    sentence: str
    note: str
    op: str
    operators: tuple[EnclosingOperator, ...]
    argument: str
    source_spec: str
    source_words: str
    target_spec: str
    target_words: str
    candidates: tuple[Candidate, ...]
    steps: tuple[Step, ...]
    carries: str
    parameters: tuple[str, ...]


def why(frames: Frames, call: pd.Series) -> CallReason:
    """Return the reason of a row of table `comm`."""
    label: Any = call.name
    return CallReason(
        sentence=str(call["reason"]),
        note=note_in(str(call["reason"])),
        op=str(call["op"]),
        operators=_operators(frames, call),
        argument=str(call["argument"]),
        source_spec=str(call["source_spec"]),
        source_words=words_of(str(call["source_spec"])),
        target_spec=str(call["target_spec"]),
        target_words=words_of(str(call["target_spec"])),
        candidates=candidates_in(str(call["candidates"])),
        steps=_steps(frames, call),
        carries=str(call["carries"]),
        parameters=() if is_too_small(frames)[label] else _names_in(str(call["parameters"])),
    )


def _names_in(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


class RecordedReason(Protocol):
    """The part of a `CallReason` that decides which parts are unknown."""

    @property
    def op(self) -> str:
        """The operator."""
        ...

    @property
    def source_spec(self) -> str:
        """The layout before the redistribution."""
        ...

    @property
    def carries(self) -> str:
        """The library's own data that is sent; empty if there is none."""
        ...

    @property
    def candidates(self) -> Any:
        """The candidates that were considered; empty if unknown."""
        ...


def what_is_unknown(frames: Frames, reason: RecordedReason) -> dict[str, str]:
    """Return the parts of the reason that the trace lacks, each with an explanation."""
    if not reason.op:
        return {"operator": _why_no_operator(frames, reason)}
    if not reason.source_spec:
        return {
            "layouts": "The source and target layouts are unknown: only redistributions of "
            "dtensor_core and of torch's DTensor announce them."
        }
    if reason.candidates:
        return {}
    return {"candidates": BY_NAME.get(reason.op, _CANDIDATES_UNKNOWN)}


def _why_no_operator(frames: Frames, reason: RecordedReason) -> str:
    if reason.carries == HARNESS:
        return "No operator needed it: a test harness synchronizes its ranks."
    if reason.carries:
        return f"No operator needed it: a library sends {reason.carries}."
    if frames.run.get("detail") == "collective" and not census(frames).num_ops:
        return (
            "The reason is unknown. The program or a library communicates here explicitly, or an "
            'operator needed it; operators were not recorded (detail="collective").'
        )
    return (
        "No operator on distributed tensors needed it: this line, or a library that it calls, "
        "communicates explicitly."
    )


def note_in(sentence: str) -> str:
    """Return the remark in parentheses at the end of a reason; usually empty."""
    found = _NOTE.search(sentence)
    return found[1] if found else ""


def words_of(spec: str) -> str:
    """Describe a layout's text in words; empty if it cannot be parsed.

    >>> words_of("f32[8,16] dp:S(0) tp:R")
    'dim 0 sharded over dp, replicated over tp'
    """
    parsed = layout(spec)
    if parsed is None:
        return ""
    return ", ".join(_words(axis, placement) for axis, placement in parsed.placements)


def _words(axis: str, placement: str) -> str:
    kind, _, argument = placement.rstrip(")").partition("(")
    if kind == "R":
        return f"replicated over {axis}"
    if kind == "S" and argument.isdigit():
        return f"dim {argument} sharded over {axis}"
    dim, _, blocks = argument.partition(", ")
    if kind == "_S" and dim.isdigit() and blocks.isdigit():
        return f"each of {blocks} blocks of dim {dim} sharded over {axis}"
    if kind == "P" and argument in _TERMS:
        return f"partial {_TERMS[argument]} over {axis}"
    if kind == "P":
        return f"partial {argument} over {axis}"
    return f"{placement} over {axis}"


def candidates_in(text: str) -> tuple[Candidate, ...]:
    """Parse the candidates column of a call; the first of each axis was chosen."""
    found: list[Candidate] = []
    axes: set[str] = set()
    for described, cost in json.loads(text or "[]"):
        axis, has_axis, layouts = described.partition(": ")
        axis, layouts = (axis, layouts) if has_axis else ("", described)
        found.append(Candidate(axis, layouts, float(cost), axis not in axes))
        axes.add(axis)
    return tuple(found)


def _operators(frames: Frames, call: pd.Series) -> tuple[EnclosingOperator, ...]:
    """The operators around the call, the outermost first."""
    return next(filter(None, frames.by_ranks(_operators_of_part, call)), ())


def _operators_of_part(frames: Frames, call: pd.Series) -> tuple[EnclosingOperator, ...]:
    ops = frames.ops[(frames.ops["rank"] == call["rank"]) & (frames.ops["id"] >= 0)]
    rows = ops.set_index("id")[["parent", "op", "level", "start_ns", "duration_ns"]]
    chain: list[EnclosingOperator] = []
    number = int(call["op_id"])
    # Bounded, since parents that form a cycle must not hang the search.
    while number in rows.index and len(chain) < len(rows):
        row: Mapping[str, object] = rows.loc[number].to_dict()
        chain.append(
            EnclosingOperator(
                number,
                str(row["op"]),
                str(row["level"]),
                int(str(row["start_ns"])),
                int(str(row["duration_ns"])),
            )
        )
        number = int(str(row["parent"]))
    return tuple(reversed(chain))


def _steps(frames: Frames, call: pd.Series) -> tuple[Step, ...]:
    """Return the calls of a redistribution: adjacent, of the same reason, at most one per group."""
    if not call["source_spec"]:
        return ()
    return next(filter(None, frames.by_ranks(_steps_of_part, call)), ())


def _steps_of_part(frames: Frames, call: pd.Series) -> tuple[Step, ...]:
    if call.name not in frames.comm.index:
        return ()
    of_rank = frames.comm[frames.comm["rank"] == call["rank"]]
    same = pd.Series(True, index=of_rank.index)
    for name in _SAME_REDISTRIBUTION:
        same &= of_rank[name] == call[name]
    rows = of_rank[same].sort_values("id")
    begins = (rows["id"].diff() != 1).to_numpy().copy()
    seen: set[str] = set()
    for position, group in enumerate(rows["group"].astype(object)):
        if begins[position] or group in seen:
            begins[position], seen = True, set()
        seen.add(group)
    number = pd.Series(begins, index=rows.index).cumsum()
    label: Any = call.name
    axes = dict(zip(frames.groups["name"], frames.groups["mesh_axis"], strict=True))
    return tuple(
        Step(
            id=int(row["id"]),
            kind=str(row["kind"]),
            axis=str(axes.get(row["group"], "")),
            payload_bytes=int(row["payload_bytes"]),
            wire_bytes=int(row["wire_bytes"]),
            blocked_ns=int(row["blocked_ns"]),
        )
        for row in rows[number == number.loc[label]].to_dict("records")
    )
