"""The table `divergences`: for each fault of the consistency check, where the ranks parted before.

A hang shows the call in which ranks wait. Its cause lies before: at the last call that all of them
made alike, one rank took another branch, left a loop, raised, or stayed where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import pandas as pd

from commtrace.analyze.analysis import Analysis, typed
from commtrace.analyze.cached_per_run import of_run
from commtrace.analyze.consistency.check import consistency
from commtrace.analyze.consistency.coverage import coverage
from commtrace.analyze.consistency.numbered import calls_of_ranks
from commtrace.analyze.consistency.problem import numbers_text
from commtrace.analyze.consistency.waiting import hanging_calls
from commtrace.analyze.divergence.branching import branch_text
from commtrace.analyze.divergence.earlier import made_alike
from commtrace.analyze.divergence.events import event_of, exception_since, text_of_event
from commtrace.analyze.divergence.sequences import Parting, parting
from commtrace.analyze.divergence.sides import labels_of, sides_of, sides_of_cycle
from commtrace.analyze.divergence.silence import silence_of
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import members as members_of
from commtrace.analyze.program_folder import program_folder, relative_to
from commtrace.schema import INSTANT, Column
from commtrace.units import text_of_ranks

COLUMNS = (
    Column("problem", str, "", "the fault, as in table `consistency`"),
    Column("group", str, "", "name of its process group"),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns it", title="Axis"),
    Column("number", int, "", "number of the collective in the group, from 0"),
    Column("ranks", str, "", "ranks that did something else, `1,3`", form="ranks"),
    Column("others", str, "", "the other ranks of the group", form="ranks"),
    Column("compared", str, "", "the rank of each side whose calls are compared", form="ranks"),
    Column("before", str, "", "whether the calls that a ring has replaced were made alike"),
    Column("common", str, "", "last call that both made alike"),
    Column("common_source", str, "", "source line of it"),
    Column("own", str, "", "next call of a rank that did something else; empty if it made none"),
    Column("own_source", str, "", "source line of it"),
    Column("instead", str, "", "next call of the others; empty if they made none"),
    Column("instead_source", str, "", "source line of it"),
    Column("branch", str, "", "statements in the source by which they parted"),
    Column("event", str, "", "what happened on one of both meanwhile, and not on the other"),
    Column("event_rank", int, "", "the rank on which it happened; -1 if there is none"),
    Column("explanation", str, "", "all of this in sentences"),
    Column("at_ns", int, INSTANT, "when the last common call was issued; -1 unknown"),
)

_ABSENT = ("missing call", "extra call", "deadlock")
_DIFFERENT = {
    "kind": "kind", "reduce_op": "reduction", "root": "root", "dtype": "element type",
    "size": "size",
}  # fmt: skip
_MOST_FAULTS = 50
"""Faults that are traced back, the earliest ones: the others of a run mostly follow from them."""
_UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDivergence:
    """One row of the table; the fields are `COLUMNS`, in order."""

    problem: str
    group: str
    mesh_axis: str
    number: int
    ranks: str
    others: str
    compared: str
    before: str
    common: str
    common_source: str
    own: str
    own_source: str
    instead: str
    instead_source: str
    branch: str
    event: str
    event_rank: int
    explanation: str
    at_ns: int


@of_run
def divergences(frames: Frames) -> pd.DataFrame:
    """Return one row per fault that can be traced back, the earliest parting first."""
    problems = consistency(frames)
    faults = problems[problems["problem"].isin([*_ABSENT, *_DIFFERENT]) & problems["is_fault"]]
    # The calls of a watchdog's log are only those that timed out.
    if faults.empty or coverage(frames).has_timed_out_only:
        return typed(pd.DataFrame(), COLUMNS)
    hanging = hanging_calls(frames)
    found: list[RankDivergence] = []
    for fault in faults.head(_MOST_FAULTS).to_dict("records"):
        found += _divergences(frames, {str(name): each for name, each in fault.items()}, hanging)
    found.sort(key=lambda each: (each.at_ns < 0, each.at_ns, astuple(each)))
    folder = program_folder(frames)
    rows = [
        [relative_to(folder, value) if isinstance(value, str) else value for value in astuple(each)]
        for each in found
    ]
    return typed(pd.DataFrame(rows, columns=[column.name for column in COLUMNS]), COLUMNS)


def _divergences(
    frames: Frames, fault: dict[str, object], hanging: pd.DataFrame
) -> Iterator[RankDivergence]:
    """Yield where each side of a fault parted from the others."""
    group, number = str(fault["group"]), int(str(fault["number"]))
    recorded = set(frames.ranks["rank"].tolist())
    everyone = members_of(frames)
    members = sorted(recorded & set(everyone.loc[everyone["group"] == group, "rank"]))
    blamed = [rank for rank in ranks_in(str(fault["ranks"])) if rank in recorded]
    if fault["is_one_of_ranks"]:
        blamed = []
    if number < 0 or not members:
        return
    if fault["problem"] == "deadlock":
        sides = sides_of_cycle(hanging, blamed)
    else:
        sides = sides_of(frames, fault, members, blamed)
    # Rather one that does not wait for others; and not the first member, which is often the root.
    waiting = set(hanging["rank"])
    for own_ranks, other_ranks in sides:
        own = sorted(own_ranks, key=lambda rank: (rank in waiting, rank))
        others = sorted(other_ranks, key=lambda rank: (rank == members[0], rank))
        found = _described(frames, fault, own, others, may_be_either=not blamed)
        if found is not None:
            yield found


def _described(
    frames: Frames,
    fault: dict[str, object],
    own: Sequence[int],
    others: Sequence[int],
    *,
    may_be_either: bool,
) -> RankDivergence | None:
    """Return where the first rank of one side parted from the first one of the other side."""
    group, ranks = str(fault["group"]), (own[0], others[0])
    calls = calls_of_ranks(frames, ranks)
    if calls.empty:
        return None
    number = int(str(fault["number"]))
    parted = parting(calls, *ranks, group, number, labels_of(frames, *ranks))
    alike = made_alike(frames, calls, ranks, group)
    description = _Description(frames, fault, own, others, calls, parted, alike)
    return description.row(may_be_either=may_be_either)


class _Description:
    """One divergence in words."""

    def __init__(
        self,
        frames: Frames,
        fault: dict[str, object],
        own: Sequence[int],
        others: Sequence[int],
        calls: pd.DataFrame,
        parted: Parting,
        alike: tuple[bool | None, int],
    ) -> None:
        self._frames = frames
        self._fault = fault
        self._own, self._others = own, others
        self._calls = calls
        self._parted = parted
        self._were_alike, self._num_removed = alike
        self._is_earlier = False
        self._axes = dict(
            zip(frames.groups["name"].astype(object), frames.groups["mesh_axis"], strict=True)
        )

    def row(self, *, may_be_either: bool) -> RankDivergence:
        """Return the row of the table; if it may be either side's fault, with events of either."""
        fault, parted = self._fault, self._parted
        common = parted.common
        branch = branch_text(self._frames, self._calls, parted, (self._own[0], self._others[0]))
        event, event_rank = self._event(), self._own[0]
        if not event and may_be_either and (event := self._event_on(1)):
            event_rank = self._others[0]
        at_ns = _UNKNOWN if common is None else int(common[0]["issue_ns"])
        return RankDivergence(
            problem=str(fault["problem"]),
            group=str(fault["group"]),
            mesh_axis=str(fault["mesh_axis"]),
            number=int(str(fault["number"])),
            ranks=numbers_text(self._own),
            others=numbers_text(self._others),
            compared=f"{self._own[0]},{self._others[0]}",
            before=self._before(),
            common=self._call(None if common is None else common[0]),
            common_source=_source(None if common is None else common[0]),
            own=self._call(parted.own),
            own_source=_source(parted.own),
            instead=self._call(parted.others),
            instead_source=_source(parted.others),
            branch=branch,
            event=event,
            event_rank=event_rank if event else _UNKNOWN,
            explanation=" ".join(filter(None, self._sentences(branch, event, event_rank))),
            at_ns=at_ns,
        )

    def _sentences(self, branch: str, event: str, event_rank: int) -> list[str]:
        parted = self._parted
        own, others = (text_of_ranks(ranks[:1]) for ranks in (self._own, self._others))
        common = None if parted.common is None else parted.common[0]
        if parted.own is None and parted.others is None and self._fault["problem"] in _DIFFERENT:
            return [
                f"{_capital(own)} and {others} made the same calls from the same lines; only the "
                f"{_DIFFERENT[str(self._fault['problem'])]} of this one differs."
            ]
        if common is None:
            known = " that both recordings have" if parted.first_number else ""
            begin = f"{_capital(own)} and {others} differ from their first call on{known}."
        else:
            begin = f"{_capital(own)} and {others} made the same calls up to {self._at(common)}."
        before = self._before()
        ends = [
            "made no further call" if call is None else f"made {self._at(call)}"
            for call in (parted.own, parted.others)
        ]
        then = f"Then {own} {ends[0]}, but {others} {ends[1]}."
        way = f"They parted at {branch}." if branch else ""
        if self._is_earlier:
            what = (
                f"{_capital(own)} {event}, and {others} did not. A call that is left out there "
                "shows only here, since those of the loop are alike."
            )
        else:
            what = f"Meanwhile, {text_of_ranks([event_rank])} {event}." if event else ""
        return [f"{before[:1].upper()}{before[1:]}." if before else "", begin, then, way, what]

    def _before(self) -> str:
        """Return what is known of the calls that only hashes were kept of."""
        if self._were_alike is None:
            return ""
        if self._were_alike:
            return f"alike in the first {self._num_removed} calls of the group, by their hashes"
        return (
            f"they had parted within the first {self._num_removed} calls of the group, by their "
            "hashes; a larger ring would show where"
        )

    def _at(self, call: pd.Series) -> str:
        source = _source(call)
        return f"{self._call(call)} at {source}" if source else self._call(call)

    def _call(self, call: pd.Series | None) -> str:
        if call is None:
            return ""
        group = str(call["group"])
        axis = self._axes.get(group) or f"group {group}"
        number = f" {call['number']}" if call["number"] >= 0 else ""
        module = f" in module {call['module']}" if call["module"] else ""
        return f"{call['kind']}{number} of {axis}{module}"

    def _event(self) -> str:
        """Return what happened on the rank that did something else; also much earlier."""
        parted = self._parted
        if text := self._event_on(0):
            return text
        common = None if parted.common is None else parted.common[0]
        if parted.own is None and parted.others is None:
            return ""
        own, other, since_ns = self._own[0], self._others[0], parted.earliest_ns
        event = None
        if since_ns >= 0:
            event = exception_since(self._frames, own, since_ns, _issue_of(common), other)
        if event is not None:
            self._is_earlier = True
            return f"earlier {text_of_event(event)}"
        return silence_of(self._frames, own, self._others, common) if parted.own is None else ""

    def _event_on(self, side: int) -> str:
        """Return what happened on one rank, 0 the own one, between the common and the next call."""
        parted = self._parted
        if parted.own is None and parted.others is None:
            return ""  # what came afterwards is no cause
        common = parted.common or (None, None)
        own, others = (
            (ranks[0], _issue_of(last), _issue_of(then))
            for ranks, last, then in (
                (self._own, common[0], parted.own),
                (self._others, common[1], parted.others),
            )
        )
        rank, other = (own, others) if side == 0 else (others, own)
        event = event_of(self._frames, *rank, other)
        return "" if event is None else text_of_event(event)


def _issue_of(call: pd.Series | None) -> int:
    return _UNKNOWN if call is None else int(call["issue_ns"])


def lines_of(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a row in a few lines, each with what it is about."""
    own, others = (text_of_ranks([rank]) for rank in ranks_in(row["compared"]))
    if not row["own"] and not row["instead"]:
        return [("parted", str(row["explanation"]))]
    places = [
        ("before", row["before"], ""),
        ("last alike", row["common"], row["common_source"]),
        (own, row["own"] or "no further call", row["own_source"]),
        (others, row["instead"] or "no further call", row["instead_source"]),
        ("parted at", row["branch"], ""),
        (text_of_ranks([row["event_rank"]]), row["event"], ""),
    ]
    return [(name, f"{text}, {at}" if at else str(text)) for name, text, at in places if text]


def ranks_in(text: str) -> list[int]:
    """Return the ranks of a cell."""
    return [int(rank) for rank in text.split(",") if rank]


def _source(call: pd.Series | None) -> str:
    if call is None or not call["source_file"]:
        return ""
    return f"{call['source_file']}:{call['source_line']}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


DIVERGENCES = Analysis(
    "divergences",
    "Divergences",
    "Where did the ranks part ways before a fault?",
    divergences,
    COLUMNS,
)
