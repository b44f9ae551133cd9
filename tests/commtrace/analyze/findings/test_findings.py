"""Each rule finds its problem and the cost, and ignores what only resembles it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.large_run import large_trace
from commtrace.analyze import load
from commtrace.analyze.findings import RULES, findings, muted, unanswered
from commtrace.analyze.findings.shared_cores import shared_cores
from commtrace.analyze.notices import notices_of, notices_on
from commtrace.errors import SettingsError
from commtrace.schema import ALL_USED, SOME_UNUSED
from commtrace.settings import Muted, Settings
from tests.benchmarks.test_large_run import PLAN
from tests.commtrace.analyze.by_hand import rows
from tests.commtrace.analyze.device_rows import kernel, numbered
from tests.commtrace.analyze.rows import (
    START_NS,
    accumulated,
    call,
    flagged,
    late_at_every_other,
    late_in_turn,
    late_trace,
    run_of,
    stalled_once,
    step,
)
from tests.commtrace.analyze.training import training_trace

WHOLE, CUT, SUM = "f32[8,16] tp:R", "f32[8,16] tp:S(0)", "f32[8,16] tp:P(sum)"


def found(calls: list[Any], rule: str, **more: Any) -> list[dict[str, Any]]:
    """Findings of a rule in a run of a single rank, so that means are the rank's own values."""
    table = findings(run_of(calls, **({"num_ranks": 1} | more)))
    return table[table["rule"] == rule].to_dict("records")


def moves(kind: str, source: str, target: str, number: int, **columns: Any) -> Any:
    known = {"id": number, "seq": number, "step": 0, "module": "m", "wire_bytes": 100}
    known |= {"blocked_ns": 50, "payload_bytes": 512, "source_file": "a.py", "source_line": 3}
    known |= {"source_spec": source, "target_spec": target, "op": "redistribute", "thread": 1}
    known |= {"at": 100 * number, "until": 100 * number + columns.get("blocked_ns", 50)}
    return call(kind=kind, **(known | columns))


