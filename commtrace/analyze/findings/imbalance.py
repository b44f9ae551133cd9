"""Imbalance of all-to-alls: hot ranks, hot experts, skewed sources, and experts without rows.

A load is high if it is `routing_ratio` times the mean or more, in most of the steps, and if it is
no chance of random routing (`sigmas` in `commtrace.analyze.experts.routing`). The last third of the
steps is judged on its own as well, so that a load that grows is found. If a rank's load is high:

    hot rank          all of its experts have a high load, or the program states none
    hot expert        some of its experts do
    skewed source     without the source that sends the most, the load is not high

A source that sends more than others is skewed, too. If no rank's load stays high, but in
most calls some rank's load is, the hot rank changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from commtrace.analyze.excerpts.excerpt import of_kinds
from commtrace.analyze.experts.exchanges import ALL_TO_ALL, ranks_of_experts
from commtrace.analyze.experts.routing import (
    ExchangePlace,
    Loads,
    calls_at,
    collectives,
    routing,
    sigmas,
    stretches,
)
from commtrace.analyze.findings.finding import EVEN, SHRINK, Evidence, Finding, Rule, calls_in
from commtrace.analyze.findings.needs import SPLITS
from commtrace.analyze.measures.census import census
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import members
from commtrace.schema import PHASES
from commtrace.units import text_of_ranks

SIGMAS = 6
"""Standard deviations of random routing above which the load of a run is no chance."""
MOST_STEPS = 0.6
"""Part of the steps in which a load is high; two ranks that are so in turn have a half each."""
STARVED = 0.05
"""Ratio to the mean below which an expert is taken to have no rows."""
MANY_CALLS = 0.5
"""Part of the calls in which the highest load stands out if the hot rank changes."""
LEAST_DRIFT = 0.2
"""Relative change of a load between the first and the last third of the steps."""

STABLE, GROWING, SHRINKING = "stable", "growing", "shrinking"


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank, an expert or a source with a load that is too high or too low.

    Attributes:
        kind: Key of `_KINDS`.
        ranks: The ranks concerned.
        experts: The experts concerned, of the ranks; none if it is no matter of experts.
        ratio: Its load relative to the mean; the highest, of several.
        drift: Change of the ratio over the steps; empty if there are too few.
        first: The ratio in the first third of the steps.
        last: The ratio in the last third.
        target: The rank that a skewed source sends to; -1 if none in particular.
    """

    kind: str
    ranks: tuple[int, ...]
    experts: tuple[int, ...]
    ratio: float
    drift: str = ""
    first: float = 0.0
    last: float = 0.0
    target: int = -1


def imbalance(frames: Frames) -> list[Finding]:
    """Loads of ranks, experts and sources that are far from even, a finding for each of a layer."""
    if not census(frames).kinds[ALL_TO_ALL]:
        return []
    ratio = frames.settings.threshold("routing_ratio")
    ranks_of = {name: rows["rank"].to_numpy() for name, rows in members(frames).groupby("group")}
    found: dict[tuple[object, ...], list[tuple[ExchangePlace, Culprit]]] = {}
    for place, loads in sorted(routing(frames, ratio).items()):
        for each in culprits(loads, ratio):
            ranks = ranks_of[place.group]
            named = replace(
                each,
                ranks=tuple(int(ranks[rank]) for rank in each.ranks),
                target=int(ranks[each.target]) if each.target >= 0 else -1,
            )
            layer = place.module or (place.source_file, place.source_line)
            key = (place.group, str(layer), each.kind, named.ranks, named.experts)
            found.setdefault(key, []).append((place, named))
    if not found:
        return []
    _attribute_to_experts(found)
    wanted = {key: frozenset(place for place, _ in each) for key, each in found.items()}
    parts = [_evidence(calls, wanted) for calls in of_kinds(frames, ALL_TO_ALL)]
    return [
        _finding(each, reduce(Evidence.joined, [part[key] for part in parts if key in part]))
        for key, each in found.items()
    ]


def _attribute_to_experts(
    found: dict[tuple[object, ...], list[tuple[ExchangePlace, Culprit]]],
) -> None:
    """Move hot ranks to the hot expert of the rank in the same layer.

    Only the dispatch of the forward pass states experts; the combine and the gradients carry the
    same rows.
    """
    for key in [key for key in found if key[2] == "hot_expert"]:
        of_rank = (*key[:2], "hot_rank", key[3], ())
        culprit = found[key][0][1]
        found[key] += [(place, culprit) for place, _ in found.pop(of_rank, [])]


