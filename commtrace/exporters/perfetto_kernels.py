"""Kernels of a Perfetto export: a track per stream, and arrows from calls to their kernels.

Kernels that overlap on a stream are on further tracks of it, since slices of a track must nest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.devices.device_work import rows_of_calls
from commtrace.analyze.run.frame import Frames
from commtrace.exporters.trace_events import arrow, lanes, rest, slice_event, track

KERNELS = 100_000_000
"""Number of the first track of a rank's streams."""

FLOW = "kernel"
_FIRST_ARROW = 1 << 40
"""Number of the first arrow; arrows of the calls have lower numbers."""


@dataclass(frozen=True, slots=True)
class KernelTracks:
    """Kernels with known times and their tracks.

    Attributes:
        kernels: By rank, device, stream and start: `rank start end track`, `row` in table
            `kernels`, and `call`, the row in table `comm`, -1 if it has none.
        tracks: `rank track title` of each track.
    """

    kernels: pd.DataFrame
    tracks: pd.DataFrame


def kernel_tracks(frames: Frames) -> KernelTracks:
    """Return the kernels of a run on their tracks, with times since the start of the run."""
    table = frames.kernels
    is_timed = ((table["start_ns"] >= 0) & (table["duration_ns"] >= 0)).to_numpy()
    rows = np.flatnonzero(is_timed)
    table = table[is_timed]
    start = (table["start_ns"] - frames.start_ns).to_numpy()
    kernels = pd.DataFrame(
        {
            "rank": table["rank"].to_numpy(),
            "device": table["device"].astype(object).to_numpy(),
            "stream": table["stream"].to_numpy(),
            "start": start,
            "end": start + table["duration_ns"].to_numpy(),
            "row": rows,
            "call": rows_of_calls(frames, table),
        }
    )
    by = ["rank", "device", "stream"]
    kernels = kernels.sort_values([*by, "start", "end"], kind="stable").reset_index(drop=True)
    key = kernels.groupby(by, sort=True).ngroup().to_numpy()
    kernels["lane"] = lanes(key, kernels["start"].to_numpy(), kernels["end"].to_numpy())
    tracks = kernels[[*by, "lane"]].drop_duplicates().sort_values([*by, "lane"], kind="stable")
    tracks = tracks.assign(track=KERNELS + tracks.groupby("rank").cumcount())
    kernels = kernels.merge(tracks, on=[*by, "lane"], how="left", sort=False)
    has_several = tracks.groupby("rank")["device"].transform("nunique") > 1
    number = tracks["stream"].astype(str).where(tracks["stream"] >= 0, "?")
    again = (" (" + (tracks["lane"] + 1).astype(str) + ")").where(tracks["lane"] > 0, "")
    title = (tracks["device"] + " ").where(has_several, "") + "stream " + number + again
    return KernelTracks(kernels, tracks.assign(title=title)[["rank", "track", "title"]])


def track_names(found: KernelTracks, rank: int) -> Iterator[str]:
    """Yield the names of a rank's tracks."""
    tracks = found.tracks[found.tracks["rank"] == rank]
    for number, title in zip(tracks["track"].tolist(), tracks["title"].tolist(), strict=True):
        yield from track(rank, number, title)


def kernel_events(
    frames: Frames, found: KernelTracks, calls: pd.DataFrame, tracks: np.ndarray
) -> Iterator[str]:
    """Yield the kernels, and arrows to them from `calls`, which are on the given tracks."""
    table = frames.kernels.iloc[found.kernels["row"]]
    texts: dict[tuple[str, str], str] = {}
    delays = (table["start_ns"] - table["launch_ns"]).where(table["launch_ns"] >= 0, -1)
    columns = [table[name].tolist() for name in ("name", "category", "id", "stream", "call_id")]
    places = [found.kernels[name].tolist() for name in ("rank", "track", "start", "end")]
    for rank, on_track, start, end, name, category, id_, stream, call_id, delay in zip(
        *places, *columns, delays.tolist(), strict=True
    ):
        text = texts.get((name, category))
        if text is None:
            # Without the end of `args`, to which the rest is appended.
            text = texts[name, category] = rest(name or "kernel", category or "kernel")[:-1]
        args = [f'"id":{id_}']
        args += [f'"stream":{stream}'] if stream >= 0 else []
        args += [f'"call":{call_id}'] if call_id >= 0 else []
        args += [f'"launch_delay_ns":{delay}'] if delay >= 0 else []
        yield slice_event(rank, on_track, start, end, f"{text}{','.join(args)}}}")
    yield from _arrows(found, calls, tracks)


def _arrows(found: KernelTracks, calls: pd.DataFrame, tracks: np.ndarray) -> Iterator[str]:
    """Yield an arrow from each call to each of its kernels that begins no earlier."""
    place = pd.Series(np.arange(len(calls)), index=calls["row"].to_numpy())
    kernels = found.kernels[found.kernels["call"].isin(place.index)]
    of_call = calls.iloc[place.loc[kernels["call"]].to_numpy()]
    starts = zip(of_call["start"].tolist(), tracks[of_call.index].tolist(), strict=True)
    ends = zip(*(kernels[name].tolist() for name in ("rank", "track", "start")), strict=True)
    number = _FIRST_ARROW
    for (begin, of_one), (rank, of_kernel, start) in zip(starts, ends, strict=True):
        if start >= begin:
            yield arrow("s", FLOW, number, rank, of_one, begin)
            yield arrow("f", FLOW, number, rank, of_kernel, start)
            number += 1
