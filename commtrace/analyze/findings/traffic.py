"""Inefficient messages: too small, of too wide a type, unneeded, or padded."""

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
from commtrace.analyze.findings.layouts import layout
from commtrace.analyze.frame import Frames
from commtrace.schema import ALL_USED, SOME_UNUSED
from commtrace.units import text_of_bytes

HALF = ("bfloat16", "float16")


def small_messages(frames: Frames) -> list[Finding]:
    """Many messages of one kind in a phase of a step, on one group, too small for the link's speed.

    Gradients in buckets are told apart from what else is sent; flags are `unneeded_flags`' matter.
    """
    comm = frames.comm
    small_bytes, least = map(frames.settings.threshold, ("small_bytes", "many_per_step"))
    small = comm[(comm["payload_bytes"] > 0) & (comm["payload_bytes"] < small_bytes)]
    small = small[(small["step"] >= 0) & (small["carries"] != "flags")]
    of_one = ["group", "kind", "phase", "carries"]
    small = small.assign(cost=transfer(frames, small))
    small["times"] = small.groupby(["rank", "step", *of_one], observed=True)["id"].transform("size")
    small = small[small["times"] >= least]
    found = []
    axes = dict(zip(frames.groups["name"], frames.groups["mesh_axis"], strict=True))
    for (group, kind, phase, carries), rows in small.groupby(of_one, observed=True):
        bundles = rows.groupby(["rank", "step"])
        saved = rows["cost"].sum() - bundles["cost"].max().sum()
        mean = text_of_bytes(rows["payload_bytes"].mean())
        of_what = f"{carries}, " if carries else ""
        found.append(
            Finding(
                title=f"{per_rank(frames, len(rows))} calls of {kind} on "
                f"{axes.get(group) or f'group {group}'} in {phase} carry {of_what}{mean} on "
                "average, less than a link needs to reach its speed.",
                advice=_TOGETHER.get(str(carries), _TOGETHER[""]),
                rows=rows.index,
                cost_bytes=0.0,
                cost_ns=float(saved),
            )
        )
    return found


_TOGETHER = {
    "gradients": "Make the buckets larger (bucket_cap_mb of DistributedDataParallel), the sharded "
    "units larger (of FSDP), or reduce after the last pass of an accumulation only (no_sync).",
    "activations": "Cut the batch into fewer microbatches, or the model into larger stages.",
    "": "Send them together: coalesced or in buckets, or less often.",
}
"""Advice by the data that is carried."""


def unneeded_flags(frames: Frames) -> list[Finding]:
    """Flags which parameters a pass has used, of a model that DistributedDataParallel has logged to
    leave none unused on any rank.
    """
    flags = frames.comm[frames.comm["carries"] == "flags"]
    return [
        Finding(
            title=f"{per_rank(frames, len(rows))} calls tell which parameters a pass has used "
            "(find_unused_parameters=True), and DistributedDataParallel has found none unused.",
            advice="Leave find_unused_parameters=True out: it searches the autograd graph after "
            "each forward pass, sends these flags, and keeps the buckets in their first order. "
            "Keep it if control flow leaves parameters unused in passes to come.",
            rows=rows.index,
            cost_bytes=known(rows["wire_bytes"]).sum(),
            cost_ns=transfer(frames, rows).sum(),
        )
        for _, rows in flags.groupby(["module", "group"], observed=True)
        if (rows["reason"] == ALL_USED).any() and not (rows["reason"] == SOME_UNUSED).any()
    ]


def _lacks_logs(frames: Frames) -> str:
    """Return a sentence if DistributedDataParallel has not logged whether parameters are unused."""
    flags = frames.comm[frames.comm["carries"] == "flags"]
    if flags.empty or (flags["reason"] != "").any():
        return ""
    return "No flags say whether parameters were unused: DistributedDataParallel had not logged it."


def _lacks_sizes_or_steps(frames: Frames) -> str:
    if len(frames.comm) and not (frames.comm["payload_bytes"] >= 0).any():
        return "No call says how large its message is."
    return lacks_steps(frames)


def _top(module: str) -> str:
    """Return the block of a model that a path is in: `layers.0` of `layers.0.attention.wq`."""
    return ".".join(module.split(".")[:2])


def wide_types(frames: Frames) -> list[Finding]:
    """Messages of 32 bits in modules that send 16 bits, too."""
    comm = frames.comm
    in_half = comm.loc[comm["dtype"].isin(HALF) & (comm["module"] != ""), "module"]
    halves = {_top(str(module)) for module in in_half.unique()}
    small_bytes = frames.settings.threshold("small_bytes")
    wide = comm[(comm["dtype"] == "float32") & (comm["payload_bytes"] >= small_bytes)]
    tops = {module: _top(str(module)) for module in wide["module"].unique()}
    top = wide["module"].astype(object).map(tops).astype(object)
    wide = wide[top.isin(halves)]
    return [
        Finding(
            title=f"{per_rank(frames, len(rows))} calls of {kind} in {phase} of {module} "
            "carry float32 where the module computes in 16 bits.",
            advice="Reduce or gather in 16 bits (reduce_dtype, or cast before) if sums bear it.",
            rows=rows.index,
            cost_bytes=known(rows["wire_bytes"]).sum() / 2,
            cost_ns=transfer(frames, rows).sum() / 2,
            module=str(module),
        )
        for (module, kind, phase), rows in wide.groupby(
            [top[wide.index].rename("top"), "kind", "phase"], observed=True
        )
    ]


