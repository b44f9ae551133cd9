"""Time of each device and stream: computing, communicating, copying, or idle, and why.

A row is a step on a device as a whole (stream -1), or on one of its streams. Step -1 is the time
outside of steps, between the first and the last kernel of the device.

*Exposed* communication runs while nothing computes on the device, *overlapped* communication runs
while something does. It waits until the last peer has arrived, and then transfers; which of the two
is unknown for a call that is not matched across its ranks. *Idle* time is attributed by the next
kernel:

    waiting for the host      it has not been launched yet, or nothing follows
    waiting for a kernel      it has been launched, and another stream of the device is busy
    launch gap                it has been launched, and nothing else runs
    unknown                   the time of its launch is unknown

Where work of several sorts runs at once, the first of compute, exposed communication, copies and
other work counts. On a device as a whole, compute, exposed communication, copies, other work and
idle time add up to the duration, and overlapped communication is a part of compute. On a stream,
overlapped communication is added, too. A kernel of an unknown stream counts on its device only. The
busiest 32 streams of a device have rows of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.devices.device_work import (
    COMPUTING,
    SORTS,
    MeasuredDevice,
    WorkTable,
    devices,
)
from commtrace.analyze.measures.covered import NOTHING, Covered
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.frame import Frames
from commtrace.schema import Column

ALL_STREAMS = -1

PARTS: dict[str, tuple[str, str]] = {
    "compute": ("Computing", "time in which a kernel computes"),
    "exposed_wait": (
        "Waiting for a peer",
        "exposed communication until the last peer has arrived",
    ),
    "exposed_transfer": ("Transferring", "exposed communication after that"),
    "exposed_unknown": ("Exposed, not known", "exposed communication of unknown arrivals"),
    "overlapped": ("Overlapped", "communication while something computes"),
    "copy": ("Copying", "copies and fills while nothing computes or communicates"),
    "other": ("Other work", "work of unknown category while nothing else runs"),
    "idle_host": ("Waiting for the host", "idle before the launch of the next kernel"),
    "idle_kernel": ("Waiting for a kernel", "idle after it, while another stream is busy"),
    "idle_launch": ("Launch gap", "idle after it, while nothing runs"),
    "idle_unknown": ("Idle, not known", "idle before a kernel whose launch is unknown"),
}
"""Names of the parts with headings and meanings."""

CONCURRENT = "overlapped"
"""The part that is not added on a device as a whole, where it is also compute."""

_NAMES = ("compute", "exposed_transfer", "exposed_unknown", "exposed_wait", "copy", "other")
"""Parts of the sorts of work, in the order of `SORTS`."""
_COMMUNICATION, _SENDS = _NAMES[1:4], SORTS[1:4]

COLUMNS = (
    Column("rank", int, "", "global rank"),
    Column("device", str, "", "device, `cuda:1`"),
    Column("stream", int, "", "stream of the device; -1 for the device as a whole", minus="all"),
    Column("step", int, "", "number of the step, from 0; -1 outside of steps"),
    Column("duration_ns", int, "ns", "duration of the step", title="Duration"),
    *(
        Column(f"{name}_ns", int, "ns", meaning, title=title)
        for name, (title, meaning) in PARTS.items()
    ),
    *(
        Column(
            f"{name}_share",
            float,
            "1",
            f"{meaning}, as a fraction of the duration",
            title=f"{title}, share",
        )
        for name, (title, meaning) in PARTS.items()
    ),
)


def gpu_time(frames: Frames) -> pd.DataFrame:
    """Return a row per device, stream and step, the device as a whole first."""
    order = ["rank", "device", "stream", "step"]
    table = pd.concat(frames.by_ranks(_of_ranks)).sort_values(order, kind="stable")
    return typed(table, COLUMNS)


def _of_ranks(frames: Frames) -> pd.DataFrame:
    """Return the rows of the devices of some ranks."""
    parts = [rows for device in devices(frames) for rows in _rows(device)]
    names = [column.name for column in COLUMNS if not column.name.endswith("_share")]
    table = pd.DataFrame(
        {name: np.concatenate([rows[name] for rows in parts]) for name in names if parts},
        columns=names,
    )
    over = table["duration_ns"].astype("float64").replace(0, np.nan)
    shares = {f"{name}_share": table[f"{name}_ns"] / over for name in PARTS}
    return table.assign(**shares)


def _rows(device: MeasuredDevice) -> list[dict[str, np.ndarray]]:
    """Return the rows of a device, and of each of its streams, as columns."""
    on_device = device.work.covered()
    busy = Covered.by(device.work.start, device.work.end)
    duration = device.measure(Covered.by(np.array([device.first]), np.array([device.last])))
    steps = np.append(device.steps, -1)
    is_row = (steps >= 0) | (duration > 0) | (len(steps) == 1)
    found = []
    for stream, work in ((ALL_STREAMS, device.work), *device.streams()):
        columns: dict[str, Any] = {
            "rank": device.rank,
            "device": np.array(device.name, dtype=object),
            "stream": stream,
            "step": steps,
            "duration_ns": duration,
            **_working(device, on_device, None if stream == ALL_STREAMS else work),
            **_idle(device, busy, work),
        }
        found.append(
            {name: np.broadcast_to(each, len(steps))[is_row] for name, each in columns.items()}
        )
    return found


def _working(
    device: MeasuredDevice, on_device: Mapping[int, Covered], work: WorkTable | None
) -> dict[str, np.ndarray]:
    """Return the busy parts of each window, for a stream's `work` or the device as a whole."""
    own = on_device if work is None else work.covered()
    sent = {sort: covered for sort, covered in own.items() if sort in _SENDS}
    found = _in_order(device, own)
    exposed = _in_order(device, sent | {COMPUTING: on_device.get(COMPUTING, NOTHING)})
    communicating = _in_order(device, sent) if work is None else found
    both = np.sum([communicating[name] - exposed[name] for name in _COMMUNICATION], axis=0)
    parts = found | {name: exposed[name] for name in _COMMUNICATION} | {CONCURRENT: both}
    return {f"{name}_ns": lasts for name, lasts in parts.items()}


