"""The first call of each group in which its members disagree.

These properties have to be equal: the kind, the reduction, the root, the element type, and the
payload, which `docs/bytes.md` defines so that it is equal on all members even of an uneven
all-gather. For collectives with per-rank sizes, other sizes are compared:

    all_to_all         total sent == total received; with splits, also for each pair of ranks
    gather, scatter    elements sent (received) by a member == elements in the root's slot

An unknown value agrees with everything. Ranks that differ from the majority are blamed; without a
majority, all of them are in doubt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.consistency.coverage import Coverage, coverage, source_of
from commtrace.analyze.consistency.departures import MOST_COMPARED, departures
from commtrace.analyze.consistency.exchanged import problem_of_splits, unmatched_splits
from commtrace.analyze.consistency.numbered import CollectiveKey, calls_of, numbered
from commtrace.analyze.consistency.problem import DIFFERENT, Problem, call_text, numbers_text
from commtrace.analyze.excerpts.excerpt import of_kinds
from commtrace.analyze.experts.exchanges import ALL_TO_ALL
from commtrace.analyze.measures.census import census
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import (
    Arrays,
    across_ranks,
    codes_of_texts,
    first_of_groups,
    matches,
    put_alike,
)
from commtrace.analyze.run.tensor_shapes import numels
from commtrace.collective_table import KINDS
from commtrace.device_kernels import UNKNOWN
from commtrace.units import text_of_bytes, text_of_ranks

KIND = "kind"
FIELDS = (KIND, "reduce_op", "root", "dtype", "size")
UNEVEN = tuple(name for name, kind in KINDS.items() if kind.is_uneven)
_MOST_ELEMENTS = 2**63
"""Exclusive upper bound on the number of elements of a tensor."""
_MONITORED = "monitored_barrier"
_NOT_KNOWN = ("", UNKNOWN)
"""Unknown kinds, reductions and types."""


@of_run
def first_disagreements(frames: Frames) -> dict[str, int]:
    """Return, by group, the number of the first call in which its members disagree.

    Calls in which only the reductions differ are left out: they end, and the calls after them
    correspond to each other.
    """
    return _firsts(frames)[0]


@of_run
def first_unlike_reductions(frames: Frames) -> dict[str, int]:
    """Return, by group, the number of the first call in which only the reductions differ."""
    return _firsts(frames)[1]


@of_run
def _firsts(frames: Frames) -> tuple[dict[str, int], dict[str, int]]:
    """Return the first numbers by group: of calls that differ, and of those in reductions only."""
    covered = coverage(frames)
    # The matches that differ are few, unlike all matches.
    differs = np.flatnonzero(_differences(frames)["differs"])
    kinds = [each for each in _WITH_SIZES if census(frames).kinds[each]]
    for calls in of_kinds(frames, *kinds) if kinds else ():
        made = numbered(calls)
        found = {*_rooted_sizes(covered, made), *_exchanged_sizes(covered, made)}
        found |= _unmatched_splits(covered, made)
        match = matches(calls)[made.index]
        keys = zip(made["group"].cat.codes, made["number"], strict=True)
        differs = np.union1d(differs, match[np.array([key in found for key in keys], dtype=bool)])
    of_reductions = np.flatnonzero(_differences(frames)["reductions_differ"])
    of_reductions = np.setdiff1d(of_reductions, differs)
    one, other = (first_of_groups(frames, each) for each in (differs, of_reductions))
    return dict(sorted(one.items())), dict(sorted(other.items()))


_WITH_SIZES = (ALL_TO_ALL, "gather", "scatter")
"""Kinds of collectives whose members may have other sizes."""


@across_ranks(
    **{f"_{field}": (0, "int64") for field in FIELDS},
    differs=(False, "bool"),
    reductions_differ=(False, "bool"),
)
def _differences(part: Frames, into: Arrays) -> None:
    """Collectives in which the members differ in a field but the reduction, or in that."""
    made = numbered(part)
    at = matches(part)[made.index].to_numpy()
    for field, values in _comparable(made).items():
        known = np.flatnonzero(values)
        is_unlike = put_alike(into[f"_{field}"], at[known], values[known], 0)
        kept = into["reductions_differ" if field == "reduce_op" else "differs"]
        kept[at[known[is_unlike]]] = True


def disagreements(
    frames: Frames, covered: Coverage, calls_that_differ: Collection[CollectiveKey]
) -> Iterator[Problem]:
    """Yield a problem for each field of these calls that differs between ranks."""
    if not calls_that_differ:
        return
    calls = calls_of(
        frames, {(group, number + i) for group, number in calls_that_differ for i in (0, 1)}
    )
    for group, number in sorted(calls_that_differ):
        yield from _of_call(frames, covered, calls[calls["group"] == group], group, number)


def _comparable(calls: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return each call's fields as numbers; 0 if unknown or not required to be equal."""
    fields = {
        name: np.where(calls[name].isin(_NOT_KNOWN), 0, codes_of_texts(calls[name]))
        for name in (KIND, "reduce_op", "dtype")
    }
    fields[KIND][_is_monitored(calls)] = -1
    fields["root"] = calls["root"].to_numpy().clip(-1) + 1
    size = calls["payload_bytes"].to_numpy().clip(-1, np.iinfo("int64").max - 1) + 1
    fields["size"] = np.where(calls["kind"].isin(UNEVEN), 0, size)
    return fields


