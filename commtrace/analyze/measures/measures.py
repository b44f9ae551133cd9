"""Measures that the tables share.

**Mean over ranks.** A count, a size or a time in these tables is the mean over all recorded ranks.
A call that only one of four ranks makes counts 0.25. Multiplied by the number of ranks, the mean is
the total of the run. Unknown sizes and times are excluded from a sum, and a sum without any known
value is nan. The time of a call is unknown unless its end or its blocked time is known;
`num_untimed` counts the calls that the blocked time lacks.

Bandwidths are ratios of sums over all ranks, as nccl-tests defines them, over the time from issue
to completion (waiting for late peers included):

    algbw = payload / time        busbw = payload * factor(kind, group size) / time

For a call without these times, the time on the device counts. A barrier, which has no payload, has
neither.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import end_ns, has_known_end
from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.measures.unrecorded import unrecorded_ns
from commtrace.analyze.run.analysis import addable, typed
from commtrace.analyze.run.cached_per_run import cached_per_run, of_each_part
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.sums import sums_by
from commtrace.collective_table import KINDS, busbw_factor
from commtrace.schema import Column
from commtrace.units import NANOSECONDS_PER_SECOND

MEASURES = (
    Column("num_calls", float, "", "calls; mean over ranks", title="Calls"),
    Column(
        "calls_per_step",
        float,
        "",
        "calls within steady steps, per step; mean over ranks",
        title="Per step",
    ),
    Column("payload_bytes", float, "bytes", "payload; mean over ranks", title="Payload"),
    Column(
        "wire_bytes",
        float,
        "bytes",
        "bytes to send under the ring algorithm; mean over ranks",
        title="Sent",
        long_title="Bytes sent",
    ),
    Column("time_ns", float, "ns", "time from issue to completion; mean over ranks", title="Time"),
    Column(
        "device_ns",
        float,
        "ns",
        "time for which devices ran the calls, as far as it was measured; mean over ranks",
        title="On the device",
        long_title="Time on the device",
    ),
    Column(
        "blocked_ns",
        float,
        "ns",
        "exposed time, in which the rank is blocked; mean over ranks",
        title="Blocked",
        long_title="Exposed time",
    ),
    Column(
        "num_untimed",
        float,
        "",
        "calls of unknown blocked time, which that time lacks; mean over ranks",
        title="Not timed",
    ),
    Column(
        "share",
        float,
        "1",
        "blocked time as a fraction of the recorded time of all ranks",
        title="Of the run",
    ),
    Column(
        "share_of_steps",
        float,
        "1",
        "blocked time in steady steps as a fraction of their time",
        title="Of the steps",
    ),
    Column(
        "algbw_bytes_per_s",
        float,
        "bytes/s",
        "payload / time from issue to completion",
        title="algbw",
    ),
    Column(
        "busbw_bytes_per_s",
        float,
        "bytes/s",
        "algbw times the kind's factor (nccl-tests)",
        title="busbw",
    ),
)

MEASURE = {column.name: column for column in MEASURES}
"""The measures by name; tables, figures and the command line take their titles from here."""

SHOWN_MEASURES = "num_calls calls_per_step payload_bytes wire_bytes blocked_ns share"
"""Measures that most tables of the page show."""


@cached_per_run
def recorded_ns(frames: Frames) -> pd.Series:
    """Return the recorded time of each rank in ns, indexed by rank, without unrecorded steps."""
    lasted = _lasted(frames.ranks.set_index("rank"))
    unknown = unrecorded_ns(frames).reindex(lasted.index, fill_value=0)
    return (lasted - unknown).clip(lower=0)


@cached_per_run
def steps_ns(frames: Frames) -> pd.Series:
    """Return the durations of the rows of table `steps`, in ns."""
    return _lasted(frames.steps)


def _lasted(spans: pd.DataFrame) -> pd.Series:
    """Return the time from start to end; 0 if either is unknown."""
    start, end = spans["start_ns"], spans["end_ns"]
    return addable((end - start).where((start >= 0) & (end >= start), 0))


def counted_ns(frames: Frames) -> int:
    """Return the time over all ranks that costs are fractions of, in ns.

    It is the time of all steady steps; if no steps are marked, the recorded time.
    """
    return int(steady_ns(frames) or recorded_ns(frames).sum())


def steady_ns(frames: Frames) -> float:
    """Return the time of all steady steps, over all ranks, in ns."""
    return float(steps_ns(frames)[is_steady(frames, frames.steps["step"])].sum())


def totals(frames: Frames, by: Sequence[str]) -> pd.DataFrame:
    """Return the sums over all ranks that the measures are computed from, by the columns `by`.

    The sums are additive: a caller may add rows before `measures` forms their ratios.
    """
    return summed(frames.by_ranks(totals_of_part, tuple(by)))


def summed(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the sums of tables of sums, by their index; a sum of nan only stays nan."""
    if len(parts) == 1:
        return parts[0]
    names = list(parts[0].index.names)
    # Each part has categories of its own.
    rows = pd.concat([each.reset_index().astype(dict.fromkeys(names, object)) for each in parts])
    sums = rows.set_index(names).apply(addable)
    return sums.groupby(level=names, sort=False).sum(min_count=1)


