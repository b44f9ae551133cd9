from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.replay.changes import VERBS, parsed
from commtrace.analyze.whatif.asked import what_if
from commtrace.analyze.whatif.table import best_changes
from commtrace.errors import UsageError
from commtrace.schema import COMMUNICATION
from tests.commtrace.analyze.replay.simulated import (
    MS,
    Call,
    Program,
    Step,
    Use,
    Wait,
    Work,
    simulated,
    step_ns,
)
from tests.commtrace.analyze.rows import call, group, kernel, rank_row, run_of, step

NUM_STEPS = 5


def program(rank: int, of_step: Callable[[int, int], Sequence[Any]]) -> Program:
    """Steps of a rank; the names of calls have the number of their step."""
    steps: list[Any] = []
    for number in range(NUM_STEPS):
        steps += [Step(), *of_step(rank, number)]
    return steps


def programs(of_step: Callable[[int, int], Sequence[Any]], num: int = 2) -> list[Program]:
    return [program(rank, of_step) for rank in range(num)]


def predicted(of_step: Callable[[int, int], Sequence[Any]], *changes: str, num: int = 2) -> float:
    """Step time that a replay predicts, where it is no range."""
    least, most = what_if(load(simulated(programs(of_step, num))), changes).after
    assert least == most
    return most


def with_barrier(rank: int, number: int) -> Sequence[Any]:
    return [
        Work(100 + 60 * (rank == number % 2)),
        Call(f"barrier{number}", 30, "barrier", line=5),
        Work(200 - 60 * (rank == number % 2)),
        Call(f"sum{number}", 50),
    ]


def test_a_removed_call_waits_for_nobody_and_takes_no_time() -> None:
    def without(rank: int, number: int) -> Sequence[Any]:
        return [
            each for each in with_barrier(rank, number) if getattr(each, "kind", "") != "barrier"
        ]

    changed = step_ns(programs(without))
    assert changed < step_ns(programs(with_barrier)) - 60 * MS
    assert predicted(with_barrier, "remove where kind=barrier") == changed
    assert predicted(with_barrier, "remove where source_line=5") == changed


def test_a_removed_asynchronous_call_is_not_waited_for() -> None:
    def with_call(rank: int, number: int) -> Sequence[Any]:
        name = f"g{number}"
        return [
            Work(50),
            Call(name, 400, "all_gather", issue=5),
            Work(30),
            Wait(name),
            Call(f"s{number}", 9),
        ]

    def without(rank: int, number: int) -> Sequence[Any]:
        return [Work(80), Call(f"s{number}", 9)]

    assert predicted(with_call, "remove where kind=all_gather") == step_ns(programs(without))


@pytest.mark.parametrize("transfer", [40, 100, 300])
def test_an_asynchronous_call_is_waited_for_where_its_result_is_used(transfer: int) -> None:
    def blocking(rank: int, number: int) -> Sequence[Any]:
        name = f"a{number}"
        return [Work(20 + 10 * rank), Call(name, transfer), Work(100), Use(name), Work(7)]

    def hidden(rank: int, number: int) -> Sequence[Any]:
        name = f"a{number}"
        return [Work(20 + 10 * rank), Call(name, transfer, issue=0), Work(100), Wait(name), Work(7)]

    assert predicted(blocking, "async where kind=all_reduce") == step_ns(programs(hidden))


def test_a_wait_moves_to_the_use_of_its_result() -> None:
    def at_once(rank: int, number: int) -> Sequence[Any]:
        name = f"a{number}"
        return [Work(20), Call(name, 90, issue=4), Wait(name), Work(60 + rank), Use(name), Work(7)]

    def late(rank: int, number: int) -> Sequence[Any]:
        name = f"a{number}"
        return [Work(20), Call(name, 90, issue=4), Work(60 + rank), Wait(name), Work(7)]

    assert predicted(at_once, "async") == step_ns(programs(late))


def test_a_call_is_issued_earlier_when_its_data_is_ready() -> None:
    def late(rank: int, number: int) -> Sequence[Any]:
        # The wait for another call does not write to the data.
        first, name = f"f{number}", f"a{number}"
        return [Work(40), Call(first, 100), Call(name, 90), Use(name), Work(30)]

    def early(rank: int, number: int) -> Sequence[Any]:
        first, name = f"f{number}", f"a{number}"
        return [Work(40), Call(name, 90, issue=0), Call(first, 100), Wait(name), Work(30)]

    chosen = "earlier where source_line=1"
    assert predicted(late, chosen) == step_ns(programs(early))


