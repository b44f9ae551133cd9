"""All calls of a run, small enough for a page: what repeats stored once, the rest as bytes.

Calls that a program makes again and again differ in their times and numbers only. What they share
is a *site*, a row of a table like the others of the page; what is a call's own is a column of
integers, of which the page carries the difference from what it mostly is:

    issue_ns       from the call before on its rank      call_ns, wait_ns    itself
    number         from seq                              partner_id          from id
    blocked_ns     from call_ns                          complete_ns         from issue_ns + call_ns
    transfer_ns    from blocked_ns - wait_ns             ready_ns            from issue_ns + wait_ns

A million calls take some five megabytes. Where their times take more than `MAX_BYTES`, they are
rounded, as little as will do; the page says to what (`resolution_ns`).
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.arrivals import arrivals, end_ns
from commtrace.analyze.calls import COLUMNS
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import is_transfer, numbers, partners
from commtrace.analyze.measures import with_group_facts
from commtrace.figures.spans import lanes
from commtrace.report.call_facts import findings_of_calls, operators_around, unknown_of_sites

MAX_BYTES = 8_000_000
RESOLUTIONS_NS = (1, 100, 1000, 10_000, 100_000)

_NUMBERS = ("rank", "id", "seq", "step", "module_call", "op_id", "thread", "last_rank", "lane")
_MET = ("number", "partner_id", "found")
"""Identity of a call's peers: the number of its collective in the group, or its partner's id (its
own, where it is no transfer); and which findings count it in, a number of `finding_sets`."""
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
}
_IN_SERIES = ("id", "seq", "step", "module_call", "op_id", "thread", "issue_ns")
"""Columns whose difference from the call before on the same rank is carried."""


@dataclass(frozen=True, slots=True)
class CallStore:
    """`head` is JSON for the page's script, `body` the integers of all columns."""

    head: dict[str, Any]
    body: bytes
    sites: pd.DataFrame

    def packed(self) -> str:
        """The body as text for the page."""
        return base64.b64encode(self.body).decode()


def call_store(frames: Frames) -> CallStore:
    """The calls of a run by rank and time, with their lanes, waits and ends."""
    found, finding_sets = findings_of_calls(frames)
    frames = with_group_facts(frames)
    order = np.lexsort((frames.comm["issue_ns"], frames.comm["rank"]))
    columns = {name: values[order] for name, values in _own(frames).items()}
    columns["found"] = found[order]
    site, sites = _sites(frames.comm.assign(operators=operators_around(frames)))
    sites["unknown"] = unknown_of_sites(frames, sites)
    columns["site"] = site[order]
    counted = [_encoded(name, columns) for name in (*_NUMBERS, *_MET, "site")]
    for resolution in RESOLUTIONS_NS:
        rounded = {name: _rounded(columns[name], resolution) for name in _TIMES}
        rounded["rank"] = columns["rank"]
        encoded = [*counted, *(_encoded(name, rounded) for name in _TIMES)]
        body = gzip.compress(b"".join(data for _, data in encoded), compresslevel=6, mtime=0)
        if len(body) <= MAX_BYTES:
            break
    head = {
        "num_rows": len(order),
        "resolution_ns": resolution,
        "finding_sets": finding_sets,
        "columns": [entry for entry, _ in encoded],
    }
    return CallStore(head, body, sites)


def _own(frames: Frames) -> dict[str, np.ndarray]:
    """What each call has of its own; times count from the start of the run, -1 is not known."""
    comm, arrived, start = frames.comm, arrivals(frames), frames.start_ns

    def since_start(instant: pd.Series) -> np.ndarray:
        return np.where(instant >= 0, instant - start, -1)

    end = end_ns(comm)
    arrival = arrived["arrival_ns"]
    ready = arrival.where(arrival >= 0, comm["issue_ns"]).clip(comm["issue_ns"], end)
    times = {"issue_ns": comm["issue_ns"], "complete_ns": comm["complete_ns"]}
    times |= {"end_ns": end, "ready_ns": ready}
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
    """The id of the other end of each transfer, -1 where there is none; of others, their own."""
    ids = frames.comm["id"].to_numpy()
    if not is_transfer(frames).any():
        return ids
    partner = partners(frames).to_numpy()
    of_transfers = np.where(partner >= 0, frames.comm["id"].reindex(partner).fillna(-1), -1)
    return np.where(is_transfer(frames), of_transfers, ids).astype("int64")


def _sites(comm: pd.DataFrame) -> tuple[np.ndarray, pd.DataFrame]:
    """The number of each call's site, and the sites: what the calls have besides `_own`."""
    own = {*_NUMBERS, *_TIMES}
    names = [column.name for column in COLUMNS if column.name not in own] + ["operators"]
    key = np.zeros(len(comm), dtype="int64")
    span = 1
    for name in names:
        values = comm[name]
        codes = values.cat.codes if values.dtype == "category" else pd.factorize(values)[0]
        codes = np.asarray(codes, dtype="int64")
        num_codes = int(codes.max(initial=0)) + 1
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
    """How a column is decoded, and its bytes: zigzag, all lowest bytes first, then the next."""
    terms: Sequence[tuple[str, int]] = _TIMES.get(name) or _NEAR.get(name, ())
    values = columns[name].astype("int64")
    for other, sign in terms:
        values = values - sign * columns[other]
    if name in _IN_SERIES:
        is_first = np.diff(columns["rank"], prepend=-2) != 0
        values = np.where(is_first, values, np.diff(values, prepend=0))
    folded = ((values << 1) ^ (values >> 63)).astype("<u8")
    num_bytes = max((int(folded.max(initial=0)).bit_length() + 7) // 8, 1)
    planes = folded.view("u1").reshape(-1, 8)[:, :num_bytes].T
    entry = {"name": name, "num_bytes": num_bytes, "is_time": name in _TIMES}
    entry |= {"terms": [list(term) for term in terms], "in_series": name in _IN_SERIES}
    return entry, np.ascontiguousarray(planes).tobytes()