def test_delays_are_read_in_a_run_without_a_table_of_ranks() -> None:
    known = {"run_delay_ns": 80, "thread": 1, "blocked_ns": 50}
    calls = [call(id=number, rank=number % 2, seq=number // 2, **known) for number in range(6)]
    frames = run_of(calls, ranks=[])
    assert frames.ranks.empty
    assert all("share a host" not in each.title for each in shared_cores(frames))


def test_parameters_gathered_twice_in_a_step_are_found_once_for_the_second_time() -> None:
    calls = [
        call(
            id=i, seq=i, step=i // 2, kind="all_gather", carries="parameters", parameters="w,b",
            phase=phase, wire_bytes=100, at=200 * i, until=200 * i + 50, blocked_ns=50, module="m",
        )
        for i, phase in enumerate(["forward", "backward", "forward", "backward"])
    ]  # fmt: skip
    (one,) = found(calls, "repeated_all_gather")
    assert (one["num_calls"], one["cost_bytes"], one["cost_ns"]) == (2, 200, 100)
    assert one["evidence"] == "0:1,0:3"
    assert one["share"] == 100 / 650  # of the run from the first call to the last
    assert one["title"].startswith(
        "The same parameters are gathered again within a step, 2 times per rank"
    )


def test_the_memory_of_units_that_stay_gathered_is_stated() -> None:
    def gathered(**columns: Any) -> list[dict[str, Any]]:
        calls = [
            call(
                id=i, seq=i, step=0, kind="all_gather", carries="parameters", parameters=name,
                phase=phase, module="m", **{"payload_bytes": 3_000_000, **columns},
            )
            for i, (name, phase) in enumerate(
                [("w", "forward"), ("v", "forward"), ("v", "backward"), ("w", "backward")]
            )
        ]  # fmt: skip
        return found(calls, "repeated_all_gather")

    assert {one["advice"] for one in gathered()} == {
        "Keep them gathered between forward and backward: reshard_after_forward=False of "
        "fully_shard, ShardingStrategy.SHARD_GRAD_OP of FullyShardedDataParallel, if memory "
        "allows: gathered, all 2 units together take 6 MB on each rank."
    }
    assert all(one["advice"].endswith("if memory allows.") for one in gathered(payload_bytes=-1))


def test_names_with_braces_are_text() -> None:
    calls = [
        call(id=i, step=0, kind="all_gather", carries="parameters", parameters="{w}", seq=i)
        for i in range(2)
    ]
    (one,) = found(calls, "repeated_all_gather")
    assert "{w}" in one["title"]


def test_a_new_step_s_parameters_are_others() -> None:
    calls = [
        call(id=i, step=i, kind="all_gather", carries="parameters", parameters="w")
        for i in range(3)
    ]
    assert found(calls, "repeated_all_gather") == []


def gathers(sent: list[tuple[int, ...]]) -> list[Any]:
    """Consecutive gathers, given the tensor ids that each rank sends."""
    return [
        call(rank=rank, id=n, seq=n, kind="all_gather", sent_id=each, module="m", wire_bytes=100)
        for n, ranks in enumerate(sent)
        for rank, each in enumerate(ranks)
    ]


def test_a_tensor_gathered_twice_without_change_is_found_by_its_identity() -> None:
    (one,) = found(gathers([(0, 0), (1, 1), (0, 0), (2, 2)]), "repeated_all_gather", num_ranks=2)
    assert (one["num_calls"], one["cost_bytes"], one["evidence"]) == (1, 100, "0:2,1:2")
    assert "in m, although no rank has written to them" in one["title"]
    assert one["advice"].startswith("Keep the gathered tensor")


@pytest.mark.parametrize(
    "sent",
    [
        [(0, 0), (1, 1)],  # another tensor, or written to in between
        [(0, 0), (0, 1)],  # one member's shard has changed
        [(-1, -1), (-1, -1)],  # not known
        [(0, 5), (1, 0), (0, 0)],  # each tensor was sent before, but not all in one gather
    ],
)
def test_what_changed_on_one_rank_has_to_be_gathered_again(sent: list[tuple[int, ...]]) -> None:
    assert found(gathers(sent), "repeated_all_gather", num_ranks=2) == []


def of_two(kind: str, source: str, target: str, used: tuple[int, int]) -> list[Any]:
    """A redistribution of two ranks, with the parts that they use of its result."""
    return [moves(kind, source, target, 0, rank=n, used_shard=part) for n, part in enumerate(used)]


def test_an_all_reduce_of_which_each_rank_uses_its_shard_could_be_a_reduce_scatter() -> None:
    name = "all_reduce_then_shard"
    (one,) = found(of_two("all_reduce", SUM, WHOLE, (2, 2)), name, num_ranks=2)
    assert (one["cost_bytes"], one["cost_ns"], one["evidence"]) == (50, 25, "0:0,1:0")
    assert one["change"] == "shrink *0.5 where finding=1"
    assert "reduce-scatter" in one["advice"]
    assert "Shard(1)" in one["advice"]
    for used in ((1, 2), (1, 0), (0, 0), (1, -1)):
        assert found(of_two("all_reduce", SUM, WHOLE, used), name, num_ranks=2) == []


def test_what_the_next_call_gathers_is_no_evidence_of_an_all_reduce_s_use() -> None:
    calls = [moves("all_reduce", SUM, WHOLE, 0, used_shard=0), moves("all_gather", CUT, WHOLE, 1)]
    assert found(calls, "all_reduce_then_shard") == []
    unknown = [each._replace(used_shard=-1) for each in calls]
    assert "which part of a result" in unanswered(run_of(unknown))["all_reduce_then_shard"]


def test_a_gather_whose_result_is_sharded_again_at_once_is_a_ping_pong() -> None:
    (one,) = found(of_two("all_gather", CUT, WHOLE, (1, 1)), "ping_pong", num_ranks=2)
    assert (one["cost_bytes"], one["cost_ns"], one["module"]) == (100, 50, "m")
    assert one["title"] == (
        "In m, a tensor is gathered (f32[8,16] tp:S(0)) and sharded again at once, along dim 0: "
        "each rank uses its own shard only."
    )
    (other,) = found(of_two("all_gather", CUT, WHOLE, (2, 2)), "ping_pong", num_ranks=2)
    assert other["cost_bytes"] == 50
    assert "all-to-all" in other["advice"]
    assert found(of_two("all_gather", CUT, WHOLE, (1, 0)), "ping_pong", num_ranks=2) == []


def test_a_layout_that_goes_back_and_forth_is_a_ping_pong() -> None:
    folder = moves("all_to_all", CUT, "f32[8,16] tp:S(1)", 0)
    back = moves("all_to_all", "f32[8,16] tp:S(1)", CUT, 1)
    (one,) = found([folder, back], "ping_pong")
    assert (one["cost_bytes"], one["evidence"], one["module"]) == (100, "0:1", "m")
    assert found([folder, folder._replace(id=1, seq=1)], "ping_pong") == []


def test_gathers_of_one_layout_in_a_row_are_reported_if_the_later_data_was_computed_since() -> None:
    times = [{"at": 100 * n, "until": 100 * n + 50} for n in range(3)]
    calls = [
        moves("all_gather", CUT, WHOLE, n, module=f"m.{n}", **at) for n, at in enumerate(times)
    ]
    later = [each._replace(data_ready_ns=each.issue_ns) for each in calls]
    assert [one["module"] for one in found(later, "ping_pong")] == ["m.1", "m.2"]
    first = min(each.issue_ns for each in calls)
    parameters = [each._replace(data_ready_ns=first) for each in calls]
    assert found(parameters, "ping_pong") == []
    assert found(calls, "ping_pong") == []  # not known


def test_many_small_messages_cost_the_latency_of_all_but_one() -> None:
    calls = [
        call(id=i, seq=i, step=0, at=100 * i, until=100 * i + 40, blocked_ns=40, payload_bytes=8)
        for i in range(20)
    ]
    steps = [step(0, 0, 0, 2000)]
    (one,) = found(calls, "small_messages", steps=steps)
    assert (one["num_calls"], one["change"]) == (20, "merge where finding=1")
    # It is not known when results are used: at most, one message of all remains.
    assert (one["cost_ns"], one["most_ns"]) == (0, 19 * 40)
    assert found(calls[:15], "small_messages", steps=steps) == []
    large = [each._replace(payload_bytes=64_000) for each in calls]
    assert found(large, "small_messages", steps=steps) == []


def test_small_messages_that_depend_on_each_other_cannot_be_one() -> None:
    def calls(used_ns: int) -> list[Any]:
        """Messages whose data is ready 30 ns before they begin; results are used after a time."""
        return [
            call(id=i, seq=i, step=0, at=100 * i, until=100 * i + 40, blocked_ns=40,
                 payload_bytes=8, data_ready_ns=START_NS + 100 * i - 30,
                 result_used_ns=START_NS + 100 * i + used_ns)
            for i in range(20)
        ]  # fmt: skip

    steps = [step(0, 0, 0, 2000)]
    assert found(calls(used_ns=50), "small_messages", steps=steps) == []
    (one,) = found(calls(used_ns=90), "small_messages", steps=steps)
    assert one["num_calls"] == 20


def test_float32_in_a_module_that_sends_16_bits_could_be_half() -> None:
    big = {"payload_bytes": 100_000, "wire_bytes": 100_000, "blocked_ns": 60}
    timed = [{"at": 100 * n, "until": 100 * n + 60} for n in range(3)]
    calls = [
        call(module="layers.0.a", dtype="bfloat16", kind="all_gather", **big, **timed[0]),
        call(id=1, seq=1, module="layers.0", phase="backward", dtype="float32", **big, **timed[1]),
        call(id=2, seq=2, module="head", dtype="float32", **big, **timed[2]),
    ]
    (one,) = found(calls, "float32_messages")
    assert (one["module"], one["cost_bytes"]) == ("layers.0", 50_000)
    # All messages are of one size, so it is not known how much of 60 ns is latency.
    assert (one["cost_ns"], one["most_ns"]) == (0, 30)


WIDE: dict[str, Any] = {
    "dtype": "float32", "payload_bytes": 100_000, "wire_bytes": 100_000, "data_ready_ns": 0,
}  # fmt: skip
CAST = "carries float32 that was cast from bfloat16, or is cast to it."


def test_float32_that_is_cast_could_be_half_where_nothing_sends_16_bits() -> None:
    big = WIDE
    calls = [
        call(module="layers.0.a", cast_dtype="bfloat16", **big),
        call(id=1, module="layers.0.norm", **big),
        call(id=2, module="", cast_dtype="bfloat16", **big),
        call(id=3, module="layers.0.a", cast_dtype="bfloat16", carries="gradients", **big),
        call(id=4, module="layers.0.a", cast_dtype="bfloat16", phase="optimizer", **big),
    ]
    (one,) = found(calls, "float32_messages")
    assert (one["module"], one["num_calls"], one["cost_bytes"]) == ("layers.0", 1, 50_000)
    assert one["title"] == f"1 call of all_reduce in forward of layers.0 {CAST}"


def test_what_is_known_to_be_computed_in_32_bits_is_wide_by_choice_beside_16_bits() -> None:
    big = WIDE
    calls = [
        call(module="layers.0.a", **(big | {"dtype": "bfloat16"})),
        call(id=1, module="layers.0.norm", **big),
    ]
    assert found(calls, "float32_messages") == []


def test_parameters_that_are_cast_in_one_pass_are_too_wide_in_the_other() -> None:
    big = WIDE | {"kind": "all_gather"}
    calls = [
        call(module="layers.0", carries="parameters", cast_dtype="bfloat16", **big),
        call(id=1, module="layers.0", carries="parameters", phase="backward", **big),
        call(id=2, module="embedding", carries="parameters", **big),
    ]
    assert [one["module"] for one in found(calls, "float32_messages")] == ["layers.0"] * 2


@pytest.mark.parametrize(
    "choice", [{"carries": "gradients", "phase": "backward"}, {"phase": "optimizer"}]
)
def test_gradients_and_states_of_optimizers_are_float32_by_choice(choice: dict[str, str]) -> None:
    """As with FSDP2's `reduce_dtype=torch.float32`, which its tutorials advise."""
    big = {"payload_bytes": 100_000, "wire_bytes": 100_000, "blocked_ns": 60}
    calls = [
        call(module="layers.0", dtype="bfloat16", kind="all_gather", carries="parameters", **big),
        call(id=1, module="layers.0", dtype="float32", kind="reduce_scatter", **choice, **big),
    ]
    assert found(calls, "float32_messages") == []


def test_an_operator_that_brought_a_shard_to_every_rank_fell_back() -> None:
    calls = [
        moves("all_gather", CUT, WHOLE, 0, op="aten.sort.default", argument="self"),
        moves("all_reduce", SUM, WHOLE, 1, op="aten.relu.default", argument="self"),
        moves("all_gather", CUT, WHOLE, 2),
    ]
    (one,) = found(calls, "replication_fallback")
    assert (one["op"], one["evidence"]) == ("aten.sort.default", "0:0")


def test_communication_outside_of_any_module_is_reported_with_its_line() -> None:
    calls = [
        call(module="m"),
        call(id=1, wire_bytes=7, source_file="a.py", source_line=9),
        call(id=2, phase="optimizer"),
        call(id=3, module="", module_class="Net"),  # in the outermost module
    ]
    (one,) = found(calls, "outside_modules")
    # In a module, the call would cost the same.
    assert (one["source"], one["cost_bytes"], one["cost_ns"]) == ("a.py:9", 0, 0)
    assert one["evidence"] == "0:1"


@pytest.mark.parametrize(
    ("ranks", "start"),
    [
        (range(8), "1 call of all_reduce in forward is outside"),
        ([r for r in range(8) for _ in "ab"], "2 calls of all_reduce in forward are outside"),
        ([5], "In all, 1 call of all_reduce in forward is outside"),
        ([0, 5, 7], "In all, 3 calls of all_reduce in forward are outside"),
        ([*range(8), *range(4)], "In all, 12 calls of all_reduce in forward are outside"),
    ],
)
def test_titles_count_the_calls_of_a_rank_or_of_all_but_no_parts_of_calls(
    ranks: Sequence[int], start: str
) -> None:
    calls = [call(rank=rank, id=number) for number, rank in enumerate(ranks)]
    (one,) = found([call(id=99, module="m"), *calls], "outside_modules", num_ranks=8)
    assert one["title"].startswith(f"{start} of any module")


def test_what_few_of_many_ranks_repeat_is_counted_in_all() -> None:
    known = {"step": 0, "kind": "all_gather", "carries": "parameters", "parameters": "w"}
    calls = [call(id=i, seq=i, rank=rank, **known) for rank in (1, 2) for i in range(3)]
    (one,) = found(calls, "repeated_all_gather", num_ranks=64)
    assert "within a step, 4 times in all, unchanged" in one["title"]
    known |= {"kind": "all_reduce", "carries": "gradients"}
    reduced = [call(id=i, seq=i, rank=rank, **known) for rank in (1, 2) for i in range(3)]
    (one,) = found(reduced, "repeated_reduction", num_ranks=64)
    assert "are reduced again 4 times in all within a step" in one["title"]


def test_padding_is_what_a_payload_has_more_than_its_tensor() -> None:
    # 5 rows over 2 ranks are gathered as 6: 6 * 16 * 4 = 384 bytes, of which 64 are padding.
    spec = "f32[5,16] tp:S(0)"
    call_ = moves("all_gather", spec, "f32[5,16] tp:R", 0, payload_bytes=384, wire_bytes=192)
    (one,) = found([call_], "padded_shards")
    assert one["cost_bytes"] == pytest.approx(192 * 64 / 384)
    assert found([call_._replace(payload_bytes=320)], "padded_shards") == []


def test_gradients_reduced_after_each_of_several_passes_are_reported_once() -> None:
    (one,) = found(accumulated(num_passes=3), "repeated_reduction")
    assert one["title"].startswith("Gradients of the same parameters are reduced again 8 times")
    assert (one["num_calls"], one["cost_bytes"], one["cost_ns"]) == (8, 8 * 12, 8 * 50)
    assert found(accumulated(num_passes=1), "repeated_reduction") == []


def reduced_in_shards(sizes: Sequence[int], *, layout: str = "") -> list[dict[str, Any]]:
    """Findings in a step of passes that reduce-scatter a unit, after an all-reduce of some size."""
    known = {"step": 0, "carries": "gradients", "module": "m", "phase": "backward"}
    calls = []
    for number, size in enumerate(sizes):
        own = call(
            id=2 * number, seq=2 * number, group="1", parameters="w,b", payload_bytes=size,
            target_spec=layout, source_spec=layout, **known,
        )  # fmt: skip
        unit = {"kind": "reduce_scatter", "parameters": "w,b", "payload_bytes": 4096}
        calls += [own, call(id=2 * number + 1, seq=2 * number + 1, **unit, **known)]
    return found(calls, "repeated_reduction")


def test_replicas_of_shards_are_told_to_keep_their_gradients_sharded() -> None:
    between, within = reduced_in_shards([4096, 4096])
    if "replicas" not in between["title"]:
        between, within = within, between
    assert between["title"] == (
        "Gradients of the same parameters are all-reduced between replicas again once per rank "
        "within a step."
    )
    assert "set_requires_all_reduce(False) of fully_shard. It takes no more" in between["advice"]
    assert "(4.1 kB on each rank)" in between["advice"]
    assert "set_requires_gradient_sync(False) of fully_shard" in within["advice"]
    assert "each rank keeps unsharded gradients (4.1 kB)" in within["advice"]
    assert (between["kind"], within["kind"]) == ("all_reduce", "reduce_scatter")


def test_two_norms_of_a_unit_are_no_repeated_reduction() -> None:
    norms = [
        call(
            id=n, seq=n, step=0, carries="gradients", parameters="norm_1,norm_2,w",
            payload_bytes=512, phase="backward",
        )
        for n in range(2)
    ]  # fmt: skip
    unit = {"kind": "reduce_scatter", "parameters": "norm_1,norm_2,w", "payload_bytes": 4096}
    calls = [*norms, call(id=2, seq=2, step=0, carries="gradients", phase="backward", **unit)]
    assert found(calls, "repeated_reduction") == []


def test_gradients_reduced_by_hand_behind_a_library_are_reported_with_their_line() -> None:
    (one,) = found(accumulated(num_passes=1, by_hand=True), "repeated_reduction")
    assert one["title"].endswith("are all-reduced again, in 8 calls at train.py:5.")
    assert (one["source"], one["cost_ns"]) == ("train.py:5", 8 * 50)


def test_the_injected_straggler_is_the_late_rank() -> None:
    table = findings(load(large_trace(PLAN)))
    late = table[table["rule"] == "straggler"]
    assert late["title"].str.startswith(f"Rank {PLAN.late_rank} ").tolist() == [True]
    assert findings(load(training_trace(late_rank=2)))["rule"].tolist()[0] == "straggler"


@pytest.mark.parametrize(
    ("lateness", "rule", "rank", "saved_ns"),
    [
        (late_at_every_other, "straggler", "Rank 2", 10 * 3_000),
        (stalled_once, "stall", "Rank 1", 8_000 - 20),  # two others are 20 ns late at most
    ],
)
def test_who_is_late_is_reported_with_the_time_that_its_lateness_costs_all_ranks(
    lateness: Callable[[int, int], int], rule: str, rank: str, saved_ns: int
) -> None:
    table = findings(load(late_trace(lateness)))
    (reported,) = table.to_dict("records")
    assert reported["rule"] == rule
    assert reported["title"].startswith(rank)
    assert "before all_reduce in forward of m (train.py:3)" in reported["title"]
    assert reported["cost_ns"] == pytest.approx(saved_ns, rel=0.001)  # of the steps of all ranks


def test_a_rank_that_is_late_to_few_of_many_calls_is_found_by_what_it_costs() -> None:
    trace = late_trace(lambda n, rank: 6_000 * (rank == 0 and n % 4 == 1) + 10 * (n % 3 == rank))
    (reported,) = findings(load(trace)).to_dict("records")
    assert reported["rule"] == "straggler"
    assert reported["title"].endswith("; reason: longer work, 5.99 µs longer than the others.")


def test_without_a_reason_the_time_since_the_previous_call_is_described() -> None:
    """Of the devices, the trace has communication kernels only."""
    trace = late_trace(lambda n, rank: 6_000 * (rank == 0 and n % 4 == 1) + 10 * (n % 3 == rank))
    calls = rows(trace, "comm")
    kernels = [
        kernel(
            "communication", rank=each.rank, call_id=each.id, at=each.issue_ns - START_NS,
            until=each.complete_ns - START_NS,
        )
        for each in calls
    ]  # fmt: skip
    given = {name: rows(trace, name) for name in ("steps", "ranks")}
    frames = run_of(calls, num_ranks=3, kernels=numbered(kernels), **given)
    (reported,) = findings(frames).to_dict("records")
    assert reported["title"].endswith(
        ", at which it arrives 6.99 µs after its previous call and the others 1 µs."
    )


def test_who_is_late_now_and_then_is_no_late_rank() -> None:
    calls = [
        call(rank=r, id=s, seq=s, at=100 * s + (5 if s % 2 == r else 0), until=100 * s + 20,
             call_ns=15, blocked_ns=15)
        for s in range(40) for r in range(2)
    ]  # fmt: skip
    table = findings(run_of(calls))
    assert "straggler" not in set(table[table["num_calls"] > 10]["rule"])


def came_last(num_of_rank_1: int, num: int) -> list[Any]:
    """Collectives of two ranks; rank 1 is last to some of them, rank 0 to the others."""
    return [
        call(
            rank=rank, id=n, seq=n, at=10_000 * n + 5000 * is_late, until=10_000 * n + 6000,
            call_ns=6000 - 5000 * is_late, blocked_ns=6000 - 5000 * is_late, module="m",
        )
        for n in range(num)
        for rank in range(2)
        for is_late in [(rank == 1) == (n * num_of_rank_1 % num < num_of_rank_1)]
    ]  # fmt: skip


@pytest.mark.parametrize(("num_last", "is_found"), [(20, False), (28, False), (34, True)])
def test_of_two_ranks_one_is_the_last_by_chance(num_last: int, is_found: bool) -> None:
    late = found(came_last(num_last, 40), "straggler", num_ranks=2)
    assert [one["title"].startswith("Rank 1 ") for one in late] == [True] * is_found


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], set()),
        (
            [call(kind="all_gather", seq=0)],
            {
                "repeated_all_gather", "ping_pong", "float32_messages", "replication_fallback",
                "outside_modules", "padded_shards", "straggler", "stall", "load_imbalance",
                "small_messages", "overlap_lost", "serial_receives", "serial_sends",
                "object_collectives",
                "redundant_barrier", "unchanged_broadcast", "shared_cores",
                "reduce_then_broadcast", "metrics_each_step", "gathered_logits", "sums_apart",
                "dependent_communication", "growing_steps", "slow_link", "broadcast_buffers",
                "single_unit",
            },
        ),
    ],
)  # fmt: skip
def test_what_a_trace_lacks_for_a_rule_is_said(calls: list[Any], expected: set[str]) -> None:
    frames = run_of(calls)
    assert set(unanswered(frames)) == expected
    assert findings(frames).empty