@pytest.mark.parametrize(("factor", "text"), [(0.5, "*0.5"), (0.25, "/4"), (3, "×3")])
def test_work_takes_a_multiple_of_its_time(factor: float, text: str) -> None:
    def scaled(by: float) -> Callable[[int, int], Sequence[Any]]:
        def of_step(rank: int, number: int) -> Sequence[Any]:
            return [
                Work(round(200 * (by if rank == 1 else 1))),
                Call(f"a{number}", 30),
                Work(round(80 * (by if rank == 1 else 1))),
                Call(f"b{number}", 10),
            ]

        return of_step

    assert predicted(scaled(1), f"compute {text} where rank=1") == step_ns(programs(scaled(factor)))


def test_only_the_chosen_operators_become_faster() -> None:
    def of_step(lasts: int) -> Callable[[int, int], Sequence[Any]]:
        def made(rank: int, number: int) -> Sequence[Any]:
            return [Work(50, "add"), Work(lasts, "mm"), Work(20), Call(f"a{number}", 30)]

        return made

    for condition in ("op=mm", "module~layers.mm"):
        found = predicted(of_step(400), f"compute *0.5 where {condition}")
        assert found == pytest.approx(step_ns(programs(of_step(200))), abs=20)


def test_stragglers_become_as_fast_as_the_median_of_their_peers() -> None:
    def of_step(late: int) -> Callable[[int, int], Sequence[Any]]:
        def made(rank: int, number: int) -> Sequence[Any]:
            return [
                Work(100 + late * (rank == 2)),
                Call(f"a{number}", 30),
                Work(50),
                Call(f"b{number}", 5),
            ]

        return made

    expected = step_ns(programs(of_step(0), 4))
    assert predicted(of_step(70), "balance", num=4) == expected
    assert predicted(of_step(70), "balance where rank=2", num=4) == expected
    assert predicted(of_step(70), "balance where rank=1", num=4) == step_ns(
        programs(of_step(70), 4)
    )


def test_work_is_evened_out_at_each_collective_by_itself() -> None:
    def of_step(late: int) -> Callable[[int, int], Sequence[Any]]:
        def made(rank: int, number: int) -> Sequence[Any]:
            # Another rank is late each time, which no rank is regularly.
            return [Work(100 + late * (rank == number % 4)), Call(f"a{number}", 30)]

        return made

    assert predicted(of_step(90), "balance", num=4) == step_ns(programs(of_step(90), 4))
    assert predicted(of_step(90), "usual", num=4) == step_ns(programs(of_step(0), 4))
    assert predicted(of_step(80), "even", num=4) == step_ns(programs(of_step(0), 4)) + 20 * MS


def test_calls_in_a_row_are_merged_unless_a_result_is_used_between() -> None:
    def latency_and_bytes(num_bytes: int) -> int:
        return 100 + num_bytes

    def several(rank: int, number: int) -> Sequence[Any]:
        made: list[Any] = [Work(20)]
        for each, num_bytes in enumerate((8, 64, 500)):
            name = f"{each}_{number}"
            made.append(Call(name, latency_and_bytes(num_bytes), num_bytes=num_bytes, line=3))
        made += [Use(f"{each}_{number}") for each in range(3)]
        last = f"l{number}"
        return [*made, Work(40), Call(last, latency_and_bytes(8), num_bytes=8, line=4), Use(last)]

    def one(rank: int, number: int) -> Sequence[Any]:
        return [
            Work(20), Call(f"m{number}", latency_and_bytes(572), num_bytes=572), Work(40),
            Call(f"l{number}", latency_and_bytes(8), num_bytes=8),
        ]  # fmt: skip

    found = predicted(several, "merge where source_line=3")
    assert found == pytest.approx(step_ns(programs(one)), rel=1e-3)
    with pytest.raises(UsageError, match="is of nothing in this run"):
        predicted(several, "merge where source_line=99")

    def two(rank: int, number: int) -> Sequence[Any]:
        return [
            Work(20), Call(f"m{number}", latency_and_bytes(72), num_bytes=72),
            Call(f"o{number}", latency_and_bytes(500), num_bytes=500), Work(40),
            Call(f"l{number}", latency_and_bytes(8), num_bytes=8),
        ]  # fmt: skip

    found = predicted(several, "merge 2 where source_line=3")
    assert found == pytest.approx(step_ns(programs(two)), rel=1e-3)
    assert predicted(several, "merge 3") == predicted(several, "merge")


