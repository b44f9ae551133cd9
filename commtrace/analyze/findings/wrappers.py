"""Settings of DistributedDataParallel and FSDP that cost time or memory."""

from __future__ import annotations

import re

import pandas as pd

from commtrace.analyze.findings.finding import (
    Finding,
    Rule,
    Selected,
    calls_each,
    calls_in,
    calls_that,
    selected,
)
from commtrace.analyze.findings.needs import (
    CONTENTS,
    DURATION,
    LOGS,
    UNITS,
)
from commtrace.analyze.measures.census import census
from commtrace.analyze.measures.measures import counted_ns
from commtrace.analyze.measures.selections import (
    COPIED_GRADIENTS,
    EXPLAINED_FLAGS,
    GATHERS_OF_PARAMETERS,
)
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.schema import ALL_USED, COPIED, SOME_UNUSED
from commtrace.units import text_of_bytes


def unused_parameter_flags(frames: Frames) -> list[Finding]:
    """Flags of used parameters, although DistributedDataParallel has logged that none is unused.

    A static graph sends them once, in its first pass.
    """
    if not census(frames).selected[EXPLAINED_FLAGS]:
        return []
    parts, flags = frames.by_ranks(_flags_explained), selected(frames, _flags)
    explained = {key for part in parts for key in part}
    return [
        Finding(
            title=f"{calls_that(frames, len(calls.rows), '', 'send')} flags of used parameters "
            "(find_unused_parameters=True), but DistributedDataParallel has found none unused.",
            advice="Remove find_unused_parameters=True: it searches the autograd graph after "
            "each forward pass, sends these flags, and keeps the buckets in their first order. "
            "Keep it if control flow can leave parameters unused in later passes; if all passes "
            "use the same, static_graph=True sends flags once.",
            calls=calls,
        )
        for key, calls in flags
        if (*key, ALL_USED) in explained and (*key, SOME_UNUSED) not in explained
        if len(calls.rows) > frames.num_ranks
    ]


def _flags(frames: Frames) -> Selected:
    flags = frames.comm[frames.comm["carries"] == "flags"]
    by = ["module", "group"]
    return {key: calls_in(frames, rows) for key, rows in flags.groupby(by, observed=True)}


def _flags_explained(frames: Frames) -> set[tuple[str, str, str]]:
    """Return module, group and reason of flags."""
    flags = frames.comm[frames.comm["carries"] == "flags"]
    rows = flags[["module", "group", "reason"]].drop_duplicates()
    return set(rows.itertuples(index=False, name=None))


def copied_gradients(frames: Frames) -> list[Finding]:
    """Gradients that DistributedDataParallel copies into its buckets, and back."""
    if not census(frames).selected[COPIED_GRADIENTS]:
        return []
    passes = pd.concat(frames.by_ranks(_bytes_of_passes)).groupby(level=[0, 1]).max()
    least = frames.settings.threshold("copied_bytes")
    return [
        Finding(
            f"DistributedDataParallel keeps a second copy of the gradients{_of(key[0])}, "
            f"{text_of_bytes(passes[key])} on each rank: it copies them into its buckets, and the "
            "sums back.",
            "gradient_as_bucket_view=True of DistributedDataParallel makes the gradients views of "
            "the buckets; they cannot be detached in place then.",
            calls,
        )
        for key, calls in selected(frames, _copied)
        if passes[key] >= least
    ]


def _of(module: str) -> str:
    return f" of {module}" if module else ""


def _rows_copied(part: Frames) -> pd.DataFrame:
    return part.comm[part.comm["reason"] == COPIED]


def _bytes_of_passes(part: Frames) -> pd.Series:
    """Return the bytes of all buckets of the largest pass of a rank, by module and group."""
    rows = _rows_copied(part)
    keys = [rows[name].astype(object) for name in ("module", "group")]
    sums = rows["payload_bytes"].groupby([*keys, rows["rank"], rows["module_call"]]).sum()
    return sums.groupby(level=[0, 1]).max()


def _copied(part: Frames) -> Selected:
    rows = _rows_copied(part)
    keys = [rows[name].astype(object) for name in ("module", "group")]
    return {
        (str(module), str(group)): calls_in(part, own, cost_bytes=0.0)
        for (module, group), own in rows.groupby(keys)
    }


def single_unit(frames: Frames) -> list[Finding]:
    """Several blocks of a model that FSDP gathers, and whose gradients it reduces, at once.

    Only the computation of other units could hide that, and there are none.
    """
    if not census(frames).selected[GATHERS_OF_PARAMETERS]:
        return []
    least = frames.settings.threshold("single_unit_share") * counted_ns(frames)
    return [
        Finding(
            f"FSDP has {num} blocks in a single unit: "
            f"{calls_each(frames, len(calls.rows))} with the parameters or gradients of all, "
            f"{text_of_bytes(calls.payload_bytes / len(calls.rows))} on average, and no other unit "
            "whose computation could hide them.",
            "Make a unit of each block, and then of the model: `for block in blocks: "
            "fully_shard(block)` (auto_wrap_policy of FullyShardedDataParallel). Replayed is the "
            "transfer of one block, as if computation hid the rest.",
            calls,
            cure=f"shrink *{1 / num:.3g}",
        )
        for (_, num), calls in selected(frames, _single_units)
        if calls.lost_ns >= max(least, 1)
    ]


def _single_units(part: Frames) -> Selected:
    """Return calls of groups all of whose gathers are of the same blocks, by axis and number."""
    comm = part.comm
    named = (comm["parameters"] != "") & comm["kind"].isin(["all_gather", "reduce_scatter"])
    rows = comm[named & comm["carries"].isin(["parameters", "gradients"])]
    axes = mesh_axes(part, rows["group"]).astype(object)
    found: dict[tuple[str, int], list[pd.DataFrame]] = {}
    for group, own in rows.groupby(rows["group"].astype(object)):
        units = own["parameters"].unique()
        gathers = own.index[own["kind"] == "all_gather"]
        num = len(blocks_of(str(units[0])))
        if len(units) == 1 and len(gathers) and num > 1:
            found.setdefault((axes[gathers[0]] or str(group), num), []).append(own)
    return {
        key: calls_in(part, own, cost_bytes=0.0, lost_ns=own["blocked_ns"].clip(lower=0))
        for key, each in found.items()
        for own in [pd.concat(each).sort_index()]
    }


def blocks_of(names: str) -> set[str]:
    """Return the numbered blocks of parameters: `layers.0` of `layers.0.wq.weight,norm.weight`."""
    return {found[0] for name in names.split(",") if (found := _BLOCK.match(name))}


_BLOCK = re.compile(r"(?:[^.]+\.)*?\d+(?=\.)")

UNUSED_PARAMETER_FLAGS = Rule(
    "unused_parameter_flags",
    "flags of used parameters although none is unused",
    unused_parameter_flags,
    (CONTENTS, LOGS),
    cure="remove",
)
COPIES = Rule(
    "copied_gradients",
    "gradients that DistributedDataParallel copies into its buckets",
    copied_gradients,
    (CONTENTS,),
)
SINGLE_UNIT = Rule(
    "single_unit",
    "several blocks of a model that are a single unit of FSDP",
    single_unit,
    (UNITS, DURATION),
)
