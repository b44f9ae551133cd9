"""Loads of ranks, experts and sources in each all-to-all of a program, summed over the run.

An all-to-all of the program is an `ExchangePlace`: group, module, phase, direction and line. Its
loads cover all of its calls, in at most `MOST_STRETCHES` consecutive stretches of steps. A combine
is counted like its dispatch: a load is what arrives at the experts of a rank.

    load     [stretch, rank]      bytes for the rank, from all sources
    sends    [stretch, rank]      bytes of the rank as a source, to all
    experts  [stretch, expert]    bytes for each expert, if every call states it

Only collectives with known splits of all members are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import numpy as np
import pandas as pd

from commtrace.analyze.excerpts.excerpt import of_kinds
from commtrace.analyze.experts.all_to_all_splits import PLACE
from commtrace.analyze.experts.exchanges import (
    ALL_TO_ALL,
    COMBINE,
    carries_rows,
    directions,
    exchanges,
)
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import members, numbers

MOST_STRETCHES = 48
MOST_PAIRED = 64
"""Number of ranks of a group up to which bytes are kept from rank to rank."""
SIGMAS_OF_CALL = 4.5
"""Standard deviations of random routing above which a single call's load is not due to chance."""


class ExchangePlace(NamedTuple):
    """An all-to-all of the program."""

    group: str
    module: str
    phase: str
    source_file: str
    source_line: int
    direction: int


@dataclass(slots=True)
class Loads:
    """Loads of an all-to-all, added up over parts of a run.

    Attributes:
        load: By stretch of steps, bytes for each rank.
        sends: By stretch, bytes of each source.
        experts: By stretch, bytes for each expert; empty if a call does not state them.
        pairs: [source, target] Bytes over the run; empty in large groups.
        unit: Largest size that divides all splits, at least the size of a row.
        num_calls: Number of collectives.
        hottest: For each rank, the collectives in which it has the highest load, which stands out.
    """

    load: dict[int, np.ndarray]
    sends: dict[int, np.ndarray]
    experts: dict[int, np.ndarray]
    pairs: np.ndarray
    unit: int
    num_calls: int
    hottest: np.ndarray

    def joined(self, other: Loads) -> Loads:
        """Return the loads of both."""
        has_experts = bool(self.experts and other.experts)
        return Loads(
            load=_added(self.load, other.load),
            sends=_added(self.sends, other.sends),
            experts=_added(self.experts, other.experts) if has_experts else {},
            pairs=self.pairs + other.pairs,
            unit=int(np.gcd(self.unit, other.unit)),
            num_calls=self.num_calls + other.num_calls,
            hottest=self.hottest + other.hottest,
        )


def _added(one: dict[int, np.ndarray], other: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    if {len(each) for each in one.values()} != {len(each) for each in other.values()}:
        return {}  # another number of experts
    return {
        key: sum((each[key] for each in (one, other) if key in each), np.float64(0))
        for key in one.keys() | other.keys()
    }  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, slots=True)
class RoutedCollectives:
    """Collectives that all members of a group made, with the same number of experts.

    Attributes:
        first: The call of the first member of each.
        rows: [collectives, ranks] Labels of the calls in table `comm`.
        amounts: [collectives, source, target] Bytes, transposed for a combine.
        experts: [collectives, experts] Bytes for each expert; None if not stated.
        direction: [collectives] Direction that most members have found.
    """

    first: pd.DataFrame
    rows: np.ndarray
    amounts: np.ndarray
    experts: np.ndarray | None
    direction: np.ndarray
    places: dict[ExchangePlace, np.ndarray] = field(default_factory=dict)
    """Numbers of the collectives of each place."""


@cached_per_run
def collectives(part: Frames) -> list[RoutedCollectives]:
    """Return the exchanges of a part with all members' calls of some collectives."""
    every = exchanges(part)
    every = every[np.array([each.sent is not None for each in every], dtype=bool)]
    calls = part.comm.loc[every.index, [*PLACE, "rank", "step", "source_spec", "dtype"]]
    calls = calls.assign(number=numbers(part)[calls.index], exchange=every)
    calls = calls.assign(direction=directions(part)[calls.index])
    calls = calls[(calls["number"] >= 0) & carries_rows(calls)]
    calls = calls.astype(dict.fromkeys(PLACE[:4], object)).reset_index(names="row")
    calls = calls.merge(members(part), on=["group", "rank"]).sort_values(["number", "position"])
    sizes = members(part).groupby("group").size()
    found = []
    for group, of_group in calls.groupby("group"):
        size = int(sizes[group])
        is_full = of_group.groupby("number")["position"].transform("nunique") == size
        is_full &= of_group.groupby("number")["position"].transform("size") == size
        whole = of_group[is_full]
        if size < 2 or whole.empty:
            continue
        stated = whole["exchange"].map(
            lambda each: 0 if each.experts is None else len(each.experts)
        )
        least, most = (stated.groupby(whole["number"]).transform(each) for each in ("min", "max"))
        num_experts = most.where(least == most, 0)
        found += [
            _collectives(rows, size, int(num))  # type: ignore[call-overload]
            for num, rows in whole.groupby(num_experts.to_numpy())
        ]
    return found


