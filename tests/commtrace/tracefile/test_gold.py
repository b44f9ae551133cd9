"""Traces of every version of the format stay readable (see tests/gold for their origin)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from commtrace.group_request import GroupRequest, parsed_request
from commtrace.schema import FORMAT_VERSION, TABLES
from commtrace.tracefile import read_trace

GOLD = Path(__file__).parents[2] / "gold"


def test_every_version_has_its_trace() -> None:
    versions = {f"run-v{version}.json" for version in range(1, FORMAT_VERSION + 1)}
    assert {path.name for path in GOLD.glob("*.json")} == versions


@pytest.mark.parametrize("path", sorted(GOLD.glob("*.json")), ids=lambda path: path.stem)
def test_a_trace_of_any_version_has_the_tables_and_columns_of_today(path: Path) -> None:
    trace = read_trace(path)
    for name, columns in TABLES.items():
        assert list(trace.tables[name]) == [column.name for column in columns]
        assert {len(values) for values in trace.tables[name].values()} == {trace.num_rows(name)}


def test_version_1_says_what_it_said_when_it_was_written() -> None:
    trace = read_trace(GOLD / "run-v1.json")
    comm = trace.tables["comm"]
    assert trace.run["world_size"] == 2
    assert trace.run["torch"] == "2.13.0+cpu"
    # Per rank: DistributedDataParallel's handshake and the rebuilding of its buckets; then two
    # steps with one bucket of 20 floats and one loss each; and a barrier.
    assert Counter(comm["kind"]) == {
        "all_gather": 2, "broadcast": 8, "all_reduce": 8, "barrier": 2,
    }  # fmt: skip
    rows = list(zip(comm["phase"], comm["kind"], comm["step"], comm["payload_bytes"], strict=True))
    assert rows.count(("backward", "all_reduce", 0, 20 * 4)) == 2
    assert [region for region in comm["region"] if region] == ["report"] * 4
    assert list(trace.tables["groups"]["ranks"]) == ["0,1"]
    assert list(trace.tables["steps"]["step"]) == [0, 1, 0, 1]
    assert min(comm["issue_ns"]) > trace.tables["ranks"]["start_ns"][0]


def test_version_2_says_what_is_carried() -> None:
    comm = read_trace(GOLD / "run-v2.json").tables["comm"]
    rows = zip(comm["phase"], comm["carries"], comm["parameters"], strict=True)
    carried = {row for row in rows if row[1]}
    assert carried == {("backward", "gradients", "0.weight,0.bias")}
    assert set(comm["stack"]) == {""}


def test_version_3_says_which_calls_send_the_same() -> None:
    assert set(read_trace(GOLD / "run-v2.json").tables["comm"]["sent_id"]) == {-1}
    comm = read_trace(GOLD / "run-v3.json").tables["comm"]
    sent = [
        number
        for number, rank, kind in zip(comm["sent_id"], comm["rank"], comm["kind"], strict=True)
        if rank == 0 and kind == "all_reduce"
    ]
    assert min(sent) >= 0
    assert len(set(sent)) == len(sent)  # gradients and losses, each reduced once


def test_version_4_says_what_each_member_is_sent_and_on_which_device() -> None:
    assert set(read_trace(GOLD / "run-v3.json").tables["comm"]["device"]) == {""}
    comm = read_trace(GOLD / "run-v4.json").tables["comm"]
    assert set(comm["device"]) == {"cpu"}
    assert set(comm["stream"]) == {-1}
    columns = (comm[name] for name in ("rank", "kind", "input_splits", "output_splits"))
    assert [row for row in zip(*columns, strict=True) if row[1] == "all_to_all"] == [
        (0, "all_to_all", "4,8", "4,4"),
        (1, "all_to_all", "4,8", "8,8"),
    ]


def test_version_5_states_the_clocks_of_its_ranks_and_the_launcher() -> None:
    before = read_trace(GOLD / "run-v4.json").tables["ranks"]
    assert (set(before["boot"]), set(before["epoch_ns"])) == ({""}, {-1})
    trace = read_trace(GOLD / "run-v5.json")
    ranks = trace.tables["ranks"]
    assert len(set(ranks["boot"])) == 1
    assert ranks["boot"][0]
    own = [
        start - offset
        for start, offset in zip(ranks["start_ns"], ranks["clock_offset_ns"], strict=True)
    ]
    assert all(0 < epoch < start for epoch, start in zip(ranks["epoch_ns"], own, strict=True))
    assert trace.run["launcher"] == "commtrace"
    assert trace.run["run_id"].startswith("commtrace-")


def test_version_7_states_when_data_was_ready_and_used() -> None:
    before = read_trace(GOLD / "run-v6.json").tables["comm"]
    assert {*before["data_ready_ns"], *before["result_used_ns"]} == {-1}
    comm = read_trace(GOLD / "run-v7.json").tables["comm"]
    reduced = [
        (ready, issue, used)
        for kind, ready, issue, used in zip(
            comm["kind"],
            comm["data_ready_ns"],
            comm["issue_ns"],
            comm["result_used_ns"],
            strict=True,
        )
        if kind == "all_reduce" and used >= 0
    ]
    assert len(reduced) == 4  # gradients; nothing uses the losses
    assert all(0 < ready < issue < used for ready, issue, used in reduced)


def test_version_7_states_the_rows_of_experts() -> None:
    assert set(read_trace(GOLD / "run-v6.json").tables["comm"]["expert_rows"]) == {""}
    comm = read_trace(GOLD / "run-v7.json").tables["comm"]
    columns = (comm[name] for name in ("rank", "kind", "input_splits", "expert_rows"))
    assert [row for row in zip(*columns, strict=True) if row[1] == "all_to_all"] == [
        (0, "all_to_all", "4,8", "1,0,1,1"),
        (1, "all_to_all", "4,8", "1,0,1,1"),
    ]


def test_version_7_states_events_on_the_host() -> None:
    before, after = (read_trace(GOLD / f"run-v{version}.json") for version in (6, 7))
    assert before.num_rows("host_events") == 0
    table = after.tables["host_events"]
    ends = [
        (rank, text)
        for rank, kind, text in zip(table["rank"], table["kind"], table["text"], strict=True)
        if kind == "data_end"
    ]
    assert ends == [(rank, "the data loader had no batch after 2") for rank in (0, 1)]
    assert set(after.tables["ranks"]["alive_ns"]) == {-1}


def test_version_7_states_actions_of_pipeline_stages() -> None:
    before, after = (read_trace(GOLD / f"run-v{version}.json") for version in (6, 7))
    assert before.num_rows("pipeline_actions") == 0
    assert set(before.tables["comm"]["stage"]) == {-1}
    names = ("rank", "stage", "micro_batch", "action", "step")
    columns = (after.tables["pipeline_actions"][name] for name in names)
    assert list(zip(*columns, strict=True)) == [(rank, rank, 0, "forward", -1) for rank in (0, 1)]
    comm = after.tables["comm"]
    of_stage = (comm[name] for name in ("kind", "stage", "micro_batch", "direction"))
    assert [row for row in zip(*of_stage, strict=True) if row[1] >= 0] == [
        ("send", 0, 0, "forward"),
        ("recv", 1, 0, "forward"),
    ]


def test_version_9_states_which_part_of_a_result_was_used() -> None:
    assert set(read_trace(GOLD / "run-v8.json").tables["comm"]["used_shard"]) == {-1}
    assert 0 in set(read_trace(GOLD / "run-v9.json").tables["comm"]["used_shard"])


def test_version_9_states_for_how_long_threads_had_no_core() -> None:
    assert set(read_trace(GOLD / "run-v8.json").tables["comm"]["run_delay_ns"]) == {-1}
    assert max(read_trace(GOLD / "run-v9.json").tables["comm"]["run_delay_ns"]) > 0


def test_version_10_states_that_data_was_cast_for_its_call() -> None:
    assert set(read_trace(GOLD / "run-v9.json").tables["comm"]["cast_dtype"]) == {""}
    assert "bfloat16" in set(read_trace(GOLD / "run-v10.json").tables["comm"]["cast_dtype"])


def test_version_11_states_the_tags_of_transfers() -> None:
    assert set(read_trace(GOLD / "run-v10.json").tables["comm"]["tag"]) == {-1}
    comm = read_trace(GOLD / "run-v11.json").tables["comm"]
    tags = [row for row in zip(comm["kind"], comm["tag"], strict=True) if row[1] >= 0]
    assert tags == [("send", 5), ("recv", 5)]


def test_version_11_states_the_frames_around_a_line() -> None:
    assert set(read_trace(GOLD / "run-v10.json").tables["comm"]["callers"]) == {""}
    callers = set(read_trace(GOLD / "run-v11.json").tables["comm"]["callers"])
    assert {each.rpartition(" ")[2] for each in callers} == {"<module>"}


def test_version_11_states_created_groups_and_exit_codes() -> None:
    assert set(read_trace(GOLD / "run-v10.json").tables["ranks"]["exit_code"]) == {-1}
    trace = read_trace(GOLD / "run-v11.json")
    assert list(trace.tables["ranks"]["exit_code"]) == [0, 0]
    table = trace.tables["host_events"]
    assert set(table["stack"]) == {""}
    texts = [
        text for kind, text in zip(table["kind"], table["text"], strict=True) if kind == "new_group"
    ]
    assert [parsed_request(text) for text in texts] == [GroupRequest((0, 1), "gloo", "1")] * 2


def test_version_13_states_the_waits_for_calls() -> None:
    before, trace = (read_trace(GOLD / f"run-v{version}.json") for version in (12, 13))
    assert before.num_rows("later_waits") == trace.num_rows("syncs") == 0
    assert set(before.tables["comm"]["wait_begin_ns"]) == {-1}
    later, comm = trace.tables["later_waits"], trace.tables["comm"]
    assert list(later["rank"]) == [0, 0, 1, 1]  # one in each step
    columns = (comm[name] for name in ("rank", "id", "wait_begin_ns", "first_wait_ns"))
    waits = {
        (rank, number): begin + lasts for rank, number, begin, lasts in zip(*columns, strict=True)
    }
    rows = zip(*(later[name] for name in ("rank", "call_id", "at_ns")), strict=True)
    assert all(0 < waits[rank, call] <= at for rank, call, at in rows)


def test_version_13_states_where_data_comes_from() -> None:
    before, trace = (read_trace(GOLD / f"run-v{version}.json") for version in (12, 13))
    assert set(before.tables["ops"]["needs"]) == {""}
    assert set(before.tables["comm"]["data_op_id"]) == {-1}
    ops, comm = trace.tables["ops"], trace.tables["comm"]
    names = dict(zip(zip(ops["rank"], ops["id"], strict=True), ops["op"], strict=True))
    columns = (comm[name] for name in ("rank", "region", "data_op_id"))
    sent = [names[rank, op] for rank, region, op in zip(*columns, strict=True) if region]
    assert sent == ["aten._to_copy.default", "aten.mul.Tensor"] * 4
    columns = (ops[name] for name in ("op", "shapes", "flops"))
    products = {row for row in zip(*columns, strict=True) if row[0] == "aten.addmm.default"}
    assert products == {("aten.addmm.default", "[4];[2,4];[4,4]", 2 * 2 * 4 * 4)}
    assert {each for each in ops["needs"] if each}
