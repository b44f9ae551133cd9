"""Changes that may pay off in a run: cures of its findings, and changes that apply to any run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from commtrace.analyze.findings import reported
from commtrace.analyze.replay.changes import FINDING, Change, parsed
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.errors import UsageError
from commtrace.units import counted, text_of_ranks

REMOVE, MERGE, OVERLAP, HALVE, BALANCE, SHRINK, EVEN, CORES = (
    "remove", "merge", "overlap", "payload *0.5", "balance", "shrink", "even", "cores",
)  # fmt: skip

CURES = {
    "redundant_barrier": REMOVE,
    "unchanged_broadcast": REMOVE,
    "object_collectives": REMOVE,
    "unused_parameter_flags": REMOVE,
    "reduce_then_broadcast": REMOVE,
    "repeated_all_gather": SHRINK,
    "ping_pong": SHRINK,
    "all_reduce_then_shard": SHRINK,
    "repeated_reduction": SHRINK,
    "replication_fallback": SHRINK,
    "padded_shards": SHRINK,
    "float32_messages": HALVE,
    "small_messages": MERGE,
    "overlap_lost": OVERLAP,
    "serial_receives": OVERLAP,
    "serial_sends": OVERLAP,
    "straggler": BALANCE,
    "load_imbalance": EVEN,
    "stall": EVEN,
    "shared_cores": CORES,
}
"""The change that cures the findings of each rule; the others have none that a replay can make."""


_LEAST_FACTOR = 1e-3
"""Part of a transfer from which it is not worth keeping."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A change that may pay off.

    Attributes:
        title: The change, in a few words.
        how: A way to make it.
        changes: The changes to replay.
        is_limit: True if a change of the program saves at most as much: memory, buffers or the
            network may not allow it.
        finding: Number of the finding in the table of findings; -1 if it is of none.
    """

    title: str
    how: str
    changes: tuple[Change, ...]
    is_limit: bool = False
    finding: int = -1


def suggestions(basis: Frames) -> list[Proposal]:
    """Return the changes that apply to a run, or to the part of it that is replayed."""
    return [*_of_findings(basis), *(each for make in _GENERAL for each in make(basis))]


def _of_findings(run: Frames) -> Iterator[Proposal]:
    for number, (_, finding, _) in enumerate(reported(run), start=1):
        if (change := _cure(run, number)) is not None:
            yield Proposal(finding.title, finding.advice, (change,), finding=number)


def _cure(run: Frames, number: int) -> Change | None:
    """Return the change that cures a finding; None if a replay can make none."""
    rule, finding, _ = reported(run)[number - 1]
    cure = CURES.get(rule.name)
    if cure is None:
        return None
    text = f"{cure} where {FINDING}={number}"
    rows = _rows_of(run, number)
    if cure == SHRINK:
        factor = 1 - _share_of_bytes(run, finding.calls.cost_bytes, rows)
        verb = REMOVE if factor < _LEAST_FACTOR else SHRINK
        return Change(text, verb, factor, rows=rows)
    return replace(parsed(cure), text=text, rows=rows)


def _rows_of(run: Frames, number: int) -> np.ndarray:
    _, finding, _ = reported(run)[number - 1]
    return finding.rows.places_in(pd.RangeIndex(0, run.num_calls))


_OF_FINDING = re.compile(rf"\s*{FINDING}\s*=\s*(\d{{1,9}})\s*")


def of_findings(run: Frames, text: str) -> Change:
    """Return the change with a text, whose condition may be the number of a finding.

    `shrink where finding=2` is the cure of the finding; another change is of the finding's calls.

    Raises:
        UsageError: There is no such change, or no such finding.
    """
    verb, _, where = text.partition(" where ")
    found = _OF_FINDING.fullmatch(where)
    if found is None:
        return parsed(text)
    number, num = int(found[1]), len(reported(run))
    if not 1 <= number <= num:
        raise UsageError(
            f"cannot make the change {text!r}",
            found=f"{counted(num, 'finding')} in this run",
            attempt="commtrace findings RUN, which lists them" if num else "other conditions",
        )
    cure = _cure(run, number)
    if cure is not None and cure.text.partition(" where ")[0] == verb.strip():
        return cure
    return replace(parsed(verb), text=text, rows=_rows_of(run, number))


def _share_of_bytes(run: Frames, cost_bytes: float, rows: np.ndarray) -> float:
    """Return which part of the bytes of a finding's calls could be saved; 1 if unknown."""
    wire = run.calls_at(pd.Index(rows))["wire_bytes"]
    total = float(wire[wire >= 0].sum())
    if math.isnan(cost_bytes) or not total:
        return 1.0
    return min(cost_bytes / total, 1.0)


