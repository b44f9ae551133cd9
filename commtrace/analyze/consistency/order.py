"""Crossed orders: collectives of different groups that ranks issue in cyclic order.

Every thread of a rank issues its collectives in an order. A cycle in the union of these orders,

    rank 0    all_reduce of tp, then all_gather of dp
    rank 1    all_gather of dp, then all_reduce of tp

deadlocks if the calls block, and can deadlock if they share a device, even if this run completed.

Most calls are excluded cheaply. Give each call a place: every cycle then has a backward step, and
only calls whose places lie within the span of a backward step can be part of a cycle. This holds
for any choice of places; those by call id, which ranks count alike, and by the last member's
arrival leave few calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pandas as pd

from commtrace.analyze.consistency.coverage import Coverage, source_of
from commtrace.analyze.consistency.deadlock_cycle import components, graph_of, shortest_cycle
from commtrace.analyze.consistency.problem import Problem, call_text, numbers_text
from commtrace.units import text_of_ranks

Edges = dict[int, dict[int, list[int]]]
"""For each call, its direct successors, and the ranks on which they follow it."""


def crossed_orders(covered: Coverage, until: dict[str, int]) -> Iterator[Problem]:
    """Yield one problem for each set of groups with crossed calls, at the first such place.

    Args:
        covered: The collectives to compare.
        until: By group, the number from which on its calls are not comparable; they are left out.
    """
    calls = covered.calls
    limit = calls["group"].astype(object).map(until) if until else pd.Series(np.nan, calls.index)
    calls = calls[limit.isna() | (calls["number"] < limit)]
    node = calls.groupby(["group", "number"], observed=True, sort=False).ngroup()
    edges = _backward_edges(calls, node)
    if not edges:
        return
    seen: Counter[frozenset[str]] = Counter()
    first_of: dict[frozenset[str], tuple[list[int], pd.DataFrame]] = {}
    place = calls.groupby(node)["issue_ns"].max()
    graph = graph_of((at, then) for at, after in edges.items() for then in after)
    for component in sorted(
        components(graph), key=lambda nodes: min(place[each] for each in nodes)
    ):
        involved = calls[node.isin(list(component))]
        groups = frozenset(involved["group"].astype(object))
        seen[groups] += 1
        if groups not in first_of:
            first = min(component, key=lambda each: (place[each], each))
            cycle = shortest_cycle(graph.subgraph(component), first)
            first_of[groups] = (cycle, involved.assign(node=node[involved.index]))
    for groups, (cycle, involved) in first_of.items():
        yield _problem(covered, edges, cycle, involved, seen[groups])


def _backward_edges(calls: pd.DataFrame, node: pd.Series) -> Edges:
    """Return the edges between calls that can be part of a cycle."""
    ordered = calls[["rank", "thread", "id"]].assign(node=node)
    ordered = ordered.sort_values(["rank", "thread", "id"], kind="stable")
    same = (ordered[["rank", "thread"]] == ordered[["rank", "thread"]].shift(-1)).all(axis=1)
    first = ordered["node"].to_numpy()[same.to_numpy()]
    then = ordered["node"].shift(-1)[same].to_numpy().astype("int64")
    ranks = ordered["rank"].to_numpy()[same.to_numpy()]
    places = [
        calls.groupby(node)[name].max().sort_index().to_numpy() for name in ("id", "issue_ns")
    ]
    # Fewer backward steps leave fewer calls to search.
    place = min(places, key=lambda each: np.count_nonzero(each[first] >= each[then]))
    backward = place[first] >= place[then]
    if not backward.any():
        return {}
    inside = _covered_by(place, place[then[backward]], place[first[backward]])
    in_span = inside[first] & inside[then]
    edges: Edges = {}
    for a, b, rank in zip(first[in_span], then[in_span], ranks[in_span], strict=True):
        edges.setdefault(int(a), {}).setdefault(int(b), []).append(int(rank))
    return edges


def _covered_by(values: np.ndarray, lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
    """Return a mask of the values that lie in one of the closed intervals."""
    begun = np.searchsorted(np.sort(lows), values, side="right")
    ended = np.searchsorted(np.sort(highs), values, side="left")
    # A value is inside if more intervals have begun at it than have ended before it.
    return begun > ended


def _turns(edges: Edges, cycle: list[int]) -> list[tuple[int, int, int]]:
    """Return the cycle as (from, to, rank), merging consecutive steps that one rank makes."""
    turns: list[tuple[int, int, int]] = []
    common: set[int] = set()
    for at, then in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        ranks = set(edges[at][then])
        if turns and common & ranks:
            common &= ranks
            turns[-1] = (turns[-1][0], then, min(common))
        else:
            common = ranks
            turns.append((at, then, min(common)))
    return turns


def _problem(
    covered: Coverage, edges: Edges, cycle: list[int], involved: pd.DataFrame, num: int
) -> Problem:
    turns = _turns(edges, cycle)
    first = involved.drop_duplicates("node").set_index("node")

    def name(node: int) -> str:
        call = first.loc[node]
        group = str(call["group"])
        axis = covered.axes.get(group, "")
        return call_text(str(call["kind"]), int(call["number"]), group, axis)

    blamed, usual = _minority(involved, turns)
    orders = [f"rank {rank} makes {name(a)} before {name(b)}" for a, b, rank in turns]
    text = f"Calls of different groups are made in orders that can deadlock: {'; '.join(orders)}."
    if blamed:
        text += f" Most ranks use the order of rank {usual[0]}; {text_of_ranks(blamed)} differs."
    if num > 1:
        text += f" The same groups are crossed {num} times in the run."
    call = first.loc[turns[0][0]]
    concerned = {rank for *_, rank in turns}
    rank = min(blamed or concerned)
    source = involved[involved["rank"] == rank]
    group = str(call["group"])
    return Problem(
        problem="order",
        is_fault=True,
        group=group,
        mesh_axis=covered.axes.get(group, ""),
        number=int(call["number"]),
        ranks=numbers_text(blamed),
        found="; ".join(orders),
        source=source_of((source if len(source) else involved).iloc[0]),
        explanation=text,
        at_ns=int(involved["issue_ns"].min()),
    )


def _minority(
    calls: pd.DataFrame, turns: list[tuple[int, int, int]]
) -> tuple[list[int], list[int]]:
    """Split the ranks that make two crossed calls into those of the rarer order, and the others."""
    if len(turns) != 2:
        return [], []
    a, b = turns[0][:2]
    places = calls[calls["node"].isin([a, b])].pivot_table(
        index="rank", columns="node", values="id", aggfunc="min"
    )
    both = places.dropna()
    orders = [both.index[both[a] < both[b]].tolist(), both.index[both[a] > both[b]].tolist()]
    fewer, more = sorted(orders, key=len)
    return (fewer, more) if len(fewer) < len(more) else ([], [])
