"""Repeated communication: parameters and layouts that are gathered again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import (
    REMOVE,
    SHRINK,
    Evidence,
    Finding,
    Rule,
    Selected,
    calls_in,
    selected,
    times_each,
)
from commtrace.analyze.findings.layouts import layout, padding_bytes
from commtrace.analyze.findings.needs import IDENTITY, LAYOUTS_OR_USES, USES
from commtrace.analyze.run.cached_per_run import of_each_call
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import Arrays, across_ranks, entries, matches, numbers
from commtrace.units import text_of_bytes

_CALLS = ["rank", "group", "step", "thread"]
_OF_PRECEDING = ("kind", "phase", "source_spec", "target_spec", "id", "end")


_KEPT_AFTER = {
    "forward": "Keep them gathered between forward and backward: reshard_after_forward=False of "
    "fully_shard, ShardingStrategy.SHARD_GRAD_OP",
    "backward": "Keep them gathered until the last pass of the accumulation: "
    "set_reshard_after_backward(False) of fully_shard, no_sync()",
}
"""Advice by the pass after which parameters were resharded."""


def repeated_all_gather(frames: Frames) -> list[Finding]:
    """All-gathers of data that was gathered before and has not changed: identified by the names of
    parameters within a step, or by the identity of the tensors, if recorded.
    """
    again = selected(frames, _same_parameters)
    found = [
        Finding(
            "The same parameters are gathered again within a step, "
            f"{times_each(frames, len(calls.rows))}, unchanged: {_few(names)}.",
            f"{_KEPT_AFTER[after]} of FullyShardedDataParallel, if memory allows"
            f"{_kept([each for (_, passed), each in again if passed == after])}.",
            calls,
        )
        for (names, after), calls in again
    ]
    for (module, op, *_), calls in selected(frames, _same_tensors):
        where = " of ".join(filter(None, [op, module])) or "no module"
        found.append(
            Finding(
                f"The same tensors are gathered again, {times_each(frames, len(calls.rows))}, in "
                f"{where}, although no rank has written to them since.",
                "Keep the gathered tensor and reuse it, if memory allows.",
                calls,
            )
        )
    return found


def _kept(units: Sequence[Evidence]) -> str:
    """Return the memory that gathered units take, as a clause; empty if a size is unknown."""
    sizes = [each.payload_bytes / len(each.rows) for each in units]
    if not all(sizes):
        return ""
    of_all = f"all {len(sizes)} units together take" if len(sizes) > 1 else "they take"
    return f": gathered, {of_all} {text_of_bytes(sum(sizes))} on each rank"


def _same_parameters(frames: Frames) -> Selected:
    rows = frames.comm.loc[_parameters_again(frames)]
    # Whoever gathers in a forward pass again has resharded after the backward pass of another one.
    after = (rows["phase"] == "forward").map({True: "backward", False: "forward"})
    return {
        (str(names), str(passed)): calls_in(frames, each)
        for (names, passed), each in rows.groupby(["parameters", after], observed=True)
    }


def _same_tensors(frames: Frames) -> Selected:
    comm = frames.comm
    again = comm.index[_is_sent_again(frames)].difference(_parameters_again(frames))
    by = ["module", "op", "source_file", "source_line"]
    return {key: calls_in(frames, rows) for key, rows in comm.loc[again].groupby(by, observed=True)}


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
    ordered = gathers[["id", *keys]].sort_values("id")
    return gathers.index[ordered.duplicated(keys).reindex(gathers.index)]


@of_each_call
def _sent_before(frames: Frames) -> pd.Series:
    """Return the number of the rank's previous gather of the same tensors; nan if there is none."""
    number = numbers(frames)
    gathers = frames.comm[(frames.comm["kind"] == "all_gather") & (number >= 0)]
    calls = gathers[["rank", "group", "sent_id"]].astype({"group": object})
    calls = calls.assign(number=number[gathers.index]).sort_values("number", kind="stable")
    before = calls.groupby(["rank", "group", "sent_id"])["number"].shift(1)
    # Unknown tensors share the id -1 and must not pass for the same one.
    return before.where(calls["sent_id"] >= 0).reindex(frames.comm.index)


@across_ranks(num=(0, "int64"), known=(0, "int64"), low=(np.inf, "float64"), high=(-1.0, "float64"))
def _gathered_before(part: Frames, into: Arrays) -> None:
    """Lowest and highest number of an earlier gather of the same tensors, of `known` of `num`."""
    at = matches(part)[_numbered_gathers(part)]
    before = _sent_before(part)[at.index]
    known = before.notna()
    np.add.at(into["num"], at, 1)
    np.add.at(into["known"], at[known], 1)
    np.minimum.at(into["low"], at[known], before[known])
    np.maximum.at(into["high"], at[known], before[known])


