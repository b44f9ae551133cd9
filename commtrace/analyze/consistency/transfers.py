"""Point-to-point consistency: sends and receives between two ranks match in number and size.

Transfers between two ranks are compared in total, not one by one, because transfers with different
tags may overtake each other. An unknown size agrees with every other. Both directions between two
ranks form a single problem. The check leaves out ranks whose transfers the trace may have lost,
ranks that receive from any source, and transfers in a deadlock, which is reported separately.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.consistency.coverage import FLIGHT_RECORDER, Coverage, source_of
from commtrace.analyze.consistency.problem import Problem, group_text
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import RECV, SEND, is_transfer
from commtrace.units import counted

_BY = ["group", "source", "target"]


def unmatched_transfers(
    frames: Frames, covered: Coverage, in_deadlock: Collection[int] = ()
) -> Iterator[Problem]:
    """Yield a problem for each pair of ranks and group in which both ends differ.

    `in_deadlock` holds the rows of calls that a deadlock explains.
    """
    parts = [each for each in frames.by_ranks(_sums, covered, in_deadlock) if each is not None]
    if not parts:
        return
    rows = pd.concat(parts)
    of_ends = rows.groupby([*_BY, "kind"])
    sums = of_ends[["num", "size", "unsized"]].sum().assign(row=of_ends["row"].max())
    both = pd.MultiIndex.from_product([["num", "size", "unsized", "row"], [SEND, RECV]])
    wide = pd.DataFrame(sums.unstack("kind")).reindex(columns=both)
    wide = wide.fillna({("row", SEND): -1, ("row", RECV): -1}).fillna(0).astype("int64")
    for column in ("num", "size"):
        uneven = wide[wide[column, SEND] != wide[column, RECV]]
        if column == "size":  # an unknown size agrees with every other
            uneven = uneven[(uneven["unsized", SEND] == 0) & (uneven["unsized", RECV] == 0)]
        bad = uneven
        if covered.imported_from and column == "num":  # a completed one has met its other end
            bad = uneven[~_is_over(frames, uneven)]
        pairs: dict[tuple[str, int, int], list[tuple[int, int, pd.Series]]] = {}
        for (group, source, target), row in bad.iterrows():  # type: ignore[misc]
            pair = group, min(source, target), max(source, target)
            pairs.setdefault(pair, []).append((source, target, row))
        for pair, directions in pairs.items():
            yield _problem(frames, covered, pair, directions, column)
        # Pairs that differ in number differ in bytes as well, which would be a second problem.
        wide = wide.drop(uneven.index)


def _sums(frames: Frames, covered: Coverage, in_deadlock: Collection[int]) -> pd.DataFrame | None:
    """Return number, size and last row of transfers by group, source, target and kind, if any."""
    transfer = is_transfer(frames)
    if not transfer.any():
        return None
    transfers = frames.comm[transfer]
    transfers = transfers[~transfers.index.isin(in_deadlock)]
    ends = comparable_ends(transfers, covered)
    if ends.empty:
        return None
    return ends.groupby([*_BY, "kind"], observed=True).agg(
        num=("payload_bytes", "size"),
        size=("payload_bytes", "sum"),
        unsized=("unsized", "sum"),
        row=("row", "max"),
    )


def comparable_ends(transfers: pd.DataFrame, covered: Coverage) -> pd.DataFrame:
    """Return both ends, kind, size and row of the transfers that can be compared.

    These are the transfers between ranks whose transfers are all in the trace, as far as known.
    """
    is_send = transfers["kind"] == SEND
    ends = pd.DataFrame(
        {
            "group": transfers["group"].astype(object),
            "kind": transfers["kind"].astype(object),
            "source": transfers["rank"].where(is_send, transfers["peer"]),
            "target": transfers["peer"].where(is_send, transfers["rank"]),
            "payload_bytes": transfers["payload_bytes"].clip(lower=0),
            "unsized": (transfers["payload_bytes"] < 0).astype("int64"),
            "row": transfers.index,
        }
    )
    pairs = zip(ends["group"], ends["target"], strict=True)
    is_open = np.array([pair in covered.open_to_all for pair in pairs], dtype=bool)
    from_dumps = covered.imported_from == FLIGHT_RECORDER  # the end of a dump is certain
    incomplete = covered.partial if from_dumps else covered.truncated
    unsure = covered.unrecorded | incomplete | covered.dropping | covered.ring_truncated
    known = ~(ends["source"].isin(unsure) | ends["target"].isin(unsure))
    return ends[known & ~is_open & (transfers["peer"] >= 0)]


def _is_over(frames: Frames, uneven: pd.DataFrame) -> pd.Series:
    """Return, by uneven pair, whether the last transfer has completed at the end with more."""
    more_sent = uneven["num", SEND] > uneven["num", RECV]
    rows = uneven["row", SEND].where(more_sent, uneven["row", RECV])
    complete = frames.calls_at(rows[rows >= 0])["complete_ns"].reindex(rows) >= 0
    return pd.Series(complete.to_numpy(), index=uneven.index, dtype=bool)


def _problem(
    frames: Frames,
    covered: Coverage,
    pair: tuple[str, int, int],
    both: Sequence[tuple[int, int, pd.Series]],
    column: str,
) -> Problem:
    group, low, high = pair
    noun = "transfer" if column == "num" else "byte"
    calls = frames.calls_at([max(row["row", SEND], row["row", RECV]) for *_, row in both])
    first: Any = calls["issue_ns"].idxmin()
    call = calls.loc[first]
    counts = [
        f"{counted(row[column, SEND], noun)} sent, {row[column, RECV]} received" for *_, row in both
    ]
    descriptions = [
        f"from rank {source} to rank {target}: {found}"
        for (source, target, _), found in zip(both, counts, strict=True)
    ]
    return Problem(
        problem="transfer",
        is_fault=True,
        group=group,
        mesh_axis=covered.axes.get(group, ""),
        ranks=f"{low},{high}",
        is_one_of_ranks=True,
        found="; ".join(counts),
        source=source_of(call),
        explanation=f"On {group_text(group, covered.names.get(group, ''))}, "
        f"{'; '.join(descriptions)}.",
        at_ns=int(call["issue_ns"]),
    )