def _totals(shapes: pd.Series) -> pd.Series:
    """Return the number of elements of all tensors of each row; nan if unknown."""
    totals = {text: sum(numels(text)) for text in shapes.unique() if text}
    known = {text: float(total) for text, total in totals.items() if total < _MOST_ELEMENTS}
    return shapes.astype(object).map(known).astype("float64")


def _exchanged_sizes(covered: Coverage, made: pd.DataFrame) -> set[tuple[int, int]]:
    """Return the all-to-alls that send and receive different totals."""
    calls = made[made["kind"] == ALL_TO_ALL]
    if calls.empty:
        return set()
    key = [calls["group"].cat.codes.rename("group"), calls["number"]]
    moved = pd.DataFrame(
        {"sent": _totals(calls["input_shapes"]), "received": _totals(calls["output_shapes"])}
    )
    totals = moved.groupby(key).agg(["sum", "count"])
    sizes = covered.reached.groupby("group").size()
    size = pd.Series(
        [sizes.get(calls["group"].cat.categories[code], 0) for code, _ in totals.index],
        index=totals.index,
    )
    complete = (totals["sent", "count"] == size) & (totals["received", "count"] == size)
    bad = totals.index[complete & (totals["sent", "sum"] != totals["received", "sum"])]
    return set(bad)


def _unmatched_splits(covered: Coverage, made: pd.DataFrame) -> set[tuple[int, int]]:
    """Return the all-to-alls in which a rank sends more or less than the receiver expects."""
    pairs = unmatched_splits(covered, made)
    codes = {name: code for code, name in enumerate(made["group"].cat.categories)}
    return {
        (codes[group], int(number))
        for group, number in zip(pairs["group"], pairs["number"], strict=True)
    }


def _rooted_sizes(covered: Coverage, made: pd.DataFrame) -> set[tuple[int, int]]:
    """Return the gathers and scatters in which a member's size differs from the root's slot."""
    calls = made[made["kind"].isin(["gather", "scatter"])]
    if calls.empty:
        return set()
    parts = rooted_parts(covered, calls)
    codes = {name: code for code, name in enumerate(made["group"].cat.categories)}
    bad = parts[parts["own"] != parts["roots"]]
    return {
        (codes[group], number) for group, number in zip(bad["group"], bad["number"], strict=True)
    }