def _collectives(calls: pd.DataFrame, size: int, num_experts: int) -> RoutedCollectives:
    given = calls["exchange"].tolist()
    amounts = np.stack([each.sent for each in given]).reshape(-1, size, size).astype("float64")
    of_calls = calls["direction"].to_numpy().reshape(-1, size)
    counts = np.stack([(of_calls == each).sum(1) for each in range(COMBINE + 1)], axis=1)
    direction = counts.argmax(1)
    amounts = np.where((direction == COMBINE)[:, None, None], amounts.swapaxes(1, 2), amounts)
    experts = None
    if num_experts:
        stated = np.stack([each.experts * float(each.row_bytes) for each in given])
        experts = stated.reshape(-1, size, num_experts).sum(1)
    first = calls.iloc[::size].reset_index(drop=True)
    made = RoutedCollectives(
        first, calls["row"].to_numpy().reshape(-1, size), amounts, experts, direction
    )
    by_place: dict[ExchangePlace, list[int]] = {}
    facts = first[[*PLACE]].itertuples(index=False, name=None)
    for number, (values, way) in enumerate(zip(facts, direction.tolist(), strict=True)):
        by_place.setdefault(ExchangePlace._make((*values, way)), []).append(number)
    made.places.update({place: np.asarray(chosen) for place, chosen in by_place.items()})
    return made


def routing(frames: Frames, ratio: float) -> dict[ExchangePlace, Loads]:
    """Return the loads of each all-to-all of a run.

    Args:
        frames: The run.
        ratio: Ratio to the mean from which the load of a single call is high.
    """
    last = int(frames.steps["step"].max()) if len(frames.steps) else 0
    width = -(-(last + 1) // MOST_STRETCHES)
    return _all_of([_of_calls(calls, width, ratio) for calls in of_kinds(frames, ALL_TO_ALL)])


def _all_of(parts: list[dict[ExchangePlace, Loads]]) -> dict[ExchangePlace, Loads]:
    return reduce(_both, parts, {})


def _both(
    one: dict[ExchangePlace, Loads], other: dict[ExchangePlace, Loads]
) -> dict[ExchangePlace, Loads]:
    common = {place: loads.joined(other[place]) for place, loads in one.items() if place in other}
    return one | other | common


def _of_calls(part: Frames, width: int, ratio: float) -> dict[ExchangePlace, Loads]:
    found: dict[ExchangePlace, Loads] = {}
    for made in collectives(part):
        for place, chosen in made.places.items():
            loads = _loads(made, chosen, width, ratio)
            found[place] = found[place].joined(loads) if place in found else loads
    return found


def _loads(made: RoutedCollectives, chosen: np.ndarray, width: int, ratio: float) -> Loads:
    amounts = made.amounts[chosen]
    load, size = amounts.sum(1), amounts.shape[1]
    stretch = made.first["step"].to_numpy()[chosen] // width
    units = np.gcd.reduce(amounts.astype("int64"), axis=(1, 2))
    is_high = load.max(1) >= ratio * load.mean(1)
    is_high &= sigmas(load.max(1), load.mean(1), units) >= SIGMAS_OF_CALL
    return Loads(
        load=_by(stretch, load),
        sends=_by(stretch, amounts.sum(2)),
        experts=_by(stretch, made.experts[chosen]) if made.experts is not None else {},
        pairs=amounts.sum(0) if size <= MOST_PAIRED else np.zeros((0, 0)),
        unit=int(np.gcd.reduce(units)),
        num_calls=len(chosen),
        hottest=np.bincount(load.argmax(1)[is_high], minlength=size),
    )


def _by(stretch: np.ndarray, values: np.ndarray) -> dict[int, np.ndarray]:
    return {int(each): values[stretch == each].sum(0) for each in np.unique(stretch)}


def sigmas(amount: np.ndarray, mean: np.ndarray, unit: np.ndarray | int) -> np.ndarray:
    """Return by how many standard deviations amounts differ from the mean of random routing.

    Rows that are routed independently are counts whose variance is at most their mean, and the
    square root of such a count has the standard deviation 1/2.
    """
    rows = np.maximum(unit, 1)
    return 2 * (np.sqrt(amount / rows) - np.sqrt(mean / rows))


def stretches(values: dict[int, np.ndarray]) -> np.ndarray:
    """Return [stretch, ...] values in order of time."""
    return np.stack([values[key] for key in sorted(values)])


def calls_at(
    made: RoutedCollectives, places: frozenset[ExchangePlace]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the calls of some places: rows [n, ranks], and mean / most bytes of a rank [n]."""
    for place, chosen in made.places.items():
        if place in places:
            load, sends = (made.amounts[chosen].sum(axis) for axis in (1, 2))
            highest = np.maximum(load.max(1), sends.max(1))
            even = np.divide(load.mean(1), highest, np.ones(len(load)), where=highest > 0)
            yield made.rows[chosen], even
