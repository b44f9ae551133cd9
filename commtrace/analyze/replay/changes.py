"""Changes of a run by their text, and what they do to its graph of work.

    compute *0.5 where rank=2              work of ranks, modules or operators takes half as long
    latency 5us where mesh_axis=dp         each transfer's latency, or its factor
    bandwidth *2 where kind=all_gather     bytes per second of transfers, or their busbw
    payload *0.5 where dtype=float32       size of messages
    shrink *0.5 where kind=all_reduce      time of transfers
    remove where source_line=41            the calls and their waits
    async where kind=all_reduce            waits where the results are first used
    earlier where module~layers            issued when their data is ready
    overlap where finding=1                both
    merge where source_line=57             calls in a row as one, before a result of them is used
    merge 2 where carries=gradients        each two of them
    balance                                no rank is slower than the median of its peers
    usual where step=7                     the same at each of these collectives by itself
    even where kind=all_to_all             work moves between ranks until they have equally much
    cores                                  no thread waits for a core
    batch *2                               steps have twice the samples; times are for as many
    group_size *2 where mesh_axis=dp       groups have twice as many ranks
    node_size 8                            nodes have 8 ranks

A condition is one of `commtrace dump --where`, of table `comm` or, of `compute`, of `ops` or
`kernels`. `VERBS` has a row for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commtrace.analyze.replay import transfer_verbs, verbs
from commtrace.analyze.replay.context import Change, Context
from commtrace.analyze.replay.draft import Draft, distinct
from commtrace.analyze.replay.graph import WorkGraph
from commtrace.analyze.run.frame import Frames
from commtrace.errors import UsageError, unknown_name
from commtrace.units import bytes_per_s_of_text, ns_of_text

FINDING = "finding"
_FORM = re.compile(r"\s*(\w*)\s*(.*?)\s*(?:\bwhere\b\s*(.*))?", re.DOTALL | re.IGNORECASE)
_FACTOR = re.compile(r"([*×x/])\s*(\d+(?:\.\d+)?(?:e-?\d+)?)")
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)
_MOST_FACTOR = 1e6
_MOST_NS = float(1 << 62)


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """A changed graph.

    Attributes:
        graph: The graph.
        removed: Rows of table `comm` that it lacks.
        rows: Rows that were changed otherwise, or that come earlier for it.
        is_bound: True if it depends on a latency that is unknown.
        num_unknown: Number of calls for which the trace lacks what a change needs.
        samples: Samples of a step, as a multiple of those recorded.
    """

    graph: WorkGraph
    removed: np.ndarray
    rows: np.ndarray
    is_bound: bool
    num_unknown: int
    samples: float


def separate(text: str) -> list[str]:
    """Return the texts of changes that `; ` separates.

    >>> separate("overlap; compute *0.5 where rank=0")
    ['overlap', 'compute *0.5 where rank=0']
    """
    return _SEPARATOR.split(text)


def parsed(text: str) -> Change:
    """Return the change with a text.

    Raises:
        UsageError: There is no such change.
    """
    text = text.strip(" ;")
    verb, value, where = _FORM.fullmatch(text).groups()  # type: ignore[union-attr] - fits any text
    verb = verb.lower() if verb else ""
    if verb not in VERBS:
        raise unknown_name("change", _first(verb or text), VERBS)
    factor, amount = _value_of(text, verb, value)
    conditions = [each.strip() for each in _AND.split(where or "")] if where is not None else []
    if not all(conditions):
        raise UsageError(
            f"cannot use the change {text!r}",
            found="an empty condition",
            why="it would be of all calls, as without `where`",
            attempt=VERBS[verb].example,
        )
    if any(re.match(rf"{FINDING}\b", each) for each in conditions):
        raise UsageError(
            f"cannot use the change {text!r}",
            found=" and ".join(conditions),
            why=f"{FINDING} takes numbers of rows of table `findings`, from 1, and no other "
            "condition beside them",
            attempt=f"{verb} where {FINDING}=1, or {verb} where {FINDING}=1,3",
        )
    return Change(text, verb, factor, amount, tuple(conditions))


def _first(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


_MOST_SHOWN = 40


def _value_of(text: str, verb: str, value: str) -> tuple[float, float]:
    """Return the factor and the amount of a change; nan if it has none."""
    takes, nan = VERBS[verb].takes, float("nan")
    if not value and not (takes and VERBS[verb].needs_value):
        return nan, nan
    if FACTOR in takes and (found := _FACTOR.fullmatch(value)):
        number = float(found[2])
        factor = 1 / number if found[1] == "/" and number else number
        if 0 <= factor <= _MOST_FACTOR and (number or found[1] != "/"):
            return factor, nan
    if DURATION in takes and (duration := ns_of_text(value)) is not None:
        return nan, duration
    if COUNT in takes and re.fullmatch(r"\d{1,7}", value) and int(value):
        return nan, float(value)
    if SPEED in takes and (speed := bytes_per_s_of_text(value)):
        return nan, speed
    needs = " or ".join(takes) if takes else "no value"
    raise UsageError(
        f"cannot use the change {text!r}",
        found=repr(value) if value else "no value",
        why=f"{verb} takes {needs}",
        attempt=VERBS[verb].example,
    )


def changed(
    run: Frames, graph: WorkGraph, changes: Sequence[Change], latency_share: float = 0.0
) -> Changed:
    """Return a graph with changes, which are made in turn.

    Args:
        run: The run.
        graph: Its graph of work.
        changes: The changes.
        latency_share: Place of the latency between its bounds, from 0 to 1, where it is unknown.

    Raises:
        UsageError: A change names nothing in the run, contradicts one before it, or makes times
            too long.
    """
    given = Context(run, Draft(graph), latency_share)
    for change in changes:
        given.changed.append(VERBS[change.verb].apply(given, change))
    rows = distinct(*given.changed)
    draft = given.draft
    if draft.length[draft.is_kept].clip(min=0).sum(dtype="float64") > _MOST_NS:
        raise UsageError(
            f"cannot make the changes {'; '.join(each.text for each in changes)!r}",
            found="times that add up to more than a hundred years",
            why="instants are whole nanoseconds of 64 bits",
            attempt="smaller factors or durations",
        )
    lacking = distinct(*given.lacking)
    return Changed(draft.graph(), draft.removed, rows, given.is_bound, len(lacking), given.samples)


FACTOR, COUNT = "a factor from 0 to a million, such as *0.5 or /2", "a number such as 16"
DURATION, SPEED = "a duration, such as 5us or 2ms", "a speed, such as 50 GB/s or 400 Gbit/s"


@dataclass(frozen=True, slots=True)
class Verb:
    """A sort of change.

    Attributes:
        apply: Makes the change, and returns the rows of table `comm` that it changed.
        takes: Values that it takes, in words.
        example: A change of this sort.
        meaning: Its effect, in words.
        needs_value: It makes no sense without one.
    """

    apply: Callable[[Context, Change], Any]
    takes: tuple[str, ...]
    example: str
    meaning: str
    needs_value: bool = True


VERBS: dict[str, Verb] = {
    "compute": Verb(
        verbs.compute, (FACTOR,), "compute *0.5 where rank=2",
        "work of hosts, or kernels of devices, takes that many times as long",
    ),
    "latency": Verb(
        transfer_verbs.latency, (FACTOR, DURATION), "latency 5us where mesh_axis=dp",
        "latency of transfers",
    ),
    "bandwidth": Verb(
        transfer_verbs.bandwidth, (FACTOR, SPEED), "bandwidth *2 where kind=all_gather",
        "bytes per second of transfers, or their busbw",
    ),
    "payload": Verb(
        transfer_verbs.payload, (FACTOR,), "payload *0.5 where dtype=float32",
        "size of messages",
    ),
    "shrink": Verb(
        transfer_verbs.shrink, (FACTOR,), "shrink *0.5 where source_line=41",
        "transfers take that many times as long, latency and bytes alike",
    ),
    "remove": Verb(
        verbs.remove, (), "remove where source_line=41", "the calls do not happen, on any member",
    ),
    "async": Verb(
        verbs.asynchronous, (), "async where kind=all_reduce",
        "ranks wait for the calls where their results are first used",
    ),
    "earlier": Verb(
        verbs.earlier, (), "earlier where module~layers",
        "the calls are issued when their data is ready",
    ),
    "overlap": Verb(
        verbs.overlap, (), "overlap where kind=all_gather", "earlier and async together",
    ),
    "merge": Verb(
        verbs.merge, (COUNT,), "merge where source_line=57",
        "calls in a row become one, or each few, if no result of them is used in between",
        needs_value=False,
    ),
    "even": Verb(
        verbs.even, (), "even where step=7",
        "all members compute equally long before these collectives: work moves between them",
    ),
    "usual": Verb(
        verbs.usual, (), "usual where step=7",
        "no rank computes longer before these collectives than the median of their other members",
    ),
    "cores": Verb(verbs.cores, (), "cores", "no thread is ready to run without a core"),
    "batch": Verb(
        transfer_verbs.batch, (FACTOR,), "batch *2",
        "a step has that many times as many samples; times are for as many as before",
    ),
    "group_size": Verb(
        transfer_verbs.group_size, (FACTOR, COUNT), "group_size *2 where mesh_axis=dp",
        "groups have that many ranks, with messages of the same size; latency grows with the "
        "number of ranks or with its logarithm",
    ),
    "node_size": Verb(
        transfer_verbs.node_size, (COUNT,), "node_size 8",
        "nodes have that many ranks, in order; transfers that come to be within a node, or between "
        "nodes, take as long as the run's own of that sort",
    ),
    "balance": Verb(
        verbs.balance, (), "balance",
        "no rank computes longer than the median of its peers usually does",
    ),
}  # fmt: skip
_SEPARATOR = re.compile(rf"\s*;\s*(?=(?:{'|'.join(VERBS)})\b)", re.IGNORECASE)