def totals_of_part(part: Frames, by: Sequence[str]) -> pd.DataFrame:
    """Return the sums of a part; see `totals`."""
    if {*by} <= {*_OF_PLACES}:
        # Sums of few rows, in place of those of all calls for each table.
        places = _of_places(part)
        sums = {name: places[name] for name in _SUMMANDS}
        return sums_by(sums, [places[name] for name in by], min_count=1)
    return _sums_of_calls(part, [part.comm[name] for name in by])


_OF_PLACES = (
    *("kind", "group", "mesh_axis", "group_size", "op", "module", "phase", "region"),
    *("source_file", "source_line", "source_function", "via"),
)
"""Columns with few combinations of values: a program makes its calls at few places."""


@of_each_part
def _of_places(part: Frames) -> pd.DataFrame:
    """Return the sums of the calls of a part by all columns `_OF_PLACES`."""
    comm = with_group_facts(part, [each for each in _OF_PLACES if each in part.comm.columns])
    return _sums_of_calls(part, [comm[name] for name in _OF_PLACES]).reset_index()


def _sums_of_calls(part: Frames, keys: Sequence[pd.Series]) -> pd.DataFrame:
    # Only the combinations that occur, and a sum of unknown values only stays unknown.
    return sums_by(_summands(part), keys, min_count=1)


_MEASURED = (
    *("payload_bytes", "wire_bytes", "blocked_ns", "device_ns", "step"),
    *("issue_ns", "call_ns", "complete_ns"),
)
"""Columns that the summands are computed from."""
_SUMMANDS = (
    *("num_calls", "calls_in_steps", "payload_bytes", "wire_bytes", "time_ns", "blocked_ns"),
    *("device_ns", "num_untimed", "num_sized", "num_ended", "blocked_in_steps", "elapsed_ns"),
    *("elapsed_payload", "elapsed_bus_bytes"),
)


@cached_per_run
def _summands(frames: Frames) -> dict[str, np.ndarray]:
    """Return the summands of the measures, a number per call; nan if unknown."""
    comm = frames.comm[[*_MEASURED]]
    payload, wire, blocked, on_device = (
        _known(comm[name]) for name in ("payload_bytes", "wire_bytes", "blocked_ns", "device_ns")
    )
    in_step = is_steady(frames, comm["step"]).to_numpy()
    lasted = (end_ns(comm) - comm["issue_ns"]).to_numpy("float64")
    lasted[~has_known_end(comm).to_numpy() | (lasted < 0)] = np.nan
    elapsed = np.where(np.isnan(lasted), on_device, lasted)
    elapsed[~(elapsed > 0) | np.isnan(payload)] = np.nan
    has_elapsed = ~np.isnan(elapsed)
    found = {
        "num_calls": np.ones(len(comm)),
        "calls_in_steps": in_step,
        "payload_bytes": payload,
        "wire_bytes": wire,
        "time_ns": lasted,
        "device_ns": on_device,
        "blocked_ns": blocked,
        "num_untimed": np.isnan(blocked),
        "num_sized": ~np.isnan(wire),
        "num_ended": ~np.isnan(lasted),
        "blocked_in_steps": np.where(in_step, blocked, np.nan),
        "elapsed_ns": elapsed,
        "elapsed_payload": np.where(has_elapsed, payload, np.nan),
        "elapsed_bus_bytes": np.where(has_elapsed, payload * busbw_factors(frames), np.nan),
    }
    return {name: each.astype("float64", copy=False) for name, each in found.items()}