def test_what_makes_a_call_goes_with_it_unless_an_operator_ran_or_it_took_long() -> None:
    gaps = [Work(0.05), Work(0.05), Work(0.15), Work(3), Work(0.15, "norm"), Work(0.05)]
    sizes = (8, 64, 500, 8, 8, 64, 500)

    def several(rank: int, number: int) -> Sequence[Any]:
        names = [f"{each}_{number}" for each in range(len(sizes))]
        calls = [
            Call(name, 100 + num, num_bytes=num) for name, num in zip(names, sizes, strict=True)
        ]
        paired = [each for pair in zip(gaps, calls[1:], strict=True) for each in pair]
        return [Work(20), calls[0], *paired, *map(Use, names), Work(40)]

    def one(rank: int, number: int) -> Sequence[Any]:
        num = sum(sizes)
        kept = [20 - 0.05, 3 - 0.05, 0.15 - 0.05, 40]  # the usual time to make a call is 0.05
        return [Work(sum(kept)), Call(f"m{number}", 100 + num, num_bytes=num)]

    assert predicted(several, "merge") == pytest.approx(step_ns(programs(one)), abs=0.02 * MS)


def test_latency_and_bandwidth_are_told_apart_by_sizes() -> None:
    def of_step(latency: int, per_byte: float) -> Callable[[int, int], Sequence[Any]]:
        def made(rank: int, number: int) -> Sequence[Any]:
            sizes = (100, 1000, 9000)
            return [
                Call(f"{size}_{number}", round(latency + per_byte * size), num_bytes=size)
                for size in sizes
            ]

        return made

    run = of_step(500, 0.5)
    for changes, expected in (
        (("latency *0.1",), of_step(50, 0.5)),
        (("bandwidth *2",), of_step(500, 0.25)),
        (("payload *0.5",), of_step(500, 0.25)),
        (("latency 50ms", "bandwidth /2"), of_step(50, 1.0)),
        (("bandwidth 2 kB/s",), of_step(500, 0.5)),
    ):
        assert predicted(run, *changes) == pytest.approx(step_ns(programs(expected)), rel=1e-3), (
            changes
        )


def test_one_size_gives_a_range() -> None:
    """At 1 Gbit/s, the slowest link, the bytes of a call take half of its time."""

    def of_step(rank: int, number: int) -> Sequence[Any]:
        return [Work(100), Call(f"a{number}", 80, num_bytes=5_000_000)]

    answer = what_if(load(simulated(programs(of_step))), ["bandwidth *2"])
    assert answer.after == (160 * MS, 180 * MS)
    assert answer.saved_ns == (0, 20 * MS)


def test_the_latency_of_larger_groups_grows_with_their_ranks_or_with_the_logarithm() -> None:
    """An all-reduce of 4 ranks sends 3/2 of the bytes of 2 ranks, in 2 or 3 times the steps."""

    def of_step(latency: int, per_byte: float) -> Callable[[int, int], Sequence[Any]]:
        def made(rank: int, number: int) -> Sequence[Any]:
            return [
                Call(f"{size}_{number}", round(latency + per_byte * size), num_bytes=size)
                for size in (100, 1000, 9000)
            ]

        return made

    run = load(simulated(programs(of_step(500, 0.5))))
    expected = [step_ns(programs(of_step(latency, 0.75))) for latency in (1000, 1500)]
    for text in ("group_size *2", "group_size 4 where mesh_axis=tp"):
        assert what_if(run, [text]).after == pytest.approx(expected, rel=1e-3)
    halved = [step_ns(programs(of_step(latency, 0.375))) for latency in (1000, 1500)]
    assert what_if(run, ["group_size 4", "bandwidth *2"]).after == pytest.approx(halved, rel=1e-3)
    alone = what_if(run, ["group_size /2"]).after
    assert alone == pytest.approx((0, 0), abs=1)


def on_nodes(axes: Sequence[tuple[str, int, int]], hosts: Sequence[str] = "aabb") -> Frames:
    """Five steps of 4 ranks with all-reduces of an axis, size and time in ms each."""
    pairs = {"tp": ((0, 1), (2, 3)), "dp": ((0, 2), (1, 3))}
    comm, steps = [], []
    for number in range(5):
        for rank in range(4):
            at = begin = 1000 * MS * number
            for place, (axis, size, lasts) in enumerate(axes):
                ranks = next(each for each in pairs[axis] if rank in each)
                comm.append(
                    call(
                        rank=rank, id=len(axes) * number + place, group=f"{axis}{min(ranks)}",
                        seq=2 * number + place, at=at, until=at + lasts * MS, blocked_ns=lasts * MS,
                        payload_bytes=size, step=number, thread=0,
                    )
                )  # fmt: skip
                at += lasts * MS
            steps.append(step(rank, number, begin, at))
    groups = [
        group(f"{axis}{min(ranks)}", ranks, mesh_axis=axis)
        for axis, each in pairs.items()
        for ranks in each
    ]
    ranks = [rank_row(rank, host=host) for rank, host in enumerate(hosts)]
    return run_of(comm, steps=steps, groups=groups, ranks=ranks)


