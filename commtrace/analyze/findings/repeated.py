"""Repeated communication: parameters and layouts that are gathered again."""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import (
    Finding,
    Rule,
    known,
    lacks_layouts,
    lacks_steps,
    per_rank,
    transfer,
)
from commtrace.analyze.findings.layouts import Layout, layout
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import numbers

_CALLS = ["rank", "group", "step", "thread"]


def gathered_again(frames: Frames) -> list[Finding]:
    """All-gathers of what was gathered before and has not changed: by its parameters' names within
    a step, and by the identity of the tensors themselves, where the trace has it.
    """
    named = _parameters_again(frames)
    same = _tensors_again(frames).difference(named)
    comm = frames.comm
    found = [
        _again(
            frames,
            rows,
            f"The same parameters are gathered again within a step, {{}} in all, "
            f"unchanged: {_few(str(names))}.",
            "Keep them gathered between forward and backward where memory allows: "
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
                f"The same tensors are gathered again, {{}} in all, in {where}, though "
                "nothing was written into them on any rank since the last time.",
                "Keep the gathered tensor and hand it on to its other uses, where memory allows.",
            )
        )
    return found


def _again(frames: Frames, rows: pd.DataFrame, title: str, advice: str) -> Finding:
    return Finding(
        title=title.format(_times(per_rank(frames, len(rows)))),
        advice=advice,
        rows=rows.index,
        cost_bytes=known(rows["wire_bytes"]).sum(),
        cost_ns=transfer(frames, rows).sum(),
    )


def _times(number: str) -> str:
    return "once" if number == "1" else f"{number} times"


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
    calls["before"] = before.where(calls["sent_id"] >= 0)
    met = calls.groupby(["group", "number"])["before"]
    is_again = (met.transform("count") == met.transform("size")) & (
        met.transform("min") == met.transform("max")
    )
    return calls.index[is_again]


def _few(names: str) -> str:
    first, *others = names.split(",")
    return f"{first} and {len(others)} more" if others else first


def lacks_identity(frames: Frames) -> str:
    """Return a sentence if no gather identifies its input, by tensor or parameters; else ""."""
    gathers = frames.comm[frames.comm["kind"] == "all_gather"]
    if gathers.empty or (gathers["sent_id"] >= 0).any():
        return ""
    if (gathers["parameters"] != "").any():
        return lacks_steps(frames)
    return (
        'No all-gather says which tensors it sends (record with detail="op" to have that) or which '
        "parameters (FSDP's do): a tensor gathered twice is known by its layouts only (rule "
        "ping_pong)."
    )


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
    """Calls that undo the one right before, or gather what has the layouts of that one."""
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
            "goes back to the layout that the call before it came from",
            "Leave the tensor as it is between the two: let both sides agree on one layout.",
        ),
        *_pairs(
            frames,
            again,
            "gathers the same layouts as the call right before: one tensor that was cut again or "
            "gathered for each of several uses, or several tensors that one call could gather",
            "Gather once and hand the result on (PrepareModuleInput on the parent module).",
        ),
    ]


def _pairs(frames: Frames, calls: pd.DataFrame, what: str, advice: str) -> list[Finding]:
    by = ["module", "source_spec", "target_spec"]
    return [
        Finding(
            title=f"In {module or 'no module'}, a call {source} -> {target} {what}.",
            advice=advice,
            rows=rows.index,
            cost_bytes=known(rows["wire_bytes"]).sum(),
            cost_ns=transfer(frames, rows).sum(),
            module=str(module),
        )
        for (module, source, target), rows in calls.groupby(by, observed=True)
    ]


def reduced_to_be_cut(frames: Frames) -> list[Finding]:
    """All-reduces right before a gather of the same shape: in between, the result was cut."""
    calls = _announced(frames)
    calls = calls[(calls["kind"] == "all_gather") & (calls["before_kind"] == "all_reduce")]
    axes = dict(zip(frames.groups["name"], frames.groups["mesh_axis"], strict=True))
    pairs = calls[["group", "source_spec", "before_target_spec"]].astype(object).drop_duplicates()
    fitting = {
        (group, now, before)
        for group, now, before in pairs.itertuples(index=False)
        if _is_cut_of(layout(now), layout(before), axes.get(group, ""))
    }
    keys = zip(calls["group"], calls["source_spec"], calls["before_target_spec"], strict=True)
    calls = calls[np.array([key in fitting for key in keys], dtype=bool)]
    reduces = frames.comm.loc[calls["before_row"].astype("int64")]
    return [
        Finding(
            title=f"In {module or 'no module'}, what an all-reduce adds up is cut before it is "
            f"used: the next call gathers a shard of that shape ({spec}).",
            advice="Reduce to the shard itself: a reduce-scatter sends half as much "
            "(output_layouts=Shard(...) in place of Replicate()).",
            rows=rows.index,
            cost_bytes=known(rows["wire_bytes"]).sum() / 2,
            cost_ns=transfer(frames, rows).sum() / 2,
            module=str(module),
        )
        for (module, spec), rows in reduces.groupby(["module", "target_spec"], observed=True)
    ]


def _is_cut_of(now: Layout | None, before: Layout | None, axis: str) -> bool:
    if now is None or before is None:
        return False
    is_same = (now.shape, now.dtype) == (before.shape, before.dtype)
    return is_same and before.on(axis) == "R" and now.on(axis).startswith("S")


GATHERED_AGAIN = Rule(
    "gathered_again",
    "the same parameters gathered twice in a step, or the same tensor without change",
    gathered_again,
    lacks_identity,
)
PING_PONG = Rule("ping_pong", "gathered, cut and gathered again", ping_pong, lacks_layouts)
REDUCED_TO_BE_CUT = Rule(
    "reduced_to_be_cut",
    "an all-reduce of which only a shard is used",
    reduced_to_be_cut,
    lacks_layouts,
)
