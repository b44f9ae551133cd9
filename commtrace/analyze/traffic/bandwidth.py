"""Bandwidth by kind, group, size and algorithm, with the wait for late ranks and without it.

A collective moves its data once the last member has arrived that it needs (`arrivals`), and its
members can arrive far apart. *After arrival* means the time from that arrival, or from the call's
own if it is later, to the call's completion. It is the time that the network takes:

    algbw = payload / time        busbw = payload * factor(kind, group size) / time

Bandwidths are ratios of sums over the calls of all ranks with a known end, or a known time on the
device. The median and the best are over single collectives, each the ratio of sums over its
members. Both leave out calls whose last arrival is unknown, because a member's call is not in the
trace.

The reference is the speed of the link that the settings give for the group or its mesh axis. If
there is none, it is the best busbw after arrival that the kind reached in the group, at any size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import last_arrivals
from commtrace.analyze.measures.measures import busbw_factors, summed
from commtrace.analyze.run.analysis import Analysis, addable, typed
from commtrace.analyze.run.cached_per_run import cached_per_run, of_each_part
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.run.matching import (
    NONE,
    Arrays,
    across_ranks,
    codes_of_texts,
    entries,
    matches,
    mesh_axes,
    numbers,
    put_alike,
)
from commtrace.analyze.run.sums import numbered_rows, sums_by
from commtrace.analyze.traffic.sizes import power_below
from commtrace.schema import Column
from commtrace.units import NANOSECONDS_PER_SECOND

LINK, BEST = "link", "best"
"""Values of column `reference_is`."""


def _speed(name: str, meaning: str, title: str) -> Column:
    return Column(f"{name}_bytes_per_s", float, "bytes/s", meaning, title=title)


BUSBW_AFTER_ARRIVAL = _speed(
    "busbw_after_arrival",
    "busbw over the time from the last arrival to completion",
    "busbw after arrival",
)

COLUMNS = (
    Column("kind", str, "", "all_reduce, all_gather, ..."),
    Column("group", str, "", "name of the process group"),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns it", title="Axis"),
    Column(
        "from_bytes",
        int,
        "bytes",
        "smallest payload of the row, a power of two or 0; -1 for calls of unknown size",
        title="From size",
    ),
    Column("algorithm", str, "", "algorithm of the kernels, if the trace has it"),
    Column("protocol", str, "", "protocol of the kernels, if the trace has it"),
    Column("num_calls", int, "", "calls of all ranks", title="Calls"),
    Column("payload_bytes", int, "bytes", "their payload, over all ranks", title="Payload"),
    Column(
        "num_timed", int, "", "calls among these with a payload and a known time", title="Timed"
    ),
    Column(
        "time_ns",
        int,
        "ns",
        "time of these from issue to completion; on the device, if that is unknown",
        title="Time",
    ),
    _speed("algbw", "payload / time", "algbw"),
    _speed("busbw", "algbw times the kind's factor (nccl-tests)", "busbw"),
    Column(
        "num_after_arrival",
        int,
        "",
        "timed calls whose last arrival is known",
        title="Arrival known",
    ),
    Column(
        "after_arrival_ns",
        int,
        "ns",
        "time of these from the last arrival to completion",
        title="After arrival",
    ),
    _speed(
        "algbw_after_arrival",
        "algbw over the time from the last arrival to completion",
        "algbw after arrival",
    ),
    BUSBW_AFTER_ARRIVAL,
    _speed(
        "median_busbw", "median over the row's collectives of busbw after arrival", "Median busbw"
    ),
    _speed("best_busbw", "highest busbw after arrival of a collective of the row", "Best busbw"),
    _speed("reference", "speed of the link, or best busbw of kind and group", "Reference"),
    Column(
        "reference_is",
        str,
        "",
        f"{LINK} if the settings give the speed of the group's link, else {BEST}",
        title="Reference is",
    ),
    Column(
        "share_of_reference",
        float,
        "1",
        "busbw after arrival as a fraction of the reference",
        title="Of the reference",
    ),
)

_BY = ["kind", "group", "from_bytes", "algorithm", "protocol"]


@cached_per_run
def timed_calls(frames: Frames) -> pd.DataFrame:
    """Return times and sizes of each call as floats, in the order of table `comm`; nan if unknown.

    Columns are `time` from issue to completion, or on the device if that is unknown, and
    `after_arrival` in ns, both nan for calls without payload; `payload` in bytes, and `bus`, the
    payload times the factor of busbw. A time that is not positive, as between clocks that disagree,
    is unknown.
    """
    comm = frames.comm
    issue = comm["issue_ns"] - frames.start_ns
    end = comm["complete_ns"] - frames.start_ns
    payload = comm["payload_bytes"].astype("float64").where(comm["payload_bytes"] > 0)
    is_sized = payload.notna()
    is_timed = is_sized & (comm["issue_ns"] >= 0) & (comm["complete_ns"] > comm["issue_ns"])
    on_device = comm["device_ns"].astype("float64").where(is_sized & (comm["device_ns"] > 0))
    begin = np.maximum(last_arrivals(frames)["arrival"], issue.astype("float64"))
    after = (end - begin).where(is_timed)
    return pd.DataFrame(
        {
            "time": (end - issue).astype("float64").where(is_timed, on_device),
            "after_arrival": after.where(after > 0),
            "payload": payload,
            "bus": payload * busbw_factors(frames),
        },
        copy=False,
    )


def busbw_after_arrival(frames: Frames, by: str) -> pd.Series:
    """Return the busbw after arrival by a column of the table's rows; nan if it is unknown."""
    sums = summed(frames.by_ranks(_sums)).groupby(level=by)[["bus_after", "after_arrival"]].sum()
    return _rate(sums["bus_after"], sums["after_arrival"])


