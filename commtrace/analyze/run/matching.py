"""Matching of calls across ranks.

The members of a group issue the same collectives in the same order, so calls with equal group and
`number` form a collective. Point-to-point calls count in `seq` too, although only two ranks make
them; a collective's number does not count the transfers before it. A transfer is the nth send and
the nth recv between the same two ranks in a group, with the same tag unless the backend is NCCL,
which has no tags:

    rank 0    all_reduce 0    send to 1 (0)       all_reduce 1
    rank 1    all_reduce 0    recv from 0 (0)     all_reduce 1
    rank 2    all_reduce 0                        all_reduce 1

Calls that form a collective or a transfer have the same *match*, a number in the run. What several
ranks determine is computed once, as arrays with an entry for each match (`across_ranks`); each call
then takes the values of its match.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import wraps
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.run.cached_per_run import cached_per_run, of_each_call, of_each_part, of_run
from commtrace.analyze.run.frame import Frames, joined, texts_of
from commtrace.tracefile.collective_numbers import collective_numbers

SEND, RECV = "send", "recv"
TRANSFERS = (SEND, RECV)
NONE = -1


@cached_per_run
def is_transfer(frames: Frames) -> pd.Series:
    """Return a mask of the calls that are point-to-point."""
    return frames.comm["kind"].isin(TRANSFERS)


@of_run
@of_each_part
def _transfers(run: Frames) -> pd.DataFrame:
    """Return a row per `group source target tag` with transfers.

    Other columns are `num`, the number of matches, and `is_counted`, true if they count in `seq`.
    The other end is -1 if it is unknown.
    """
    every = joined(run.by_ranks(_transfers_of_part))
    return every.groupby(_END)[["num", "is_counted"]].max().reset_index()


def _transfers_of_part(part: Frames) -> pd.DataFrame:
    if not is_transfer(part).any():  # before further columns of a stored run are read
        return _NO_TRANSFERS
    ends = _ends_of(part)
    ends["is_counted"] = part.comm["seq"][ends["row"]].to_numpy() >= 0
    found = ends.groupby([*_END, "kind"])["is_counted"].agg(["size", "max"])
    found = found.set_axis(["num", "is_counted"], axis="columns")
    return found.groupby(level=_END).max().reset_index()


@of_each_call
def numbers(frames: Frames) -> pd.Series:
    """Return each call's number among its group's collectives; -1 for transfers and if unknown.

    In a group with transfers, it is unknown for all calls that a rank made after calls that the
    trace has lost.
    """
    comm, transfer = frames.comm, is_transfer(frames)
    every = _transfers(frames)
    shared = set(every["group"][every["is_counted"].astype(bool)])
    if not shared and not transfer.any():
        return comm["seq"].rename("number")
    groups = comm["group"].cat.codes.to_numpy().astype(np.int64)
    number = collective_numbers(
        comm["rank"].to_numpy().astype(np.int64) * (groups.max(initial=0) + 1) + groups,
        comm["seq"].to_numpy(),
        transfer.to_numpy(),
        comm["group"].isin(shared).to_numpy(),
    )
    return pd.Series(number, index=comm.index, name="number")


@dataclass(frozen=True, eq=False)
class Sections:
    """Matches of a run: each group has a section of them, and each pair of ranks with transfers.

    Attributes:
        groups: Names of the groups with collectives.
        begins: First match of each group.
        lowest: Lowest number of a collective in each group.
        distinct: By place in `groups`, the numbers of a group whose numbers are far apart.
        pairs: A row per `group source target tag` with transfers, with its first match `begin`.
        num: Number of matches.
        num_collectives: Number of them that are collectives, which come first.
    """

    groups: pd.Index
    begins: np.ndarray
    lowest: np.ndarray
    distinct: Mapping[int, np.ndarray]
    pairs: pd.DataFrame
    num: int
    num_collectives: int


_LEAST_SPARSE = 1 << 10
"""Number of matches that a group may have in any case, whatever the number of its calls."""


@of_run
def sections(run: Frames) -> Sections:
    """Return the sections of the run's matches."""
    extents = _extents(run).set_index("group")
    width = np.array(extents["highest"] - extents["lowest"])
    # A number is believed only if there are calls for it.
    is_sparse = width >= 4 * extents["num"].to_numpy() + _LEAST_SPARSE
    width += ~is_sparse
    distinct: dict[int, np.ndarray] = {}
    if is_sparse.any():
        names = tuple(extents.index[is_sparse])
        of_parts = run.by_ranks(_distinct_numbers, names)
        for place, name in zip(np.flatnonzero(is_sparse).tolist(), names, strict=True):
            distinct[place] = np.unique(np.concatenate([part[name] for part in of_parts]))
            width[place] = len(distinct[place])
    ends = np.cumsum(width)
    num = int(ends[-1]) if len(ends) else 0
    pairs = _transfers(run).drop(columns="is_counted")
    pairs = pairs[_is_known(pairs)].reset_index(drop=True)
    pairs = pairs.assign(begin=num + pairs["num"].cumsum() - pairs["num"])
    return Sections(
        groups=extents.index,
        begins=ends - width,
        lowest=extents["lowest"].to_numpy(),
        distinct=distinct,
        pairs=pairs.drop(columns="num"),
        num=num + int(pairs["num"].sum()),
        num_collectives=num,
    )


