"""Time of devices: cases by hand, laws, and large runs; loops are in `second/device.py`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.analyze.devices.device_work import MOST_DEVICES, MOST_STREAMS
from commtrace.analyze.devices.gpu_time import PARTS, gpu_time, summary
from commtrace.analyze.excerpts.time_window import of_steps, within
from commtrace.analyze.notices import notices_of, notices_on
from commtrace.analyze.overlap.overlap import overlap
from commtrace.event import KernelRow
from commtrace.importers import import_trace
from commtrace.schema import CATEGORIES, COMMUNICATION, MEMCPY, MEMSET, TABLES
from commtrace.tracefile import trace_of_rows
from tests.commtrace.analyze.devices.devices import device_trace
from tests.commtrace.analyze.rows import (
    START_NS,
    call,
    kernel,
    random_trace,
    rank_row,
    run_of,
    step,
)
from tests.commtrace.analyze.second import Run
from tests.commtrace.analyze.second.compare import differences
from tests.commtrace.importers.kineto.profiles import training, write_profiles

NCCL = {"category": COMMUNICATION, "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "stream": 20}


def parts(frames: Frames, *, stream: int = -1, step: int = -1, rank: int = 0) -> dict[str, int]:
    """The parts of a row that are not 0."""
    table = gpu_time(frames)
    chosen = (table["rank"] == rank) & (table["stream"] == stream) & (table["step"] == step)
    (row,) = table[chosen].to_dict("records")
    found = {name: row[f"{name}_ns"] for name in PARTS if row[f"{name}_ns"]}
    total = sum(lasts for name, lasts in found.items() if stream >= 0 or name != "overlapped")
    assert total == row["duration_ns"]
    for name in PARTS:
        assert row[f"{name}_share"] == row[f"{name}_ns"] / row["duration_ns"]
    return found


def on_device(*kernels: Any, comm: Any = (), steps: Any = (), num_ranks: int = 1) -> Frames:
    return run_of(comm, kernels=kernels, steps=steps, num_ranks=num_ranks)


def test_idle_time_is_split_at_the_launch_of_the_next_kernel() -> None:
    frames = on_device(
        kernel(at=0, until=100, launched=0),
        kernel(at=150, until=200, launched=130),  # 30 until its launch, 20 until its start
        kernel(at=210, until=300, launched=140),  # launched before the device was free
    )
    assert parts(frames) == {"compute": 240, "idle_host": 30, "idle_launch": 30}


def test_a_stream_waits_for_a_kernel_of_another_stream() -> None:
    frames = on_device(
        kernel(at=0, until=100, launched=0),
        kernel(at=0, until=50, launched=0, stream=9),
        kernel(at=120, until=200, launched=60, stream=9),
    )
    # Stream 9 is idle from 50: until 60 nothing is launched, until 100 stream 7 runs.
    assert parts(frames, stream=9) == {
        **{"compute": 130, "idle_host": 10, "idle_kernel": 40, "idle_launch": 20}
    }
    assert parts(frames) == {"compute": 180, "idle_launch": 20}
    # After its last kernel, nothing more was launched on stream 7.
    assert parts(frames, stream=7) == {"compute": 100, "idle_host": 100}


def test_a_launch_that_is_not_known_leaves_the_reason_unknown() -> None:
    frames = on_device(kernel(at=0, until=10, launched=0), kernel(at=50, until=60))
    assert parts(frames) == {"compute": 20, "idle_unknown": 40}
    text = " ".join(notices_on("gpu_time", notices_of(frames)))
    assert "The launch of 1 of 2 kernels is unknown" in text


def test_of_kernels_that_begin_together_the_first_launch_counts() -> None:
    first = kernel(at=0, until=10, launched=0)
    later = [
        kernel(at=50, until=60, launched=at, stream=stream) for at, stream in ((40, 7), (20, 9))
    ]
    assert parts(on_device(first, *later)) == {"compute": 20, "idle_host": 10, "idle_launch": 30}
    unknown = kernel(at=50, until=55, stream=11)
    assert parts(on_device(first, *later, unknown)) == {"compute": 20, "idle_unknown": 40}


def test_a_kernel_without_length_divides_the_idle_time() -> None:
    frames = on_device(
        kernel(at=0, until=10, launched=0),
        kernel(at=30, until=30, launched=20),
        kernel(at=100, until=110, launched=90),
    )
    assert parts(frames) == {"compute": 20, "idle_host": 10 + 60, "idle_launch": 10 + 10}


def test_compute_comes_before_communication_and_that_before_copies() -> None:
    frames = on_device(
        kernel(at=0, until=40, launched=0),
        kernel(at=20, until=80, launched=0, **NCCL),
        kernel(at=60, until=100, launched=0, category=MEMCPY, stream=22),
        kernel(at=90, until=120, launched=0, category=MEMSET, stream=22),
        kernel(at=110, until=140, launched=0, category="", stream=23),
    )
    assert parts(frames) == {
        **{"compute": 40, "overlapped": 20, "exposed_unknown": 40, "copy": 40, "other": 20}
    }
    assert parts(frames, stream=20)["overlapped"] == 20
    assert parts(frames, stream=20)["exposed_unknown"] == 40
    assert parts(frames, stream=22)["copy"] == 60  # copies of one stream overlap
    assert parts(frames, stream=23)["other"] == 30


def test_kernels_that_overlap_on_one_stream_count_once() -> None:
    frames = on_device(
        kernel(at=0, until=100, launched=0),
        kernel(at=10, until=60, launched=0),
        kernel(at=90, until=150, launched=0),
        kernel(at=140, until=170, launched=0, **{**NCCL, "stream": 7}),
    )
    assert parts(frames, stream=7) == {"compute": 150, "exposed_unknown": 20}
    assert parts(frames) == {"compute": 150, "exposed_unknown": 20, "overlapped": 10}


def late_pair() -> Frames:
    """An all-reduce for which rank 0 waits from 20 to 70 while it computes until 40."""
    comm, kernels = [], []
    for rank, at in ((0, 20), (1, 70)):
        comm.append(
            call(rank=rank, id=0, seq=0, at=at, until=100, call_ns=0, blocked_ns=30, step=0)
        )
        device = {"rank": rank, "device": f"cuda:{rank}"}
        kernels.append(kernel(at=0, until=40 if rank == 0 else 65, launched=0, **device))
        kernels.append(kernel(at=at, until=100, launched=10, call_id=0, **device, **NCCL))
    return run_of(comm, kernels=kernels, steps=[step(rank, 0, 0, 120) for rank in range(2)])


def test_exposed_communication_waits_until_the_last_rank_begins_and_then_transfers() -> None:
    assert parts(late_pair(), step=0) == {
        **{"compute": 40, "overlapped": 20, "exposed_wait": 30, "exposed_transfer": 30},
        "idle_host": 20,
    }
    assert parts(late_pair(), step=0, rank=1) == {
        **{"compute": 65, "exposed_transfer": 30, "idle_launch": 5, "idle_host": 20}
    }
    text = summary(gpu_time(late_pair()))
    assert text == (
        "Of the time of 2 devices in steps, 43.8% is computing, 37.5% exposed communication "
        "(waiting for a peer 12.5%, transferring 25.0%) and 18.8% idle (waiting for the host "
        "16.7%, launch gaps 2.1%)."
    )


def test_a_transfer_counts_before_a_wait_and_so_does_what_may_be_one() -> None:
    comm = [
        call(rank=rank, id=seq, seq=seq, at=at, until=100, call_ns=0, blocked_ns=9)
        for seq, starts in enumerate(((0, 60), (10, 10)))
        for rank, at in enumerate(starts)
    ]
    kernels = [
        kernel(at=0, until=100, call_id=0, **NCCL),
        kernel(at=10, until=50, call_id=1, **{**NCCL, "stream": 21}),
        kernel(at=40, until=55, call_id=77, **{**NCCL, "stream": 22}),
    ]
    assert parts(run_of(comm, kernels=kernels)) == {
        **{"exposed_wait": 10 + 5, "exposed_transfer": 40 + 40, "exposed_unknown": 5}
    }


def test_steps_divide_a_kernel_and_the_rest_of_the_recorded_time_is_outside_of_them() -> None:
    kernels = [
        kernel(at=50, until=150, launched=0),
        kernel(at=180, until=190, launched=0),
        kernel(at=300, until=320, launched=290),
    ]
    frames = on_device(*kernels, steps=[step(0, 0, 0, 100), step(0, 1, 100, 200)])
    assert parts(frames, step=0) == {"compute": 50, "idle_launch": 50}
    assert parts(frames, step=1) == {"compute": 60, "idle_launch": 30, "idle_host": 10}
    assert parts(frames) == {"compute": 20, "idle_host": 90, "idle_launch": 10}
    table = gpu_time(frames)
    assert table["duration_ns"].tolist() == [120, 100, 100] * 2


def test_a_step_without_a_kernel_is_idle() -> None:
    kernels = [kernel(at=0, until=10, launched=0), kernel(at=250, until=260, launched=240)]
    steps = [step(0, number, 100 * number, 100 * number + 100) for number in range(4)]
    frames = on_device(*kernels, steps=steps)
    assert parts(frames, step=1) == {"idle_host": 100}
    assert parts(frames, step=3) == {"idle_host": 100}
    assert set(gpu_time(frames)["step"]) == {0, 1, 2, 3}


def test_a_kernel_of_an_unknown_stream_counts_on_its_device() -> None:
    frames = on_device(kernel(at=0, until=10, stream=-1), kernel(at=20, until=30, launched=15))
    table = gpu_time(frames)
    assert table["stream"].tolist() == [-1, 7]
    assert parts(frames) == {"compute": 20, "idle_host": 5, "idle_launch": 5}
    assert parts(frames, stream=7) == {"compute": 10, "idle_host": 15, "idle_launch": 5}


def test_kernels_of_unknown_time_count_nowhere() -> None:
    unknown = kernel(at=0, until=10)._replace(start_ns=-1)
    frames = on_device(unknown, kernel(at=5, until=9)._replace(duration_ns=-1))
    assert gpu_time(frames).empty
    assert summary(gpu_time(frames)) == ""


def test_a_rank_with_two_devices_has_rows_of_both() -> None:
    frames = on_device(
        kernel(at=0, until=10, launched=0, device="cuda:1"),
        kernel(at=5, until=25, launched=0, device="cuda:0", **NCCL),
    )
    table = gpu_time(frames)
    assert table["device"].tolist() == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert table["exposed_unknown_ns"].tolist() == [20, 20, 0, 0]  # no compute on that device
    assert "of the time of 2 devices, 33.3% is computing" in summary(table).lower()


def test_exposed_communication_agrees_with_the_table_of_overlap() -> None:
    frames = late_pair()
    exposed = overlap(frames).set_index("rank")["communication_ns"]
    table = gpu_time(frames)
    whole = table[table["stream"] == -1].set_index("rank")
    sums = whole[["exposed_wait_ns", "exposed_transfer_ns", "overlapped_ns"]].sum(axis=1)
    assert sums.tolist() == exposed.tolist() == [80, 30]


@pytest.mark.parametrize("source", ["made up", "imported"])
def test_parts_of_communication_agree_with_the_tables_of_calls(source: str, tmp_path: Path) -> None:
    if source == "made up":
        frames = load(device_trace(num_steps=3))
    else:
        frames = load(import_trace([write_profiles(tmp_path, training(num_steps=3))]))
    table = gpu_time(frames)
    whole = table[table["stream"] == -1].groupby(["rank", "step"]).sum(numeric_only=True)
    exposed = whole[["exposed_wait_ns", "exposed_transfer_ns", "exposed_unknown_ns"]]
    by_step = overlap(frames).set_index(["rank", "step"]).loc[whole.index]
    assert exposed.sum(axis=1).tolist() == by_step["exposed_ns"].tolist()
    assert whole["overlapped_ns"].tolist() == by_step["overlapped_ns"].tolist()
    assert by_step["overlapped_ns"].max() > 0
    waits = CATALOG["rank_waits"].function(frames)[["wait_ns", "transfer_ns"]].sum()
    assert exposed.sum().tolist() == [*waits.tolist(), 0]


@pytest.mark.parametrize("seed", range(8))
def test_work_of_unknown_category_agrees_with_loops(seed: int) -> None:
    trace = random_trace(seed, num_ranks=2, num_collectives=20)
    rows = {name: list(trace.rows(name)) for name in TABLES}
    kernels = [KernelRow(*row) for row in rows["kernels"]]
    unknown = [each._replace(category="") if each.id % 5 == 0 else each for each in kernels]
    trace = trace_of_rows(trace.run, rows | {"kernels": unknown})
    assert gpu_time(load(trace))["other_ns"].max() > 0
    assert differences(CATALOG["gpu_time"], Run(trace), load(trace)) == []


@pytest.mark.parametrize("seed", range(4))
def test_steps_of_a_part_are_those_of_the_run(seed: int) -> None:
    frames = load(random_trace(seed))
    table = gpu_time(frames)
    for number in (0, 1):
        part = gpu_time(of_steps(frames, number, number))
        # Arrivals are known only for calls in the part.
        alike = [name for name in table.columns if not name.startswith(("exposed", "overlapped"))]
        expected = table[table["step"] == number]
        expected = expected[expected["rank"].isin(part["rank"])]
        found = part[part["step"] == number]
        keys = ["rank", "device", "stream"]
        both = expected.merge(found[keys], on=keys)[alike].reset_index(drop=True)
        pd.testing.assert_frame_equal(found[alike].reset_index(drop=True), both)


def test_a_window_has_the_kernels_that_touch_it_and_counts_the_time_in_it() -> None:
    kernels = [kernel(at=at, until=at + 60, launched=max(at - 30, 0)) for at in range(0, 1000, 100)]
    comm = [call(at=150, until=400)]
    frames = within(on_device(*kernels, comm=comm), (150, 420))
    assert len(frames.kernels) == 4 + 1  # the next one explains the idle time
    assert parts(frames) == {"compute": 150, "idle_host": 30, "idle_launch": 90}


def test_no_more_than_the_busiest_streams_and_devices_have_rows() -> None:
    kernels = [
        kernel(at=10 * number, until=10 * number + 5, stream=number, device=f"cuda:{device}")
        for device in range(MOST_DEVICES + 3)
        for number in range(MOST_STREAMS + 8)
        for _ in range(2 if device == 18 and number == 39 else 1)
    ]
    table = gpu_time(on_device(*kernels))
    assert table["device"].nunique() == MOST_DEVICES
    assert len(table) == MOST_DEVICES * (1 + MOST_STREAMS)
    assert 39 in set(table.loc[table["device"] == "cuda:18", "stream"])


def test_a_run_without_kernels_says_so() -> None:
    frames = run_of([call(at=0, until=5)])
    for name in ("gpu_time", "kernel_patterns"):
        assert CATALOG[name].function(frames).empty
        text = " ".join(notices_on(name, notices_of(frames)))
        assert "no kernels of a device" in text


def many_kernels(num: int, num_ranks: int) -> Frames:
    """Kernels on four streams, with steps of equal length."""
    chance = np.random.default_rng(0)
    tables = []
    for rank in range(num_ranks):
        category = chance.choice(4, size=num, p=[0.85, 0.05, 0.07, 0.03])
        lasts = chance.integers(500, 9000, num)
        start = START_NS + np.cumsum(chance.integers(0, 3000, num) + lasts * 4 // 5)
        columns = {
            **{"rank": rank, "id": np.arange(num), "category": np.array(CATEGORIES)[category]},
            **{"name": "k", "device": f"cuda:{rank % 8}", "stream": category, "start_ns": start},
            **{"duration_ns": lasts, "call_id": -1},
            "launch_ns": start - chance.integers(1000, 20000, num),
        }
        tables.append(pd.DataFrame(columns))
    kernels = pd.concat(tables, ignore_index=True)
    kernels = kernels.astype(dict.fromkeys(("category", "name", "device"), "category"))
    last = int((kernels["start_ns"] + kernels["duration_ns"]).max())
    edges = np.linspace(0, last - START_NS, 11).astype("int64").tolist()
    steps = [
        step(rank, number, edges[number], edges[number + 1])
        for rank in range(num_ranks)
        for number in range(10)
    ]
    ranks = [rank_row(rank, end_ns=last) for rank in range(num_ranks)]
    return replace(run_of(num_ranks=num_ranks, steps=steps, ranks=ranks), kernels=kernels)


@pytest.mark.parametrize(("num", "num_ranks"), [(1_000_000, 1), (200, 200)])
def test_a_million_kernels_take_seconds_and_their_parts_add_up(num: int, num_ranks: int) -> None:
    frames = many_kernels(num, num_ranks)
    before = time.process_time()
    table = gpu_time(frames)
    assert time.process_time() - before < 20  # about a second
    assert len(table) == num_ranks * 5 * 10
    whole = table["stream"] == -1
    columns = [f"{name}_ns" for name in PARTS]
    sums = table[columns].sum(axis=1) - table["overlapped_ns"].where(whole, 0)
    assert sums.tolist() == table["duration_ns"].tolist()
    assert (table.loc[whole].groupby("rank")["compute_ns"].sum() > num * 2500).all()
