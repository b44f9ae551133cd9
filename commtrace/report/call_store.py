"""The calls of a page, packed: shared values are stored once, the rest as bytes.

Repeated calls of a program differ only in their times and numbers. The values they share form a
*call site*, a row of a table like the others of the page. Each call's own values are columns of
integers, stored as differences from a predicted value:

    issue_ns       from the call before on its rank      call_ns, wait_ns    itself
    number         from seq                              partner_id          from id
    blocked_ns     from call_ns                          complete_ns         from issue_ns + call_ns
    transfer_ns    from blocked_ns - wait_ns             ready_ns            from issue_ns + wait_ns
    data_ready_ns  from issue_ns                         result_used_ns      from complete_ns

A million calls take about five megabytes. If the body exceeds `MAX_BYTES`, times are rounded to the
finest resolution that fits; the page states it (`resolution_ns`). The shares of an `Overview`, if
any, follow the columns.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import arrivals, end_ns
from commtrace.analyze.measures.measures import with_group_facts
from commtrace.analyze.replay.slack import known_slack
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import is_transfer, numbers, partners
from commtrace.analyze.traffic.calls import COLUMNS
from commtrace.figures.spans import lanes
from commtrace.report.call_facts import findings_of_calls, operators_around, unknown_of_sites
from commtrace.report.overview import Overview

MAX_BYTES = 8_000_000
RESOLUTIONS_NS = (1, 100, 1000, 10_000, 100_000)

_NUMBERS = (
    *("rank", "id", "seq", "step", "module_call", "op_id", "thread", "micro_batch"),
    *("last_rank", "lane"),
)
_MET = ("number", "partner_id", "found")
"""Identity of a call's peers, and its findings.

`number` is the collective's number in its group; `partner_id` the id of a transfer's other end, or
the call's own; `found` the number of its set of findings in `finding_sets`.
"""
_NEAR: dict[str, tuple[tuple[str, int], ...]] = {
    "number": (("seq", 1),),
    "partner_id": (("id", 1),),
}
_TIMES: dict[str, tuple[tuple[str, int], ...]] = {
    "issue_ns": (),
    "call_ns": (),
    "wait_ns": (),
    "blocked_ns": (("call_ns", 1),),
    "complete_ns": (("issue_ns", 1), ("call_ns", 1)),
    "end_ns": (("complete_ns", 1),),
    "ready_ns": (("issue_ns", 1), ("wait_ns", 1)),
    "transfer_ns": (("blocked_ns", 1), ("wait_ns", -1)),
    "data_ready_ns": (("issue_ns", 1),),
    "result_used_ns": (("complete_ns", 1),),
    "slack_ns": (),
}
_IN_SERIES = ("id", "seq", "step", "module_call", "op_id", "thread", "issue_ns")
"""Columns stored as differences from the preceding call on the same rank."""


@dataclass(frozen=True, slots=True)
class CallStore:
    """Packed calls.

    Attributes:
        head: Description of the columns, as JSON for the page's script.
        body: The integers of all columns, compressed.
        sites: Table of the values that calls share.
    """

    head: dict[str, Any]
    body: bytes
    sites: pd.DataFrame

    def packed(self) -> str:
        """Return the body in base64 for the page."""
        return base64.b64encode(self.body).decode()


def call_store(
    frames: Frames, overview: Overview | None = None, *, is_whole: bool = True
) -> CallStore:
    """Pack the calls of a run or an excerpt, by rank and time, with their lanes, waits and ends."""
    found, finding_sets = findings_of_calls(frames)
    arrived = arrivals(frames)
    order = np.lexsort((frames.comm["issue_ns"], frames.comm["rank"]))
    columns = {name: values[order] for name, values in _own(frames, arrived).items()}
    # The slack of an excerpt is no slack of the run.
    slack = known_slack(frames) if is_whole else pd.Series(dtype="int64")
    columns["slack_ns"] = slack.reindex(frames.comm.index, fill_value=-1).to_numpy()[order]
    columns["found"] = found[order]
    comm = with_group_facts(frames, [*map(str, frames.comm)]).assign(
        operators=operators_around(frames)
    )
    site, sites = _sites(comm)
    sites["unknown"] = unknown_of_sites(frames, sites)
    columns["site"] = site[order]
    counted = [_encoded(name, columns) for name in (*_NUMBERS, *_MET, "site")]
    for resolution in RESOLUTIONS_NS:
        rounded = {name: _rounded(columns[name], resolution) for name in _TIMES}
        rounded["rank"] = columns["rank"]
        encoded = [*counted, *(_encoded(name, rounded) for name in _TIMES)]
        parts = [*(data for _, data in encoded), overview.body() if overview else b""]
        # Without a time stamp, since the fingerprint of equal runs must be equal.
        body = gzip.compress(b"".join(parts), compresslevel=5, mtime=0)
        if len(body) <= MAX_BYTES:
            break
    head = {
        "num_rows": len(order),
        "resolution_ns": resolution,
        "finding_sets": finding_sets,
        "columns": [entry for entry, _ in encoded],
        "overview": overview.head() if overview else None,
    }
    return CallStore(head, body, sites)


def _own(frames: Frames, arrived: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the values of single calls; times count from the start of the run, -1 is unknown."""
    comm, start = frames.comm, frames.start_ns

    def since_start(instant: pd.Series) -> np.ndarray:
        return np.where(instant >= 0, instant - start, -1)

    end = end_ns(comm)
    arrival = arrived["arrival_ns"]
    ready = arrival.where(arrival >= 0, comm["issue_ns"]).clip(comm["issue_ns"], end)
    times = {"issue_ns": comm["issue_ns"], "complete_ns": comm["complete_ns"]}
    times |= {"end_ns": end, "ready_ns": ready}
    times |= {name: comm[name] for name in ("data_ready_ns", "result_used_ns")}
    timed = comm["issue_ns"] >= 0
    return {
        **{name: comm[name].to_numpy() for name in _NUMBERS if name in comm},
        "number": numbers(frames).to_numpy(),
        "partner_id": _partner_ids(frames),
        **{name: comm[name].to_numpy() for name in ("call_ns", "blocked_ns")},
        **{name: arrived[name].to_numpy() for name in ("last_rank", "wait_ns", "transfer_ns")},
        **{name: since_start(values.where(timed, -1)) for name, values in times.items()},
        "lane": lanes(comm["rank"], comm["issue_ns"], end),
    }


