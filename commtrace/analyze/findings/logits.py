"""Logits that ranks gather to compute a loss, which could be computed on their shards.

    sharded logits ── all_gather ── (copies) ── log_softmax

The loss of a shard takes three numbers of each row from the other ranks: the largest logit, the sum
of the exponentials, and the logit of the target.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from commtrace.analyze.findings.finding import Finding, Rule, Selected, calls_in, selected
from commtrace.analyze.findings.layouts import Layout, layout
from commtrace.analyze.findings.needs import LAYOUTS, USERS
from commtrace.analyze.findings.origins import Details, name_of, reads
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.units import text_of_bytes

_LOSSES = ("_log_softmax", "log_softmax")
_PASSING = frozenset(
    ("cat", "clone", "copy", "_to_copy", "contiguous", "_unsafe_view", "mul", "div", "tanh")
)
"""Operators that change the place, the type or the scale of logits."""
_NUMBERS_OF_ROW, _REDUCTIONS = 3, 3
_MOST_LEFT = 0.1
"""Largest part of the bytes that may be left: from some 60 classes on."""
_PLACE = ["group", "module", "source_file", "source_line", "source_spec", "target_spec"]


def gathered_logits(frames: Frames) -> list[Finding]:
    """All-gathers of logits along their classes, of whose result a loss takes the log-softmax."""
    found = []
    for (module, spec, axis), calls in selected(frames, _gathered):
        known = layout(spec)
        assert known is not None
        left = 1 - calls.share / len(calls.rows)
        size = text_of_bytes(calls.payload_bytes / len(calls.rows))
        found.append(
            Finding(
                f"The logits of {module or 'no module'} ({spec}) are gathered on {axis} for a "
                f"loss: each rank holds all {known.shape[-1]:,} classes, {size}.",
                "Keep them sharded, and compute the loss of shards: output_layouts=Shard(-1) and "
                "use_local_output=False in the plan, and the loss within loss_parallel(). Ranks "
                "then exchange three numbers of each row in place of its logits.",
                calls,
                module,
                cure=f"payload *{left:.4g}; latency *{_REDUCTIONS}",
            )
        )
    return found


def _gathered(part: Frames) -> Selected:
    """Return such gathers by module, layout and axis; their share is what a loss of shards saves.

    A place at which a detailed step shows a gather for a loss gathers for it in all steps.
    """
    comm = part.comm
    calls = comm[(comm["kind"] == "all_gather") & (comm["source_spec"] != "")]
    calls = calls.assign(axis=mesh_axes(part, calls["group"]).astype(object))
    left = pd.Series([_left(each) for each in calls.itertuples()], calls.index, dtype="float64")
    calls = calls.assign(part=1 - left)[left <= _MOST_LEFT]
    places = [calls[name].astype(object) for name in _PLACE]
    place = pd.Series([*zip(*places, strict=True)], calls.index, dtype=object)
    of_loss = set(place[_is_for_loss(part, calls)]) if len(calls) else set()
    calls = calls[place.isin(of_loss)]
    return {
        (str(module), str(spec), str(axis)): calls_in(
            part, comm.loc[rows.index], part=rows["part"], share=float(rows["part"].sum())
        )
        for (module, spec, axis), rows in calls.groupby(
            ["module", "source_spec", "axis"], observed=True
        )
    }


def _left(call: Any) -> float:
    """Return which part of a gather's bytes a loss of shards sends; nan if it gathers no classes.

    An all-reduce sends each number twice.
    """
    source, target = layout(str(call.source_spec)), layout(str(call.target_spec))
    if source is None or target is None or not source.shape:
        return float("nan")
    is_of_last = source.sharded.get(call.axis) == len(source.shape) - 1
    if not is_of_last or target.on(call.axis) != "R" or not _item_bytes(source):
        return float("nan")
    return 2 * _NUMBERS_OF_ROW * 4 / (source.shape[-1] * _item_bytes(source))


def _item_bytes(known: Layout) -> int:
    return Layout(known.dtype, (), ()).num_bytes


def _is_for_loss(part: Frames, calls: pd.DataFrame) -> pd.Series:
    """Return a mask of gathers whose result, maybe copied or scaled, a log-softmax has read."""
    ops = part.ops[["rank", "id", "op"]]
    names = {text: name_of(str(text)) for text in ops["op"].cat.categories}
    is_loss = ops["op"].isin([text for text, name in names.items() if name in _LOSSES])
    readers = pd.MultiIndex.from_frame(reads(part)[["rank", "op"]])
    losses = ops[is_loss & pd.MultiIndex.from_frame(ops[["rank", "id"]]).isin(readers)]
    details, found = Details(part), set[tuple[int, int]]()
    for rank, loss in losses[["rank", "id"]].itertuples(index=False):
        queue, seen = [int(loss)], set[int]()
        while queue:
            for is_call, source in details.sources(int(rank), queue.pop()):
                if is_call:
                    found.add((int(rank), source))
                elif source not in seen and details.name(int(rank), source).rstrip("_") in _PASSING:
                    seen.add(source)
                    queue.append(source)
    of_calls = pd.MultiIndex.from_frame(calls[["rank", "id"]])
    return pd.Series([each in found for each in of_calls], calls.index, dtype=bool)


GATHERED_LOGITS = Rule(
    "gathered_logits",
    "logits gathered to compute a loss",
    gathered_logits,
    (LAYOUTS, USERS),
)