def test_waiting_for_a_late_rank_is_not_saved_by_a_call_less() -> None:
    calls = [
        call(
            rank=rank, id=n, seq=n, step=0, kind="all_gather", carries="parameters",
            parameters="w", module="m", at=1_000 * n + 600 * rank, until=1_000 * n + 700,
            call_ns=700 - 600 * rank, blocked_ns=700 - 600 * rank,
        )
        for n in range(2)
        for rank in range(2)
    ]  # fmt: skip
    (one,) = found(calls, "repeated_all_gather", num_ranks=2)
    # Rank 0 has 700 ns less of its own, but then it waits for 300 ns of work of rank 1.
    assert one["cost_ns"] == 100


def test_costs_are_means_over_ranks_and_the_dearest_comes_first() -> None:
    costs = {"aten.sort.default": (8, (4, 4)), "aten.topk.default": (0, (6, 6))}
    calls = [
        moves(
            *("all_gather", CUT, WHOLE, n),
            **dict(rank=rank, op=op, argument="self", wire_bytes=size, blocked_ns=blocked),
        )
        for n, (op, (size, times)) in enumerate(costs.items())
        for rank, blocked in enumerate(times)
    ]
    table = findings(run_of(calls, num_ranks=2))
    assert table["cost_ns"].tolist() == [6, 4]
    assert table["cost_bytes"].tolist() == [0, 8]


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


