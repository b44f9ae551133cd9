"""Facts on two ranks around their parting: events meanwhile, and lines that called before."""

from __future__ import annotations

import re

import pandas as pd

from commtrace.analyze.divergence.control_flow import FlowGraph
from commtrace.analyze.divergence.program_text import CallFrame, chain_of
from commtrace.analyze.divergence.sequences import OF_SITE, Parting
from commtrace.analyze.divergence.splits import Seen
from commtrace.analyze.run.frame import Frames
from commtrace.schema import DATA_END, EXCEPTION

_OF_PLACE = ["callers", "source_file", "source_line", "source_function"]
_UNKNOWN = -1


class Circumstances:
    """Facts on two ranks in any function.

    Args:
        frames: The run.
        calls: Calls of both ranks.
        parted: The calls at which they part.
        ranks: Both ranks.
        compared: Both ranks; the same rank twice if it is compared with its own earlier round.
    """

    def __init__(
        self,
        frames: Frames,
        calls: pd.DataFrame,
        parted: Parting,
        ranks: tuple[int, int],
        compared: tuple[int, int],
    ) -> None:
        self._ranks = compared
        self._is_sure = parted.earliest_ns < 0
        self._calling: dict[str, set[int]] = {}
        ends = [each["id"] for each in parted.common or ()]
        before = calls
        if len(ends) == 2:
            last = calls["rank"].map(dict(zip(ranks, ends, strict=True)))
            before = calls[calls["id"] <= last]
        for place in before[_OF_PLACE].drop_duplicates().itertuples(index=False, name=None):
            for each in chain_of(str(place[0]), str(place[1]), int(place[2]), str(place[3])):
                self._calling.setdefault(each.file, set()).add(each.line)
        common = parted.common or (None, None)
        then = parted.own, parted.others
        events = [
            _events(frames, rank, _issue(last), _issue(following))
            for rank, last, following in zip(ranks, common, then, strict=True)
        ]
        self._raised = tuple(
            [
                {str(text).partition(":")[0].rpartition(".")[2] for text in rows["text"]}
                for rows in (each[each["kind"] == EXCEPTION] for each in events)
            ]
        )
        self._ended = [bool((each["kind"] == DATA_END).any()) for each in events]
        self._left_out = [
            ended and not _had_all(frames, calls, rank, each, other)
            for ended, each, rank, other in zip(self._ended, events, ranks, then[::-1], strict=True)
        ]

    def has_ended_data(self) -> bool:
        """Return whether a data loader of either rank ended meanwhile."""
        return any(self._ended)

    def of(self, frame: CallFrame, graph: FlowGraph) -> Seen:
        """Return the known facts about a function."""
        first = getattr(graph.function, "lineno", 1)
        last = getattr(graph.function, "end_lineno", None) or 1 << 30
        lines = {line for line in self._calling.get(frame.file, ()) if first <= line <= last}
        raised = self._raised[0], self._raised[1]
        ended, left_out = ((each[0], each[1]) for each in (self._ended, self._left_out))
        return Seen(self._ranks, lines, raised, ended, left_out, self._is_sure)


def _had_all(
    frames: Frames, calls: pd.DataFrame, rank: int, events: pd.DataFrame, other: pd.Series | None
) -> bool:
    """Return whether a rank made the other's next call for each batch until its loader ended.

    A loop that leaves out a round ends with it as well. One that accumulates gradients makes the
    call for every so many batches.
    """
    ended = events[events["kind"] == DATA_END].iloc[0]
    number = re.search(r"after (\d+)", str(ended["text"]))
    if other is None or number is None:
        return True
    table = frames.host_events
    is_earlier = (table["rank"] == rank) & (table["kind"] == DATA_END)
    before = table.loc[is_earlier & (table["at_ns"] < ended["at_ns"]), "at_ns"].max()
    own = calls[(calls["rank"] == rank) & (calls["issue_ns"] < ended["at_ns"])]
    own = own[own["issue_ns"] > before] if pd.notna(before) else own
    alike = (own[[*OF_SITE]] == other[[*OF_SITE]]).all(axis=1)
    num_calls, num_batches = int(alike.sum()), int(number[1])
    return num_calls >= num_batches or (num_calls > 1 and num_batches % num_calls == 0)


def _issue(call: pd.Series | None) -> int:
    return _UNKNOWN if call is None else int(call["issue_ns"])


def _events(frames: Frames, rank: int, since_ns: int, until_ns: int) -> pd.DataFrame:
    table = frames.host_events
    inside = (table["rank"] == rank) & (table["at_ns"] >= since_ns)
    if until_ns >= 0:
        inside &= table["at_ns"] <= until_ns
    return table[inside]
