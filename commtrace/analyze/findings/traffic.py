"""Inefficient messages: too small, of too wide a type, unneeded, or padded."""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import (
    REMOVE,
    SHRINK,
    Finding,
    Rule,
    Selected,
    calls_in,
    calls_that,
    selected,
)
from commtrace.analyze.findings.layouts import layout, padding_bytes
from commtrace.analyze.findings.needs import (
    CONTENTS,
    HALF,
    HALF_TYPES,
    LAYOUTS,
    MODULES,
    MODULES_OF_PASSES,
    PASSES,
    PROCESS_GROUPS,
    SIZES,
    STEPS,
)
from commtrace.analyze.measures.census import in_module
from commtrace.analyze.run.frame import Frames
from commtrace.units import text_of_bytes


def small_messages(frames: Frames) -> list[Finding]:
    """Many messages of one kind in a phase of a step, on one group, too small for full bandwidth.

    Messages that depend on each other cannot be merged and are left out. Buckets of gradients are
    counted separately; flags are left to rule `unused_parameter_flags`, and transfers between
    pipeline stages, one per micro-batch, to `pipeline_bubbles`.
    """
    axes = dict(zip(frames.groups["name"], frames.groups["mesh_axis"], strict=True))
    found = []
    for (group, kind, phase, carries), calls in selected(frames, _small):
        num = len(calls.rows)
        content = f"{carries}, " if carries else ""
        of_what = f" of {kind} on {axes.get(group) or f'group {group}'}"
        of_what += f" in {phase}" if phase else ""
        found.append(
            Finding(
                title=f"{calls_that(frames, num, of_what, 'carry')} {content}"
                f"{text_of_bytes(calls.payload_bytes / num)} on average, too small for the full "
                "bandwidth of a link.",
                advice=_TOGETHER.get(carries, _TOGETHER[""]),
                calls=calls,
            )
        )
    return found


def _small(frames: Frames) -> Selected:
    """Return small messages by group, kind, phase and contents."""
    comm = frames.comm
    small_bytes, least = map(frames.settings.threshold, ("small_bytes", "many_per_step"))
    small = comm[(comm["payload_bytes"] > 0) & (comm["payload_bytes"] < small_bytes)]
    small = small[(small["step"] >= 0) & (small["carries"] != "flags") & (small["group"] != "")]
    small = small[(small["stage"] < 0) & (small["carries"] != "activations")]
    of_one = ["group", "kind", "phase", "carries"]
    small = small.assign(bundle=_bundles(small, of_one))
    small = small[small.groupby(["rank", "bundle"])["id"].transform("size") > 1]
    times = small.groupby(["rank", "step", *of_one], observed=True)["id"].transform("size")
    small = small[times >= least]
    return {
        key: calls_in(frames, rows, cost_bytes=0.0)
        for key, rows in small.groupby(of_one, observed=True)
    }


def _bundles(small: pd.DataFrame, of_one: list[str]) -> pd.Series:
    """Return a number for each bundle of messages that could be a single message.

    A message whose data was ready only after the result of the previous message was used depends on
    that result, as far as is known, and begins a bundle of its own.
    """
    columns = ["rank", "id", "step", "result_used_ns", "data_ready_ns", *of_one]
    ordered = small[[*dict.fromkeys(columns)]].sort_values(["rank", "id"])
    of_step = ordered.groupby(["rank", "step", *of_one], observed=True)
    used = of_step["result_used_ns"].shift(1, fill_value=-1)
    depends = (used >= 0) & (ordered["data_ready_ns"] >= used)
    place = of_step.ngroup()
    return ordered.groupby([place, depends.groupby(place).cumsum()]).ngroup()