# Flags of used parameters


@pytest.mark.parametrize(
    ("reasons", "is_found"),
    [
        ([ALL_USED, "", ALL_USED], True),
        ([ALL_USED, SOME_UNUSED, ALL_USED], False),  # a pass may leave some unused
        (["", ""], False),  # not known
        ([ALL_USED], False),  # of the first pass of a static graph
    ],
)
def test_flags_are_unneeded_if_no_parameter_was_ever_unused(
    reasons: list[str], is_found: bool
) -> None:
    reported = found(flagged(reasons), "unused_parameter_flags")
    assert len(reported) == is_found
    if is_found:
        assert reported[0]["title"] == (
            "3 calls send flags of used parameters (find_unused_parameters=True), but "
            "DistributedDataParallel has found none unused."
        )
        assert reported[0]["advice"].startswith("Remove find_unused_parameters=True")
        # All 3 calls of flags block the host for 50 ns each.
        assert (reported[0]["num_calls"], reported[0]["cost_ns"]) == (3, 150)


def test_flags_without_a_log_are_not_evaluated() -> None:
    assert "unused_parameter_flags" in unanswered(run_of(flagged([""]), num_ranks=1))
    assert "unused_parameter_flags" not in unanswered(run_of(flagged([ALL_USED]), num_ranks=1))


