"""Execution traces of Chakra: read with the published definition, run, and imported again."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import Frames, load
from commtrace.event import SyncRow
from commtrace.exporters.chakra import write_chakra
from commtrace.importers import import_trace
from commtrace.tracefile.trace import trace_of_rows
from tests.commtrace.analyze.rows import (
    START_NS,
    call,
    group,
    kernel,
    op,
    rank_row,
    run_of,
    trace_of,
)
from tests.commtrace.analyze.test_second_computation import FAULTY, TRACES
from tests.commtrace.exporters.chakra_files import (
    COLLECTIVE,
    COMP,
    RECV,
    SEND,
    File,
    read_all,
    simulated,
)

SOME_FAULTY = ("healthy", "left out", "crossed", "snapshots0")
ALL = TRACES | {name: FAULTY[name] for name in SOME_FAULTY}
SAME = (
    "rank", "id", "kind", "payload_bytes", "wire_bytes", "peer", "root", "seq", "tag", "is_async",
    "issue_ns", "complete_ns", "wait_begin_ns",
)  # fmt: skip
READ_AS = {
    "is_cpu_op": "bool_val", "num_ops": "int64_val", "tensor_size": "uint64_val",
    "comm_type": "int64_val", "comm_priority": "int32_val", "comm_size": "int64_val",
    "comm_src": "int32_val", "comm_dst": "int32_val", "comm_tag": "int32_val",
    "pg_name": "string_val",
}  # fmt: skip
"""Fields in which simulators look for attributes."""


def loaded(name: str) -> Frames:
    """A run; random runs have phases that no recording has, and that no reader accepts."""
    run = load(ALL[name])
    valid = {
        table: getattr(run, table).assign(
            phase=getattr(run, table)["phase"].astype(object).replace("strange", "other")
        )
        for table in ("comm", "ops")
    }
    return replace(
        run, **{name: table.astype({"phase": "category"}) for name, table in valid.items()}
    )


def exported(run: Frames) -> tuple[dict[int, File], list[str]]:
    with TemporaryDirectory() as name:
        notes = write_chakra(run, Path(name) / "et")
        return read_all(Path(name) / "et"), notes


@cache
def files_of(name: str) -> dict[int, File]:
    return exported(loaded(name))[0]


@cache
def again(name: str) -> Frames:
    """A run after an export and an import."""
    with TemporaryDirectory() as folder:
        write_chakra(loaded(name), Path(folder) / "et")
        return load(import_trace([Path(folder) / "et"]))


def calls_of(run: Frames) -> pd.DataFrame:
    groups = dict(zip(run.groups["name"], run.groups["ranks"], strict=True))
    calls = run.comm[[*SAME]].astype({"kind": object})
    calls["members"] = [groups.get(name, "") for name in run.comm["group"]]
    return calls.sort_values(["rank", "id"], ignore_index=True)


@pytest.mark.parametrize("name", ALL)
def test_an_import_of_an_export_has_the_same_calls(name: str) -> None:
    pd.testing.assert_frame_equal(calls_of(again(name)), calls_of(loaded(name)))


@pytest.mark.parametrize("name", ALL)
def test_an_import_of_an_export_has_the_same_dependencies(name: str) -> None:
    expected = {rank: file.before() for rank, file in files_of(name).items()}
    found = {rank: file.before() for rank, file in exported(again(name))[0].items()}
    assert found == expected


@pytest.mark.parametrize("name", ALL)
def test_files_follow_the_rules_of_readers(name: str) -> None:
    for rank, file in files_of(name).items():
        assert file.about.version == "1.0.0"
        seen: set[int] = set()
        for number, node in file.nodes.items():
            # Readers that follow both lists take a node only if both are empty.
            assert {*node.ctrl_deps} <= {*node.data_deps} <= seen
            assert len({*node.data_deps}) == len(node.data_deps)
            assert bool(node.data_deps) == bool(seen), (
                "only the node of the groups may begin at once"
            )
            seen.add(number)
            kinds = {each.name: each.WhichOneof("value") for each in node.attr}
            assert "is_cpu_op" in kinds
            assert {
                name: kinds[name] for name in READ_AS.keys() & kinds.keys()
            }.items() <= READ_AS.items()
            if node.type == COLLECTIVE:
                assert not file.attributes[number]["is_cpu_op"]
                assert {"comm_type", "comm_priority"} <= kinds.keys()
            if node.type in (SEND, RECV):
                ends = [file.attributes[number].get(name) for name in ("comm_src", "comm_dst")]
                assert ends[node.type == RECV] == rank
                assert "comm_tag" in kinds


@pytest.mark.parametrize("name", ALL)
def test_what_follows_a_blocking_call_or_a_wait_depends_on_it(name: str) -> None:
    run = loaded(name)
    on_device = {(row.rank, row.call_id) for row in run.kernels.itertuples() if row.call_id >= 0}
    before = {rank: file.before() for rank, file in files_of(name).items()}
    for rank, calls in run.comm[run.comm["issue_ns"] >= 0].groupby("rank"):
        if calls["thread"].nunique() > 1:
            continue
        rows = [row for row in calls.itertuples() if (rank, row.id) not in on_device]
        for first in rows:
            until = first.wait_begin_ns + first.first_wait_ns if first.first_wait_ns >= 0 else -1
            if not first.is_async and until < 0 <= first.call_ns:
                until = first.issue_ns + first.call_ns
            for later in rows:
                if 0 <= until <= later.issue_ns and later.id > first.id:
                    assert first.id in before[rank][later.id], (first.id, later.id)


HEALTHY = [
    name for name in ("training", "mesh", "layouts0", "routed0", "piped0", "broadcasts",
                      "reduced to a root", "receives", "ring", "healthy", "accumulated")
]  # fmt: skip


@pytest.mark.parametrize("lists", [("data_deps",), ("ctrl_deps", "data_deps")])
@pytest.mark.parametrize("name", HEALTHY)
def test_simulators_run_all_nodes(name: str, lists: tuple[str, ...]) -> None:
    assert simulated(files_of(name), lists) == []


@pytest.mark.parametrize("name", ["device0", "device1", "device2"])
def test_calls_of_several_groups_at_a_time_run_where_ranks_begin_them_in_other_orders(
    name: str,
) -> None:
    assert simulated(files_of(name), at_once=2) == []


def test_a_simulator_hangs_where_the_program_did() -> None:
    assert simulated(files_of("left out")) != []


def in_turn() -> list[Any]:
    """An asynchronous all-reduce that is waited for, another call meanwhile, and a last one."""
    return [
        call(id=0, seq=0, payload_bytes=800, is_async=True, at=100, until=900, call_ns=50,
             blocked_ns=350, wait_begin_ns=START_NS + 600, first_wait_ns=300),
        call(id=1, seq=1, kind="all_gather", payload_bytes=800, at=300, until=500, call_ns=200,
             blocked_ns=200),
        call(id=2, seq=2, kind="broadcast", root=0, payload_bytes=80, at=1000, until=1100,
             call_ns=100, blocked_ns=100),
    ]  # fmt: skip


def named(file: File) -> list[tuple[str, list[str], list[str]]]:
    """Names of nodes, of those in order before them, and of others that they need."""
    names = {number: node.name for number, node in file.nodes.items()}
    return [
        (
            node.name,
            [names[each] for each in node.ctrl_deps],
            [names[each] for each in node.data_deps if each not in node.ctrl_deps],
        )
        for node in file.nodes.values()
    ]


def test_a_call_waits_for_what_the_program_waited_for() -> None:
    file = exported(run_of(in_turn(), num_ranks=1))[0][0]
    begin = "## process_group:init ##"
    assert named(file) == [
        (begin, [], []),
        ("host", [], [begin]),
        ("all_reduce", ["host"], []),
        ("issue: all_reduce", ["host"], []),
        ("host", ["issue: all_reduce"], []),
        ("all_gather", ["host"], []),
        ("host", ["all_gather"], []),
        ("wait: all_reduce", ["host"], ["all_reduce"]),
        ("host", ["wait: all_reduce"], []),
        ("broadcast", ["host"], []),
    ]
    assert file.before() == {0: set(), 1: set(), 2: {0, 1}}


def test_sizes_are_those_of_a_rank() -> None:
    rows = [
        call(rank=rank, id=number, seq=number, kind=kind, payload_bytes=800, at=9 * number)
        for rank in range(2)
        for number, kind in enumerate(("all_gather", "gather", "reduce_scatter", "all_reduce"))
    ]
    files, notes = exported(run_of(rows, num_ranks=2))
    sizes = [own["comm_size"] for _, own in files[0].calls()]
    assert sizes == [400, 400, 800, 800]
    assert notes[1:] == [
        "2 calls of kinds that ASTRA-sim refuses (barrier, reduce, gather, scatter)"
    ]


def test_the_groups_are_listed_for_either_way_of_reading_them(tmp_path: Path) -> None:
    groups = [group("dp", ranks=(0, 1)), group("tp", ranks=(1, 0)), group("no", ranks=())]
    rows = [call(id=0, seq=0, group="tp", at=0), call(id=1, seq=0, group="no", at=5)]
    notes = write_chakra(load(trace_of(rows, groups=groups)), tmp_path / "et")
    assert json.loads((tmp_path / "et" / "comm_group.json").read_text()) == {
        "1": [0, 1], "2": [1, 0]
    }  # fmt: skip
    file = read_all(tmp_path / "et")[0]
    listed = json.loads(next(iter(file.nodes.values())).inputs.values[2:-2])
    assert [(each["pg_name"], each["ranks"]) for each in listed] == [("1", [0, 1]), ("2", [1, 0])]
    assert [own.get("pg_name") for _, own in file.calls()] == ["2", None]
    unknown = "1 call of groups with unknown ranks, which simulators take for all ranks"
    assert unknown in notes


def test_unknown_values_are_left_out() -> None:
    rows = [call(id=0, kind="send"), call(id=1, kind="strange")]
    files, notes = exported(run_of(rows, num_ranks=1))
    (_, send), (strange, other) = files[0].calls()
    assert not {"comm_size", "comm_dst"} & send.keys()
    assert (send["comm_src"], send["comm_tag"], send.get("commtrace.tag")) == (0, 0, None)
    assert files[0].nodes[strange].type == COMP
    assert "comm_type" not in other
    assert notes == [
        "1 dependencies between nodes, 1 of them inferred",
        "1 call of unknown size",
        "1 call to or from an unknown rank",
        "1 call of kinds that Chakra lacks, written as work of the device",
    ]


def test_details_are_known_in_some_steps() -> None:
    def rows(steps: range) -> list[Any]:
        known = {"needs": "1", "flops": 8, "bytes": 24}
        return [
            op(id=2 * step + part, op="aten.mm.default", level="local", at=100 * step + 10 * part,
               duration_ns=10, step=step, **known if step in (0, 2) else {})
            for step in steps for part in range(2)
        ]  # fmt: skip

    calls = [call(id=0, at=350, until=360)]
    files, notes = exported(run_of(calls, ops=rows(range(4)), num_ranks=1))
    products = [
        (own["commtrace.step"], own.get("num_ops"), own.get("tensor_size"))
        for number, own in files[0].attributes.items()
        if files[0].nodes[number].name == "aten.mm.default"
    ]
    assert products == [
        (step, 8, 24) if step in (0, 2) else (step, None, None) for step in (0, 0, 1, 1, 2, 2, 3, 3)
    ]
    assert notes[-1] == (
        "operators have FLOPs, bytes and dependencies on data in 2 of 4 steps; --steps 2 exports "
        "one of these alone"
    )
    for steps in (range(2, 3), range(1, 2)):
        notes = exported(run_of(calls, ops=rows(steps), num_ranks=1))[1]
        assert not any("operators" in note for note in notes)


def test_a_trace_without_calls_has_a_file_per_rank() -> None:
    files, notes = exported(run_of(num_ranks=2))
    assert sorted(files) == [0, 1]
    assert [len(file.nodes) for file in files.values()] == [1, 1]
    assert notes == ["0 dependencies between nodes, 0 of them inferred"]


def test_durations_that_follow_each_other_add_up() -> None:
    ops = [op(id=number, op="aten.relu.default", at=700 * number, duration_ns=700, thread=1)
           for number in range(100)]  # fmt: skip
    run = run_of(
        [call(id=0, at=70_000, until=71_000, call_ns=1000, thread=1)], ops=ops, num_ranks=1
    )
    file = exported(run)[0][0]
    spans = [
        (node.start_time_micros, node.duration_micros)
        for node in file.nodes.values() if node.name == "aten.relu.default"
    ]  # fmt: skip
    assert len(spans) == 100
    assert sum(duration for _, duration in spans) == 70


def test_operators_have_their_work_and_what_they_used() -> None:
    rows = [
        call(id=0, seq=0, at=300, until=400, call_ns=100, data_op_id=1, thread=1),
        call(id=1, seq=1, at=800, until=900, call_ns=100, data_call_id=0, thread=1),
    ]
    ops = [
        op(id=0, op="aten.mm.default", at=0, duration_ns=100, flops=64, bytes=48, thread=1),
        op(id=1, op="aten.relu.default", at=100, duration_ns=100, needs="1", thread=1),
        op(id=2, op="aten.add.Tensor", at=500, duration_ns=100, needs="2,c0", thread=1),
    ]
    file = exported(run_of(rows, ops=ops, num_ranks=1))[0][0]
    found = {name: (after, needs) for name, after, needs in named(file)}
    assert found["aten.relu.default"] == (["aten.mm.default"], [])
    assert found["aten.add.Tensor"] == (["host"], ["aten.mm.default", "all_reduce"])
    (_, first), _ = file.calls()
    assert first["commtrace.data_op_id"] == 1
    work = {
        own["commtrace.id"]: (own.get("num_ops"), own.get("tensor_size"))
        for own in file.attributes.values() if own.get("commtrace.table") == "ops"
    }  # fmt: skip
    assert work == {0: (64, 48), 1: (None, None), 2: (None, None)}


def test_kernels_follow_their_launches_their_stream_and_inferred_others() -> None:
    kernels = [
        kernel(id=0, at=1_000, until=50_000, launched=100, name="gemm", op_id=0, thread=1),
        kernel(id=1, at=50_100, until=60_000, launched=200, name="nccl", stream=9, call_id=0,
               category="communication", thread=1),
        kernel(id=2, at=60_500, until=70_000, launched=300, name="relu", thread=1),
    ]  # fmt: skip
    rows = [call(id=0, seq=0, at=50_100, until=60_000, payload_bytes=8, is_async=True, thread=1)]
    ops = [op(id=0, op="aten.mm.default", at=50, duration_ns=80, flops=7, bytes=9, thread=1)]
    files, notes = exported(run_of(rows, kernels=kernels, ops=ops, num_ranks=1))
    found = {name: (after, needs) for name, after, needs in named(files[0])}
    assert found["gemm"] == ([], ["aten.mm.default"])
    assert found["all_reduce"][1] == ["host", "gemm"]
    assert found["relu"] == (["gemm"], ["host", "all_reduce"])
    assert notes[0].endswith("2 of them inferred")
    work = {
        files[0].nodes[number].name: own.get("num_ops")
        for number, own in files[0].attributes.items()
    }
    assert (work["gemm"], work["aten.mm.default"]) == (7, None)


def test_a_wait_for_a_kernel_that_is_launched_after_it_is_no_cycle() -> None:
    kernels = [kernel(id=0, at=9_000, until=9_500, launched=8_000, thread=1)]
    syncs = [
        SyncRow(rank=0, id=0, kind="device_sync", at_ns=START_NS + 100, duration_ns=7_000,
                thread=1, kernel_id=0)
    ]  # fmt: skip
    tables = {"comm": [call(id=0, at=10, thread=1)], "kernels": kernels, "syncs": syncs,
              "groups": [group(ranks=[0])], "ranks": [rank_row(0)]}  # fmt: skip
    run = load(trace_of_rows({"world_size": 1, "missing_ranks": []}, tables))
    file = exported(run)[0][0]
    assert [name for name, *_ in named(file)][-1] == "gemm"
    assert simulated({0: file}) == []


def test_files_of_an_earlier_run_with_more_ranks_are_removed(tmp_path: Path) -> None:
    write_chakra(run_of(num_ranks=3), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    write_chakra(run_of(num_ranks=2), tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["comm_group.json", "notes.txt", "trace.0.et", "trace.1.et"]


def test_ranks_without_a_file_are_stated() -> None:
    rows = [call(id=0, seq=0, at=0, payload_bytes=8)]
    run = load(trace_of(rows, num_ranks=1, groups=[group(ranks=range(4))]))
    _, notes = exported(run)
    assert notes[-1] == "groups have 3 ranks without a file; a simulator waits for them"