def measures(frames: Frames, sums: pd.DataFrame) -> pd.DataFrame:
    """Return the columns `MEASURES` of summed `totals`, with the same index."""
    num_ranks = max(frames.num_ranks, 1)
    rank_steps = _num_rank_steps(frames)
    in_steps = steady_ns(frames)
    seconds = sums["elapsed_ns"] / NANOSECONDS_PER_SECOND
    return pd.DataFrame(
        {
            "num_calls": sums["num_calls"] / num_ranks,
            # Division by nan instead of 0 makes the result unknown.
            "calls_per_step": sums["calls_in_steps"] / (rank_steps or np.nan),
            "payload_bytes": sums["payload_bytes"] / num_ranks,
            "wire_bytes": sums["wire_bytes"] / num_ranks,
            "time_ns": sums["time_ns"] / num_ranks,
            "device_ns": sums["device_ns"] / num_ranks,
            "blocked_ns": sums["blocked_ns"] / num_ranks,
            "num_untimed": sums["num_untimed"] / num_ranks,
            "share": sums["blocked_ns"] / (recorded_ns(frames).sum() or np.nan),
            "share_of_steps": sums["blocked_in_steps"] / (in_steps or np.nan),
            "algbw_bytes_per_s": _positive(sums["elapsed_payload"]) / seconds,
            "busbw_bytes_per_s": _positive(sums["elapsed_bus_bytes"]) / seconds,
        }
    )


@cached_per_run
def _num_rank_steps(frames: Frames) -> int:
    """Return the sum of the ranks' numbers of steps, which can differ."""
    steps = frames.steps[is_steady(frames, frames.steps["step"])]
    return len(steps[["rank", "step"]].drop_duplicates())


def table_by(frames: Frames, columns: Sequence[Column]) -> pd.DataFrame:
    """Return a row per value of the columns before `MEASURES`, the longest blocked time first."""
    by = [column.name for column in columns if column not in MEASURES]
    table = typed(measures(frames, totals(frames, by)).reset_index(), columns)
    return table.sort_values(
        ["blocked_ns", "wire_bytes", *by], ascending=[False, False, *([True] * len(by))]
    ).reset_index(drop=True)


def with_group_facts(frames: Frames, columns: Sequence[str]) -> pd.DataFrame:
    """Return columns of table `comm`, with `mesh_axis` and `group_size` of each call's group.

    Column `group` must be among them.
    """
    groups, comm = frames.groups.set_index("name"), frames.comm[[*columns]]
    names = comm["group"].cat.categories
    # Looked up for each group rather than for each call.
    axis = groups["mesh_axis"].astype(object).reindex(names).fillna("").tolist()
    size = groups["size"].reindex(names).fillna(-1).astype("int64").to_numpy()
    codes = comm["group"].cat.codes.to_numpy()
    axis_codes, axis_names = pd.factorize(pd.Series(axis, dtype=object))
    return comm.assign(
        mesh_axis=pd.Categorical.from_codes(
            axis_codes[codes] if len(codes) else codes, pd.Index(axis_names, dtype=object)
        ),
        group_size=size[codes] if len(codes) else codes.astype("int64"),
    )


def _positive(column: pd.Series) -> pd.Series:
    return column.where(column > 0)


def _known(column: pd.Series) -> np.ndarray:
    return np.where(column >= 0, column, np.nan)


def busbw_factors(frames: Frames) -> pd.Series:
    """Return the busbw factor of each call; nan if the kind or the group is unknown."""
    kind, group = (frames.comm[name].astype("category").cat for name in ("kind", "group"))
    sizes = frames.groups.drop_duplicates("name").set_index("name")["size"]
    of_group = sizes.reindex(group.categories).fillna(-1).astype("int64").tolist()
    # One factor for each kind and group, from which each call takes its own.
    factors = np.full((len(kind.categories), len(of_group)), np.nan)
    for row, name in enumerate(kind.categories):
        for column, size in enumerate(of_group):
            if name in KINDS and size > 0:
                factors[row, column] = busbw_factor(name, size)
    return pd.Series(factors[kind.codes, group.codes], index=frames.comm.index)