@of_run
@of_each_part
def _extents(run: Frames) -> pd.DataFrame:
    """Return `lowest` and `highest` number, and `num` calls, of the collectives of each group."""
    found = pd.concat(run.by_ranks(_extents_of_part)).groupby("group")
    return found.agg({"lowest": "min", "highest": "max", "num": "sum"}).reset_index()


def _extents_of_part(part: Frames) -> pd.DataFrame:
    number = numbers(part)
    of_groups = number[number >= 0].groupby(part.comm["group"], observed=True)
    table = of_groups.agg(lowest="min", highest="max", num="size")
    return table.set_axis(table.index.astype(object)).rename_axis("group")


def _distinct_numbers(part: Frames, groups: tuple[str, ...]) -> dict[str, np.ndarray]:
    number, group = numbers(part), part.comm["group"].astype(object)
    return {name: np.unique(number[(group == name) & (number >= 0)]) for name in groups}


def _ends_of(part: Frames) -> pd.DataFrame:
    comm = part.comm
    backends = part.groups["backend"].astype(object)
    untagged = part.groups.loc[backends.str.contains("nccl", case=False), "name"]
    return _ends(comm[is_transfer(part)], set(untagged.astype(object)))


def _is_known(ends: pd.DataFrame) -> pd.Series:
    """Return a mask of the rows whose both ends are known."""
    return (ends["source"] >= 0) & (ends["target"] >= 0)


@of_each_call
def matches(frames: Frames) -> pd.Series:
    """Return the match of each call; -1 if it is unknown."""
    every, comm = sections(frames), frames.comm
    number, group = numbers(frames).to_numpy(), comm["group"].cat
    of_categories = every.groups.get_indexer(group.categories.astype(object))
    place = of_categories[group.codes.to_numpy()] if len(comm) else number
    known = np.flatnonzero(number >= 0)
    found = np.full(len(comm), NONE)
    found[known] = number[known] + (every.begins - every.lowest)[place[known]]
    for each, distinct in every.distinct.items():
        of_group = known[place[known] == each]
        found[of_group] = every.begins[each] + np.searchsorted(distinct, number[of_group])
    if len(every.pairs):
        ends = _ends_of(frames)
        ends = ends[_is_known(ends)]
        begin = ends.merge(every.pairs, on=_END, how="left")["begin"].to_numpy()
        found[comm.index.get_indexer(pd.Index(ends["row"]))] = begin + ends["nth"].to_numpy()
    return pd.Series(found, index=comm.index, name="match")


def of_match(frames: Frames, values: np.ndarray, unknown: float) -> np.ndarray:
    """Return the entry of each call's match; `unknown` for calls without a match."""
    match = matches(frames).to_numpy()
    known = np.flatnonzero(match >= 0)
    taken = _taken(values, match[known])
    found = np.full(len(match), unknown, np.result_type(taken.dtype, type(unknown)))
    found[known] = taken
    return found