def bandwidth(frames: Frames) -> pd.DataFrame:
    """Return a row per kind, group, power of two, algorithm and protocol, in this order."""
    table = summed(frames.by_ranks(_sums))
    for name, known in (("time_ns", "num_timed"), ("after_arrival_ns", "num_after_arrival")):
        table[name] = table[name].where(table[known] > 0, -1)
    table["payload_bytes"] = table["payload_bytes"].where(table["num_unsized"] == 0, -1)
    for name, (part, time) in _RATES.items():
        table[f"{name}_bytes_per_s"] = _rate(table[part], table[time])
    single = _speeds_of_rows(frames)
    for name, of_all in (("median", np.median), ("best", np.max)):
        table[f"{name}_busbw_bytes_per_s"] = [
            of_all(np.concatenate(single[row])) if row in single else math.nan
            for row in table.index
        ]
    table = table.reset_index()
    table["mesh_axis"] = mesh_axes(frames, table["group"])
    table = _with_reference(frames, table)
    return typed(table.sort_values(_BY), COLUMNS)


_RATES = {
    "algbw": ("payload", "time"),
    "busbw": ("bus", "time"),
    "algbw_after_arrival": ("payload_after", "after_arrival"),
    "busbw_after_arrival": ("bus_after", "after_arrival"),
}


def _rate(size: pd.Series, time_ns: pd.Series) -> pd.Series:
    """Return bytes per second; nan without a time, and for an unknown factor or a factor of 0."""
    return size.where(size > 0) / time_ns.where(time_ns > 0) * NANOSECONDS_PER_SECOND


def _rows(frames: Frames) -> list[pd.Series]:
    """Return the columns that identify the table's rows, a value per call."""
    comm = frames.comm
    size = comm["payload_bytes"].to_numpy()
    of_size = np.where(size >= 0, power_below(size.clip(min=0)), -1)
    sizes = pd.Series(of_size, comm.index, name="from_bytes")
    return [sizes if name == "from_bytes" else comm[name] for name in _BY]


def _sums(frames: Frames) -> pd.DataFrame:
    """Return the sums of the calls of each row of the table."""
    return _kept_sums(frames).set_index(_BY)


@of_each_part
def _kept_sums(frames: Frames) -> pd.DataFrame:
    timed, size = timed_calls(frames), frames.comm["payload_bytes"]
    has_time, has_arrival = timed["time"].notna(), timed["after_arrival"].notna()
    calls = {
        "num_calls": np.ones(len(size), "int64"),
        "num_unsized": (size < 0).astype("int64"),
        "payload_bytes": addable(size.clip(lower=0)),
        "num_timed": has_time.astype("int64"),
        "time_ns": addable(timed["time"].fillna(0).astype("int64")),
        "num_after_arrival": has_arrival.astype("int64"),
        "after_arrival_ns": addable(timed["after_arrival"].fillna(0).astype("int64")),
        "payload": timed["payload"].where(has_time),
        "bus": timed["bus"].where(has_time),
        "time": timed["time"],
        "payload_after": timed["payload"].where(has_arrival),
        "bus_after": timed["bus"].where(has_arrival),
        "after_arrival": timed["after_arrival"],
    }
    return sums_by(calls, _rows(frames)).reset_index()