def _in_order(device: MeasuredDevice, covered: Mapping[int, Covered]) -> dict[str, np.ndarray]:
    """Return the time of each sort in each window, while none of the sorts before it runs."""
    total, before = NOTHING, np.zeros(len(device.steps) + 1, dtype="int64")
    found: dict[str, np.ndarray] = {name: before for name in _NAMES}
    for sort, name in zip(SORTS, _NAMES, strict=True):
        if sort in covered:
            total = total.joined(covered[sort])
            now = device.measure(total)
            found[name], before = now - before, now
    return found


def _idle(device: MeasuredDevice, busy: Covered, work: WorkTable) -> dict[str, np.ndarray]:
    """Return the idle parts of each window; `busy` is the time in which the device is busy."""
    idle = work.idle(device.first, device.last)
    after = device.measure(idle.after_launch)
    is_busy = after - (device.measure(busy.joined(idle.after_launch)) - device.measure(busy))
    return {
        "idle_host_ns": device.measure(idle.before_launch),
        "idle_kernel_ns": is_busy,
        "idle_launch_ns": after - is_busy,
        "idle_unknown_ns": device.measure(idle.unknown),
    }


def shares(table: pd.DataFrame) -> dict[str, float]:
    """Return each part as a fraction of the time of all devices; empty if there are none.

    Fractions are of the steps' time or, without steps, of the recorded time.
    """
    rows = _whole(table)
    lasted = rows["duration_ns"].astype("float64").sum()
    if not lasted:
        return {}
    return {name: rows[f"{name}_ns"].astype("float64").sum() / lasted for name in PARTS}


def summary(table: pd.DataFrame) -> str:
    """Return in a sentence where the time of all devices goes; empty if there are none.

    Parts that take no time are left out.
    """
    share = shares(table)
    if not share:
        return ""
    texts = []
    for words, names in SUMS.items():
        total = sum(share[name] for name in names)
        detail = ", ".join(
            f"{_SAID[name]} {share[name]:.1%}"
            for name in names
            if share[name] > 0 and name in _SAID
        )
        if total or words == "computing":
            verb = "" if texts else "is "
            texts.append(f"{total:.1%} {verb}{words}" + (f" ({detail})" if detail else ""))
    rows = _whole(table)
    num = len(rows[["rank", "device"]].drop_duplicates())
    whose = "the device's time" if num == 1 else f"the time of {num:,} devices"
    where = " in steps" if (rows["step"] >= 0).any() else ""
    listed = " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))
    return f"Of {whose}{where}, {listed}."


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of devices as a whole, of steps if there are any."""
    whole = table[table["stream"] == ALL_STREAMS]
    inside = whole[whole["step"] >= 0]
    return inside if len(inside) else whole


SUMS = {
    "computing": ("compute",),
    "exposed communication": ("exposed_wait", "exposed_transfer", "exposed_unknown"),
    "copying": ("copy",),
    "other work": ("other",),
    "idle": ("idle_host", "idle_kernel", "idle_launch", "idle_unknown"),
}
"""Parts that are summed up in a few words."""

_SAID = {
    "exposed_wait": "waiting for a peer",
    "exposed_transfer": "transferring",
    "exposed_unknown": "not known which",
    "idle_host": "waiting for the host",
    "idle_kernel": "waiting for a kernel",
    "idle_launch": "launch gaps",
    "idle_unknown": "for an unknown reason",
}


GPU_TIME = Analysis(
    "gpu_time",
    "Time of devices",
    "Where does the time of each device go?",
    gpu_time,
    COLUMNS,
    topic="Devices",
    shown=(
        "rank device stream step duration_ns compute_share exposed_wait_share "
        "exposed_transfer_share exposed_unknown_share overlapped_share copy_share "
        "idle_host_share idle_kernel_share idle_launch_share idle_unknown_share"
    ),
    needs="kernels",
)