def test_transfers_that_come_to_be_between_nodes_take_as_long_as_others_there() -> None:
    sizes = [("tp", 100, 20), ("tp", 1000, 110), ("dp", 100, 60), ("dp", 1000, 510)]
    run = on_nodes(sizes)
    assert what_if(run, ["node_size 1"]).after == (2 * 570 * MS, 2 * 570 * MS)
    assert what_if(run, ["node_size 4"]).after == (2 * 130 * MS, 2 * 130 * MS)
    only_tp = what_if(run, ["node_size 4 where mesh_axis=dp"]).after
    assert only_tp == (2 * 130 * MS, 2 * 130 * MS)


def test_transfers_of_one_size_give_a_range_between_nodes() -> None:
    """The price of a message of 1,000 bytes is all latency, or all bytes."""
    run = on_nodes([("tp", 100, 20), ("dp", 1000, 500)])
    assert what_if(run, ["node_size 1"]).after == (550 * MS, 1000 * MS)


def test_sizes_of_nodes_need_hosts_and_transfers_to_be_priced_by() -> None:
    one_node = on_nodes([("tp", 100, 20), ("dp", 100, 60)], "aaaa")
    for run, text, parts in (
        (one_node, "node_size 2", ["no transfers between nodes in this run", "bandwidth 25GB/s"]),
        (one_node, "node_size 8", ["no group that would come to be within a node"]),
        (on_nodes([("tp", 100, 20)], ["", "", "", ""]), "node_size 2", ["ranks without a host"]),
        (one_node, "node_size 0", ["takes a number such as 16"]),
        (one_node, "node_size *2", ["takes a number such as 16"]),
        (one_node, "group_size *0.75", ["a group of 2 ranks, which would have 1.5"]),
        (one_node, "group_size *0", ["would have 0", "from 1 to"]),
        (one_node, "bandwidth *0", ["a bandwidth of 0"]),
        (one_node, "latency 9999999999s", ["more than a hundred years"]),
    ):
        with pytest.raises(UsageError) as error:
            what_if(run, [text])
        for part in parts:
            assert part in str(error.value), text


def test_changes_are_made_together() -> None:
    def of_step(rank: int, number: int) -> Sequence[Any]:
        return [Work(100), Call(f"b{number}", 30, "barrier"), Work(40), Call(f"a{number}", 60)]

    def both(rank: int, number: int) -> Sequence[Any]:
        return [Work(70), Call(f"a{number}", 30)]

    changes = ("remove where kind=barrier", "compute *0.5", "shrink *0.5")
    assert predicted(of_step, *changes) == step_ns(programs(both))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (["faster"], ["no change 'faster'", "compute, latency"]),
        (["compute"], ["no value", "takes a factor", "compute *0.5"]),
        (["compute *-1"], ["takes a factor"]),
        (["compute *1e99"], ["takes a factor"]),
        (["compute /0"], ["takes a factor"]),
        (["latency 5 lightyears"], ["takes a factor from 0 to", "or a duration, such as 5us"]),
        (["compute *-1"], ["takes a factor from 0 to a million"]),
        (["batch *0"], ["found: no samples"]),
        (["batch *2 where rank=1"], ["found: conditions"]),
        (["remove where "], ["an empty condition"]),
        (["remove where rank=0 and rank=1"], ["no call that meets all conditions"]),
        (["remove where finding=a"], ["finding takes numbers of rows of table `findings`"]),
        (["remove where finding=1 and kind=barrier"], ["no other condition beside them"]),
        (["x" * 1000], ["no change 'x"]),
        (["remove 3"], ["takes no value"]),
        (["merge *2"], ["merge takes a number such as 16"]),
        (["merge 0"], ["merge takes a number such as 16"]),
        (["remove where color=red"], ["no column 'color'"]),
        (["remove where kind=barier"], ["is of nothing in this run", "did you mean kind=barrier?"]),
        (["remove where rank=7"], ["is of nothing in this run", "ranges from 0 to 1"]),
        (["compute *0.5 where rank=9"], ["is of nothing in this run"]),
        (["compute *0.5 where op=aten.mm"], ["no operators in the trace", "--detail op"]),
        (["remove where kind=barrier", "async where kind=barrier"], ["a change before it removes"]),
        (["remove where finding=4"], ["1 finding in this run"]),
    ],
)  # fmt: skip
def test_a_change_that_cannot_be_made_is_refused(changes: list[str], parts: list[str]) -> None:
    run = load(simulated(programs(with_barrier)))
    with pytest.raises(UsageError) as error:
        what_if(run, changes)
    for part in parts:
        assert part in str(error.value)


