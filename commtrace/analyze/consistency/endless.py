"""Calls that all ranks have reached, and that had not ended long after.

No rank lacks such a call, so that no comparison of calls shows a difference: the network, a device
or a process that died may be the cause, or what the recording does not have, such as the address
at which a rank looks for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from commtrace.analyze.consistency.coverage import Coverage, source_of
from commtrace.analyze.consistency.ends import INSIDE, ends
from commtrace.analyze.consistency.problem import Problem, call_text
from commtrace.analyze.run.frame import Frames
from commtrace.schema import WAITING_KINDS
from commtrace.units import text_of_duration

_ENDLESS_NS = 30_000_000_000
"""Time after the last arrival; alarms of `commtrace watch` come as late."""
_UNKNOWN = "is unknown: the network, a device or a process that died may be the cause"
_APART = "is unknown: another address, port, prefix of the store or world size may be the cause"


def endless_calls(frames: Frames, covered: Coverage, hanging: pd.DataFrame) -> Iterator[Problem]:
    """Yield the first collective that all members have issued and none has left, or, if all ranks
    wait for each other outside of calls, that wait.

    Args:
        frames: The run.
        covered: Coverage of the run.
        hanging: The call in which each hanging thread hangs.
    """
    latest = max(frames.ranks[["alive_ns", "end_ns"]].max(axis=None), -1)
    # The end of a call on an accelerator may be unknown, though it has ended.
    on_host = frames.ranks["device"].astype(object) == "cpu"
    hosts = covered.truncated & {*frames.ranks.loc[on_host, "rank"]}
    calls = hanging[~hanging["is_transfer"] & (hanging["number"] >= 0)]
    for (group, number), rows in calls.groupby(["group", "number"], observed=True, sort=False):
        members = covered.reached.loc[covered.reached["group"] == group, "rank"]
        last = rows.loc[rows["issue_ns"].idxmax()]
        lasted = int(latest - last["issue_ns"])
        are_there = set(members) == set(rows["rank"]) <= hosts
        if not are_there or lasted < _ENDLESS_NS:
            continue
        named = call_text(str(last["kind"]), int(number), str(group), covered.names.get(group, ""))
        doing = f"issued {named}, which has not ended"
        found = _problem(doing, lasted, source_of(last), int(last["issue_ns"]), _UNKNOWN)
        yield replace(found, group=str(group), number=int(number))
        return
    if covered.unrecorded or not frames.host_events["kind"].isin(WAITING_KINDS).any():
        return  # without the pass over all calls that `ends` makes
    states = [*ends(frames).values()]
    last_one = max(states, key=lambda each: each.at_ns, default=None)
    is_alike = len({each.text for each in states}) == 1
    if last_one is None or not is_alike or not last_one.is_waiting or last_one.state != INSIDE:
        return
    lasted = int(latest - last_one.at_ns)
    if lasted >= _ENDLESS_NS:
        where = last_one.text.removeprefix("waits ")
        doing = f"still wait {where}"
        yield _problem(doing, lasted, last_one.source, last_one.at_ns, _APART)


def _problem(doing: str, lasted: int, source: str, at_ns: int, why: str) -> Problem:
    where = f" at {source}" if source else ""
    return Problem(
        problem="hanging call",
        is_fault=True,
        ranks="",
        found="not ended",
        source=source,
        explanation=f"All ranks {doing} {text_of_duration(lasted)} after the last of them{where}. "
        f"No rank is missing, so that the cause {why}.",
        at_ns=at_ns,
    )