def _numbered_gathers(part: Frames) -> pd.Series:
    return (part.comm["kind"] == "all_gather") & (numbers(part) >= 0)


@of_each_call
def _is_sent_again(frames: Frames) -> pd.Series:
    """Return a mask of gathers in which all recorded members send the data of one earlier gather.

    If a tensor has changed on one member, all members have to gather it again.
    """
    before = entries(_gathered_before(frames), matches(frames)[_numbered_gathers(frames)])
    is_again = (before["known"] == before["num"]) & (before["low"] == before["high"])
    return is_again.reindex(frames.comm.index, fill_value=False)


def _few(names: str) -> str:
    first, *others = names.split(",")
    return f"{first} and {len(others)} more" if others else first


def _announced(frames: Frames) -> pd.DataFrame:
    """Return the calls with known layouts, each with the preceding call on its rank and group.

    `before_end` is in ns since the start of the run, and nan if it is unknown.
    """
    comm = frames.comm[(frames.comm["source_spec"] != "") & (frames.comm["target_spec"] != "")]
    comm = comm.sort_values(["rank", "group", "id"])
    # Relative to the start: `shift` makes floats, in which Unix times are not exact.
    end = (comm["complete_ns"] - frames.start_ns).where(comm["complete_ns"] >= 0)
    comm = comm.assign(end=end)
    by = comm.groupby(_CALLS, observed=True, sort=False)
    before = pd.DataFrame({name: by[name].shift(1) for name in _OF_PRECEDING}).add_prefix("before_")
    before["before_row"] = (
        pd.Series(comm.index, comm.index)
        .groupby([comm[name] for name in _CALLS], observed=True)
        .shift(1)
    )
    return pd.concat([comm, before], axis=1).dropna(subset="before_row")


def ping_pong(frames: Frames) -> list[Finding]:
    """Redistributions that revert the preceding redistribution, or repeat an all-gather with its
    layouts, of data that was computed after it; and all-gathers where each rank uses only its own
    shard of the result.
    """
    moved = [
        Finding(
            f"In {module or 'no module'}, a call {source} -> {target} {observation}.",
            advice,
            calls,
            module,
        )
        for select, observation, advice in (
            (
                _reverting,
                "reverts the redistribution of the preceding call",
                "Keep the tensor between the two in a layout that both sides accept.",
            ),
            (
                _repeating,
                "has the same layouts as the preceding all-gather, although nothing was sent in "
                "between: a shard of the gathered tensor was taken, or two tensors are gathered "
                "separately",
                "Keep the same layout between the two (PrepareModuleInput on the parent module): "
                "what follows the first gather may not need it, or may state the layout that it "
                "takes.",
            ),
        )
        for (module, source, target), calls in selected(frames, select)
    ]
    gathered = [
        Finding(
            f"In {module or 'no module'}, a tensor is gathered{_of(spec)} and sharded again at "
            f"once, along dim {dim}: each rank uses its own shard only.",
            _NOT_GATHERED[is_same].format(dim=dim),
            calls,
            module,
        )
        for (module, spec, dim, is_same), calls in selected(frames, _gathered_to_be_sharded)
    ]
    return moved + gathered


_NOT_GATHERED = {
    True: "Leave out both redistributions, or state Shard({dim}) on both sides (output_layouts of "
    "the module before, input_layouts of the next).",
    False: "Redistribute to Shard({dim}) directly: an all-to-all sends a fraction.",
    None: "Leave out both if that is the shard that the rank sent; otherwise, an all-to-all sends "
    "a fraction.",
}
"""Advice by whether the tensor was sharded along that dim before; None if unknown."""


def _of(spec: str) -> str:
    return f" ({spec})" if spec else ""


@across_ranks(low=(1 << 62, "int64"), high=(-1, "int64"))
def _used_shards(part: Frames, into: Arrays) -> None:
    """Lowest and highest `used_shard` of the members of each collective."""
    at = matches(part)[numbers(part) >= 0]
    used = part.comm["used_shard"][at.index]
    np.minimum.at(into["low"], at, used)
    np.maximum.at(into["high"], at, used)