def _taken(values: np.ndarray, at: Any) -> np.ndarray:
    """Return entries; kept arrays have the smallest type in which their values fit."""
    found = values[at]
    return found.astype("int64") if found.dtype.kind == "i" else found


def are_of(frames: Frames, chosen: np.ndarray) -> np.ndarray:
    """Return a mask of the calls of some matches, which are in ascending order."""
    match = matches(frames).to_numpy()
    if not len(chosen):
        return np.zeros(len(match), dtype=bool)
    # A search, since there may be millions of them, the same for all parts.
    places = np.searchsorted(chosen, match).clip(max=len(chosen) - 1)
    return chosen[places] == match


def entries(arrays: Arrays, at: pd.Series) -> pd.DataFrame:
    """Return the entries of some calls' matches, by rows of table `comm`.

    Args:
        arrays: Arrays with an entry for each match.
        at: The match of each call, which is known.
    """
    return pd.DataFrame({name: _taken(values, at) for name, values in arrays.items()}, at.index)


Arrays = Mapping[str, np.ndarray]
"""Arrays by name, with an entry for each match of the run."""
NewArray = Callable[[int, Any, str], np.ndarray]
"""Takes length, value and type, as `numpy.full`."""


def first_of_groups(frames: Frames, chosen: np.ndarray) -> dict[str, int]:
    """Return the number of the first chosen collective of each group that has one.

    Args:
        frames: The run.
        chosen: Some of its matches, in ascending order; transfers are left out.
    """
    every = sections(frames)
    place = np.searchsorted(every.begins, chosen, side="right") - 1
    groups, firsts = np.unique(place[chosen < every.num_collectives], return_index=True)
    found: dict[str, int] = {}
    for group, offset in zip(groups.tolist(), chosen[firsts] - every.begins[groups], strict=True):
        distinct = every.distinct.get(group)
        number = every.lowest[group] + offset if distinct is None else distinct[offset]
        found[str(every.groups[group])] = int(number)
    return found


@dataclass(frozen=True, eq=False)
class AcrossRanks:
    """Arrays with an entry for each match, which the parts of a run fill in turn.

    Attributes:
        add: Adds the calls of a part to the arrays. The order of parts must not matter.
        fields: Entry of a match without calls, and type, by the name of each array. Those whose
            names begin with `_` are used on the way only. They must not depend on settings.
    """

    add: Callable[[Frames, Arrays], None]
    fields: Mapping[str, tuple[Any, str]]

    def arrays(self, run: Frames, new: NewArray = np.full) -> Arrays:
        """Return the arrays of a run."""
        num = sections(run).num
        found = {name: new(num, *field) for name, field in self.fields.items()}
        for part in run.parts_by_ranks():
            self.add(part, found)
        return {name: each for name, each in found.items() if not name.startswith("_")}


def across_ranks(
    **fields: tuple[Any, str],
) -> Callable[[Callable[[Frames, Arrays], None]], Callable[[Frames], Arrays]]:
    """Compute arrays with an entry for each match once; see `AcrossRanks`."""

    def decorate(add: Callable[[Frames, Arrays], None]) -> Callable[[Frames], Arrays]:
        facts = AcrossRanks(add, fields)
        in_memory = cached_per_run(facts.arrays)

        @wraps(add)
        def answer(frames: Frames) -> Arrays:
            return frames.whole.arrays_of(facts, in_memory)

        return answer

    return decorate


def put_alike(kept: np.ndarray, at: np.ndarray, values: np.ndarray, nothing: int) -> np.ndarray:
    """Put a value at each entry, and return a mask of those that differ from another one there.

    Args:
        kept: The entries.
        at: Place of each value.
        values: The values, which the calls of a match should have in common.
        nothing: Entry without a value.
    """
    before = kept[at]
    kept[at] = values
    return ((before != nothing) & (before != values)) | (kept[at] != values)


