"""Changes of transfers: their latency, bytes and bandwidth, and sizes of groups and nodes.

    time of a transfer = latency + time of its bytes

A function for each verb, as in `verbs`. Where the trace does not tell the two parts apart, or how
the latency grows with the ranks of a group, a change has two replays (`Context.latency_share`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from commtrace.analyze.replay import edits, work
from commtrace.analyze.replay.context import Change, Context, latency_shares, rows_of, with_members
from commtrace.analyze.replay.draft import distinct
from commtrace.analyze.replay.nodes import nodes_of, spans_nodes
from commtrace.analyze.replay.prices import fitted_to, prices_of
from commtrace.collective_table import KINDS, PEER, busbw_factor, needing
from commtrace.errors import UsageError
from commtrace.schema import MAX_RANKS
from commtrace.units import NANOSECONDS_PER_SECOND

Price = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Takes rows of calls, the latency of their transfers and the time of their bytes, in ns, and
returns what these become."""


def payload(given: Context, change: Change) -> np.ndarray:
    """Change the size of messages."""
    rows = with_members(given, rows_of(given, change))
    found = _priced(given, rows, lambda _, latency, moving: (latency, moving * change.factor))
    given.transfers.loc[found, "payload_bytes"] *= change.factor
    return found


def shrink(given: Context, change: Change) -> np.ndarray:
    """Let transfers take a part of their time, latency and bytes alike."""
    rows = with_members(given, rows_of(given, change))
    edges, of = edits.transfers(given.draft, rows)
    given.draft.scale(edges, lambda length: length * change.factor)
    return distinct(of)


def latency(given: Context, change: Change) -> np.ndarray:
    """Change the latency of transfers."""
    rows = with_members(given, rows_of(given, change))
    if np.isnan(change.amount):
        return _priced(given, rows, lambda _, latency, moving: (latency * change.factor, moving))
    return _priced(given, rows, lambda _, latency, moving: (latency * 0 + change.amount, moving))


def bandwidth(given: Context, change: Change) -> np.ndarray:
    """Change the bandwidth of transfers.

    Raises:
        UsageError: It is 0.
    """
    if change.factor == 0:
        raise UsageError(
            f"cannot make the change {change.text!r}",
            found="a bandwidth of 0",
            why="transfers would never end",
            attempt="bandwidth /100, or remove for calls that do not happen",
        )
    rows = with_members(given, rows_of(given, change))
    if np.isnan(change.amount):
        return _priced(given, rows, lambda _, latency, moving: (latency, moving / change.factor))
    rows = _of_known_size(given, rows)
    per_byte = NANOSECONDS_PER_SECOND / change.amount
    return _priced(given, rows, lambda of, latency, _: (latency, _bus_bytes(given, of) * per_byte))


def batch(given: Context, change: Change) -> np.ndarray:
    """Let steps have more samples: computation and activations grow, parameters do not.

    Raises:
        UsageError: There are conditions, or no samples.
    """
    if change.where or not change.factor > 0:
        raise UsageError(
            f"cannot make the change {change.text!r}",
            found="conditions" if change.where else "no samples",
            why="a step has its samples on all ranks and in all layers"
            if change.where
            else "times are for as many samples as before",
            attempt="batch *2",
        )
    draft, comm = given.draft, given.run.comm
    work.scaled(draft, work.computing_edges(draft, given.run), 1.0, change.factor)
    given.samples *= change.factor
    rows = comm.index[(comm["carries"] == "activations") & ~comm.index.isin(draft.removed)]
    if not len(rows):
        return rows.to_numpy()
    return payload(given, Change(change.text, change.verb, change.factor, rows=rows.to_numpy()))


def group_size(given: Context, change: Change) -> np.ndarray:
    """Let groups have other numbers of ranks, with messages as long as they are.

    A transfer's bytes take as much longer as the wire bytes of its kind grow; its latency grows
    with the number of ranks, as in a ring, or with its logarithm, as in a tree.

    Raises:
        UsageError: A group would have a part of a rank, or none.
    """
    rows = with_members(given, rows_of(given, change))
    own = given.transfers.loc[rows]
    is_known = own["group_size"].gt(1) & ~own["kind"].isin(needing(PEER))
    given.lacking.append(rows[(~is_known & ~own["kind"].isin(needing(PEER))).to_numpy()])
    rows, before = rows[is_known.to_numpy()], own.loc[is_known, "group_size"]
    after = before * change.factor if np.isnan(change.amount) else before * 0 + change.amount
    wrong = after[(after < 1) | (after > MAX_RANKS) | (after != after.round())]
    if len(wrong):
        size = int(before[wrong.index[0]])
        raise UsageError(
            f"cannot make the change {change.text!r}",
            found=f"a group of {size} ranks, which would have {wrong.iloc[0]:g}",
            why=f"a group has a whole number of ranks, from 1 to {MAX_RANKS}",
            attempt=f"group_size {2 * size}, or conditions on the groups",
        )
    given.is_bound |= bool((after != before).any())
    rings = (after - 1) / (before - 1)
    trees = np.log2(after) / np.log2(before)
    grown = trees + given.latency_share * (rings - trees)
    given.transfers.loc[rows, "group_size"] = after
    moved = _factors(given.transfers.loc[rows]) / _factors(own.loc[rows]).replace(0, np.nan)
    moved = moved.fillna(1.0)
    return _priced(
        given,
        rows,
        lambda of, latency, moving: (
            latency * grown.loc[of].to_numpy(),
            moving * moved.loc[of].to_numpy(),
        ),
    )