def _evidence(
    part: Frames, wanted: dict[tuple[object, ...], frozenset[ExchangePlace]]
) -> dict[tuple[object, ...], Evidence]:
    """Return the calls of each finding; their share is the sum of mean / most bytes of a rank."""
    found: dict[tuple[object, ...], Evidence] = {}
    for key, places in wanted.items():
        at = [pair for made in collectives(part) for pair in calls_at(made, places)]
        if not at:
            continue
        rows = np.sort(np.concatenate([rows.ravel() for rows, _ in at]))
        even = sum(float(each.sum()) * rows_of.shape[1] for rows_of, each in at)
        found[key] = calls_in(part, part.comm.loc[rows], cost_bytes=0.0, share=even)
    return found


def culprits(loads: Loads, ratio: float) -> Iterator[Culprit]:
    """Yield the culprits of an uneven all-to-all; ranks are positions in the group.

    Args:
        loads: Its loads.
        ratio: Ratio to the mean from which on a load is high.
    """
    load, sends = stretches(loads.load), stretches(loads.sends)
    is_hot = high(load, loads.unit, ratio)
    is_skewed = high(sends, loads.unit, ratio)
    nearly = (1 + ratio) / 2
    from_one = {
        rank: source
        for rank in np.flatnonzero(is_hot).tolist()
        if (source := _only_source(loads.pairs, rank, nearly)) >= 0
    }
    is_hot[[*from_one]] = False
    for rank, source in from_one.items():
        if not is_skewed[source]:
            yield _culprit("skewed_source", (source,), load, rank, loads.unit, target=rank)
    for rank in np.flatnonzero(is_skewed).tolist():
        target = next((to for to, source in from_one.items() if source == rank), -1)
        yield _culprit("skewed_source", (rank,), sends, rank, loads.unit, target=target)
    hot_ranks = set(np.flatnonzero(is_hot).tolist())
    hot_experts: list[int] = []
    if loads.experts:
        experts = stretches(loads.experts)
        owners = ranks_of_experts(experts.shape[1], load.shape[1])
        is_hot_expert = high(experts, loads.unit, ratio)
        of_run = experts.sum(0) / max(experts.sum(0).mean(), 1)
        for rank in np.unique(owners[is_hot_expert]).tolist():
            own = np.flatnonzero(owners == rank)
            if rank in hot_ranks and len(own) > 1 and (of_run[own] >= nearly).all():
                continue  # all of its experts
            hot_ranks.discard(rank)
            hot_experts += own[is_hot_expert[own]].tolist()
        for expert in hot_experts:
            rank = int(owners[expert])
            yield _culprit("hot_expert", (rank,), experts, expert, loads.unit, (expert,))
    for rank in sorted(hot_ranks):
        yield _culprit("hot_rank", (rank,), load, rank, loads.unit)
    if hot_ranks or hot_experts or is_skewed.any() or from_one:
        return
    yield from _changing(loads, load)
    yield from _starved(loads, load)


def _only_source(pairs: np.ndarray, rank: int, nearly: float) -> int:
    """Return the source without which the load of a rank is not high; -1 if there is none."""
    if not pairs.size:
        return -1
    source = int(pairs[:, rank].argmax())
    others = pairs.sum(0) - pairs[source]
    return source if others[rank] < nearly * others.mean() else -1