def _partner_ids(frames: Frames) -> np.ndarray:
    """Return the id of each transfer's other end, -1 if none; for other calls, their own id."""
    ids = frames.comm["id"].to_numpy()
    if not is_transfer(frames).any():
        return ids
    partner = partners(frames).to_numpy()
    of_transfers = np.where(partner >= 0, frames.comm["id"].reindex(partner).fillna(-1), -1)
    return np.where(is_transfer(frames), of_transfers, ids).astype("int64")


def _sites(comm: pd.DataFrame) -> tuple[np.ndarray, pd.DataFrame]:
    """Return each call's number of its call site, and the call sites: all columns beyond `_own`."""
    own = {*_NUMBERS, *_TIMES}
    names = [column.name for column in COLUMNS if column.name not in own] + ["operators"]
    key = np.zeros(len(comm), dtype="int64")
    span = 1
    for name in names:
        values = comm[name]
        codes = values.cat.codes if values.dtype == "category" else pd.factorize(values)[0]
        codes = np.asarray(codes, dtype="int64")
        num_codes = int(codes.max(initial=0)) + 1
        # Renumbered before the combined code would need more than 64 bits.
        if span * num_codes >= 1 << 62:
            key, known = pd.factorize(key)
            span = len(known)
        key = key * num_codes + codes
        span *= num_codes
    site, _ = pd.factorize(key)
    _, firsts = np.unique(site, return_index=True)
    return site.astype("int64"), comm.iloc[firsts][names].reset_index(drop=True)


def _rounded(values: np.ndarray, resolution: int) -> np.ndarray:
    return np.where(values >= 0, values // resolution, values)


def _encoded(name: str, columns: dict[str, np.ndarray]) -> tuple[dict[str, Any], bytes]:
    """Return a column's decoding description, and its bytes: zigzag, lowest byte plane first."""
    terms: Sequence[tuple[str, int]] = _TIMES.get(name) or _NEAR.get(name, ())
    values = columns[name].astype("int64")
    for other, sign in terms:
        values = values - sign * columns[other]
    if name in _IN_SERIES:
        # -2 is no rank, so that the first row always begins a series.
        is_first = np.diff(columns["rank"], prepend=-2) != 0
        values = np.where(is_first, values, np.diff(values, prepend=0))
    folded = ((values << 1) ^ (values >> 63)).astype("<u8")
    num_bytes = max((int(folded.max(initial=0)).bit_length() + 7) // 8, 1)
    planes = folded.view("u1").reshape(-1, 8)[:, :num_bytes].T
    entry = {"name": name, "num_bytes": num_bytes, "is_time": name in _TIMES}
    entry |= {"terms": [list(term) for term in terms], "in_series": name in _IN_SERIES}
    return entry, np.ascontiguousarray(planes).tobytes()