def test_flags_and_gradients_are_not_taken_for_one_lot_of_small_messages() -> None:
    calls = [each._replace(step=0) for each in flagged([ALL_USED] * 12)]
    assert found(calls, "small_messages") == []
    many = [each._replace(step=0) for each in flagged([ALL_USED] * 16)]
    (one,) = found(many, "small_messages", steps=[step(0, 0, 0, 9_000)])
    assert "carry gradients, 900 B on average" in one["title"]
    assert one["advice"].startswith("Make the buckets larger (bucket_cap_mb")
    assert one["num_calls"] == 16


# Steps that do not exist


@pytest.mark.parametrize(
    ("run", "rules"),
    [
        (
            {"steps_from": "none"},
            {
                "repeated_reduction", "stall", "small_messages", "repeated_all_gather",
                "object_collectives", "redundant_barrier", "unchanged_broadcast",
                "reduce_then_broadcast", "metrics_each_step", "dependent_communication",
                "growing_steps", "broadcast_buffers",
            },
        ),
        ({"steps_from": "recording"}, {"repeated_reduction"}),
        ({"steps_from": "optimizer"}, set()),
        ({"steps_from": "marked"}, set()),
    ],
)  # fmt: skip
def test_rules_about_steps_say_that_they_lack_them(run: dict[str, Any], rules: set[str]) -> None:
    has_steps = run["steps_from"] != "none"
    calls = [
        call(
            rank=rank, id=n, seq=n, step=0 if has_steps else -1, kind=kind, carries=carries,
            parameters="w", payload_bytes=8, at=100 * n + rank, until=100 * n + 9,
            call_ns=9 - rank, blocked_ns=9 - rank, module="m",
        )
        for n, (kind, carries) in enumerate(
            [("all_reduce", "gradients"), ("all_gather", "parameters")]
        )
        for rank in range(2)
    ]  # fmt: skip
    steps = [step(rank, 0, 0, 1000) for rank in range(2) if has_steps]
    reported = unanswered(run_of(calls, run=run, steps=steps))
    about_steps = {
        name for name, lack in reported.items() if "step" in lack and "layout" not in lack
    }
    assert about_steps == rules


