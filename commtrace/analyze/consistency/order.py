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
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from commtrace.analyze.consistency.coverage import INSPECTOR, Coverage, source_of
from commtrace.analyze.consistency.deadlock_cycle import components, graph_of, shortest_cycle
from commtrace.analyze.consistency.numbered import CollectiveKey, calls_of, numbered
from commtrace.analyze.consistency.problem import Problem, call_text, numbers_text
from commtrace.analyze.measures.covered import ends_of_parts
from commtrace.analyze.run.frame import Frames, in_order
from commtrace.analyze.run.matching import Arrays, across_ranks, entries, matches
from commtrace.units import text_of_ranks

_PLACES = ("id", "issue_ns")
"""Columns whose highest value over a collective's members is its place."""

Edges = dict[int, dict[int, list[int]]]
"""For each call, its direct successors, and the ranks on which they follow it."""


def crossed_orders(
    frames: Frames, covered: Coverage, until: Mapping[str, int]
) -> Iterator[Problem]:
    """Yield a problem for each set of groups with crossed calls, at the first such place.

    Args:
        frames: The run.
        covered: How far its calls can be compared.
        until: By group, the number from which on its calls are not comparable; they are left out.
    """
    if covered.imported_from == INSPECTOR:  # which does not show in what order calls were made
        return
    keys, edges = _backward_edges(frames, until)
    if not edges:
        return
    graph = graph_of((at, then) for at, after in edges.items() for then in after)
    crossing = components(graph)
    calls = calls_of(frames, {keys[node] for component in crossing for node in component})
    numbers = {key: node for node, key in enumerate(keys)}
    calls["node"] = [numbers[key] for key in zip(calls["group"], calls["number"], strict=True)]
    place = calls.groupby("node")["issue_ns"].max()
    seen: Counter[frozenset[str]] = Counter()
    first_of: dict[frozenset[str], tuple[list[int], pd.DataFrame]] = {}
    for component in sorted(crossing, key=lambda nodes: min(place[each] for each in nodes)):
        involved = calls[calls["node"].isin(list(component))]
        groups = frozenset(involved["group"].astype(object))
        seen[groups] += 1
        if groups not in first_of:
            first = min(component, key=lambda each: (place[each], each))
            cycle = shortest_cycle(graph.subgraph(component), first)
            first_of[groups] = (cycle, involved)
    for groups, (cycle, involved) in first_of.items():
        yield _problem(covered, edges, cycle, involved, seen[groups])


@across_ranks(id=(-1, "int64"), issue_ns=(-1, "int64"))
def _places(part: Frames, into: Arrays) -> None:
    """Highest `id` and `issue_ns` of the members of each collective."""
    calls = numbered(part)
    for name in _PLACES:
        np.maximum.at(into[name], matches(part)[calls.index], calls[name])


def _backward_edges(frames: Frames, until: Mapping[str, int]) -> tuple[list[CollectiveKey], Edges]:
    """Return the edges between calls that can be part of a cycle, and the collective of each."""
    backward = _joined(frames.by_ranks(_backward_spans, until, fold=_joined))
    # Fewer backward steps leave fewer calls to search.
    name = min(_PLACES, key=lambda each: backward[each][0])
    num_steps, spans = backward[name]
    if not num_steps:
        return [], {}
    steps = pd.concat(frames.by_ranks(_steps_within, until, name, spans))
    numbers: dict[CollectiveKey, int] = {}
    edges: Edges = {}
    for first, first_number, then, then_number, rank in steps.itertuples(index=False, name=None):
        a, b = (
            numbers.setdefault(key, len(numbers))
            for key in ((first, int(first_number)), (then, int(then_number)))
        )
        edges.setdefault(a, {}).setdefault(b, []).append(int(rank))
    return [*numbers], edges


def _steps(frames: Frames, until: Mapping[str, int]) -> tuple[pd.DataFrame, np.ndarray]:
    """Return calls in the order of each thread, and the places of calls with a successor."""
    calls = numbered(frames)
    if until:
        limit = calls["group"].astype(object).map(until).astype("float64")
        calls = calls[limit.isna() | (calls["number"] < limit)]
    ordered = in_order(calls[["rank", "thread", "id", "group", "number"]], ["rank", "thread", "id"])
    is_followed = np.ones(max(len(ordered) - 1, 0), dtype=bool)
    for name in ("rank", "thread"):
        values = ordered[name].to_numpy()
        is_followed &= values[:-1] == values[1:]
    return ordered, np.flatnonzero(is_followed)


_Spans = dict[str, tuple[int, np.ndarray]]
"""By the name of a place, the number of backward steps, and the union of their spans."""


def _backward_spans(frames: Frames, until: Mapping[str, int]) -> _Spans:
    """Return the backward steps of some ranks, each from its lowest to its highest place."""
    ordered, first = _steps(frames, until)
    places = entries(_places(frames), matches(frames)[ordered.index])
    found = {}
    for name in _PLACES:
        place = places[name].to_numpy()
        high, low = place[first], place[first + 1]
        spans = np.stack([low, high], axis=1)[high >= low]
        found[name] = len(spans), merged_spans(spans)
    return found


def _joined(parts: list[_Spans]) -> _Spans:
    return {
        name: (
            sum(part[name][0] for part in parts),
            merged_spans(np.concatenate([part[name][1] for part in parts])),
        )
        for name in _PLACES
    }


def _steps_within(
    frames: Frames, until: Mapping[str, int], name: str, spans: np.ndarray
) -> pd.DataFrame:
    """Return the steps with both places in any of some disjoint spans, as pairs of collectives."""
    ordered, at = _steps(frames, until)
    is_inside = _covered_by(spans, _places(frames)[name][matches(frames)[ordered.index]])
    at = at[is_inside[at] & is_inside[at + 1]]
    first, then = ordered.iloc[at], ordered.iloc[at + 1]
    return pd.DataFrame(
        {
            "first": first["group"].astype(object).to_numpy(),
            "first_number": first["number"].to_numpy(),
            "then": then["group"].astype(object).to_numpy(),
            "then_number": then["number"].to_numpy(),
            "rank": first["rank"].to_numpy(),
        }
    )


def merged_spans(spans: np.ndarray) -> np.ndarray:
    """Return the union of closed intervals as disjoint intervals in order, `[low, high]` each.

    >>> merged_spans(np.array([[5, 9], [1, 3], [2, 4]])).tolist()
    [[1, 4], [5, 9]]
    """
    if not len(spans):
        return spans
    ordered = spans[np.argsort(spans[:, 0], kind="stable")]
    reached = np.maximum.accumulate(ordered[:, 1])
    firsts, lasts = ends_of_parts(ordered[1:, 0] > reached[:-1])
    return np.stack([ordered[firsts, 0], reached[lasts]], axis=1)


def _covered_by(spans: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a mask of the values that lie in any of some disjoint closed intervals."""
    place = np.searchsorted(spans[:, 0], values, side="right") - 1
    return (place >= 0) & (values <= spans[place, 1])


def _turns(edges: Edges, cycle: list[int]) -> list[tuple[int, int, int]]:
    """Return the cycle as (from, to, rank), merging consecutive steps of the same rank."""
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
        named = covered.names.get(group, "")
        return call_text(str(call["kind"]), int(call["number"]), group, named)

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
    """Return the ranks that make two crossed calls in the rarer order, and in the usual order."""
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