_TOGETHER = {
    "gradients": "Make the buckets larger (bucket_cap_mb of DistributedDataParallel), the sharded "
    "units larger (of FSDP), or reduce after the last pass of an accumulation only (no_sync).",
    "parameters": "Shard larger modules as a unit (fully_shard on each block, not on its layers; "
    "auto_wrap_policy of FullyShardedDataParallel).",
    "": "Coalesce them or use buckets, or send less often.",
}
"""Advice by the data that is carried."""


def _top(module: str) -> str:
    """Return the block of a model that a path is in: `layers.0` of `layers.0.attention.wq`."""
    return ".".join(module.split(".")[:2])


def float32_messages(frames: Frames) -> list[Finding]:
    """Messages of 32 bits of data that modules compute in 16 bits, or use in 16 bits.

    Known by casts: the data was cast from 16 bits for the call, or the result was cast to them; or
    else, where it is not known how the data was computed, by other messages of the module that have
    16 bits. Parameters are gathered anew in the backward pass, which uses those cast before.

    Gradients are reduced in 32 bits by choice (`reduce_dtype`, hooks, accumulation), since their
    sums lose precision in 16 bits; and so are states of optimizers.
    """
    parts, wide = frames.by_ranks(_tops_in_half), selected(frames, _in_float32)
    halves = {top for part in parts for top in part}
    return [
        Finding(
            title=calls_that(frames, len(calls.rows), f" of {kind} in {phase} of {top}", "carry")
            + (f" float32 {_CAST.format(cast)}." if cast else _IN_HALF),
            advice="Send it in 16 bits (param_dtype of FSDP, or a cast before), if the precision "
            "suffices.",
            calls=calls,
            module=top,
        )
        for (top, kind, phase, cast), calls in wide
        if cast or top in halves
    ]


_CAST = "that was cast from {0}, or is cast to it"
_IN_HALF = " float32 where the module computes in 16 bits."


def _tops_in_half(frames: Frames) -> set[str]:
    """Return the blocks that send 16 bits, or cast the parameters that they gather to them."""
    comm = frames.comm
    casts_parameters = (comm["carries"] == "parameters") & (comm["cast_dtype"] != "")
    is_half = comm["dtype"].isin(HALF) | casts_parameters
    in_half = comm.loc[is_half & (comm["module"] != ""), "module"]
    return {_top(str(module)) for module in in_half.unique()}


def _in_float32(frames: Frames) -> Selected:
    comm, small_bytes = frames.comm, frames.settings.threshold("small_bytes")
    wide = comm[
        (comm["dtype"] == "float32")
        & (comm["payload_bytes"] >= small_bytes)
        & (comm["carries"] != "gradients")
        & (comm["phase"] != "optimizer")
        & (comm["module"] != "")
    ]
    # Data without a cast before or after the call was computed in 32 bits, as norms are. The cast
    # of a gathered parameter can be missed: only copies of known operators are followed.
    is_computed = (wide["data_ready_ns"] >= 0) & (wide["carries"] != "parameters")
    wide = wide[(wide["cast_dtype"] != "") | ~is_computed]
    tops = {module: _top(str(module)) for module in wide["module"].unique()}
    top = wide["module"].astype(object).map(tops).astype(object).rename("top")
    return {
        key: calls_in(frames, rows, part=0.5)
        for key, rows in wide.groupby([top, "kind", "phase", "cast_dtype"], observed=True)
    }


def replication_fallback(frames: Frames) -> list[Finding]:
    """Operators that replicated a sharded argument, since no other candidate was valid."""
    return [
        Finding(
            title=f"{op} in {module or 'no module'} replicated its argument {argument} "
            f"({source} -> {target}).",
            advice="Use a layout that the operator supports (`explain` lists them), or register a "
            "rule: register_sharding.",
            calls=calls,
        )
        for (op, module, argument, source, target), calls in selected(frames, _replicated)
    ]