def test_reductions_without_names_are_no_reason_to_call_them_reduced_once() -> None:
    calls = [call(id=n, seq=n, step=0, payload_bytes=8) for n in range(3)]
    frames = run_of(calls, num_ranks=1, steps=[step(0, 0, 0, 1000)])
    assert unanswered(frames)["repeated_reduction"].startswith("No reduction names the parameters")


# Settings


def with_settings(**columns: Any) -> Any:
    calls = [call(module="m"), call(id=1, wire_bytes=7, source_file="/a/b.py", source_line=9)]
    return replace(run_of(calls), settings=Settings(Path("pyproject.toml"), **columns))


@pytest.mark.parametrize(
    ("place", "is_muted"),
    [
        ({}, True),
        ({"source": "b.py:*"}, True),
        ({"source": "/a/b.py:9"}, True),
        ({"source": "c.py:*"}, False),
        ({"module": "layers.*"}, False),
    ],
)
def test_a_muted_finding_is_left_out_and_counted(place: dict[str, str], is_muted: bool) -> None:
    frames = with_settings(muted=(Muted("outside_modules", "a loss", **place),))
    assert ("outside_modules" in set(findings(frames)["rule"])) == (not is_muted)
    assert muted(frames) == ({("outside_modules", "a loss"): 1} if is_muted else {})
    reported = notices_on("findings", notices_of(frames))
    assert any("(1 of outside_modules: a loss)" in text for text in reported) == is_muted