def lacks_half(frames: Frames) -> str:
    """Return a sentence if nothing of a 16-bit type was sent; else ""."""
    if not len(frames.comm) or frames.comm["dtype"].isin(HALF).any():
        return ""
    return (
        "No call carries a type of 16 bits. The trace has the types of what is sent, not of what "
        "is computed, so whether float32 is wider than the program's own type cannot be told."
    )


def replicated_operators(frames: Frames) -> list[Finding]:
    """Operators that brought a sharded argument to every rank for want of another candidate."""
    comm = frames.comm
    asked = ~comm["op"].isin(["", "redistribute", "redistribute.backward"])
    calls = comm[asked & (comm["target_spec"] != "")]
    specs = {text: layout(text) for text in {*calls["source_spec"], *calls["target_spec"]}}
    source = calls["source_spec"].astype(object).map(specs)
    target = calls["target_spec"].astype(object).map(specs)
    fell = [
        bool(a and b and a.sharded and b.is_replicated) for a, b in zip(source, target, strict=True)
    ]
    calls = calls[np.array(fell, dtype=bool)]
    return [
        Finding(
            title=f"{op} in {module or 'no module'} brought its argument {argument} to every rank "
            f"({source} -> {target}).",
            advice="Give it a layout that the operator can keep (`explain` lists them), or a rule: "
            "register_sharding.",
            rows=rows.index,
            cost_bytes=known(rows["wire_bytes"]).sum(),
            cost_ns=transfer(frames, rows).sum(),
        )
        for (op, module, argument, source, target), rows in calls.groupby(
            ["op", "module", "argument", "source_spec", "target_spec"], observed=True
        )
    ]


def in_module(comm: pd.DataFrame) -> pd.Series:
    """Return a mask of the calls made in a module; the root module has no path, but a class."""
    return (comm["module"] != "") | (comm["module_class"] != "")


def outside_modules(frames: Frames) -> list[Finding]:
    """Communication of forward and backward passes that no module made, the root one included."""
    comm = frames.comm
    passes = comm["phase"].isin(["forward", "backward", "recompute"])
    calls = comm[passes & ~in_module(comm)]
    return [
        Finding(
            title=f"{per_rank(frames, len(rows))} calls of {kind} in {phase} were made outside of "
            f"any module, at {file or 'an unknown line'}{f':{line}' if file else ''}.",
            advice="Move them into a module, so that they are planned and seen with it, or check "
            "that they are meant.",
            rows=rows.index,
            cost_bytes=known(rows["wire_bytes"]).sum(),
            cost_ns=transfer(frames, rows).sum(),
        )
        for (kind, phase, file, line), rows in calls.groupby(
            ["kind", "phase", "source_file", "source_line"], observed=True
        )
    ]


def lacks_modules(frames: Frames) -> str:
    """Return a sentence if no call was made in a module; else ""."""
    if not len(frames.comm) or in_module(frames.comm).any():
        return ""
    return "No call happened inside of a module, or modules were not tracked while recording."


def padded_shards(frames: Frames) -> list[Finding]:
    """Gathers of shards that do not divide, whose payload is larger than the tensor."""
    comm = frames.comm
    calls = comm[comm["kind"].isin(["all_gather", "reduce_scatter"]) & (comm["payload_bytes"] > 0)]
    specs = (
        calls["source_spec"]
        .astype(object)
        .where(calls["kind"] == "all_gather", calls["target_spec"].astype(object))
    )
    known_specs = {text: layout(text) for text in specs.unique() if text}
    sizes = {
        text: each.num_bytes
        for text, each in known_specs.items()
        if each is not None and len(each.sharded) == 1
    }
    whole = specs.map(sizes).astype("float64")
    waste = (calls["payload_bytes"] - whole)[whole > 0]
    waste = waste[waste > 0]
    rows = calls.loc[waste.index].assign(part=waste / calls.loc[waste.index, "payload_bytes"])
    return [
        Finding(
            title=f"{kind} of {spec} in {module or 'no module'} sends {each['part'].mean():.0%} "
            "padding, for its dimension does not divide by the ranks.",
            advice="Make the dimension a multiple of the number of ranks, or cut another one.",
            rows=each.index,
            cost_bytes=(known(each["wire_bytes"]) * each["part"]).sum(),
            cost_ns=(transfer(frames, each) * each["part"]).sum(),
        )
        for (kind, spec, module), each in rows.groupby(
            ["kind", specs[rows.index].rename("spec"), "module"], observed=True
        )
    ]


SMALL_MESSAGES = Rule(
    "small_messages", "many small messages on one group", small_messages, _lacks_sizes_or_steps
)
UNNEEDED_FLAGS = Rule(
    "unneeded_flags",
    "flags of used parameters where none is unused",
    unneeded_flags,
    _lacks_logs,
)
WIDE_TYPES = Rule("wide_types", "float32 sent where 16 bits are computed", wide_types, lacks_half)
REPLICATED = Rule(
    "replicated", "an operator that fell back to replication", replicated_operators, lacks_layouts
)
OUTSIDE = Rule(
    "outside_modules", "communication outside of any module", outside_modules, lacks_modules
)
PADDED = Rule("padded_shards", "the padding of uneven shards", padded_shards, lacks_layouts)
