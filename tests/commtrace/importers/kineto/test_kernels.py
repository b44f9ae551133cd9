"""Communication kernels, joined to the calls that launched them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.analyze.traffic.matrix import matrix
from commtrace.device_kernels import UNKNOWN
from commtrace.errors import SettingsError
from commtrace.event import CommEvent
from commtrace.importers import import_trace
from commtrace.importers.rank_record import RankRecord
from commtrace.importers.stream_groups import stream_groups
from commtrace.settings import settings_of
from tests.commtrace.importers.kineto.profiles import BASE_NS, US, Profile, write_profiles

GATHER = "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
EXCHANGE = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"


def imported(folder: Path, *profiles: Profile, world: int | None = None) -> Frames:
    """The profiles as traces that state the world size, but no group."""
    for profile in profiles:
        about = {"backend": "nccl", "rank": profile.rank, "world_size": world or len(profiles)}
        write_profiles(folder, [profile], distributedInfo=about)
    return load(import_trace([folder]))


def row_of(folder: Path, profile: Profile) -> dict[str, Any]:
    (row,) = imported(folder, profile).comm.to_dict("records")
    return row


def test_a_launch_joins_a_kernel_to_its_call_and_the_annotation_has_the_sizes(
    tmp_path: Path,
) -> None:
    profile = Profile(0)
    profile.undescribed("all_reduce", "c10d::allreduce_", 10, shapes=[[394241]], kernel=(100, 50))
    row = row_of(tmp_path, profile)
    assert (row["kind"], row["dtype"], row["payload_bytes"]) == ("all_reduce", "float32", 1576964)
    assert (row["native_op"], row["reduce_op"]) == ("c10d::allreduce_", "sum")
    assert (row["issue_ns"], row["complete_ns"]) == (BASE_NS + 100 * US, BASE_NS + 150 * US)


@pytest.mark.parametrize(
    ("runtime", "cat"),
    [
        ("cudaLaunchKernelExC", "cuda_runtime"),
        ("cuLaunchKernelEx", "cuda_driver"),
        ("hipLaunchKernel", "cuda_runtime"),
        ("hipExtLaunchKernel", "hip_runtime"),
        ("cudaLaunchKernel", "Runtime"),
    ],
)
def test_any_runtime_may_launch_it(runtime: str, cat: str, tmp_path: Path) -> None:
    profile = Profile(0)
    profile.span("nccl:all_gather", "user_annotation", 10, 20,
                 **{"Input Dims": [[8]], "Input type": ["c10::BFloat16"]})  # fmt: skip
    profile.launched(GATHER, 15, (40, 5), runtime=runtime, cat=cat)
    row = row_of(tmp_path, profile)
    assert (row["kind"], row["blocked_ns"]) == ("all_gather", 5 * US)
    assert (row["dtype"], row["input_shapes"]) == ("bfloat16", "[8]")


def test_the_launch_decides_where_an_id_is_that_of_another_operator(tmp_path: Path) -> None:
    profile = Profile(0)
    profile.undescribed("all_reduce", "c10d::allreduce_", 10, shapes=[[4]], kernel=(100, 50))
    correlation = profile.events[-1]["args"]["correlation"]
    profile.span("c10d::broadcast_", "cpu_op", 200, 20, **{"External id": correlation})
    rows = imported(tmp_path, profile).comm.set_index("kind")
    assert rows.loc["all_reduce", "blocked_ns"] == 50 * US
    assert rows.loc["broadcast", "blocked_ns"] == -1


def test_a_launch_outside_of_calls_is_a_call_with_the_operator_around_it(tmp_path: Path) -> None:
    profile = Profile(0)
    profile.span("symm_mem::multimem_all_reduce_", "cpu_op", 10, 20)
    profile.launched("void multimem_all_reduce_kernel<c10::BFloat16, 16>", 15, (40, 5))
    row = row_of(tmp_path, profile)
    assert (row["kind"], row["op"], row["blocked_ns"]) == (
        "all_reduce",
        "symm_mem.multimem_all_reduce_",
        5 * US,
    )
    assert row["payload_bytes"] == -1


BATCHES = {
    "annotation": ("nccl:coalesced", "user_annotation", {}),
    "description": ("record_param_comms", "cpu_op", {"Collective name": "batch_op_issue"}),
}


def batch(closing: str, *before: str) -> Profile:
    """Calls that the given event closes; it launches the kernel of all."""
    profile = Profile(0)
    for number, name in enumerate(before):
        profile.call(name, f"c10d::{name}", 10 + 30 * number)
    name, category, args = BATCHES[closing]
    profile.span(name, category, 300, 30, **args)
    profile.launched(EXCHANGE, 310, (400, 50), stream=20)
    return profile


@pytest.mark.parametrize("closing", BATCHES)
def test_the_calls_of_a_batch_have_the_times_of_its_kernel(closing: str, tmp_path: Path) -> None:
    frames = load(import_trace([write_profiles(tmp_path, [batch(closing, "send", "recv")])]))
    assert frames.comm["kind"].tolist() == ["send", "recv"]
    assert frames.comm["complete_ns"].tolist() == [BASE_NS + 450 * US] * 2
    assert frames.comm["blocked_ns"].tolist() == [50 * US] * 2
    assert frames.kernels["call_id"].tolist() == [0]
    assert frames.run["kernels"] == "1 communication kernels, by launch: 1"


def test_calls_that_launched_or_differ_are_not_in_the_batch(tmp_path: Path) -> None:
    profile = Profile(0)
    profile.call("send", "c10d::send", 10)
    profile.launched(EXCHANGE, 20, (30, 5), stream=20)
    profile.call("_allgather_base", "c10d::_allgather_base_", 60)
    profile.call("recv", "c10d::recv_", 110)
    profile.span("nccl:coalesced", "user_annotation", 300, 30)
    profile.launched(EXCHANGE, 310, (400, 50), stream=20)
    frames = load(import_trace([write_profiles(tmp_path, [profile])]))
    ends = dict(zip(frames.comm["kind"], frames.comm["complete_ns"], strict=True))
    assert ends == {
        "send": BASE_NS + 35 * US,
        "all_gather": -1,
        "recv": BASE_NS + 450 * US,
    }


def test_a_batch_without_calls_is_a_call_of_its_own(tmp_path: Path) -> None:
    frames = load(import_trace([write_profiles(tmp_path, [batch("annotation")])]))
    assert frames.comm[["kind", "complete_ns"]].to_numpy().tolist() == [
        [UNKNOWN, BASE_NS + 450 * US]
    ]


def test_each_kernel_that_a_graph_launches_is_a_call(tmp_path: Path) -> None:
    profile = Profile(0)
    profile.launched(GATHER, 15, (40, 5), (50, 7), runtime="cudaGraphLaunch")
    frames = imported(tmp_path, profile)
    assert frames.comm["blocked_ns"].tolist() == [5 * US, 7 * US]


def test_a_kernel_that_was_launched_before_the_window_is_a_call(tmp_path: Path) -> None:
    profile = Profile(0)
    profile.launched(GATHER, 15, (40, 5))
    del profile.events[0]
    row = row_of(tmp_path, profile)
    assert (row["kind"], row["issue_ns"]) == ("all_gather", BASE_NS + 40 * US)


def test_the_device_stream_algorithm_protocol_and_channels_of_a_kernel(tmp_path: Path) -> None:
    profile = Profile(0)
    profile.undescribed("all_reduce", "c10d::allreduce_", 10, shapes=[[8]], kernel=(100, 50))
    profile.events[-1]["args"] |= {"device": 3, "grid": [24, 1, 1]}
    row = row_of(tmp_path, profile)
    columns = ("device", "stream", "algorithm", "protocol", "channels")
    assert [row[name] for name in columns] == ["cuda:3", 84, "RING", "LL", 24]


@pytest.mark.parametrize("grid", [[], [0, 1, 1], [1 << 40], ["24"], "24", None, [True]])
def test_channels_that_cannot_be_are_unknown(grid: Any, tmp_path: Path) -> None:
    profile = Profile(0)
    profile.undescribed("all_reduce", "c10d::allreduce_", 10, shapes=[[8]], kernel=(100, 50))
    profile.events[-1]["args"] |= {"grid": grid, "device": -4}
    row = row_of(tmp_path, profile)
    assert (row["channels"], row["device"]) == (-1, "")


def test_blocks_of_another_library_s_kernel_are_no_channels(tmp_path: Path) -> None:
    profile = Profile(0)
    kernel = "vllm::cross_device_reduce_1stage<nv_bfloat16, 8>(vllm::RankData*)"
    profile.launched(kernel, 15, (40, 5), grid=[36, 1, 1], device=0)
    row = row_of(tmp_path, profile)
    assert (row["kind"], row["channels"], row["device"]) == ("all_reduce", -1, "cuda:0")


def test_all_work_of_the_device_is_in_table_kernels(tmp_path: Path) -> None:
    profile = Profile(0)
    profile.undescribed("all_reduce", "c10d::allreduce_", 10, shapes=[[8]], kernel=(100, 50))
    profile.launched("ampere_sgemm_128x64_tn", 40, (60, 30), stream=7, device=0)
    profile.span("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 5, 2, stream=9, device=0)
    profile.span("Memset (Device)", "gpu_memset", 8, 1, stream=7, device=0)
    frames = imported(tmp_path, profile)
    table = frames.kernels.astype({"name": object, "category": object, "device": object})
    columns = ["id", "category", "stream", "start_ns", "duration_ns", "launch_ns", "call_id"]
    assert table[columns].to_numpy().tolist() == [
        [0, "memcpy", 9, BASE_NS + 5 * US, 2 * US, -1, -1],
        [1, "memset", 7, BASE_NS + 8 * US, US, -1, -1],
        [2, "compute", 7, BASE_NS + 60 * US, 30 * US, BASE_NS + 40 * US, -1],
        [3, "communication", 84, BASE_NS + 100 * US, 50 * US, BASE_NS + 18 * US, 0],
    ]
    assert set(table["device"]) == {"cuda:0", ""}
    assert table["name"][2] == "ampere_sgemm_128x64_tn"


def exchange(splits: tuple[Any, Any], rank: int = 0) -> Profile:
    profile = Profile(rank, groups={"0": [0, 1, 2, 3]})
    profile.call(
        "all_to_allv", "c10d::alltoall_base_", 10, kernel=(100, 50), kernel_name=EXCHANGE,
        **{"In split size": splits[0], "Out split size": splits[1], "Out msg nelems": 512},
    )  # fmt: skip
    return profile


def test_the_splits_of_an_all_to_all_give_its_traffic(tmp_path: Path) -> None:
    folder = write_profiles(tmp_path, [exchange(("[1, 0, 4, 3]", [0, 16, 8, 8]), rank=2)])
    frames = load(import_trace([folder]))
    (row,) = frames.comm.to_dict("records")
    assert row["input_splits"] == "256,0,1024,768"
    assert row["output_splits"] == "0,512,256,256"
    assert (row["payload_bytes"], row["wire_bytes"]) == (2048, 1024)
    assert matrix(frames).to_numpy().tolist() == [[2, 0, 256, 1], [2, 3, 768, 1]]


@pytest.mark.parametrize(
    "split", ["[]", "[1, 2, ..., 3]", "[1, 2, 3]", "[5, 7, 1, 0]", "[0, 0, 0, 0]", 7, None]
)
def test_splits_that_do_not_fit_are_unknown(split: Any, tmp_path: Path) -> None:
    folder = write_profiles(tmp_path, [exchange((split, split))])
    (row,) = load(import_trace([folder])).comm.to_dict("records")
    assert (row["input_splits"], row["output_splits"]) == ("", "")
    assert row["wire_bytes"] == 2048 * 3 // 4


def test_annotations_of_other_programs_are_no_calls(tmp_path: Path) -> None:
    profile = Profile(0)
    profile.span("pipeline:send", "user_annotation", 10, 20)
    profile.span("nccl:send 0->1", "user_annotation", 40, 20, **{"Input Dims": [[4]]})
    assert imported(tmp_path, profile).comm["kind"].tolist() == ["send"]


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    profile = Profile(0)
    start = 1_694_128_201_429_795
    profile.launched(GATHER, start, (start, 2146))
    about = {"backend": "nccl", "rank": 0, "world_size": 1}
    folder = write_profiles(tmp_path, [profile], distributedInfo=about, baseTimeNanoseconds=None)
    (row,) = load(import_trace([folder])).comm.to_dict("records")
    assert (row["issue_ns"], row["complete_ns"]) == (start * US, (start + 2146) * US)


def test_work_of_gloo_from_before_the_window_is_a_call(tmp_path: Path) -> None:
    profile = Profile(0)
    sizes = {"Input Dims": [[4]], "Input type": ["float"]}
    profile.span("gloo:all_reduce", "user_annotation", 1, 5, tid=9, **sizes)
    profile.span("c10d::allreduce_", "cpu_op", 10, 3)
    profile.span("gloo:all_reduce", "user_annotation", 12, 8, tid=9, **sizes)
    rows = imported(tmp_path, profile).comm
    assert rows["complete_ns"].tolist() == [BASE_NS + 6 * US, BASE_NS + 20 * US]
    assert rows["payload_bytes"].tolist() == [16, -1]


def of_ranks(num_ranks: int, *, late_us: float = 30, stream: int = 84) -> list[Profile]:
    """An all-reduce and an all-to-all on each rank; the last rank is late, all end together."""
    profiles = [Profile(rank) for rank in range(num_ranks)]
    for profile in profiles:
        begin = late_us if profile.rank == num_ranks - 1 else 0
        profile.undescribed("all_reduce", "c10d::allreduce_", 10, shapes=[[64]], stream=stream,
                            kernel=(100 + begin, 50 - begin))  # fmt: skip
        profile.undescribed("all_to_all", "c10d::alltoall_base_", 50, shapes=[[8 + profile.rank]],
                            kernel_name=EXCHANGE, stream=stream,
                            kernel=(200 + begin, 50 - begin))  # fmt: skip
    return profiles


def test_calls_of_a_stream_are_matched_across_ranks_where_they_fit(tmp_path: Path) -> None:
    frames = imported(tmp_path, *of_ranks(4))
    assert frames.comm["seq"].tolist() == [0, 1] * 4
    assert frames.groups[["name", "ranks"]].to_numpy().tolist() == [["stream 84", "0,1,2,3"]]
    assert (frames.comm.loc[frames.comm["kind"] == "all_reduce", "wire_bytes"] == 384).all()
    states = CATALOG["wait_states"].function(frames).to_dict("records")
    assert [(row["worst_rank"], row["wait_ns"]) for row in states] == [(3, 3 * 30 * US)] * 2
    assert CATALOG["consistency"].function(frames)["is_fault"].sum() == 0
    (said,) = [text for text in frames.run["lacks"] if "stream 84" in text]
    assert said.endswith("agree in number, kind, size and order, and overlap in time")
    assert frames.groups["backend"].tolist() == ["nccl"]
    assert frames.run["kernels"] == "8 communication kernels, by launch: 8"


@pytest.mark.parametrize(("ends", "is_said"), [((9, 9), True), ((9, -1), False), ((-1, -1), False)])
def test_calls_are_said_to_overlap_only_where_all_are_timed(
    ends: tuple[int, int], is_said: bool
) -> None:
    records = [RankRecord(rank, Path(f"rank{rank}"), backend="nccl") for rank in range(2)]
    for record, end in zip(records, ends, strict=True):
        record.comm = [
            CommEvent(
                rank=record.rank, kind="all_reduce", group="stream 7", issue_ns=1, complete_ns=n
            )
            for n in (5, end)
        ]
    (said,) = stream_groups(records, 2)
    assert said.endswith("order, and overlap in time" if is_said else "order")
    assert [record.groups["stream 7"].backend for record in records] == ["nccl"] * 2


def more_calls(profiles: list[Profile]) -> None:
    profiles[1].undescribed("all_reduce", "c10d::allreduce_", 300, shapes=[[64]], kernel=(400, 5))


def apart_in_time(profiles: list[Profile]) -> None:
    for event in profiles[1].events:
        event["ts"] += 10_000


def other_sizes(profiles: list[Profile]) -> None:
    for event in profiles[1].events:
        if event["name"] == "nccl:all_reduce":
            event["args"]["Input Dims"] = [[65]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (more_calls, "their numbers differ between ranks"),
        (apart_in_time, "call 0 ends on one rank before another rank begins it"),
        (other_sizes, "the sizes of call 0 differ between ranks"),
        (lambda profiles: profiles.pop(), "1 of 3 ranks have none"),
    ],
    ids=["numbers", "times", "sizes", "ranks"],
)
def test_calls_of_a_stream_that_do_not_fit_stay_unmatched(
    change: Any, reason: str, tmp_path: Path
) -> None:
    profiles = of_ranks(3)
    change(profiles)
    frames = imported(tmp_path, *profiles, world=3)
    assert (frames.comm["seq"] == -1).all()
    assert (frames.comm["wire_bytes"] == -1).all()
    assert frames.groups["ranks"].tolist() == [""]
    (said,) = [text for text in frames.run["lacks"] if "stream 84" in text]
    assert said.endswith(reason)


def test_a_project_names_its_own_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.commtrace.kernels]\n"my_fused_reduce*" = "all_reduce"\n'
    )
    monkeypatch.chdir(tmp_path)
    profile = Profile(0)
    profile.launched("my_fused_reduce<8>", 15, (40, 5))
    assert row_of(tmp_path / "traces", profile)["kind"] == "all_reduce"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('"(a+)+b" = "all_reduce"', "'(a+)+b'"),
        ('"my.*reduce" = "all_reduce"', "'my.*reduce'"),
        ('"" = "all_reduce"', "''"),
        ('"x" = "all_reduc"', "'all_reduc'"),
        ('"x" = 3', "3"),
    ],
)
def test_a_pattern_or_kind_that_is_none_is_refused(line: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.commtrace.kernels]\n{line}\n")
    with pytest.raises(SettingsError, match="kernels") as refused:
        settings_of(tmp_path)
    assert f"found: {found}" in str(refused.value)