def test_a_run_without_times_cannot_be_replayed() -> None:
    with pytest.raises(UsageError, match="2 calls, none with known times"):
        what_if(run_of([call(rank=rank, id=0, seq=0) for rank in range(2)]), ["remove"])


def test_each_verb_has_an_example_that_is_one() -> None:
    for name, verb in VERBS.items():
        assert parsed(verb.example).verb == name


def on_device(launch: bool) -> Frames:
    """Five steps of a rank: a call of 30 ms, and then a kernel of 40 ms."""
    comm, steps, kernels = [], [], []
    for number in range(5):
        at = 100 * MS * number
        comm.append(
            call(rank=0, id=number, seq=number, at=at, until=at + 30 * MS, blocked_ns=30 * MS)
        )
        steps.append(step(0, number, at, at + 100 * MS))
        launched = {"launched": at + 30 * MS} if launch else {}
        kernels.append(kernel(id=number, at=at + 30 * MS, until=at + 70 * MS, **launched))
    return run_of(comm, steps=steps, kernels=kernels, num_ranks=1)


def test_a_kernel_of_unknown_launch_follows_its_host() -> None:
    for launch in (True, False):
        answer = what_if(on_device(launch), ["shrink *0.5"])
        assert answer.after == (85 * MS, 85 * MS)
        assert answer.num_inferred == (0 if launch else 5)
        kernels = answer.run.kernels
        starts = (kernels["start_ns"] - answer.run.start_ns).tolist()
        assert starts == [85 * MS * number + 15 * MS for number in range(5)]


def test_effects_are_those_of_the_step_time() -> None:
    run = load(simulated(programs(with_barrier)))
    for texts in (["batch *2"], ["remove where kind=barrier"]):
        answer = what_if(run, texts)
        table = answer.effects()
        ranks = table[table["of"] == "rank"]
        assert ranks["after_ns"].mean() == pytest.approx(answer.after[1], rel=0.02)
        assert ranks["before_ns"].mean() == pytest.approx(answer.before.step_ns, rel=0.02)


def test_computation_is_replayed_without_any_call() -> None:
    steps = [step(0, number, 100 * MS * number, 100 * MS * (number + 1)) for number in range(5)]
    run = run_of(steps=steps, num_ranks=1)
    assert what_if(run, ["compute *0.5"]).after == (50 * MS, 50 * MS)
    with pytest.raises(UsageError, match="no call with known times"):
        what_if(run, ["remove"])


def with_streams(is_known: bool) -> Frames:
    """Five steps of two ranks whose hosts run ahead of their devices.

    stream 7     first 20 ms                   second 20 ms    third 30 ms, which uses the sum
    stream 9                  all-reduce 30 ms
    """
    comm, steps, kernels = [], [], []
    for number in range(5):
        at, host, first = 100 * MS * number, 10 * MS * number, 10 * number
        for rank in range(2):
            comm.append(
                call(
                    rank=rank, id=number, seq=number, at=host, until=host + MS, call_ns=MS,
                    blocked_ns=0, step=number, used_by_op_id=first + 2 if is_known else -1,
                )
            )  # fmt: skip
            spans = ((7, 0, 20), (9, 20, 50), (7, 50, 70), (7, 70, 100))
            for place, (stream, begin, end) in enumerate(spans):
                of_call = {"call_id": number, "category": COMMUNICATION} if stream == 9 else {}
                of_op = {} if of_call else {"op_id": first + max(place - 1, 0)}
                kernels.append(
                    kernel(
                        rank=rank, id=first + place, at=at + begin * MS, until=at + end * MS,
                        stream=stream, launched=host, **of_call, **of_op,
                    )
                )  # fmt: skip
            steps.append(step(rank, number, host, host + 10 * MS))
    return run_of(comm, steps=steps, kernels=kernels)