def _replicated(frames: Frames) -> Selected:
    comm = frames.comm
    by_operator = ~comm["op"].isin(["", "redistribute", "redistribute.backward"])
    calls = comm[by_operator & (comm["target_spec"] != "")]
    specs = {text: layout(text) for text in {*calls["source_spec"], *calls["target_spec"]}}
    source = calls["source_spec"].astype(object).map(specs)
    target = calls["target_spec"].astype(object).map(specs)
    is_replicating = [
        bool(a and b and a.sharded and b.is_replicated) for a, b in zip(source, target, strict=True)
    ]
    calls = calls[np.array(is_replicating, dtype=bool)]
    by = ["op", "module", "argument", "source_spec", "target_spec"]
    return {key: calls_in(frames, rows) for key, rows in calls.groupby(by, observed=True)}


def outside_modules(frames: Frames) -> list[Finding]:
    """Communication of forward and backward passes outside of any module.

    Tables by module lack it; a module around it saves nothing.
    """
    return [
        Finding(
            title=f"{calls_that(frames, len(calls.rows), f' of {kind} in {phase}', 'are')} outside "
            f"of any module, at {file or 'an unknown line'}{f':{line}' if file else ''}.",
            advice="Move them into a module, so that they are attributed to it, or check that they "
            "are intended.",
            calls=calls,
        )
        for (kind, phase, file, line), calls in selected(frames, _outside)
    ]


def _outside(frames: Frames) -> Selected:
    comm = frames.comm
    calls = comm[comm["phase"].isin(PASSES) & ~in_module(comm)]
    by = ["kind", "phase", "source_file", "source_line"]
    return {
        key: calls_in(frames, rows, cost_bytes=0.0)
        for key, rows in calls.groupby(by, observed=True)
    }


def padded_shards(frames: Frames) -> list[Finding]:
    """Collectives of unevenly sharded tensors, whose padding makes the payload larger."""
    return [
        Finding(
            title=f"{kind} of {spec} in {module or 'no module'} sends "
            f"{calls.share / len(calls.rows):.0%} padding, since the sharded dimension is not "
            "divisible by the number of ranks.",
            advice="Make the dimension a multiple of the number of ranks, or shard another "
            "dimension.",
            calls=calls,
        )
        for (kind, spec, module), calls in selected(frames, _padded)
    ]


def _padded(frames: Frames) -> Selected:
    comm = frames.comm
    calls = comm[comm["kind"].isin(["all_gather", "reduce_scatter"]) & (comm["payload_bytes"] > 0)]
    specs = (
        calls["source_spec"]
        .astype(object)
        .where(calls["kind"] == "all_gather", calls["target_spec"].astype(object))
    )
    waste = padding_bytes(calls, specs)
    waste = waste[waste > 0]
    rows = calls.loc[waste.index].assign(part=waste / calls.loc[waste.index, "payload_bytes"])
    by = ["kind", specs[rows.index].rename("spec"), "module"]
    return {
        key: calls_in(frames, each, part=each["part"], share=float(each["part"].sum()))
        for key, each in rows.groupby(by, observed=True)
    }


SMALL_MESSAGES = Rule(
    "small_messages",
    "many small messages on the same group",
    small_messages,
    (SIZES, PROCESS_GROUPS, STEPS),
    cure="merge",
)
FLOAT32_MESSAGES = Rule(
    "float32_messages",
    "float32 messages of data that is computed or used in 16 bits",
    float32_messages,
    (HALF_TYPES, SIZES, MODULES, CONTENTS),
    cure="payload *0.5",
)
REPLICATION_FALLBACK = Rule(
    "replication_fallback",
    "an operator that fell back to replication",
    replication_fallback,
    (LAYOUTS,),
    cure=REMOVE,
)
OUTSIDE = Rule(
    "outside_modules",
    "communication outside of any module",
    outside_modules,
    (MODULES_OF_PASSES,),
    cure=None,
)
PADDED = Rule(
    "padded_shards",
    "the padding of uneven shards",
    padded_shards,
    (LAYOUTS, SIZES),
    cure=SHRINK,
)
