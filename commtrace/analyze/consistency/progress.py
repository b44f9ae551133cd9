"""Progress of the members of communicators, in snapshots that count calls but do not list them.

A member is behind if another member has launched more calls of a kind. In a running job, members
are behind for a moment. A member hangs if it was behind in the last snapshot and has launched no
call since the snapshot before. Dead, silent and aborted members, and members with an error, are
faults, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from commtrace.analyze.consistency.coverage import FLIGHT_RECORDER, LOG, Coverage
from commtrace.analyze.consistency.disagreements import UNEVEN
from commtrace.analyze.consistency.problem import Problem, at_the_start, numbers_text
from commtrace.analyze.consistency.stuck import MembersProgress, RankProgress, stuck_members
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import members
from commtrace.schema import ABORTED, DEAD, NO_MEMBER, UNRESPONSIVE
from commtrace.torch_names import TRANSFERS
from commtrace.units import counted, text_of_ranks

_FAULTS = {
    DEAD: ("dead rank", "{ranks} of group {group}: considered dead by RAS."),
    UNRESPONSIVE: ("unresponsive rank", "{ranks} of group {group} did not answer RAS."),
    ABORTED: ("aborted rank", "{ranks} of group {group}: the communicator was aborted."),
}
"""States that are faults, with the problem and its explanation."""


def unlike_progress(
    frames: Frames,
    progress: Sequence[MembersProgress],
    differing: Mapping[str, int],
    explained: set[tuple[str, int]],
) -> Iterator[Problem]:
    """Yield the faults of members in the last snapshot, and the members that are behind.

    Args:
        frames: The run.
        progress: The groups in which only the numbers of the last calls are known.
        differing: By group, the number of the first collective in which the members disagree.
        explained: Collectives in which ranks wait because of a deadlock.
    """
    for each in progress:
        if not explained & {(each.group, number) for number in each.waiting.values()}:
            yield from _with_axis(frames, stuck_members(each, differing.get(each.group)))
    table = _communicators(frames)
    if frames.run.get("imported_from") == FLIGHT_RECORDER:  # which has no states
        return
    for group, rows in table.groupby("group", sort=True):
        times = sorted(rows["at_ns"].unique().tolist())
        last = rows[rows["at_ns"] == times[-1]]
        before = rows[rows["at_ns"] == times[-2]] if len(times) > 1 else rows[:0]
        yield from _with_axis(frames, _of_states(str(group), last, times[-1]))
        yield from _with_axis(frames, _of_counts(str(group), last, before, times[-1]))


def _with_axis(frames: Frames, problems: Iterable[Problem]) -> Iterator[Problem]:
    names = frames.groups["name"].astype(object)
    axes = dict(zip(names, frames.groups["mesh_axis"].astype(object), strict=True))
    return (replace(problem, mesh_axis=axes.get(problem.group, "")) for problem in problems)


def _communicators(frames: Frames) -> pd.DataFrame:
    return frames.communicators.astype({"group": object, "state": object, "kind": object})


def groups_in_progress(frames: Frames, covered: Coverage) -> list[MembersProgress]:
    """Return the groups in which only the numbers of the last calls are known, by name.

    In dumps, these are the groups without any listed call.
    """
    table = _communicators(frames)
    table = table[table["kind"] == ""]
    source = covered.imported_from
    if source == FLIGHT_RECORDER:
        num_listed = covered.reached.groupby("group")["count"].sum()
        table = table[table["group"].isin(num_listed.index[num_listed == 0])]
    if table.empty:
        return []
    listed = _listed(frames, sorted(set(table["group"])))
    everyone = members(frames)
    found = []
    for group, rows in table.groupby("group", sort=True):
        of_group = everyone.loc[everyone["group"] == group, "rank"].tolist()
        own = progress_of(str(group), rows[rows["at_ns"] == rows["at_ns"].max()], listed, of_group)
        named = covered.names.get(str(group), "")
        is_listed = source != FLIGHT_RECORDER
        found.append(replace(own, named=named, has_all=source != LOG, is_listed=is_listed))
    return found


def progress_of(
    group: str, last: pd.DataFrame, listed: pd.DataFrame, members: Collection[int]
) -> MembersProgress:
    """Return the progress of each member, from its counts and its calls in flight."""
    own = listed[listed["group"] == group]
    is_numbered = own["seq"] >= 0
    in_flight: dict[int, dict[int, tuple[str, str, int]]] = {}
    columns = (own.loc[is_numbered, name] for name in _OF_LISTED)
    for rank, seq, kind, elements, issue_ns in zip(*columns, strict=True):
        in_flight.setdefault(int(rank), {})[int(seq)] = (str(kind), str(elements), int(issue_ns))
    counts = last[["rank", "num_enqueued", "num_completed"]].itertuples(index=False)
    of_ranks = {}
    for rank, issued, completed in counts:
        calls = in_flight.get(int(rank), {})
        if max(issued, completed, len(calls)) > 0 or issued == 0:
            most = max(int(issued), int(completed), *calls, 0)
            of_ranks[int(rank)] = RankProgress(most, int(completed), calls)
    silent = tuple(sorted(set(members) - of_ranks.keys()))
    transfers = tuple(sorted({str(kind) for kind in own.loc[~is_numbered, "kind"]} & TRANSFERS))
    return MembersProgress(group, of_ranks, silent, transfers=transfers)


_OF_LISTED = ("rank", "seq", "kind", "elements", "issue_ns")


def _listed(frames: Frames, groups: Collection[str]) -> pd.DataFrame:
    """Return the calls of some groups whose ends are unknown."""
    return pd.concat(frames.by_ranks(_listed_of_part, tuple(groups)))


def _listed_of_part(frames: Frames, groups: tuple[str, ...]) -> pd.DataFrame:
    comm = frames.comm
    own = comm[comm["group"].isin(groups) & (comm["complete_ns"] < 0)]
    is_uneven = own["kind"].isin(UNEVEN)
    elements = own["input_shapes"].astype(object).where(~is_uneven, "")
    return own[["rank", "seq", "issue_ns"]].assign(
        group=own["group"].astype(object), kind=own["kind"].astype(object), elements=elements
    )


def _of_states(group: str, last: pd.DataFrame, at_ns: int) -> Iterator[Problem]:
    for state, (problem, text) in _FAULTS.items():
        if ranks := _ranks(last[last["state"] == state]):
            explanation = text.format(ranks=at_the_start(ranks), group=group)
            yield _problem(problem, group, ranks, state, explanation, at_ns)
    if ranks := _ranks(last[last["state"] == NO_MEMBER]):
        yield _problem(
            "missing rank", group, ranks, NO_MEMBER,
            f"{at_the_start(ranks)} answered RAS, but without group {group}: not created yet, or "
            "destroyed already.",
            at_ns, is_fault=False,
        )  # fmt: skip
    for code, rows in last[last["error"] > 0].groupby("error"):
        ranks = _ranks(rows)
        yield _problem(
            "failed rank", group, ranks, f"error {code}",
            f"{at_the_start(ranks)} of group {group} reported error {code} of NCCL (ncclResult_t).",
            at_ns,
        )  # fmt: skip


def _of_counts(
    group: str, last: pd.DataFrame, before: pd.DataFrame, at_ns: int
) -> Iterator[Problem]:
    counted_rows = last[last["num_calls"] >= 0]
    if counted_rows.empty:
        return
    counts = counted_rows.pivot_table(index="rank", columns="kind", values="num_calls")
    most = counts.max()
    behind = counts[(counts < most).any(axis=1)]
    if behind.empty:
        return
    stuck = _stuck(behind, before)
    blamed = stuck if stuck else _ranks(behind.reset_index())
    kinds = [kind for kind in counts if (counts.loc[blamed, kind] < most[kind]).any()]
    details = "; ".join(_detail(counts, str(kind), blamed) for kind in kinds)
    why = (
        "They have launched no such call since the snapshot before."
        if stuck
        else "In a running job, such differences last for a moment: a later snapshot, imported "
        "together with this one, shows whether they persist."
        if before.empty
        else "They have launched calls since the snapshot before, and may catch up."
    )
    yield _problem(
        "missing call" if stuck else "behind", group, blamed, details,
        f"In group {group}, {text_of_ranks(blamed)} launched fewer calls than others: {details}. "
        f"{why}", at_ns, is_fault=bool(stuck),
    )  # fmt: skip


def _stuck(behind: pd.DataFrame, before: pd.DataFrame) -> list[int]:
    """Return the ranks that have launched no call since the snapshot before."""
    if before.empty:
        return []
    earlier = before.pivot_table(index="rank", columns="kind", values="num_calls")
    earlier = earlier.reindex(index=behind.index, columns=behind.columns)
    return [int(rank) for rank in behind.index[((earlier == behind) | behind.isna()).all(axis=1)]]


def _detail(counts: pd.DataFrame, kind: str, blamed: list[int]) -> str:
    own = counts.loc[blamed, kind]
    fewest, most = int(own.min()), int(own.max())
    text = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return f"{text} of {counted(int(counts[kind].max()), f'{kind} call')}"


def _ranks(rows: pd.DataFrame) -> list[int]:
    return sorted({int(rank) for rank in rows["rank"]})


def _problem(
    problem: str, group: str, ranks: list[int], found: str, explanation: str, at_ns: int,
    *, is_fault: bool = True,
) -> Problem:  # fmt: skip
    return Problem(
        problem=problem,
        is_fault=is_fault,
        group=group,
        ranks=numbers_text(ranks),
        found=found,
        explanation=explanation,
        at_ns=at_ns,
    )