def high(values: np.ndarray, unit: int, ratio: float) -> np.ndarray:
    """Return a mask of the columns of [stretch, column] values that are high in most stretches."""
    num = len(values)
    windows = [values, values[-(num // 3) :]] if num >= 6 else [values]
    found = np.zeros(values.shape[1], dtype=bool)
    for window in windows:
        total = window.sum(0)
        mean = window.mean(1, keepdims=True)
        used = window[mean[:, 0] > 0] / mean[mean[:, 0] > 0]
        if not len(used):
            continue
        often = (used >= (1 + ratio) / 2).mean(0) >= MOST_STEPS
        is_chance = sigmas(total, total.mean(), unit) < SIGMAS
        found |= (total >= ratio * total.mean()) & often & ~is_chance
    return found


def _changing(loads: Loads, load: np.ndarray) -> Iterator[Culprit]:
    """Yield the ranks that are hot in turn, if in most calls some rank is hot."""
    num_high = int(loads.hottest.sum())
    ranks = np.flatnonzero(loads.hottest >= max(0.1 * num_high, 1))
    if len(ranks) < 2 or num_high < max(MANY_CALLS * loads.num_calls, 2):
        return
    mean = load.mean(1)
    ratio = float((load.max(1)[mean > 0] / mean[mean > 0]).max())
    yield Culprit("changing_hot_rank", tuple(ranks.tolist()), (), ratio)


def _starved(loads: Loads, load: np.ndarray) -> Iterator[Culprit]:
    """Yield the experts to which hardly any row is sent; ranks, if experts are not stated."""
    values = stretches(loads.experts) if loads.experts else load
    owners = ranks_of_experts(values.shape[1], load.shape[1])
    total = values.sum(0)
    is_low = (total <= STARVED * total.mean()) & (
        sigmas(total, total.mean(), loads.unit) <= -SIGMAS
    )
    for place in np.flatnonzero(is_low).tolist():
        experts = (place,) if loads.experts else ()
        owner = (int(owners[place]),)
        yield _culprit("starved_expert", owner, values, place, loads.unit, experts)


def _culprit(
    kind: str,
    ranks: tuple[int, ...],
    values: np.ndarray,
    column: int,
    unit: int,
    experts: tuple[int, ...] = (),
    target: int = -1,
) -> Culprit:
    """Return a culprit with its ratio, and its drift over the steps."""
    mean = values.mean(1)
    ratio = float(values[:, column].sum() / mean.sum())
    each = values[mean > 0, column] / mean[mean > 0]
    third = len(each) // 3
    if third < 2:
        return Culprit(kind, ranks, experts, ratio, target=target)
    first, last = float(each[:third].mean()), float(each[-third:].mean())
    # Of a count of `rows`, the ratio has the relative standard deviation 1 / sqrt(rows).
    rows = max(values[:, column].sum() / max(unit, 1) * third / len(each), 1)
    noise = 4 * ratio * np.sqrt(2 / rows)
    changed = abs(last - first) > max(LEAST_DRIFT * max(first, last), noise)
    drift = (GROWING if last > first else SHRINKING) if changed else STABLE
    return Culprit(kind, ranks, experts, ratio, drift, first, last, target)


def _finding(found: Sequence[tuple[ExchangePlace, Culprit]], calls: Evidence) -> Finding:
    place, culprit = max(found, key=lambda each: each[1].ratio)
    title, advice = _KINDS[culprit.kind]
    phases = [name for name in PHASES if name in {each.phase for each, _ in found}]
    layer = place.module or f"{place.source_file or 'an unknown line'}:{place.source_line}"
    where = f"{layer}{f', in {_and(phases)}' if phases else ''}"
    return Finding(
        title=f"{title(culprit)} in {where}{_drift_text(culprit)}.",
        advice=advice,
        calls=calls,
        module=place.module,
        # The most that a rank receives determines how long all take, and how long it computes.
        cure=f"{SHRINK} *{calls.share / len(calls.rows):.4g}; {EVEN}",
    )


def _drift_text(culprit: Culprit) -> str:
    if culprit.drift in (GROWING, SHRINKING):
        return f"; {culprit.drift} from {culprit.first:.2g} to {culprit.last:.2g} over the steps"
    return f"; {STABLE} over the steps" if culprit.drift else ""


def _and(words: Sequence[str]) -> str:
    return " and ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} and {words[-1]}"


def _hot_rank(of: Culprit) -> str:
    return f"Hot rank {of.ranks[0]}: it receives {of.ratio:.2g} times the mean of the ranks"


def _hot_expert(of: Culprit) -> str:
    return (
        f"Hot expert {of.experts[0]} on rank {of.ranks[0]}: it receives {of.ratio:.2g} times the "
        "mean of the experts"
    )


def _skewed_source(of: Culprit) -> str:
    if of.target >= 0:
        return (
            f"Skewed source rank {of.ranks[0]}: it sends mostly to rank {of.target}, up to "
            f"{of.ratio:.2g} times the mean of the ranks"
        )
    return f"Skewed source rank {of.ranks[0]}: it sends {of.ratio:.2g} times the mean of the ranks"


def _changing_hot_rank(of: Culprit) -> str:
    return (
        f"Changing hot ranks: in most calls, one of {text_of_ranks(of.ranks)} receives up to "
        f"{of.ratio:.2g} times the mean of the ranks"
    )


def _starved_expert(of: Culprit) -> str:
    expert = f"expert {of.experts[0]} on" if of.experts else "experts of"
    return f"Starved {expert} rank {of.ranks[0]}: {of.ratio:.1%} of the mean arrives there"


_KINDS: dict[str, tuple[Callable[[Culprit], str], str]] = {
    "hot_rank": (
        _hot_rank,
        "Place the experts of this rank on several ranks, or balance the router: an auxiliary "
        "loss, a bias per expert, a capacity.",
    ),
    "hot_expert": (
        _hot_expert,
        "Balance the router (an auxiliary loss, a bias per expert, a capacity), or replicate the "
        "expert on several ranks.",
    ),
    "skewed_source": (
        _skewed_source,
        "Give each rank as many tokens, in batches of equal length, and tokens of all sorts.",
    ),
    "changing_hot_rank": (
        _changing_hot_rank,
        "Balance the router within a batch: an auxiliary loss over a batch, or a capacity; larger "
        "or better mixed batches.",
    ),
    "starved_expert": (
        _starved_expert,
        "Check the router's initialization and its balancing loss; an expert without rows is not "
        "trained.",
    ),
}
"""Beginning of the title, and advice, by kind of culprit."""

IMBALANCE = Rule(
    "imbalance",
    "a hot rank, a hot expert or a skewed source of all-to-alls",
    imbalance,
    (SPLITS,),
)
