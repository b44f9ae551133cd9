"""Groups whose transfers are slow: for the link that the settings state, or beside equal groups.

Bandwidths are as in table `bandwidth`, after the arrival of the last rank. Groups of an axis are
equal if they have as many ranks on as many hosts, and their messages the same kind and size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import (
    MACHINE,
    Finding,
    Rule,
    Selected,
    calls_in,
    selected,
)
from commtrace.analyze.findings.needs import DURATION, PROCESS_GROUPS, SIZES, WAITS
from commtrace.analyze.measures.measures import counted_ns
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import members
from commtrace.analyze.traffic.bandwidth import LINK, bandwidth, timed_calls
from commtrace.analyze.traffic.sizes import power_below
from commtrace.units import text_of_bytes

_LEAST_BYTES = 1 << 24
"""Size from which messages reach most of a link's speed: on 400 Gbit/s, 84% at 32 MiB."""
_LEAST_BYTES_BESIDE = 1 << 16
"""Size from which messages of equal groups are compared: of smaller ones, latency decides."""
_LEAST_OF_LINK = _LEAST_OF_OTHERS = 0.5
"""Part of the link's speed, or of the median of the other groups, below which a group is slow."""
_LEAST_GROUPS, _LEAST_CALLS = 3, 4
"""Of fewer groups, it is unknown which one is unusual; of fewer messages, whether one always is."""


def slow_link(frames: Frames) -> list[Finding]:
    """Large messages of a group at less than half the speed of its link, or of equal groups."""
    least = max(frames.settings.threshold("slow_link_share") * counted_ns(frames), 1)
    return [
        Finding(
            f"{kind} of group {group}{f' of axis {axis}' if axis else ''} (ranks {ranks}) reaches "
            f"{_speed(speed)}, {speed / usual:.0%} of {_OF[reference]} ({_speed(usual)}), with "
            f"messages of {text_of_bytes(size)} and more.",
            "Check the links of these ranks: another route or rail than the others have, a card "
            "or cable that fell back to a lower speed, other traffic (nccl-tests between these "
            "hosts, NCCL_DEBUG=INFO for the transport that is used).",
            calls,
            cure=f"bandwidth *{usual / speed:.4g}",
        )
        for (kind, group, size, axis, ranks, speed, usual, reference), calls in selected(
            frames, _slow
        )
        if calls.lost_ns >= least
    ]


_OTHERS = "others"
_OF = {LINK: "its link's speed", _OTHERS: "the median of equal groups"}


def _speed(bytes_per_s: float) -> str:
    return f"{text_of_bytes(bytes_per_s)}/s"


@of_run
def _slow_rows(frames: Frames) -> pd.DataFrame:
    """Return `kind group from_bytes` of slow rows of the table, with what they are compared to."""
    table = bandwidth(frames)
    table = table[(table["num_after_arrival"] > 0) & (table["from_bytes"] > 0)]
    alike = table.merge(_extents(frames), on="group")
    speed = alike["median_busbw_bytes_per_s"]
    is_link = (alike["reference_is"] == LINK) & (alike["from_bytes"] >= _LEAST_BYTES)
    by = ["kind", "mesh_axis", "from_bytes", "algorithm", "protocol", "size", "num_hosts"]
    others = pd.Series(np.nan, alike.index)
    for _, own in alike.groupby(by, observed=True):
        for row in own.index if len(own) >= _LEAST_GROUPS else ():
            others[row] = speed[own.index.drop(row)].median()
    is_known = (alike["num_after_arrival"] >= _LEAST_CALLS * alike["size"]) & (speed > 0)
    link = alike["reference_bytes_per_s"].where(is_link)
    usual = link.where(speed < _LEAST_OF_LINK * link)
    is_large = alike["from_bytes"] >= _LEAST_BYTES_BESIDE
    is_large &= alike["best_busbw_bytes_per_s"] < others  # not one message was as fast
    usual = usual.fillna(others.where(is_large & (speed < _LEAST_OF_OTHERS * others)))
    found = alike.assign(speed=speed, usual=usual)[is_known & usual.notna()]
    is_by_link = found["usual"] == link[found.index]
    found = found.assign(reference=np.where(is_by_link, LINK, _OTHERS))
    names = ["kind", "group", "from_bytes", "mesh_axis", "ranks", "speed", "usual", "reference"]
    return found[names].drop_duplicates(["kind", "group", "from_bytes"])


def _extents(frames: Frames) -> pd.DataFrame:
    """Return the size, the ranks and the number of hosts of each group."""
    hosts = frames.ranks.set_index("rank")["host"].astype(object)
    of_members = members(frames)
    known = of_members.assign(host=of_members["rank"].map(hosts))
    num = known.groupby("group")["host"].nunique().rename("num_hosts").reset_index()
    groups = frames.groups[["name", "size", "ranks"]].rename(columns={"name": "group"})
    return groups.astype({"group": object, "ranks": object}).merge(num, on="group")


def _slow(part: Frames) -> Selected:
    """Return the calls of slow rows; their lost time is beyond the usual speed."""
    rows, comm = _slow_rows(part), part.comm
    found: Selected = {}
    if rows.empty:
        return found
    size = pd.Series(power_below(comm["payload_bytes"].clip(lower=0).to_numpy()), comm.index)
    after = timed_calls(part)["after_arrival"]
    for each in rows.itertuples(index=False):
        row: Any = each
        is_own = (comm["kind"] == row.kind) & (comm["group"] == row.group)
        own = comm[is_own & (size == row.from_bytes)]
        if len(own):
            lost = after[own.index] * (1 - row.speed / row.usual)
            key = (*row[:6], row.usual, row.reference)
            found[key] = calls_in(part, own, cost_bytes=0.0, lost_ns=lost)
    return found


SLOW_LINK = Rule(
    "slow_link",
    "a group whose transfers are slow for its link, or beside equal groups",
    slow_link,
    (SIZES, PROCESS_GROUPS, WAITS, DURATION),
    concerns=MACHINE,
)