def codes_of_texts(values: pd.Series) -> np.ndarray:
    """Return a positive integer for each text of a categorical, the same in all parts of a run."""
    of_texts = [
        int.from_bytes(blake2b(str(text).encode(), digest_size=8).digest(), "big") >> 1 | 1
        for text in values.cat.categories
    ]
    return np.array([*of_texts, 1], dtype="int64")[values.cat.codes.to_numpy()]


@across_ranks(send=(NONE, "int64"), recv=(NONE, "int64"))
def ends_of_transfers(part: Frames, into: Arrays) -> None:
    """Rows in table `comm` of the send and of the recv of each transfer."""
    if not is_transfer(part).any():
        return
    match, kind = matches(part).to_numpy(), part.comm["kind"]
    for name in TRANSFERS:
        rows = np.flatnonzero((kind == name).to_numpy() & (match >= 0))
        into[name][match[rows]] = part.comm.index[rows]


@of_each_call
def partners(frames: Frames) -> pd.Series:
    """Return the row of table `comm` with the other end of each transfer; -1 if there is none."""
    ends, kind = ends_of_transfers(frames), frames.comm["kind"]
    found = np.full(len(kind), NONE)
    for name, other in (TRANSFERS, TRANSFERS[::-1]):
        rows = np.flatnonzero((kind == name).to_numpy() & (matches(frames).to_numpy() >= 0))
        if len(rows):
            found[rows] = ends[other][matches(frames).to_numpy()[rows]]
    return pd.Series(found, index=frames.comm.index, name="partner")


_END = ["group", "source", "target", "tag"]
_NO_TRANSFERS = pd.DataFrame(
    {"group": pd.Series(dtype=object)}
    | {name: pd.Series(dtype="int64") for name in (*_END[1:], "num")}
    | {"is_counted": pd.Series(dtype=bool)}
)


def _ends(transfers: pd.DataFrame, untagged: Collection[str]) -> pd.DataFrame:
    """Return row, group, kind and both ends of each transfer, and its number among equal transfers.

    Tags of groups in `untagged` do not count.
    """
    is_send = transfers["kind"] == SEND
    has_tag = ~transfers["group"].isin(untagged)
    ends = pd.DataFrame(
        {
            "group": transfers["group"].astype(object),
            "kind": transfers["kind"].astype(object),
            "source": np.where(is_send, transfers["rank"], transfers["peer"]),
            "target": np.where(is_send, transfers["peer"], transfers["rank"]),
            "tag": transfers["tag"].where(has_tag, NONE),
            "id": transfers["id"],
            "row": transfers.index,
        }
    ).sort_values("id", kind="stable")
    return ends.assign(nth=ends.groupby(["kind", *_END]).cumcount())


def group_numbers(frames: Frames) -> pd.Series:
    """Return the row in table `groups` of each call's group; -1 if it is not there.

    Unlike the codes of the categories, they are the same in all parts of a run.
    """
    group = frames.comm["group"].cat
    rows = pd.Index(frames.groups["name"].astype(object)).get_indexer(group.categories)
    return pd.Series(np.append(rows, -1)[group.codes], index=frames.comm.index)


def mesh_axes(frames: Frames, groups: pd.Series) -> pd.Series:
    """Return the axis of the DeviceMesh that owns each of these groups; empty if none is known."""
    axes = dict(zip(frames.groups["name"], frames.groups["mesh_axis"], strict=True))
    return texts_of(groups, lambda group: str(axes.get(group, "")))


@cached_per_run
def members(frames: Frames) -> pd.DataFrame:
    """Return a row per member of each group: `group`, `rank` and `position` in it."""
    groups = frames.groups[frames.groups["ranks"].astype(object) != ""]
    lists = groups["ranks"].astype(object).str.split(",")
    table = pd.DataFrame({"group": groups["name"].astype(object), "rank": lists}).explode("rank")
    table["position"] = table.groupby("group").cumcount()
    return table.astype({"rank": "int64", "group": object}).reset_index(drop=True)
