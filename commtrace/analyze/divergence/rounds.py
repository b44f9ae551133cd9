"""Rounds that leave the loop of a call, by the modules that a rank ran until it made it again."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from commtrace.analyze.divergence.sequences import OF_SITE
from commtrace.analyze.run.frame import Frames, joined

_IN_LOOP = 2
"""Rounds within the loop are at least as many times as frequent as rounds that leave it."""
_MOST_ROUNDS = 200
_OF_CALL = [*OF_SITE, "group", "payload_bytes"]
_Signature = tuple[tuple[str, str], ...]


def has_left_loop(
    frames: Frames, calls: pd.DataFrame, common: pd.Series | None, call: pd.Series | None
) -> bool:
    """Return whether a rank ran more modules than in its usual round, and seldom before.

    An evaluation after the loop over batches is such a case. False if it is not known.

    Args:
        frames: The run.
        calls: All calls of the rank, and perhaps of others.
        common: A call of the rank.
        call: Its next call.
    """
    if common is None or call is None or any(common[name] != call[name] for name in _OF_CALL):
        return False
    if (frames.ranks.loc[frames.ranks["rank"] == call["rank"], "num_ops_dropped"] > 0).any():
        return False
    rows = calls[(calls["rank"] == call["rank"]) & (calls["thread"] == call["thread"])]
    rows = rows[rows["id"] <= call["id"]]
    is_alike = (rows[_OF_CALL] == call[_OF_CALL]).all(axis=1).to_numpy()
    at = rows["issue_ns"].to_numpy()
    places = np.flatnonzero(is_alike[1:] & is_alike[:-1])[-_MOST_ROUNDS:]
    if not places.size or places[-1] != len(rows) - 2:  # other calls are between the last two
        return False
    ops = joined(frames.by_ranks(_ops_of, int(call["rank"]), int(at[places[0]])))
    ops = ops.sort_values("id")
    ends = np.searchsorted(ops["start_ns"].to_numpy(), [at[places], at[places + 1]])
    run = list(zip(ops["phase"], ops["module"], strict=True))
    rounds = [_signature(run[begin:end]) for begin, end in ends.T]
    *before, last = [each for each in rounds if any(phase == "forward" for phase, _ in each)] or [
        ()
    ]
    usual, num = Counter(before).most_common(1)[0] if before else ((), 0)
    is_rare = before.count(last) * _IN_LOOP < num
    return rounds[-1] == last and num > 1 and is_rare and len(last) > len(usual)


def _ops_of(part: Frames, rank: int, since_ns: int) -> pd.DataFrame:
    is_asked = (part.ops["rank"] == rank) & (part.ops["start_ns"] >= since_ns)
    rows = part.ops.loc[
        is_asked & (part.ops["phase"] != "other"), ["id", "start_ns", "phase", "module"]
    ]
    return rows.astype({name: object for name in ("phase", "module")})


def _signature(run: list[tuple[str, str]]) -> _Signature:
    """Return the modules and phases that were run, in order."""
    return tuple(each for place, each in enumerate(run) if place == 0 or run[place - 1] != each)
