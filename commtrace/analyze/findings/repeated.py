"""Repeated communication: parameters and layouts that are gathered again."""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import (
    Finding,
    Rule,
    times_each,
    transfer_ns,
    wire_bytes,
)
from commtrace.analyze.findings.layouts import Layout, layout
from commtrace.analyze.findings.needs import IDENTITY, LAYOUTS
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import numbers

_CALLS = ["rank", "group", "step", "thread"]


def repeated_all_gather(frames: Frames) -> list[Finding]:
    """All-gathers of data that was gathered before and has not changed: identified by the names of
    parameters within a step, or by the identity of the tensors, if recorded.
    """
    named = _parameters_again(frames)
    same = _tensors_again(frames).difference(named)
    comm = frames.comm
    found = [
        _again(
            frames,
            rows,
            "The same parameters are gathered again within a step, "
            f"{times_each(frames, len(rows))}, unchanged: {_few(str(names))}.",
            "Keep them gathered between forward and backward if memory allows: "
            "reshard_after_forward=False of fully_shard, ShardingStrategy.SHARD_GRAD_OP of "
            "FullyShardedDataParallel.",
        )
        for names, rows in comm.loc[named].groupby("parameters", observed=True)
    ]
    by = ["module", "op", "source_file", "source_line"]
    for (module, op, *_), rows in comm.loc[same].groupby(by, observed=True):
        where = " of ".join(filter(None, [str(op), str(module)])) or "no module"
        found.append(
            _again(
                frames,
                rows,
                f"The same tensors are gathered again, {times_each(frames, len(rows))}, in "
                f"{where}, although no rank has written to them since.",
                "Keep the gathered tensor and reuse it, if memory allows.",
            )
        )
    return found


def _again(frames: Frames, rows: pd.DataFrame, title: str, advice: str) -> Finding:
    return Finding(
        title=title,
        advice=advice,
        rows=rows.index,
        cost_bytes=wire_bytes(rows),
        cost_ns=transfer_ns(frames, rows),
    )


def _parameters_again(frames: Frames) -> pd.Index:
    """Return gathers of parameters that the same step has gathered before."""
    comm = frames.comm
    gathers = comm[
        (comm["kind"] == "all_gather")
        & (comm["carries"] == "parameters")
        & (comm["parameters"] != "")
        & (comm["phase"] != "optimizer")
        & (comm["step"] >= 0)
    ]
    keys = ["rank", "group", "step", "parameters"]
    return gathers.index[gathers.sort_values("id").duplicated(keys).reindex(gathers.index)]


def _tensors_again(frames: Frames) -> pd.Index:
    """Return gathers to which every recorded member sends the tensor of one same earlier gather.

    If a tensor has changed on one member, all members have to gather it again.
    """
    number = numbers(frames)
    gathers = frames.comm[(frames.comm["kind"] == "all_gather") & (number >= 0)]
    calls = gathers[["rank", "group", "sent_id"]].astype({"group": object})
    calls = calls.assign(number=number[gathers.index]).sort_values("number", kind="stable")
    before = calls.groupby(["rank", "group", "sent_id"])["number"].shift(1)
    # Unknown tensors share the id -1 and must not pass for the same one.
    calls["before"] = before.where(calls["sent_id"] >= 0)
    collectives = calls.groupby(["group", "number"])["before"]
    is_again = (collectives.transform("count") == collectives.transform("size")) & (
        collectives.transform("min") == collectives.transform("max")
    )
    return calls.index[is_again]


def _few(names: str) -> str:
    first, *others = names.split(",")
    return f"{first} and {len(others)} more" if others else first


def _announced(frames: Frames) -> pd.DataFrame:
    """Return the calls with known layouts, each with the preceding call on its rank and group."""
    comm = frames.comm[(frames.comm["source_spec"] != "") & (frames.comm["target_spec"] != "")]
    comm = comm.sort_values(["rank", "group", "id"])
    by = comm.groupby(_CALLS, observed=True, sort=False)
    before = pd.DataFrame(
        {name: by[name].shift(1) for name in ("kind", "phase", "source_spec", "target_spec", "id")}
    ).add_prefix("before_")
    before["before_row"] = (
        pd.Series(comm.index, comm.index)
        .groupby([comm[name] for name in _CALLS], observed=True)
        .shift(1)
    )
    return pd.concat([comm, before], axis=1).dropna(subset="before_row")