def _balanced(run: Frames) -> Iterator[Proposal]:
    yield Proposal(
        "no stragglers",
        "give each rank equal work before its collectives; `commtrace table stragglers` names the "
        "ranks and what delays them",
        (parsed("balance"),),
    )


def _ideal(run: Frames) -> Iterator[Proposal]:
    yield Proposal(
        "ideal network: transfers take no time",
        "a limit: no faster network and no other algorithm saves more",
        (parsed("shrink *0"),),
        is_limit=True,
    )


def _hidden(run: Frames) -> Iterator[Proposal]:
    comm = run.comm
    is_known = (comm["result_used_ns"] >= 0) | (comm["data_ready_ns"] >= 0)
    if is_known.any() or (run.kernels["call_id"] >= 0).any():
        yield Proposal(
            "all communication hidden up to its data's next use",
            "issue collectives with async_op=True once their data is ready, and wait before the "
            "first use; FSDP2: set_modules_to_forward_prefetch; DDP: smaller buckets",
            (parsed("overlap"),),
            is_limit=True,
        )


def _merged(run: Frames) -> Iterator[Proposal]:
    comm = run.comm
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        if ((comm["kind"] == kind) & (comm["step"] >= 0)).sum() > run.num_ranks:
            yield Proposal(
                f"consecutive {kind} calls merged",
                "coalesce them: torch.distributed._coalescing_manager, larger DDP buckets, or one "
                "flat tensor",
                (parsed(f"merge where kind={kind}"),),
            )


def _in_16_bits(run: Frames) -> Iterator[Proposal]:
    comm = run.comm
    own = (comm["dtype"] == "float32") & (comm["payload_bytes"] > 0)
    if own.any():
        yield Proposal(
            "float32 messages in 16 bits",
            "FSDP2: MixedPrecisionPolicy(reduce_dtype=torch.bfloat16); DDP: bf16_compress_hook; "
            "the results are rounded",
            (parsed("payload *0.5 where dtype=float32"),),
        )


def _faster_links(run: Frames) -> Iterator[Proposal]:
    axes = mesh_axes(run, run.comm["group"]).astype(object)
    for axis in sorted(set(axes) - {""}):
        yield Proposal(
            f"twice the bandwidth of axis {axis}",
            f"place the ranks of axis {axis} on faster links: order the mesh so that the axis is "
            "within a node",
            (parsed(f"bandwidth *2 where mesh_axis={axis}"),),
        )


def _earlier(run: Frames) -> Iterator[Proposal]:
    comm = run.comm
    for kind in ("all_gather", "reduce_scatter", "recv"):
        if ((comm["kind"] == kind) & (comm["data_ready_ns"] >= 0)).any():
            yield Proposal(
                f"{kind} issued as soon as its data is ready",
                "prefetch: FSDP2's set_modules_to_forward_prefetch and "
                "set_modules_to_backward_prefetch, or isend and irecv before the computation",
                (parsed(f"earlier where kind={kind}"),),
                is_limit=True,
            )


def _slow_ranks(run: Frames) -> Iterator[Proposal]:
    from commtrace.analyze.waits.stragglers import stragglers

    table = stragglers(run)
    if len(table):
        rank = int(table["rank"].iloc[0])
        yield Proposal(
            f"{text_of_ranks([rank])} no slower than its peers",
            "find what delays it: `commtrace table stragglers`",
            (parsed(f"balance where rank={rank}"),),
        )


def _larger_batch(run: Frames) -> Iterator[Proposal]:
    if (run.comm["carries"].isin(["gradients", "parameters"])).any() and len(run.timed_steps):
        yield Proposal(
            "twice the samples in a micro-batch",
            "twice the batch size, if memory allows, or gradient accumulation with no_sync(); the "
            "time is for as many samples as before",
            (parsed("batch *2"),),
            is_limit=True,
        )


def _even_stages(run: Frames) -> Iterator[Proposal]:
    actions = run.pipeline_actions[run.pipeline_actions["duration_ns"] >= 0]
    work = actions.groupby("rank")["duration_ns"].sum()
    if len(work) < 2 or not work.min() > 0 or work.max() < 1.05 * work.mean():
        return
    factors = work.mean() / work
    yield Proposal(
        "layers moved until all pipeline stages compute for equally long",
        "split the model at other layers; `commtrace table stages` has the work of each",
        tuple(
            [parsed(f"compute *{factors[rank]:.3f} where rank={rank}") for rank in factors.index]
        ),
    )


_GENERAL: tuple[Callable[[Frames], Iterator[Proposal]], ...] = (
    _balanced, _slow_ranks, _even_stages, _hidden, _earlier, _merged, _in_16_bits, _larger_batch,
    _faster_links, _ideal,
)  # fmt: skip