def rooted_parts(covered: Coverage, calls: pd.DataFrame) -> pd.DataFrame:
    """Return, for each member of a gather or scatter, its size `own` and the root's slot `roots`.

    Sizes are numbers of elements. Calls with an unknown size at either end are left out.
    """
    is_gather = calls["kind"] == "gather"
    own = calls["input_shapes"].astype(object).where(is_gather, calls["output_shapes"])
    lists = calls["output_shapes"].astype(object).where(is_gather, calls["input_shapes"])
    table = pd.DataFrame(
        {
            "group": calls["group"].astype(object),
            "number": calls["number"],
            "rank": calls["rank"],
            "own": _totals(own),
        }
    )
    is_root = (calls["rank"] == calls["root"]) & (lists != "")
    roots = table.loc[is_root, ["group", "number"]]
    roots["roots"] = lists[is_root].map(lambda text: list(numels(text)))
    roots = roots.explode("roots")
    roots["position"] = roots.groupby(["group", "number"]).cumcount()
    roots = roots.merge(covered.reached[["group", "rank", "position"]], on=["group", "position"])
    return table.dropna(subset="own").merge(roots, on=["group", "number", "rank"])


def _of_call(
    frames: Frames, covered: Coverage, rows: pd.DataFrame, group: str, number: int
) -> Iterator[Problem]:
    calls = rows[rows["number"] == number].drop_duplicates("rank").set_index("rank").sort_index()
    kinds = Counter(_known(calls, KIND)) or Counter(calls["kind"])
    kind = kinds.most_common(1)[0][0]
    named = call_text(kind, number, group, covered.names.get(group, ""))
    at = int(calls["issue_ns"].min())
    for field in FIELDS[:1] if len(kinds) > 1 else FIELDS[1:]:
        if field == "size" and kind in UNEVEN:
            yield from _uneven(covered, rows[rows["number"] == number], kind, named, group, number)
            continue
        values = _known(calls, field)
        votes = Counter(values).most_common()
        if len(votes) < 2:
            continue
        has_majority, why = votes[0][1] > votes[1][1], ""
        if not has_majority and field == KIND and len(values) <= MOST_COMPARED:
            as_before, why = _as_before(frames, values)
            votes.sort(key=lambda vote: vote[0] != as_before)
            has_majority = bool(why)
        usual = values[values == votes[0][0]].index if has_majority else values.index[:0]
        blamed = values.index.difference(usual).tolist()
        expected = _text(field, votes[0][0]) if has_majority else ""
        found = "; ".join(
            f"{text_of_ranks(values[values == value].index.tolist())}: {_text(field, value)}"
            for value in sorted({values[rank] for rank in blamed}, key=str)
        )
        values_text = f"{named}: {found}" + (
            f"; the other {len(usual)}: {expected}" if expected else ""
        )
        hint = why or (_slipped(rows, number, blamed, usual.tolist()) if has_majority else "")
        yield Problem(
            problem=field,
            is_fault=True,
            group=group,
            mesh_axis=covered.axes.get(group, ""),
            number=number,
            ranks=numbers_text(blamed),
            is_one_of_ranks=not has_majority,
            expected=expected,
            found=found,
            source=source_of(calls.loc[blamed[0]]),
            explanation=f"The members differ in the {DIFFERENT[field]} of {values_text}." + hint,
            at_ns=at,
        )


def _as_before(frames: Frames, values: pd.Series) -> tuple[object, str]:
    """Return the only kind of a call that is made as in rounds before, and what others left.

    Args:
        frames: The run.
        values: Kind of the call by rank; no kind has a majority.
    """
    found = departures(frames, values.index.tolist())
    sure = {rank for rank, each in found.items() if each.is_left_out or each.is_altered}
    kept = values[~values.index.isin(found)]
    if kept.nunique() != 1 or set(values.index[values != kept.iloc[0]]) != sure:
        return None, ""
    return kept.iloc[0], "".join(f" Rank {rank} {found[rank].text()}." for rank in sorted(sure)[:1])


