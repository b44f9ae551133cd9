"""Kernels without a known name: those that a call launched communicate, on devices of any type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.device_kernels import device_type
from commtrace.errors import NotATraceError
from commtrace.importers import import_trace
from tests.commtrace.importers.kineto.profiles import Profile, write_profiles

CALL, LAUNCH = "c10d::allreduce_", "urEnqueueKernelLaunch"


def profiled(runtime: str = "xpu_runtime", launch: str = LAUNCH) -> Profile:
    """A call that launches `strange` itself, and `copy` by an operator inside of it."""
    profile = Profile(0)
    profile.span(CALL, "cpu_op", 10, 50, **{"External id": 1})
    args = profile.described("allreduce", "0", 1)
    profile.span("record_param_comms", "cpu_op", 12, 40, **{"External id": 2}, **args)
    profile.span(launch, runtime, 14, 2, correlation=7)
    profile.span("aten::copy_", "cpu_op", 20, 10, **{"External id": 3})
    profile.span(launch, runtime, 22, 2, correlation=8)
    profile.span(launch, runtime, 32, 2, correlation=9)
    for name, correlation, at in (
        ("strange", 7, 100),
        ("copy", 8, 300),
        ("checkForNaN<f>", 9, 400),
    ):
        profile.span(name, "kernel", at, 90, tid=5, correlation=correlation, device=3, stream=5)
    return profile


def imported(folder: Path, profile: Profile, backend: str = "xccl", **config: Any) -> Frames:
    about = {"backend": backend, "rank": 0, "world_size": 1, **config}
    write_profiles(folder, [profile], distributedInfo=about)
    return load(import_trace([folder]))


def categories(frames: Frames) -> dict[str, str]:
    kernels = frames.kernels
    return dict(zip(kernels["name"].astype(str), kernels["category"].astype(str), strict=True))


def test_a_kernel_that_a_call_launched_communicates_whatever_its_name(tmp_path: Path) -> None:
    frames = imported(tmp_path, profiled())
    assert categories(frames) == {
        "strange": "communication", "copy": "compute", "checkForNaN<f>": "compute",
    }  # fmt: skip
    (call,) = frames.comm.to_dict("records")
    assert (call["kind"], call["device_ns"], call["stream"]) == ("all_reduce", 90_000, 5)
    (row,) = CATALOG["kernel_patterns"].function(frames).to_dict("records")
    assert (row["name"], row["kind"], row["matched_by"]) == ("strange", "all_reduce", "description")


def test_without_a_launch_the_operator_of_a_kernel_shows_its_call(tmp_path: Path) -> None:
    profile = Profile(0)
    profile.span(CALL, "cpu_op", 10, 50, **{"External id": 1})
    profile.span("aten::mm", "cpu_op", 70, 5, **{"External id": 4})
    profile.span("strange", "kernel", 100, 90, tid=5, device=0, **{"External id": 1})
    profile.span("gemm", "kernel", 200, 90, tid=5, device=0, **{"External id": 4})
    frames = imported(tmp_path, profile)
    assert categories(frames) == {"strange": "communication", "gemm": "compute"}
    assert frames.comm["device_ns"].tolist() == [90_000]


def test_a_known_kernel_of_a_call_says_more_of_it_than_an_unknown_one(tmp_path: Path) -> None:
    profile = profiled()
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
    profile.span(LAUNCH, "xpu_runtime", 13, 1, correlation=6)
    profile.span(name, "kernel", 95, 4, tid=5, correlation=6, device=3, stream=5)
    (call,) = imported(tmp_path, profile).comm.to_dict("records")
    assert (call["algorithm"], call["device_ns"]) == ("RING", 95_000)


@pytest.mark.parametrize(
    ("runtime", "launch", "backend", "device"),
    [
        ("xpu_runtime", LAUNCH, "xccl", "xpu:3"),
        ("cuda_runtime", "cudaLaunchKernel", "nccl", "cuda:3"),
        ("hip_runtime", "hipLaunchKernel", "nccl", "cuda:3"),
        ("privateuse1_runtime", "launch", "cpu:gloo,npu:hccl", "npu:3"),
        ("privateuse1_runtime", "musaLaunchKernel", "mccl", "musa:3"),
        ("privateuse1_runtime", "launch", "cncl", "mlu:3"),
        ("runtime", "launch", "hpu:hccl", "hpu:3"),
        ("npu_runtime", "launch", "hccl", "npu:3"),
    ],
)
def test_a_device_has_the_name_of_its_type(
    runtime: str, launch: str, backend: str, device: str, tmp_path: Path
) -> None:
    frames = imported(tmp_path, profiled(runtime, launch), backend)
    assert set(frames.kernels["device"].astype(str)) == {device}
    assert frames.comm["device"].tolist() == [device]
    assert frames.ranks["device"].tolist() == [device.partition(":")[0]]


def test_backends_of_several_devices_do_not_decide_its_type() -> None:
    every = "cpu:gloo,cuda:nccl,xpu:xccl"
    assert device_type([], [every]) == "cuda"
    assert device_type(["xpu_runtime"], [every]) == "xpu"


ASCEND = [
    {"ph": "M", "name": "process_name", "pid": 4, "args": {"name": "HCCL"}},
    {"ph": "X", "name": "hcom_allReduce__606_0_1", "pid": 4, "tid": 0, "ts": "1.5", "dur": 2},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 2, "tid": 0, "ts": "1.0", "dur": 2},
]


def test_traces_of_ascend_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(ASCEND))
    with pytest.raises(NotATraceError, match=r"trace_view.json of torch_npu's profiler \(Ascend\)"):
        import_trace([path])


def test_chrome_traces_of_other_programs_are_not_imported_as_no_calls(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    browser = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "Browser"}}
    event = {"ph": "X", "cat": "toplevel", "name": "run", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    path.write_text(json.dumps({"traceEvents": [browser, event]}))
    with pytest.raises(NotATraceError, match="a chrome trace of Browser without an event of torch"):
        import_trace([path])