def _speeds_of_rows(frames: Frames) -> dict[tuple[Any, ...], list[np.ndarray]]:
    """Return the busbw after arrival of the collectives of each row for which it is known."""
    tables, uneven = zip(*frames.by_ranks(_speeds), strict=True)
    # Members with other sizes, such as of an uneven all-to-all, are in several rows.
    of_members = joined(uneven)
    by = ["collective", *_BY]
    sums = of_members.groupby(by, observed=True, sort=False)[["bus", "time"]].sum()
    rates = _rate(sums["bus"], sums["time"]).dropna().rename("rate").reset_index()
    found: dict[tuple[Any, ...], list[np.ndarray]] = {}
    for table in (*tables, rates):
        for row, of_row in table.groupby(_BY, observed=True)["rate"]:
            found.setdefault(row, []).append(of_row.to_numpy())  # type: ignore[arg-type]
    return found


@across_ranks(
    bus=(0.0, "float64"),
    time=(0.0, "float64"),
    _row=(0, "int64"),
    is_uneven=(False, "bool"),
    rank=(NONE, "int64"),
)
def _sums_of_collectives(part: Frames, into: Arrays) -> None:
    """Sums over the calls of each collective with a known time after arrival.

    `rank` is the highest rank among them; `is_uneven` if they are in several rows of the table.
    """
    timed = timed_calls(part)
    is_one = (timed["after_arrival"].notna() & (numbers(part) >= 0)).to_numpy()
    at = matches(part).to_numpy()[is_one]
    np.add.at(into["bus"], at, timed["bus"].to_numpy()[is_one])
    np.add.at(into["time"], at, timed["after_arrival"].to_numpy()[is_one])
    np.maximum.at(into["rank"], at, part.comm["rank"].to_numpy()[is_one])
    number, firsts = numbered_rows(_rows(part))
    rows = zip(*(key.iloc[firsts] for key in _rows(part)), strict=True)
    names = pd.Categorical.from_codes(number, pd.Index([*map(repr, rows)], dtype=object))
    is_other = put_alike(into["_row"], at, codes_of_texts(pd.Series(names))[is_one], 0)
    into["is_uneven"][at[is_other]] = True


def _speeds(part: Frames) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the `rate` of collectives and transfers of a part, with their row of the table.

    Also return `collective`, `bus` and `time` of calls of collectives that are in several rows.
    """
    timed = timed_calls(part)
    known = timed["after_arrival"].notna()
    calls = pd.DataFrame(dict(zip(_BY, _rows(part), strict=True)))[known]
    calls = calls.assign(bus=timed["bus"][known], time=timed["after_arrival"][known])
    is_alone = numbers(part)[known] < 0  # a transfer, whose other end is another call
    alone, calls = calls[is_alone], calls[~is_alone]
    calls = calls.assign(collective=matches(part)[calls.index])
    sums = entries(_sums_of_collectives(part), calls["collective"])
    is_even = ~sums["is_uneven"] & (sums["rank"] == part.comm["rank"][calls.index])
    once = calls[_BY].assign(bus=sums["bus"], time=sums["time"])[is_even]
    rates = joined([each.assign(rate=_rate(each["bus"], each["time"])) for each in (alone, once)])
    return rates[[*_BY, "rate"]].dropna(subset="rate"), calls[sums["is_uneven"]]


def _with_reference(frames: Frames, table: pd.DataFrame) -> pd.DataFrame:
    """Add the reference of each row, and the share of it that the row reaches."""
    groups = list(zip(table["group"], table["mesh_axis"], strict=True))
    speeds = {each: frames.settings.link_bytes_per_s(*each) for each in set(groups)}
    link = pd.Series([speeds[each] for each in groups], table.index, dtype="float64")
    best = table.groupby(["kind", "group"])["best_busbw_bytes_per_s"].transform("max")
    reference = link.fillna(best)
    return table.assign(
        reference_bytes_per_s=reference,
        reference_is=np.where(link.notna(), LINK, np.where(best.notna(), BEST, "")),
        share_of_reference=table["busbw_after_arrival_bytes_per_s"] / reference,
    )


BANDWIDTH = Analysis(
    "bandwidth",
    "Bandwidth",
    "How fast is data moved once all ranks have arrived, and how fast with their wait?",
    bandwidth,
    COLUMNS,
    topic="What",
    shown=(
        "kind group from_bytes busbw_after_arrival_bytes_per_s busbw_bytes_per_s "
        "share_of_reference mesh_axis algorithm protocol num_calls num_after_arrival "
        "median_busbw_bytes_per_s best_busbw_bytes_per_s"
    ),
)