def _known(calls: pd.DataFrame, field: str) -> pd.Series:
    if field == "size":
        return calls.loc[calls["payload_bytes"] >= 0, "payload_bytes"]
    if field == "root":
        return calls.loc[calls["root"] >= 0, "root"]
    values = calls.loc[~calls[field].isin(_NOT_KNOWN), field].astype(object)
    return values.mask(_is_monitored(calls), _MONITORED) if field == KIND else values


def _is_monitored(calls: pd.DataFrame) -> pd.Series:
    """Return a mask of monitored barriers, which do not meet the barriers of other ranks."""
    native = calls["native_op"].cat
    return calls["native_op"].isin([each for each in native.categories if _MONITORED in each])


def _text(field: str, value: object) -> str:
    if field == "size":
        exact = int(value)  # type: ignore[call-overload]
        return f"{text_of_bytes(exact)} ({exact} bytes)" if exact >= 1000 else f"{exact} bytes"
    return f"rank {value}" if field == "root" else str(value)


def _uneven(
    covered: Coverage, calls: pd.DataFrame, kind: str, named: str, group: str, number: int
) -> Iterator[Problem]:
    first = calls.iloc[0]
    shared: dict[str, Any] = {
        "problem": "size",
        "is_fault": True,
        "group": group,
        "mesh_axis": covered.axes.get(group, ""),
        "number": number,
        "at_ns": int(calls["issue_ns"].min()),
    }
    if kind == ALL_TO_ALL:
        if wrong := problem_of_splits(covered, calls, named):
            blamed, texts = wrong
            source = source_of(calls[calls["rank"].isin(blamed)].iloc[0] if blamed else first)
            facts: dict[str, Any] = {**shared, **texts}
            yield Problem(**facts, ranks=numbers_text(blamed), source=source)
            return
        sent, received = (_totals(calls[f"{end}_shapes"]) for end in ("input", "output"))
        if len(sent.dropna()) == len(received.dropna()) and sent.sum() != received.sum():
            found = f"{sent.sum():.0f} elements sent, {received.sum():.0f} received"
            description = f"In {named}, the total sent differs from the total received: {found}."
            source = source_of(first)
            yield Problem(
                **shared, ranks="", expected="", found=found, source=source, explanation=description
            )
        return
    parts = rooted_parts(covered, calls)
    bad = parts[parts["own"] != parts["roots"]].sort_values("rank")
    if bad.empty:
        return
    root = int(calls["root"].max())
    one = bad.iloc[0]
    blamed = [root] if len(bad) > 1 and len(bad) >= len(parts) - 1 else bad["rank"].tolist()
    found = f"rank {one['rank']}: {one['own']:.0f} elements"
    expected = f"{one['roots']} elements"
    description = (
        f"In {named}, rank {one['rank']} has {one['own']:.0f} elements, but the root, rank {root}"
    )
    source = source_of(calls[calls["rank"] == blamed[0]].iloc[0])
    yield Problem(
        **shared,
        ranks=numbers_text(blamed),
        expected=expected,
        found=found,
        source=source,
        explanation=f"{description}, has {one['roots']} for it.",
    )


_SIGNATURE = [KIND, "reduce_op", "root", "dtype", "payload_bytes"]


def _slipped(nearby: pd.DataFrame, number: int, blamed: list[int], usual: list[int]) -> str:
    """Return a hint if the blamed ranks' calls are the others' calls shifted by one; else ""."""

    def made(rank: int, which: int) -> tuple[object, ...]:
        rows = nearby[(nearby["rank"] == rank) & (nearby["number"] == which)]
        return tuple(rows.iloc[0][_SIGNATURE]) if len(rows) else ()

    deviating, others = made(blamed[0], number), made(usual[0], number)
    if deviating and deviating == made(usual[0], number + 1):
        return f" It looks as if {text_of_ranks(blamed)} skipped this call."
    if others and others == made(blamed[0], number + 1) != made(usual[0], number + 1):
        return f" It looks as if {text_of_ranks(blamed)} made an extra call."
    return ""
