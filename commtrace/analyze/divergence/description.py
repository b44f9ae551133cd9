"""The row of a divergence: the calls of both sides, the branch between them, and the event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import pandas as pd

from commtrace.analyze.consistency.coverage import source_of
from commtrace.analyze.consistency.ends import ends
from commtrace.analyze.consistency.problem import DIFFERENT, numbers_text
from commtrace.analyze.divergence.branching import branch_text
from commtrace.analyze.divergence.events import event_of, exception_since, text_of_event
from commtrace.analyze.divergence.sequences import Parting
from commtrace.analyze.divergence.unlike_modules import unlike_module
from commtrace.analyze.divergence.verdict import verdict_of
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import RECV, SEND
from commtrace.units import counted, text_of_ranks

UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDivergence:
    """One row of table `divergences`; the fields are its columns, in order."""

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
    verdict: str
    at_ns: int


class DivergenceWords:
    """Texts of a divergence.

    Args:
        frames: The run.
        fault: A row of table `consistency`.
        own: Ranks that left the common order; the first is compared.
        others: Other ranks; the first is compared. The same as `own` if a rank left the order of
            its own earlier rounds.
        calls: Calls of both ranks.
        parted: The calls at which both ranks diverge.
        alike: Whether the calls replaced by a ring were alike, and their number.
        num_rounds: Number of earlier rounds of the own rank; 0 if it is compared with others.
    """

    def __init__(
        self,
        frames: Frames,
        fault: dict[str, object],
        own: Sequence[int],
        others: Sequence[int],
        calls: pd.DataFrame,
        parted: Parting,
        alike: tuple[bool | None, int] = (None, 0),
        num_rounds: int = 0,
    ) -> None:
        self._frames = frames
        self._fault = fault
        self._own, self._others = own, others
        self._calls = calls
        self._parted = parted
        self._were_alike, self._num_removed = alike
        self._num_rounds = num_rounds
        self._is_earlier = False
        self._axes = dict(
            zip(frames.groups["name"].astype(object), frames.groups["mesh_axis"], strict=True)
        )

    def row(self, *, may_be_either: bool) -> RankDivergence:
        """Return the row of the table.

        Args:
            may_be_either: Either side may be wrong, so events of both are considered.
        """
        fault, parted = self._fault, self._parted
        common = parted.common
        ranks = self._own[0], self._others[0]
        unlike = unlike_module(self._frames, parted, ranks)
        branch = branch_text(self._frames, self._calls, parted, ranks, unlike)
        event, event_rank = self._event(), self._own[0]
        if not event and unlike is not None:
            event = unlike.text_of(event_rank)
        if not event:
            event = (may_be_either and self._event_on(1)) or self._other_thread(1)
            event = event or self._end_of_others()
            event_rank = self._others[0] if event else event_rank
        at_ns = UNKNOWN if common is None else int(common[0]["issue_ns"])
        row = RankDivergence(
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
            event_rank=event_rank if event else UNKNOWN,
            explanation=" ".join(filter(None, self._sentences(branch, event, event_rank))),
            verdict="",
            at_ns=at_ns,
        )
        return replace(row, verdict=verdict_of(fault, asdict(row)))

    def _sentences(self, branch: str, event: str, event_rank: int) -> list[str]:
        parted = self._parted
        own, others = (text_of_ranks(ranks[:1]) for ranks in (self._own, self._others))
        both = f"{_capital(own)} and {others}"
        common = None if parted.common is None else parted.common[0]
        if self._num_rounds:
            return self._of_rounds(branch, event)
        if parted.own is None and parted.others is None and self._fault["problem"] in DIFFERENT:
            return [
                f"{both} made the same calls from the same lines; only the "
                f"{DIFFERENT[str(self._fault['problem'])]} of this call differs."
            ]
        if common is None:
            known = " that both recordings have" if parted.first_number else ""
            begin = f"{both} differ from their first call on{known}."
        else:
            begin = f"{both} made the same calls up to {self._at(common)}."
        before = self._before()
        way = f"They parted at {branch}." if branch else ""
        if self._is_earlier:
            what = (
                f"{_capital(own)} {event}, and {others} did not. A call skipped there shows only "
                "here, since all calls of the loop are alike."
            )
        else:
            what = f"Meanwhile, {text_of_ranks([event_rank])} {event}." if event else ""
        start = f"{before[:1].upper()}{before[1:]}." if before else ""
        return [start, begin, self._then(own, others), way, what]

    def _of_rounds(self, branch: str, event: str) -> list[str]:
        """Return sentences about a rank that left the order of its own earlier rounds."""
        own, parted = text_of_ranks(self._own[:1]), self._parted
        before = None if parted.common is None else parted.common[0]
        rounds = counted(self._num_rounds, "round")
        return [
            f"After {self._at(before)}, {own} made {self._at(parted.own)}.",
            f"In {rounds} before, it made {self._at(parted.others)} there.",
            f"It left that order at {branch}." if branch else "",
            f"Meanwhile, it {event}." if event else "",
        ]

    def _then(self, own: str, others: str) -> str:
        parted = self._parted
        if parted.own is None and parted.others is None:
            return "Neither made a further call."
        ends_ = [
            "made no further call" if call is None else f"made {self._at(call)}"
            for call in (parted.own, parted.others)
        ]
        return f"Then {own} {ends_[0]}, but {others} {ends_[1]}."

    def _before(self) -> str:
        """Return a text on the calls that a ring replaced by their hashes."""
        if self._were_alike is None:
            return ""
        if self._were_alike:
            return f"alike in the first {self._num_removed} calls of the group, by their hashes"
        return (
            f"they had parted within the first {self._num_removed} calls of the group, by their "
            "hashes; a larger ring would show where"
        )

    def _at(self, call: pd.Series | None) -> str:
        source = _source(call)
        return f"{self._call(call)} at {source}" if source else self._call(call)

    def _call(self, call: pd.Series | None) -> str:
        if call is None:
            return ""
        group = str(call["group"])
        if not group:  # the creation of one
            return str(call["kind"])
        axis = self._axes.get(group) or f"group {group}"
        number = f" {call['number']}" if call["number"] >= 0 else ""
        module = f" in module {call['module']}" if call["module"] else ""
        towards = {SEND: "to", RECV: "from"}.get(str(call["kind"]), "")
        peer = f" {towards} rank {call['peer']}" if towards and call["peer"] >= 0 else ""
        return f"{call['kind']}{number} of {axis}{peer}{module}"

    def _event(self) -> str:
        """Return the event on the own rank, and its last state if it made no further call."""
        parted = self._parted
        if parted.own is None and parted.others is None:
            return ""  # later events are no cause
        end = ends(self._frames).get(self._own[0]) if parted.own is None else None
        last = "" if end is None else end.sentence_part()
        text = self._event_on(0) or self._earlier()
        if text.removeprefix("raised ") in last:  # the exception that ended the rank
            return last
        if text:
            return f"{text}; it {last}" if last else text
        return last

    def _end_of_others(self) -> str:
        """Return the last state of the other rank, if it alone made no further call."""
        if self._parted.own is None or self._parted.others is not None:
            return ""
        end = ends(self._frames).get(self._others[0])
        return "" if end is None else end.sentence_part()

    def _earlier(self) -> str:
        """Return an exception of the own rank alone, in a loop whose calls are alike."""
        own, other, since_ns = self._own[0], self._others[0], self._parted.earliest_ns
        if since_ns < 0 or own == other:
            return ""
        common = None if self._parted.common is None else self._parted.common[0]
        event = exception_since(self._frames, own, since_ns, _issue_of(common), other)
        if event is None:
            return ""
        self._is_earlier = True
        return f"earlier {text_of_event(event)}"

    def _event_on(self, side: int) -> str:
        """Return the event between the common and the next call of side 0, the own rank, or 1."""
        parted = self._parted
        if parted.own is None and parted.others is None:
            return ""
        common = parted.common or (None, None)
        own, others = (
            (ranks[0], _issue_of(last), _issue_of(then))
            for ranks, last, then in (
                (self._own, common[0], parted.own),
                (self._others, common[1], parted.others),
            )
        )
        rank, other = (own, others) if side == 0 else (others, own)
        event = event_of(self._frames, *rank, None if own[0] == others[0] else other)
        return self._other_thread(side) if event is None else text_of_event(event)

    def _other_thread(self, side: int) -> str:
        """Return a sentence part if the calls of two threads are in an unusual order.

        Either both ranks made both calls, in different threads and in opposite orders, or a rank
        made its call in a thread without an earlier call in the group. Lines that any thread of a
        pool runs do not depend on the order of threads.
        """
        calls = (self._parted.own, self._parted.others)
        common = self._parted.common or (None, None)
        call, last, rank = calls[side], common[side], (self._own, self._others)[side][0]
        other = calls[1 - side]
        if call is None or last is None or other is None or call["thread"] == last["thread"]:
            return ""
        if "backward" in (last["phase"], call["phase"]):  # which has a thread of its own
            return ""
        in_group = self._calls[self._calls["group"] == call["group"]]
        place = ["kind", "source_file", "source_line"]
        at_its_line = (in_group[place] == call[place]).all(axis=1)
        if in_group[at_its_line].groupby("rank")["thread"].nunique().max() > 1:
            return ""
        own = in_group[in_group["rank"] == rank]
        is_new = not (own.loc[own["id"] < call["id"], "thread"] == call["thread"]).any()
        following = in_group[in_group["number"] == call["number"] + 1].set_index("rank")
        is_swapped = all(
            each in following.index
            and all(following.loc[each, name] == met[name] for name in ("kind", "source_line"))
            for each, met in ((rank, other), (int(other["rank"]), call))
        )
        if not (is_new or is_swapped):
            return ""
        return (
            "made this call in another thread than the call before: the order of threads that "
            "share a group differs between ranks"
        )


def _issue_of(call: pd.Series | None) -> int:
    return UNKNOWN if call is None else int(call["issue_ns"])


def _source(call: pd.Series | None) -> str:
    return "" if call is None else source_of(call)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