def node_size(given: Context, change: Change) -> np.ndarray:
    """Let nodes have another number of ranks, in the order of the ranks.

    A transfer that comes to be within a node, or between nodes, is priced as the run's transfers of
    its kind that are so.

    Raises:
        UsageError: The trace lacks hosts, or none of its transfers would be of the other sort.
    """
    run, calls = given.run, given.draft.calls
    before = spans_nodes(run, calls.index, nodes_of(run, change.text))
    ranks = run.ranks["rank"]
    after = spans_nodes(run, calls.index, pd.Series(ranks // int(change.amount)).set_axis(ranks))
    rows = with_members(given, rows_of(given, change))
    moved = rows[(before != after)[rows].to_numpy()]
    known = prices_of(run)
    known = known[known["transfer_ns"].notna() & known["payload_bytes"].notna()]
    prices = {
        key: _price_of(own) for key, own in known.groupby([known["kind"], before[known.index]])
    }
    keys = list(zip(given.transfers["kind"][moved], after[moved], strict=True))
    is_priced = np.array([key in prices for key in keys], dtype=bool)
    if not is_priced.any():
        sort = "between nodes" if len(moved) and after[moved].any() else "within a node"
        raise UsageError(
            f"cannot make the change {change.text!r}",
            found=f"no transfers {sort} in this run, of the kinds that would be"
            if len(moved)
            else "no group that would come to be within a node, or between nodes",
            why="such transfers are priced as those that the run has",
            attempt="bandwidth 25GB/s where mesh_axis=dp, with the speed of the links",
        )
    given.lacking.append(moved[~is_priced])
    rows = _of_known_size(given, moved[is_priced])
    chosen = pd.DataFrame(
        [prices[key] for key, use in zip(keys, is_priced, strict=True) if use],
        index=moved[is_priced],
        columns=["latency", "per_byte", "only_latency", "only_bytes"],
    )

    def price(of: np.ndarray, *_: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        own = chosen.loc[of]
        is_known = own["latency"].notna()
        given.is_bound |= bool((~is_known).any())
        share = given.latency_share
        latency = own["latency"].where(is_known, share * own["only_latency"])
        per_byte = own["per_byte"].where(is_known, (1 - share) * own["only_bytes"])
        return latency.to_numpy(), per_byte.to_numpy() * _bus_bytes(given, of)

    return _priced(given, rows, price)


def _price_of(own: pd.DataFrame) -> tuple[float, float, float, float]:
    """Return latency and ns per byte on the bus of transfers; and of each, if it were all."""
    size = own["payload_bytes"] * _factors(own)
    times = own["transfer_ns"].groupby(size).agg(median="median", num="size")
    fitted = fitted_to(times.rename_axis("payload_bytes").reset_index())
    is_sent = size > 0
    only_bytes = (own["transfer_ns"][is_sent] / size[is_sent]).median() if is_sent.any() else 0.0
    return *fitted, float(own["transfer_ns"].median()), float(only_bytes)


def _priced(given: Context, rows: np.ndarray, price: Price) -> np.ndarray:
    """Give the transfers of calls the price that a function returns for theirs."""
    edges, of = edits.transfers(given.draft, rows)
    share = latency_shares(given, of)
    lengths = given.draft.length[edges]
    latency, moving = price(of, lengths * share, lengths * (1 - share))
    total = latency + moving
    given.draft.scale(edges, lambda _: total)
    left = np.divide(latency, total, out=share.copy(), where=total > 0)
    given.transfers.loc[of, "latency_share"] = left.astype("float32")
    return distinct(of)


def _of_known_size(given: Context, rows: np.ndarray) -> np.ndarray:
    """Return the calls whose payload is known; others are left alone."""
    is_known = given.transfers.loc[rows, "payload_bytes"].notna().to_numpy()
    given.lacking.append(rows[~is_known])
    return rows[is_known]


def _bus_bytes(given: Context, rows: np.ndarray) -> np.ndarray:
    """Return the bytes of transfers that a link carries: payload × factor of the busbw."""
    of = given.transfers.loc[rows]
    return (of["payload_bytes"] * _factors(of)).to_numpy()


def _factors(of: pd.DataFrame) -> pd.Series:
    """Return the busbw factor of each transfer; 1 if its kind or its group's size is unknown."""
    keys = of[["kind", "group_size"]].drop_duplicates()
    factors = {
        (kind, size): busbw_factor(kind, int(size)) if kind in KINDS and size > 0 else 1.0
        for kind, size in keys.itertuples(index=False)
    }
    found = [factors[key] for key in zip(of["kind"], of["group_size"], strict=True)]
    return pd.Series(found, index=of.index, dtype="float64")