def ping_pong(frames: Frames) -> list[Finding]:
    """Redistributions that revert the preceding one, or repeat an all-gather with its layouts."""
    calls = _announced(frames)
    calls = calls[calls["phase"].astype(object) == calls["before_phase"].astype(object)]
    source, target = calls["source_spec"].astype(object), calls["target_spec"].astype(object)
    before = calls["before_source_spec"].astype(object), calls["before_target_spec"].astype(object)
    undone = calls[(source == before[1]) & (target == before[0])]
    again = calls[
        (calls["kind"] == "all_gather")
        & (calls["before_kind"].astype(object) == "all_gather")
        & (source == before[0])
        & (target == before[1])
        & (calls["phase"] == "forward")
    ]
    return [
        *_pairs(
            frames,
            undone,
            "reverts the redistribution of the preceding call",
            "Keep the tensor in one layout between the two, on which both sides agree.",
        ),
        *_pairs(
            frames,
            again,
            "has the same layouts as the preceding all-gather: one tensor that was resharded in "
            "between or is gathered for each use, or several tensors that one call could gather",
            "Gather once and reuse the result (PrepareModuleInput on the parent module).",
        ),
    ]


def _pairs(frames: Frames, calls: pd.DataFrame, observation: str, advice: str) -> list[Finding]:
    by = ["module", "source_spec", "target_spec"]
    return [
        Finding(
            title=f"In {module or 'no module'}, a call {source} -> {target} {observation}.",
            advice=advice,
            rows=rows.index,
            cost_bytes=wire_bytes(rows),
            cost_ns=transfer_ns(frames, rows),
            module=str(module),
        )
        for (module, source, target), rows in calls.groupby(by, observed=True)
    ]


def all_reduce_then_shard(frames: Frames) -> list[Finding]:
    """All-reduces directly followed by an all-gather of a shard of their result."""
    calls = _announced(frames)
    calls = calls[(calls["kind"] == "all_gather") & (calls["before_kind"] == "all_reduce")]
    axes = dict(zip(frames.groups["name"], frames.groups["mesh_axis"], strict=True))
    pairs = calls[["group", "source_spec", "before_target_spec"]].astype(object).drop_duplicates()
    fitting = {
        (group, now, before)
        for group, now, before in pairs.itertuples(index=False)
        if _is_shard_of(layout(now), layout(before), axes.get(group, ""))
    }
    keys = zip(calls["group"], calls["source_spec"], calls["before_target_spec"], strict=True)
    calls = calls[np.array([key in fitting for key in keys], dtype=bool)]
    reduces = frames.comm.loc[calls["before_row"].astype("int64")]
    return [
        Finding(
            title=f"In {module or 'no module'}, only a shard of an all-reduce's result is used: "
            f"the next call gathers a shard of that shape ({spec}).",
            advice="Use a reduce-scatter, which sends half as much (output_layouts=Shard(...) "
            "instead of Replicate()).",
            rows=rows.index,
            cost_bytes=wire_bytes(rows) / 2,
            cost_ns=transfer_ns(frames, rows) / 2,
            module=str(module),
        )
        for (module, spec), rows in reduces.groupby(["module", "target_spec"], observed=True)
    ]


def _is_shard_of(now: Layout | None, before: Layout | None, axis: str) -> bool:
    if now is None or before is None:
        return False
    is_same = (now.shape, now.dtype) == (before.shape, before.dtype)
    return is_same and before.on(axis) == "R" and now.on(axis).startswith("S")


REPEATED_ALL_GATHER = Rule(
    "repeated_all_gather",
    "unchanged parameters or tensors gathered again",
    repeated_all_gather,
    (IDENTITY,),
)
PING_PONG = Rule(
    "ping_pong", "a redistribution that the next one reverts or repeats", ping_pong, (LAYOUTS,)
)
ALL_REDUCE_THEN_SHARD = Rule(
    "all_reduce_then_shard",
    "an all-reduce of whose result only a shard is used",
    all_reduce_then_shard,
    (LAYOUTS,),
)
