"""Decisions that join the recordings of all ranks: everything that a rank cannot know by itself.

    plan = plan_of(recordings, with_steps)  of all ranks: clocks, names of groups, source of steps
    tables = converted(spool, plan.ranks[3], strings)        of one rank at a time (see `merge`)

Ranks are in ascending order, whatever the order of the files. Their clocks are aligned (see
`clocks`): a spool states its monotonic clock (`boot`, the identity of the running system) and that
clock's offset from wall time. `run["missing_ranks"]` lists ranks without a spool. Group names that
denote several groups are disambiguated: groups of different ranks, or recreated ones (see
`generations`). `run["steps_from"]` is the source of the steps (see `steps`).

The plan needs the facts of each rank and its small tables. Its calls are read only if groups were
created again under the same name, or if ranks ran on several systems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from commtrace.errors import TraceError
from commtrace.event import GroupRow
from commtrace.schema import FAKE
from commtrace.tracefile.facts import WRITE_ERROR, WRITE_ERRORS
from commtrace.tracefile.joining.clocks import Alignment, align
from commtrace.tracefile.joining.generations import base_of, generations
from commtrace.tracefile.joining.split import CLOCK_ERROR, ONE_CLOCK
from commtrace.tracefile.joining.steps import STEPS_FROM, steps_from
from commtrace.tracefile.outline import OUTLINE_COLUMNS, SpoolOrOutline, rank_of
from commtrace.tracefile.sources import joined
from commtrace.tracefile.spool import Spool
from commtrace.tracefile.trace import Columns
from commtrace.units import text_of_duration, text_of_ranks

WithSteps = Callable[[int, str], Spool]
"""Returns the calls of a recording by its place, with the steps of a source."""

CALL_COLUMNS: Mapping[str, tuple[str, ...]] = {
    **OUTLINE_COLUMNS,
    "comm": ("rank", "id", "kind", "group", "seq", "issue_ns", "complete_ns", "step"),
    "ops": ("rank", "id", "start_ns", "step"),
    "fingerprints": ("rank", "id", "at_ns", "step"),
}
"""Columns of a spool that the plan may need, by table."""


@dataclass(frozen=True, slots=True)
class RankPlan:
    """Conversion of a rank's recording into its part of the run.

    Attributes:
        steps_from: source of the steps.
        offset_ns: to be added to the rank's times.
        clock_error_ns: bound on the error of these times, -1 if unknown.
        group_names: names in the run of groups that the rank itself names otherwise.
    """

    steps_from: str
    offset_ns: int
    clock_error_ns: int
    group_names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """Conversion of all recordings, in the order in which they were given.

    Attributes:
        ranks: the conversion of each recording.
        groups: rows of table `groups`.
        sources: rows of table `sources`.
        run: facts of the run.
    """

    ranks: tuple[RankPlan, ...]
    groups: tuple[Any, ...]
    sources: tuple[Any, ...]
    run: Mapping[str, Any]


def plan_of(recordings: Sequence[SpoolOrOutline], with_steps: WithSteps) -> JoinPlan:
    """Return the plan that joins recordings, one per rank in ascending order.

    Args:
        recordings: the spools, or their outlines.
        with_steps: returns a recording by its place, with the steps of a source; only its columns
            `CALL_COLUMNS` are used.

    Raises:
        TraceError: two recordings are of the same rank.
    """
    _refuse_doubles(recordings)
    source = steps_from(recordings)

    def calls_of(place: int) -> Columns:
        return with_steps(place, source).tables["comm"]

    groups, names = _join_groups(recordings, calls_of)
    alignments = [
        _with_own_error(alignment, each)
        for alignment, each in zip(align(recordings, names, calls_of), recordings, strict=True)
    ]
    run = _run_facts(recordings, alignments)
    if "imported_from" not in run:
        run[STEPS_FROM] = source
    ranks = tuple(
        RankPlan(source, alignment.offset_ns, alignment.error_ns, of_rank)
        for alignment, of_rank in zip(alignments, names, strict=True)
    )
    sources = joined(each.facts for each in recordings)
    return JoinPlan(ranks, tuple(groups), tuple(sources), run)


def _with_own_error(alignment: Alignment, recording: SpoolOrOutline) -> Alignment:
    """Add the error that the times had already in the run file that a recording is a part of."""
    own = recording.facts.get(CLOCK_ERROR, 0)
    is_known = min(own, alignment.error_ns) >= 0
    return replace(alignment, error_ns=own + alignment.error_ns if is_known else -1)


def _refuse_doubles(recordings: Sequence[SpoolOrOutline]) -> None:
    seen: dict[int, SpoolOrOutline] = {}
    for each in recordings:
        other = seen.setdefault(rank_of(each), each)
        if other is not each:
            raise TraceError(
                "cannot merge the spools",
                found=f"two of rank {rank_of(each)}: {other.path} and {each.path}",
                why="they are from different recordings",
                attempt="move one of them to another folder",
            )


def _join_groups(
    recordings: Sequence[SpoolOrOutline], calls_of: Callable[[int], Columns]
) -> tuple[list[Any], list[dict[str, str]]]:
    """Return the rows of table `groups`, and for each recording the names that replace its own.

    The second of the groups created in succession under a name is `0#2`. If groups of
    different ranks still share a name, the ranks are appended: `1 [0,1]`.
    """
    rows_of = [
        [GroupRow(*row) for row in zip(*each.tables["groups"].values(), strict=True)]
        for each in recordings
    ]
    numbers = generations([[row.name for row in rows] for rows in rows_of], calls_of)
    keys = [
        [(base_of(row.name), number.get(row.name, 1)) for row in rows]
        for rows, number in zip(rows_of, numbers, strict=True)
    ]
    meanings: dict[tuple[str, int], set[str]] = {}
    for row, key in zip(chain(*rows_of), chain(*keys), strict=True):
        meanings.setdefault(key, set()).add(row.ranks)
    joined: dict[str, Any] = {}
    names: list[dict[str, str]] = []
    for rows, of_rank in zip(rows_of, keys, strict=True):
        new_names = {}
        for row, (base, number) in zip(rows, of_rank, strict=True):
            name = f"{base}#{number}" if number > 1 else base
            if len(meanings[base, number]) > 1:
                name = f"{name} [{row.ranks}]"
            if name != row.name:
                new_names[row.name] = name
            if name not in joined or row.mesh_axis:  # not every rank knows the axis
                joined[name] = row._replace(name=name)
        names.append(new_names)
    return list(joined.values()), names


def _run_facts(
    recordings: Sequence[SpoolOrOutline], alignments: Sequence[Alignment]
) -> dict[str, Any]:
    """Return the facts of the first rank's recording, plus those that follow from all of them."""
    world_size = max(
        max(each.facts["run"].get("world_size", 1) for each in recordings),
        1 + rank_of(recordings[-1]),
    )
    present = {rank_of(each) for each in recordings}
    is_whole = len(present) == 1 and recordings[0].facts["run"].get("process_group") == FAKE
    return recordings[0].facts["run"] | {
        "world_size": world_size,
        # One process is the whole of a fake world: no other rank existed.
        "missing_ranks": [] if is_whole else sorted(set(range(world_size)) - present),
        "torn_ranks": [
            rank_of(each)
            for each in recordings
            if each.is_truncated or not each.facts.get("complete", False)
        ],
        "clock": _clock(recordings, alignments),
        **_write_errors(recordings),
    }


def _write_errors(recordings: Sequence[SpoolOrOutline]) -> dict[str, list[str]]:
    """Return why ranks could not write all of their recordings, if there are any."""
    ranks: dict[str, list[int]] = {}
    for each in recordings:
        if why := each.facts.get(WRITE_ERROR):
            ranks.setdefault(why, []).append(rank_of(each))
    errors = [f"{text_of_ranks(of)}: {why}" for why, of in ranks.items()]
    return {WRITE_ERRORS: errors} if errors else {}


def _clock(recordings: Sequence[SpoolOrOutline], alignments: Sequence[Alignment]) -> str:
    errors = [alignment.error_ns for alignment in alignments]
    if len({each.facts["boot"] for each in recordings}) == 1 and not any(errors):
        return ONE_CLOCK
    if min(errors) < 0:
        return "wall clocks of several hosts"
    return f"clocks of several hosts, aligned to {text_of_duration(max(errors))}"