@of_each_call
def _own_shard(frames: Frames) -> pd.Series:
    """Return the dim along which each member uses only its own shard of the result; -1 if unknown
    or if a member uses more.
    """
    used = entries(_used_shards(frames), matches(frames)[numbers(frames) >= 0])
    shard = used["low"].where(used["low"] == used["high"], 0) - 1
    return shard.reindex(frames.comm.index, fill_value=-1)


def _gathered_to_be_sharded(frames: Frames) -> Selected:
    """Return all-gathers by module, layout, dim, and whether the same dim was sharded before (None
    if unknown).
    """
    own = _own_shard(frames)
    calls = frames.comm[(frames.comm["kind"] == "all_gather") & (own >= 0)]
    axes = dict(zip(frames.groups["name"], frames.groups["mesh_axis"], strict=True))
    sizes = dict(zip(frames.groups["name"], frames.groups["size"], strict=True))
    by = ["module", "source_spec", "group"]
    found: Selected = {}
    for (module, spec, group, dim), rows in calls.groupby([*by, own[calls.index]], observed=True):
        known = layout(str(spec))
        before = None if known is None else known.sharded.get(axes.get(group, ""))
        is_same = None if known is None else before == dim
        # A shard along another dim has to be exchanged.
        part = 1.0 if is_same else 1 - 1 / max(int(sizes.get(group, 1)), 1)
        key = str(module), str(spec), int(dim), is_same
        evidence = calls_in(frames, rows, part=part)
        found[key] = found[key].joined(evidence) if key in found else evidence
    return found


def _reverting(frames: Frames) -> Selected:
    calls = _announced(frames)
    calls = calls[calls["phase"].astype(object) == calls["before_phase"].astype(object)]
    source, target = calls["source_spec"].astype(object), calls["target_spec"].astype(object)
    is_source = source == calls["before_target_spec"].astype(object)
    return _by_layouts(frames, calls[is_source & (target == calls["before_source_spec"])])


def _repeating(frames: Frames) -> Selected:
    calls = _announced(frames)
    calls = calls[calls["phase"].astype(object) == calls["before_phase"].astype(object)]
    is_same = np.logical_and.reduce(
        [
            calls[name].astype(object) == calls[f"before_{name}"].astype(object)
            for name in ("source_spec", "target_spec", "kind")
        ]
    )
    is_gather = (calls["kind"] == "all_gather") & (calls["phase"] == "forward")
    # A padded copy has been computed, even if its source has not.
    is_padded = padding_bytes(calls, calls["source_spec"].astype(object)) > 0
    is_computed_since = calls["data_ready_ns"] - frames.start_ns > calls["before_end"]
    is_reported = calls.index.isin(frames.comm.index[_own_shard(frames) >= 0])
    return _by_layouts(
        frames, calls[is_gather & is_same & is_computed_since & ~is_padded & ~is_reported]
    )


def _by_layouts(frames: Frames, calls: pd.DataFrame) -> Selected:
    by = ["module", "source_spec", "target_spec"]
    return {key: calls_in(frames, rows) for key, rows in calls.groupby(by, observed=True)}


def all_reduce_then_shard(frames: Frames) -> list[Finding]:
    """All-reduces of whose result each rank uses its own shard only."""
    return [
        Finding(
            f"In {module or 'no module'}, each rank uses only its own shard of an all-reduce's "
            f"result, along dim {dim}{_of(spec)}.",
            f"Use a reduce-scatter, which sends half as much (output_layouts=Shard({dim}) instead "
            "of Replicate()).",
            calls,
            module,
        )
        for (module, spec, dim), calls in selected(frames, _used_as_shard)
    ]


def _used_as_shard(frames: Frames) -> Selected:
    own = _own_shard(frames)
    reduces = frames.comm[(frames.comm["kind"] == "all_reduce") & (own >= 0)]
    by = ["module", "target_spec", own[reduces.index]]
    return {
        (str(module), str(spec), int(dim)): calls_in(frames, rows, part=0.5)
        for (module, spec, dim), rows in reduces.groupby(by, observed=True)
    }


REPEATED_ALL_GATHER = Rule(
    "repeated_all_gather",
    "unchanged parameters or tensors gathered again",
    repeated_all_gather,
    (IDENTITY,),
    cure=REMOVE,
)
PING_PONG = Rule(
    "ping_pong",
    "a redistribution that is reverted or repeated at once",
    ping_pong,
    (LAYOUTS_OR_USES,),
    cure=SHRINK,
)
ALL_REDUCE_THEN_SHARD = Rule(
    "all_reduce_then_shard",
    "an all-reduce of whose result only a shard is used",
    all_reduce_then_shard,
    (USES,),
    cure=SHRINK,
)
