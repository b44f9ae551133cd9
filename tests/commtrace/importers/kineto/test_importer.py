"""Imported traces of torch.profiler and their events."""

from __future__ import annotations

import gzip
import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load, notices_of
from commtrace.device_kernels import recognizer
from commtrace.errors import NotATraceError, TraceError, TruncatedTraceError
from commtrace.importers import import_trace, input_files
from commtrace.importers.input_files import PROFILER, Document, documents_of, loaded
from commtrace.importers.kineto import importer
from commtrace.importers.kineto.rows import Profile as RankProfile
from commtrace.schema import COMMUNICATION, MEMCPY
from commtrace.tracefile.reading import read_head
from tests.commtrace.importers.kineto.profiles import BASE_NS, US, Profile, training, write_profiles


def imported(folder: Path, *profiles: Profile, **changed: Any) -> Frames:
    return load(import_trace([write_profiles(folder, list(profiles), **changed)]))


def one_call(tmp_path: Path, *args: Any, **fields: Any) -> dict[str, Any]:
    """The row of a single described call of rank 1, of two."""
    profile = Profile(1)
    profile.call(*args, 10, **fields)
    (row,) = imported(tmp_path, profile).comm.to_dict("records")
    return row


def test_a_call_with_its_description_and_kernel_is_counted_once(tmp_path: Path) -> None:
    row = one_call(tmp_path, "allreduce", "c10d::allreduce_", seq=7, kernel=(100, 50))
    assert (row["rank"], row["kind"], row["native_op"]) == (1, "all_reduce", "c10d::allreduce_")
    assert (row["group"], row["seq"], row["reduce_op"]) == ("0", 6, "sum")
    assert (row["dtype"], row["payload_bytes"], row["wire_bytes"]) == ("bfloat16", 2048, 2048)
    assert row["issue_ns"] == BASE_NS + 100 * US
    assert row["complete_ns"] == BASE_NS + 150 * US
    assert row["blocked_ns"] == 50 * US
    assert not row["is_async"]


def below_a_mode(profile: Profile, ts: float, op: str, dur: float = 20) -> None:
    """Add an operator that a dispatch mode calls again; its second call is 3 µs in."""
    profile.span(op, "cpu_op", ts, dur, **{"External id": profile.next_id()})
    profile.span("PythonDispatchMode", "cpu_op", ts + 1, dur - 2)
    profile.span(op, "cpu_op", ts + 3, dur - 6, **{"External id": profile.next_id()})


def test_what_a_dispatch_mode_calls_again_is_counted_once(tmp_path: Path) -> None:
    profile = Profile(0)
    below_a_mode(profile, 10, "aten::mm")
    below_a_mode(profile, 50, "c10d::allreduce_")
    profile.span("record_param_comms", "cpu_op", 55, 5, **profile.described("allreduce", "0", 7))
    # A subclass calls an operator on its own parts; a second call of a mode is another one.
    profile.span("aten::add", "cpu_op", 100, 20)
    profile.span("PythonSubclass", "cpu_op", 101, 18)
    profile.span("aten::add", "cpu_op", 102, 6)
    below_a_mode(profile, 150, "c10d::broadcast_")
    profile.span("PythonDispatchMode", "cpu_op", 200, 50)
    below_a_mode(profile, 201, "c10d::broadcast_")
    below_a_mode(profile, 226, "c10d::broadcast_")
    frames = imported(tmp_path, profile)
    assert frames.comm["kind"].tolist() == ["all_reduce", *["broadcast"] * 3]
    assert frames.comm["seq"].tolist()[0] == 6
    assert frames.comm["op"].tolist() == [""] * 4
    assert frames.ops["op"].tolist() == ["aten.mm", "aten.add", "aten.add"]
    assert frames.ops["parent"].tolist() == [-1, -1, 1]