def test_a_stream_waits_for_a_call_before_the_kernel_that_uses_its_result() -> None:
    run = with_streams(is_known=True)
    assert what_if(run, ["async"]).after == (80 * MS, 80 * MS)
    assert what_if(run, ["async", "compute *0.5"]).after == (55 * MS, 55 * MS)


def test_a_call_of_unknown_use_is_waited_for_as_recorded_or_not_at_all() -> None:
    run = with_streams(is_known=False)
    answer = what_if(run, ["async where kind=all_reduce"])
    assert answer.after == (70 * MS, 100 * MS)
    assert answer.changed.num_unknown == 0
    (limit,) = [row for row in best_changes(run).to_dict("records") if row["text"] == "overlap"]
    assert (limit["bound"], limit["saved_ns"], limit["most_saved_ns"]) == ("limit", 0, 30 * MS)


def test_a_member_that_is_missing_may_be_what_a_call_waited_for() -> None:
    """Without rank 1, its lateness cannot be told from the transfer: the answer is a range."""

    def of_step(rank: int, number: int) -> Sequence[Any]:
        name = f"sum{number}"
        return [Work(10 + 30 * rank), Call(name, 5), Work(2), Use(name), Work(8)]

    run = load(simulated(programs(of_step)))
    whole = what_if(run, ["latency *0"])
    assert whole.after == (whole.before.step_ns - 5 * MS,) * 2
    rank_0 = [
        call(rank=0, id=n, seq=n, at=55 * MS * n + 10 * MS, until=55 * MS * n + 45 * MS, step=n,
             call_ns=35 * MS, blocked_ns=35 * MS, payload_bytes=64)
        for n in range(NUM_STEPS)
    ]  # fmt: skip
    steps = [step(0, n, 55 * MS * n, 55 * MS * (n + 1)) for n in range(NUM_STEPS)]
    alone = run_of(rank_0, num_ranks=1, steps=steps, groups=[group(ranks=(0, 1))])
    found = what_if(alone, ["remove"])
    assert found.after == (20 * MS, 55 * MS)
    assert (found.num_changed, found.changed.num_unknown) == (NUM_STEPS, NUM_STEPS)
    with pytest.raises(UsageError, match="the trace lacks their other members"):
        what_if(alone, ["latency *0"])


def test_threads_get_cores_once_and_where_it_is_asked_for() -> None:
    def at(number: int) -> int:
        return 50 * MS * number

    calls = [
        call(rank=rank, id=n, seq=n, step=n, at=at(n) + 30 * MS, until=at(n) + 35 * MS,
             call_ns=5 * MS, blocked_ns=5 * MS, run_delay_ns=10 * MS)
        for rank in range(2) for n in range(NUM_STEPS)
    ]  # fmt: skip
    steps = [step(rank, n, at(n), at(n + 1)) for rank in range(2) for n in range(NUM_STEPS)]
    run = run_of(calls, num_ranks=2, steps=steps)
    assert what_if(run, ["cores"]).saved_ns == (10 * MS, 10 * MS)
    assert what_if(run, ["cores", "cores"]).saved_ns == (10 * MS, 10 * MS)
    # Rank 1 still comes later.
    of_rank = what_if(run, ["cores where rank=0"])
    assert (of_rank.saved_ns, of_rank.num_changed) == ((0, 0), NUM_STEPS)


def test_ranks_that_run_ahead_save_once() -> None:
    """Rank 0 waits for rank 1 in each step; without that, it comes earlier, and rank 1 does not."""

    def of_step(rank: int, number: int) -> Sequence[Any]:
        return [Work(10 + 30 * rank), Call(f"sum{number}", 5), Work(5)]

    run = load(simulated(programs(of_step)))
    assert what_if(run, ["remove"]).runs_ahead()
    assert not what_if(run, ["balance"]).runs_ahead()
    assert not what_if(run, ["shrink *0.5"]).runs_ahead()


def test_a_saving_that_rests_on_unknown_times_is_unknown_not_0() -> None:
    calls = [call(rank=rank, at=5 * MS, until=9 * MS, blocked_ns=4 * MS, step=0) for rank in (0, 1)]
    run = run_of(calls, steps=[step(rank, 0, 0, 10 * MS) for rank in (0, 1)])
    with pytest.raises(UsageError) as error:
        what_if(run, ["overlap"])
    assert "cannot tell what 'overlap' saves\n  found: 2 calls, all without" in str(error.value)