def test_a_muted_rule_that_there_is_not_is_an_error() -> None:
    with pytest.raises(SettingsError, match="cannot mute the rule 'outside'"):
        findings(with_settings(muted=(Muted("outside", "a loss"),)))


@pytest.mark.parametrize(
    ("columns", "is_found"),
    [({}, True), ({"many_per_step": 30}, False), ({"small_bytes": 8}, False)],
)
def test_thresholds_of_the_settings_count(columns: dict[str, float], is_found: bool) -> None:
    calls = [
        call(id=i, seq=i, step=0, at=100 * i, until=100 * i + 40, blocked_ns=40, payload_bytes=8)
        for i in range(20)
    ]
    frames = run_of(calls, num_ranks=1, steps=[step(0, 0, 0, 2000)])
    frames = replace(frames, settings=Settings(thresholds=columns))
    assert ("small_messages" in set(findings(frames)["rule"])) == is_found


@pytest.mark.parametrize(
    ("lateness", "rule", "strict"),
    [
        (late_at_every_other, "straggler", {"straggler_share": 0.9}),
        (late_at_every_other, "straggler", {"straggler_ratio": 10_000}),
        (late_at_every_other, "straggler", {"straggler_spread": 100}),
        (stalled_once, "stall", {"stall_factor": 10_000}),
        (late_in_turn, "load_imbalance", {"imbalance_share": 0.9}),
        (late_in_turn, "shared_cores", {"cores_share": 0.9}),
    ],
)
def test_thresholds_of_lateness_count(
    lateness: Callable[[int, int], int], rule: str, strict: dict[str, float]
) -> None:
    frames = load(late_trace(lateness, cores=False if rule == "shared_cores" else None))
    assert set(findings(frames)["rule"]) == {rule}
    stricter = replace(frames, settings=Settings(thresholds=strict))
    assert rule not in set(findings(stricter)["rule"])