def test_a_call_that_was_executed_by_copies_has_their_times(tmp_path: Path) -> None:
    profile = Profile(0, groups={"0": [0]})
    copied = {"stream": 20, "bytes": 1024}
    gather = profile.described("_allgather_base", "0", 1)
    for ts, correlation in ((10, 1), (210, 3)):
        profile.span("c10d::_allgather_base_", "cpu_op", ts, 40)
        profile.span("record_param_comms", "cpu_op", ts + 5, 30, **gather)
        profile.span("nccl:_all_gather_base", "user_annotation", ts + 10, 20)
        profile.span("cudaMemcpyAsync", "cuda_runtime", ts + 12, 2, correlation=correlation)
        profile.span("cudaMemcpyAsync", "cuda_runtime", ts + 15, 2, correlation=correlation + 1)
    # The first call is executed by copies. The second has a kernel, and its copies prepare it.
    profile.span("Memcpy DtoD", "gpu_memcpy", 100, 10, tid=20, correlation=1, **copied)
    profile.span("Memcpy DtoD", "gpu_memcpy", 120, 10, tid=20, correlation=2, **copied)
    profile.span("Memcpy DtoD", "gpu_memcpy", 300, 10, tid=20, correlation=3, **copied)
    profile.span("cudaLaunchKernel", "cuda_runtime", 230, 2, correlation=5)
    profile.span("ncclDevKernel_AllGather_RING_LL", "kernel", 320, 40, tid=20, correlation=5)
    # A copy outside of the annotation is the program's own.
    profile.span("cudaMemcpyAsync", "cuda_runtime", 400, 2, correlation=6)
    profile.span("Memcpy DtoD", "gpu_memcpy", 410, 10, tid=7, correlation=6)
    frames = imported(tmp_path, profile)
    begun = (frames.comm["issue_ns"] - BASE_NS) // US
    assert begun.tolist() == [100, 320]
    assert ((frames.comm["complete_ns"] - BASE_NS) // US).tolist() == [130, 360]
    kernels = frames.kernels
    assert kernels["category"].tolist() == [COMMUNICATION] * 2 + [MEMCPY, COMMUNICATION, MEMCPY]
    assert kernels["call_id"].tolist() == [0, 0, -1, 1, -1]


def test_without_a_kernel_only_the_issue_is_known(tmp_path: Path) -> None:
    row = one_call(tmp_path, "allreduce", "c10d::allreduce_", seq=1)
    assert (row["issue_ns"], row["call_ns"]) == (BASE_NS + 10 * US, 20 * US)
    assert (row["complete_ns"], row["blocked_ns"], row["reduce_op"]) == (-1, -1, "")


def test_a_kernel_is_found_by_its_number_where_it_names_no_operator(tmp_path: Path) -> None:
    profile = Profile(0)
    profile.call("allreduce", "c10d::allreduce_", 10, seq=3)
    profile.span("ncclDevKernel_AllReduce_Max_f32", "kernel", 50, 5, tid=20,
                 **profile.described("allreduce", "0", 3))  # fmt: skip
    (row,) = imported(tmp_path, profile).comm.to_dict("records")
    assert (row["reduce_op"], row["blocked_ns"]) == ("max", 5 * US)


def test_a_trace_of_kernels_alone_counts_them(tmp_path: Path) -> None:
    profile = Profile(0)
    for seq in (1, 2):
        args = profile.described("_allgather_base", "0", seq, **{"Out msg nelems": 2048})
        profile.span("ncclDevKernel_AllGather_RING_LL", "kernel", 10 * seq, 5, tid=20, **args)
    profile.span("ncclDevKernel_SendRecv(x)", "kernel", 90, 5, tid=20)
    frames = imported(tmp_path, profile)
    assert frames.comm["kind"].tolist() == ["all_gather", "all_gather", "unknown"]
    assert frames.comm["payload_bytes"].tolist() == [4096, 4096, -1]
    assert frames.comm["blocked_ns"].tolist() == [5 * US] * 3
    lacking = "operators of communication kernels, which are calls of their own: 3 of 3"
    assert lacking in frames.run["lacks"]


@pytest.mark.parametrize(
    ("name", "op", "fields", "expected"),
    [
        ("broadcast", "c10d::broadcast_", {"Rank": 0}, {"kind": "broadcast", "root": 4, "seq": 0}),
        ("_reduce_oop", "c10d::reduce_", {"Rank": 1}, {"kind": "reduce", "root": 9}),
        ("allreduce", "c10d::allreduce_", {"Rank": 1}, {"root": -1}),
        ("send", "c10d::send", {"Dst Rank": 4}, {"kind": "send", "peer": 4, "seq": -1}),
        ("recv", "c10d::recv_", {"Src Rank": 4}, {"kind": "recv", "peer": 4, "wire_bytes": 0}),
        ("reduce_scatter_tensor_coalesced", "c10d::reduce_scatter_tensor_coalesced_",
         {"In msg nelems": 2048}, {"kind": "reduce_scatter", "payload_bytes": 4096}),
        ("all_to_allv", "c10d::alltoall_base_", {}, {"kind": "all_to_all", "wire_bytes": 1024}),
        ("gather", "c10d::gather_", {"Rank": 0}, {"kind": "gather", "payload_bytes": 4096}),
        ("barrier", "c10d::barrier", {"In msg nelems": 0}, {"kind": "barrier", "payload_bytes": 0}),
    ],
)  # fmt: skip
def test_collectives_by_their_names(
    name: str, op: str, fields: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    profile = Profile(9, groups={"3": [4, 9]})
    profile.call(name, op, 10, group="3", seq=1, **fields)
    (row,) = imported(tmp_path, profile).comm.to_dict("records")
    assert {key: row[key] for key in expected} == expected


def test_what_hides_behind_a_kernel_is_not_exposed(tmp_path: Path) -> None:
    profile = Profile(0)
    profile.call("allreduce", "c10d::allreduce_", 10, seq=1, kernel=(100, 100))
    for begin, length in ((50, 70), (110, 20), (180, 50)):  # 20 + 10 + 20 of it are covered
        profile.span("gemm", "kernel", begin, length, tid=7)
    frames = imported(tmp_path, profile)
    assert frames.comm["blocked_ns"].item() == 50 * US


def test_who_is_late_is_found_by_the_kernels(tmp_path: Path) -> None:
    frames = imported(tmp_path, *training(num_steps=3, late_us=30))
    states = CATALOG["wait_states"].function(frames).to_dict("records")
    assert [(row["state"], row["worst_rank"], row["num_waits"]) for row in states] == [
        ("Wait at N x N", 0, 3)
    ]
    assert states[0]["wait_ns"] == 3 * 30 * US
    assert CATALOG["consistency"].function(frames)["is_fault"].sum() == 0


def test_where_a_call_stands_is_reported_by_the_spans_around_it(tmp_path: Path) -> None:
    frames = imported(tmp_path, *training())
    row = frames.comm.iloc[0]
    assert (row["module"], row["module_class"]) == ("Block_0.Linear_1", "Linear")
    assert (row["op"], row["phase"], row["step"]) == ("aten.mm", "forward", 5)
    assert (row["source_file"], row["source_line"], row["source_function"]) == (
        "train.py",
        12,
        "step",
    )
    operator = frames.ops[frames.ops["id"] == row["op_id"]].iloc[0]
    assert operator["op"] == "aten.mm"
    assert set(frames.ops["phase"]) == {"forward", "backward"}
    assert frames.steps["step"].tolist() == [5, 6, 5, 6]


def test_zipped_and_bare_traces_are_the_same(tmp_path: Path) -> None:
    plain = imported(tmp_path / "a", *training())
    zipped = imported(tmp_path / "b", *training(), zipped=True)
    assert plain.comm.equals(zipped.comm)


def test_a_bare_list_of_events_is_a_trace_too(tmp_path: Path) -> None:
    profile = training(ranks=2)[0]
    (tmp_path / "rank0.json").write_text(json.dumps(profile.events))
    frames = load(import_trace([tmp_path / "rank0.json"]))
    assert len(frames.comm) == 2
    assert frames.comm["seq"].tolist() == [39, 40]


def test_traces_of_an_older_torch_are_numbered_by_their_order(tmp_path: Path) -> None:
    """Earlier releases have no `Seq` in a description."""
    profiles = training()
    for profile in profiles:
        for event in profile.events:
            event["args"].pop("Seq", None)
    frames = imported(tmp_path, *profiles, host_name=None)
    assert frames.comm["seq"].tolist() == [0, 1, 0, 1]
    assert (
        "collectives that were numbered by their order in the group: 4 of 4"
        in (frames.run["lacks"])
    )
    assert (CATALOG["wait_states"].function(frames)["worst_rank"] == 0).all()


def test_calls_that_do_not_fit_are_not_numbered_and_the_check_says_so(tmp_path: Path) -> None:
    profiles = training()
    for profile in profiles:
        for event in profile.events:
            event["args"].pop("Seq", None)
    profiles[1].call("broadcast", "c10d::broadcast_", 1950)
    frames = imported(tmp_path, *profiles)
    assert (frames.comm["seq"] == -1).all()
    (found,) = CATALOG["consistency"].function(frames).to_dict("records")
    assert (found["problem"], found["is_fault"], found["ranks"]) == ("not compared", False, "0,1")


def test_windows_of_other_lengths_are_no_fault(tmp_path: Path) -> None:
    longer, shorter = training(num_steps=4), training(num_steps=2)
    frames = imported(tmp_path, longer[0], shorter[1])
    rows = CATALOG["consistency"].function(frames)
    assert not rows["is_fault"].any()
    assert "the profiler covered a part of the run" in rows["explanation"].iloc[0]


def test_a_call_that_differs_is_found(tmp_path: Path) -> None:
    profiles = training(num_steps=1, ranks=3)
    for profile in profiles:
        nelems = 512 if profile.rank == 1 else 1024
        profile.call("allreduce", "c10d::allreduce_", 700, seq=41, **{"In msg nelems": nelems})
    rows = CATALOG["consistency"].function(imported(tmp_path, *profiles))
    assert rows.loc[rows["is_fault"], ["problem", "ranks"]].to_numpy().tolist() == [["size", "1"]]


def test_one_rank_of_many_is_enough(tmp_path: Path) -> None:
    frames = imported(tmp_path, training(ranks=4)[2])
    assert frames.run["world_size"] == 4
    rows = CATALOG["consistency"].function(frames)
    assert set(rows["problem"]) <= {"missing rank", "lost calls"}
    assert not rows["is_fault"].any()
    assert any("Only one of 4 ranks" in notice.text for notice in notices_of(frames))
    for analysis in CATALOG.values():
        analysis.function(frames)


@pytest.mark.parametrize(
    ("stride", "expected"), [(2, ",".join(str(2 * i) for i in range(40))), (-1, "")]
)
def test_ranks_that_are_cut_short_are_worked_out_or_unknown(
    stride: int, expected: str, tmp_path: Path
) -> None:
    profiles = [Profile(rank, groups={"5": list(range(0, 80, 2))}) for rank in (0, 6)]
    fraction = f"[{', '.join(str(2 * i) for i in range(29))}, ..., 78]"
    for profile in profiles:
        profile.call("allreduce", "c10d::allreduce_", 10, group="5", seq=1,
                     **{"Process Group Ranks": fraction, "Global rank stride": stride})  # fmt: skip
        profile.groups = {}
    folder = tmp_path / "t"
    folder.mkdir()
    for profile in profiles:
        about = {"rank": profile.rank, "world_size": 80}
        text = {"distributedInfo": about, "traceEvents": profile.events}
        (folder / f"rank{profile.rank}.json").write_text(json.dumps(text))
    frames = load(import_trace([folder]))
    (row,) = frames.groups.to_dict("records")
    assert (row["name"], row["ranks"], row["size"]) == ("5", expected, 40)


@pytest.mark.parametrize(("size", "ranks"), [(None, "0,2"), (2, "0,2"), (4, "0,1,2,3"), (3, "")])
def test_ranks_that_are_not_listed_are_inferred_as_far_as_the_size_allows(
    size: int | None, ranks: str, tmp_path: Path
) -> None:
    profiles = [Profile(rank, groups={"5": [0, 2]}) for rank in (0, 2)]
    for profile in profiles:
        stated = {"Process Group Ranks": "", "Group size": size, "Global rank stride": -1}
        profile.call("allreduce", "c10d::allreduce_", 10, group="5", seq=1, **stated)
        about = {"rank": profile.rank, "world_size": 4}
        write_profiles(tmp_path, [profile], distributedInfo=about)
    frames = load(import_trace([tmp_path]))
    (row,) = frames.groups.to_dict("records")
    assert row["ranks"] == ranks
    assert row["size"] == (len(ranks.split(",")) if ranks else size)


def test_clocks_of_several_hosts_are_aligned_by_their_kernels(tmp_path: Path) -> None:
    profiles = training(num_steps=5, late_us=5)
    profiles[1].host = "node1"
    for profile in profiles:
        profile.span("cudaDeviceSynchronize", "cuda_runtime", 950, 20, correlation=7)
    for event in profiles[1].events:
        event["ts"] += 10_000  # its clock is 10 ms ahead
    frames = imported(tmp_path, *profiles)
    offset = frames.ranks.set_index("rank").loc[1, "clock_offset_ns"]
    assert abs(offset + 10_000 * US) <= 200 * US
    assert "aligned" in frames.run["clock"]
    waits = BASE_NS + 950 * US, BASE_NS + 10_950 * US + offset
    assert frames.syncs["at_ns"].tolist() == [*waits]


@pytest.mark.parametrize("fraction", [0.2, 0.6, 0.97])
def test_a_trace_that_breaks_off_is_refused_with_its_place(fraction: float, tmp_path: Path) -> None:
    folder = write_profiles(tmp_path, training(ranks=1))
    path = folder / "trace_rank0.json"
    text = path.read_text()
    begin = text.index("traceEvents") + 20
    path.write_text(text[: begin + int(fraction * (len(text) - begin))])
    with pytest.raises(TruncatedTraceError, match="at: character"):
        import_trace([path])


def test_a_trace_without_communication_is_one(tmp_path: Path) -> None:
    profile = Profile(0)
    profile.span("aten::mm", "cpu_op", 1, 2)
    frames = imported(tmp_path, profile)
    assert (len(frames.comm), len(frames.ops)) == (0, 1)
    (said,) = [each.text for each in notices_of(frames) if "No communication" in each.text]
    assert said.endswith("the files imported from torch.profiler contain no calls.")


def test_one_file_of_many_is_in_memory_at_a_time(tmp_path: Path) -> None:
    folder = write_profiles(tmp_path, training(ranks=3))
    documents, _ = documents_of([folder])
    assert [document.content for document in documents] == [None] * 3
    text = (folder / "trace_rank1.json").read_text()
    assert loaded(documents[1]) == replace(documents[1], content=text)
    assert documents_of([folder / "trace_rank1.json"]) == ([documents[1]], [])


def test_a_text_is_dropped_once_its_events_are_read(tmp_path: Path) -> None:
    class Text(str):
        """A string that can be observed."""

    (document,), _ = documents_of([write_profiles(tmp_path, training(ranks=1))])
    text = Text(loaded(document).content)
    observed = weakref.ref(text)
    profile = RankProfile.of_chrome_trace(replace(document, content=text), recognizer())
    del text
    assert observed() is None
    assert profile.record(0)[0].comm


@pytest.mark.parametrize("zipped", [False, True])
def test_one_of_several_traces_is_recognized_by_its_head(
    zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_profiles(tmp_path, training(ranks=2), zipped=zipped)
    monkeypatch.setattr(input_files, "read_document", None)  # would read the whole file
    documents, _ = documents_of([folder])
    assert [document.format for document in documents] == [PROFILER] * 2


@pytest.mark.parametrize("zipped", [False, True])
def test_a_trace_whose_events_begin_late_is_recognized_too(zipped: bool, tmp_path: Path) -> None:
    for profile in training(ranks=2):
        data = json.dumps({"padding": "x" * 2_000_000, **profile.document()}).encode()
        path = tmp_path / f"rank{profile.rank}"
        path.write_bytes(gzip.compress(data) if zipped else data)
    documents, _ = documents_of([tmp_path])
    assert [document.format for document in documents] == [PROFILER] * 2
    assert load(import_trace([tmp_path])).run["world_size"] == 2


def test_a_head_is_bounded_and_may_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "head"
    path.write_bytes(gzip.compress(b"x" * 50_000_000))
    assert read_head(path, 1000, "reading") == b"x" * 1000
    path.write_bytes(b"\x1f\x8bxx")
    assert read_head(path, 1000, "reading") == b""
    with pytest.raises(NotATraceError, match="a folder"):
        read_head(tmp_path, 1000, "reading")


@pytest.mark.parametrize("in_processes", [False, True])
def test_profiles_that_were_not_written_to_their_end_are_left_out(
    in_processes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_processes:
        monkeypatch.setattr(importer, "_LARGE_BYTES", 1)
    folder = write_profiles(tmp_path, training(ranks=3))
    path = folder / "trace_rank1.json"
    path.write_bytes(path.read_bytes()[:-20])
    trace = import_trace([folder])
    assert {*trace.tables["comm"]["rank"]} == {0, 2}
    (sentence,) = [each for each in trace.run["lacks"] if "left out" in each]
    assert sentence.endswith(": trace_rank1.json")


def test_a_file_that_was_replaced_while_it_was_read_is_refused(tmp_path: Path) -> None:
    folder = write_profiles(tmp_path, training(ranks=2))
    documents, _ = documents_of([folder])
    (folder / "trace_rank0.json").write_text('{"entries": [], "pg_config": {}}')
    with pytest.raises(TraceError, match="replaced while it was read"):
        loaded(documents[0])


def test_flow_arrows_are_skipped_wherever_they_stand(tmp_path: Path) -> None:
    profile = training(ranks=1)[0]
    plain = imported(tmp_path / "plain", profile).comm
    arrow = {"ph": "s", "id": 7, "pid": 0, "tid": 1, "ts": 1.5, "cat": "ac2g", "name": "ac2g"}
    odd = {"ph": "f", "name": 'a "}" of a name', "args": {"ph": "X"}}
    profile.events = [each for event in profile.events for each in (arrow, odd, event, arrow)]
    assert imported(tmp_path / "arrows", profile).comm.equals(plain)


def test_files_that_are_read_by_processes_of_their_own_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_profiles(tmp_path, training(ranks=3))
    alone = import_trace([folder])
    read: list[Path] = []

    def read_elsewhere(document: Document) -> Any:
        read.append(document.path)
        monkeypatch.setattr(importer, "read_file", None)  # no second attempt in this process
        return _read_elsewhere(document)

    monkeypatch.setattr(importer, "_LARGE_BYTES", 0)
    monkeypatch.setattr(importer.os, "cpu_count", lambda: 2)
    _read_elsewhere = importer._read_elsewhere
    monkeypatch.setattr(importer, "_read_elsewhere", read_elsewhere)
    together = import_trace([folder])
    assert len(read) == 3
    assert together.run == alone.run
    for name in ("comm", "ops", "steps", "groups"):
        assert list(together.rows(name)) == list(alone.rows(name))


def test_damaged_files_are_refused_as_if_they_were_read_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "_LARGE_BYTES", 0)
    monkeypatch.setattr(importer.os, "cpu_count", lambda: 2)
    for path in write_profiles(tmp_path, training(ranks=2)).iterdir():
        path.write_text(path.read_text()[:-200])
    with pytest.raises(TruncatedTraceError, match=r"trace_rank0\.json"):
        import_trace([tmp_path])


def test_each_group_has_its_own_backend(tmp_path: Path) -> None:
    about = {
        "backend": "nccl",
        "rank": 0,
        "world_size": 2,
        "pg_config": [
            {"pg_name": name, "pg_desc": "", "pg_size": 2, "ranks": [0, 1], "backend_config": text}
            for name, text in (("0", "cpu:gloo,cuda:nccl"), ("1", "cuda:nccl"), ("2", "cpu:gloo"))
        ],
    }
    groups = imported(tmp_path, Profile(0), distributedInfo=about).groups.set_index("name")
    assert groups["backend"].to_dict() == {"0": "cpu:gloo,cuda:nccl", "1": "nccl", "2": "gloo"}
