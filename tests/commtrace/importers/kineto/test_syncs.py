"""Events and waits of devices, compared with what happened, from whole and damaged traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import Frames, load
from commtrace.importers import import_trace
from commtrace.importers.kineto.sync_calls import sync_kind
from commtrace.schema import SYNC_KINDS
from tests.commtrace.importers.kineto.device_programs import DeviceProgram
from tests.commtrace.importers.kineto.profiles import BASE_NS, US, Profile, write_profiles

COLUMNS = ("kind", "at_ns", "duration_ns", "thread", "device", "stream", "kernel_id")
OF_KERNELS = ("device", "stream", "start_ns", "launch_ns", "thread", "op", "category")
SEEDS = range(8)


def imported(folder: Path, profile: Profile) -> Frames:
    return load(import_trace([write_profiles(folder, [profile])]))


def rows(frames: Frames, columns: tuple[str, ...] = COLUMNS, table: str = "syncs") -> list[Any]:
    found = getattr(frames, table)
    return list(zip(*(found[name].tolist() for name in columns), strict=True))


@pytest.mark.parametrize("has_records", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_events_waits_and_launches_are_those_of_the_program(
    seed: int, has_records: bool, tmp_path: Path
) -> None:
    program = DeviceProgram(seed)
    frames = imported(tmp_path, program.profile(has_records=has_records))
    assert rows(frames, OF_KERNELS, "kernels") == program.kernel_rows()
    assert rows(frames) == program.sync_rows(has_records=has_records)
    assert frames.syncs["id"].tolist() == list(range(len(program.syncs)))
    lacks = [each for each in frames.run["lacks"] if "enable_cuda_sync_events" in each]
    assert len(lacks) == (not has_records)


def test_the_programs_have_every_kind_of_row() -> None:
    found = {row[0] for seed in SEEDS for row in DeviceProgram(seed).sync_rows(has_records=True)}
    assert found == set(SYNC_KINDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_operator_of_a_kernel_is_its_row_in_table_ops(seed: int, tmp_path: Path) -> None:
    frames = imported(tmp_path, DeviceProgram(seed).profile(has_records=True))
    ops = frames.ops.set_index("id")
    for kernel in frames.kernels.to_dict("records"):
        if kernel["op_id"] < 0:
            assert kernel["op"] == ""
            continue
        op = ops.loc[kernel["op_id"]]
        assert (op["op"], op["thread"]) == (kernel["op"], kernel["thread"])
        assert 0 <= kernel["launch_ns"] - op["start_ns"] < op["duration_ns"]


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("cudaEventRecord", "event_record"),
        ("cudaEventRecordWithFlags_v11010", "event_record"),
        ("hipEventRecord", "event_record"),
        ("cudaStreamWaitEvent_ptsz_v7000", "stream_wait"),
        ("hipStreamWaitEvent_spt", "stream_wait"),
        ("cuStreamWaitEvent", "stream_wait"),
        ("cudaEventSynchronize_v3020", "event_sync"),
        ("hipStreamSynchronize", "stream_sync"),
        ("musaDeviceSynchronize", "device_sync"),
        ("cuCtxSynchronize", "device_sync"),
        ("cudaEventQuery", "query"),
        ("cudaMemcpy2DAsync", "async copy"),
        ("hipMemcpyWithStream", "copy"),
        ("cudaLaunchKernel", ""),
        ("cudaEventRecordx7", ""),
        ("my_cudaEventRecord", ""),
        ("cudaEventElapsedTime", ""),
        ("", ""),
    ],
)
def test_functions_are_recognized_by_their_names(function: str, kind: str) -> None:
    assert sync_kind(function) == kind


def two_streams() -> Profile:
    """Kernel 0 on stream 7, an event behind it, and stream 20, which waits for it."""
    profile = Profile(0)
    profile.launched("gemm", 10, (20, 50), stream=7, device=0)
    profile.span("cudaEventRecord", "cuda_runtime", 30, 2, correlation=71)
    profile.span("cudaStreamWaitEvent", "cuda_runtime", 40, 2, correlation=72)
    profile.span("Stream Wait Event", "cuda_sync", 41, 1, tid=20, **wait(72, 71, stream=20))
    profile.launched("gemm", 50, (80, 5), stream=20, device=0)
    return profile


def wait(correlation: Any, recorded: Any, *, stream: Any = -1, of_stream: Any = 7) -> Any:
    return {
        "device": 0, "stream": stream, "correlation": correlation, "wait_on_stream": of_stream,
        "wait_on_cuda_event_record_corr_id": recorded,
    }  # fmt: skip


EVENT = ("event_record", BASE_NS + 30 * US, 2 * US, 1, "cuda:0", 7, 0)
WAIT = ("stream_wait", BASE_NS + 40 * US, 2 * US, 1, "cuda:0", 20, 0)


def test_a_stream_waits_for_the_kernel_before_the_event(tmp_path: Path) -> None:
    assert rows(imported(tmp_path, two_streams())) == [EVENT, WAIT]


HOSTILE = [None, "x71", "", True, 1.5, -5, 1 << 80, [71], {"a": 71}]


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("wait_on_cuda_event_record_corr_id", [(*EVENT[:4], "", -1, -1), (*WAIT[:6], -1)]),
        ("device", [(*EVENT[:4], "", 7, -1), (*WAIT[:4], "", 20, -1)]),
        ("stream", [EVENT, (*WAIT[:5], -1, 0)]),
        ("wait_on_stream", [(*EVENT[:4], "", -1, -1), (*WAIT[:6], -1)]),
    ],
)
def test_a_field_of_another_type_or_size_is_unknown(
    field: str, expected: list[Any], value: Any, tmp_path: Path
) -> None:
    profile = two_streams()
    (record,) = [each for each in profile.events if each["cat"] == "cuda_sync"]
    record["args"][field] = value
    assert rows(imported(tmp_path, profile)) == expected


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_a_call_without_a_correlation_has_no_stream(value: Any, tmp_path: Path) -> None:
    profile = two_streams()
    for event in profile.events:
        if event["name"] in ("cudaEventRecord", "cudaStreamWaitEvent"):
            event["args"]["correlation"] = value
    # The record, whose call is not known, is a row of its own.
    lone = ("stream_wait", BASE_NS + 41 * US, US, -1, "cuda:0", 20, -1)
    unknown = [(*each[:4], "", -1, -1) for each in (EVENT, WAIT)]
    assert rows(imported(tmp_path, profile)) == [*unknown, lone]


def test_an_event_that_is_said_to_be_on_two_streams_is_on_none(tmp_path: Path) -> None:
    profile = two_streams()
    profile.span("cudaEventSynchronize", "cuda_runtime", 60, 9, correlation=73)
    profile.span("Event Sync", "cuda_sync", 61, 8, **wait(73, 71, of_stream=20))
    found = rows(imported(tmp_path, profile))
    assert [row[-1] for row in found] == [-1, -1, -1]


def test_an_event_that_is_recorded_after_the_wait_says_nothing_of_it(tmp_path: Path) -> None:
    """Waits cannot be circular."""
    profile = two_streams()
    for event in profile.events:
        if event["name"] == "cudaEventRecord":
            event["ts"] += 30
    (waited, event) = rows(imported(tmp_path, profile))
    assert (waited[0], waited[-1]) == ("stream_wait", -1)
    assert (event[0], event[-1]) == ("event_record", 0)


def test_the_first_of_several_records_of_a_correlation_counts(tmp_path: Path) -> None:
    profile = two_streams()
    profile.span("Stream Wait Event", "cuda_sync", 41, 1, tid=20, **wait(72, 71, stream=24))
    assert rows(imported(tmp_path, profile)) == [EVENT, WAIT]


def test_a_record_of_another_kind_than_its_call_is_left_out(tmp_path: Path) -> None:
    profile = two_streams()
    for event in profile.events:
        if event["cat"] == "cuda_sync":
            event["name"] = "Stream Sync"
    assert rows(imported(tmp_path, profile))[1] == (*WAIT[:4], "", -1, -1)


def test_a_record_without_a_call_is_a_row_without_a_thread(tmp_path: Path) -> None:
    profile = two_streams()
    profile.events = [each for each in profile.events if each["name"] != "cudaStreamWaitEvent"]
    lone = ("stream_wait", BASE_NS + 41 * US, US, -1, "cuda:0", 20, 0)
    assert rows(imported(tmp_path, profile)) == [EVENT, lone]


@pytest.mark.parametrize("function", ["", "cudaEventQuery"])
def test_a_record_of_an_event_without_a_call_that_waits_is_no_row(
    function: str, tmp_path: Path
) -> None:
    profile = two_streams()
    if function:
        profile.span(function, "cuda_runtime", 60, 2, correlation=73)
    profile.span("Event Sync", "cuda_sync", 61, 1, **wait(73, 71))
    assert rows(imported(tmp_path, profile)) == [EVENT, WAIT]


def test_a_stream_of_an_event_is_stated_by_a_record_of_its_own(tmp_path: Path) -> None:
    profile = two_streams()
    profile.events = [each for each in profile.events if each["cat"] != "cuda_sync"]
    about = {"device": 0, "stream": 7, "correlation": 71, "event_id": 4}
    profile.span("cudaEvent", "cuda_event", 80, 1, tid=7, **about)
    assert rows(imported(tmp_path, profile)) == [EVENT, (*WAIT[:4], "", -1, -1)]


@pytest.mark.parametrize("devices", [(0, 0), (0, 1)])
def test_a_wait_for_the_only_device_needs_no_record(
    devices: tuple[int, int], tmp_path: Path
) -> None:
    profile = Profile(0)
    for number, device in enumerate(devices):
        profile.launched("gemm", 10 * number, (100 * number + 20, 90), stream=7, device=device)
    profile.span("cudaDeviceSynchronize", "cuda_runtime", 15, 200, correlation=9)
    place = ("cuda:0", -1, 1) if devices == (0, 0) else ("", -1, -1)
    assert [row[4:] for row in rows(imported(tmp_path, profile))] == [place]


COPIES: list[tuple[str, str, int, bool]] = [
    ("cudaMemcpy", "Memcpy DtoH (Device -> Pinned)", 60, True),
    ("cudaMemcpy", "Memcpy HtoD (Pinned -> Device)", 60, True),
    ("cudaMemcpy", "Memcpy HtoD (Pageable -> Device)", 60, False),
    ("cudaMemcpy", "Memcpy DtoD (Device -> Device)", 60, False),
    ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", 60, True),
    ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", 59, False),
    ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pinned)", 60, False),
    ("hipMemcpyWithStream", "Memcpy DtoH (Device -> Host)", 60, True),
    ("hipMemcpyAsync", "Memcpy DtoH (Device -> Host)", 60, False),
]


@pytest.mark.parametrize(("function", "copy", "lasts", "waits"), COPIES)
def test_the_host_waits_for_a_copy_if_its_sort_and_its_time_say_so(
    function: str, copy: str, lasts: int, waits: bool, tmp_path: Path
) -> None:
    profile = Profile(0)
    profile.span(function, "cuda_runtime", 10, lasts, correlation=9)
    profile.span(copy, "gpu_memcpy", 20, 50, tid=7, device=0, stream=7, correlation=9)
    expected = [("stream_sync", BASE_NS + 10 * US, lasts * US, 1, "cuda:0", 7, 0)]
    assert rows(imported(tmp_path, profile)) == (expected if waits else [])


def without_launches(profile: Profile) -> None:
    profile.events = [each for each in profile.events if each["name"] != "cudaLaunchKernel"]


def without_threads(profile: Profile) -> None:
    for event in profile.events:
        if event["cat"] == "cuda_runtime":
            event["tid"] = "?"


@pytest.mark.parametrize("change", [without_launches, without_threads])
def test_a_kernel_without_a_known_launch_has_neither_thread_nor_operator(
    change: Callable[[Profile], None], tmp_path: Path
) -> None:
    profile = two_streams()
    profile.span("aten::mm", "cpu_op", 0, 100)
    change(profile)
    kernels = imported(tmp_path, profile).kernels
    assert kernels["thread"].tolist() == [-1, -1]
    assert kernels["op_id"].tolist() == [-1, -1]
    assert kernels["op"].tolist() == ["", ""]


def test_a_kernel_of_a_call_without_a_launch_has_the_operator_of_the_call(tmp_path: Path) -> None:
    profile = Profile(0)
    profile.span("DDP.forward", "cpu_op", 0, 100, tid=5)
    profile.span("c10d::allreduce_", "cpu_op", 10, 30, tid=5)
    profile.span("record_param_comms", "cpu_op", 12, 20, tid=5, **{"External id": 40})
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    profile.span(name, "kernel", 50, 9, **{"External id": 40, "stream": 20})
    (kernel,) = imported(tmp_path, profile).kernels.to_dict("records")
    found = {name: kernel[name] for name in ("call_id", "thread", "op", "op_id")}
    assert found == {"call_id": 0, "thread": 5, "op": "DDP.forward", "op_id": 0}
