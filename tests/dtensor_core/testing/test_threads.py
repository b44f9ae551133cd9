"""Ranks that are threads: their results, shared state, and every kind of failure."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import unittest
import warnings
from functools import cached_property

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from dtensor_core import DeviceMesh, Shard, distribute_tensor, init_device_mesh
from dtensor_core.testing import Outcome, RankFailure, kept_mesh, on_threads, run_threads
from dtensor_core.testing.in_flight import CollectiveMismatch
from tests.dtensor_core.counting import Collectives


def fails(body, world_size=4, **options) -> RankFailure:
    """Return the failure of a run that must fail within 5 s."""
    start = time.monotonic()
    with pytest.raises(RankFailure) as caught:
        run_threads(body, world_size, **options)
    assert time.monotonic() - start < 5
    return caught.value


class Passing(TorchDispatchMode):
    """Redispatches every operator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_modes_of_ranks_that_overlap_leave_no_flag_behind() -> None:
    def flags() -> dict[str, bool]:
        return {k: v for k, v in vars(_python_dispatch).items() if k.startswith("_is_in")}

    def first_in_first_out() -> None:
        is_first = dist.get_rank() == 0
        if not is_first:
            dist.barrier()
        with Passing():
            if is_first:
                dist.barrier()
            dist.barrier()
            if not is_first:
                dist.barrier()
        if is_first:
            dist.barrier()

    before = flags()
    run_threads(first_in_first_out, 2)
    assert flags() == before


def test_results_come_in_rank_order_with_the_arguments_passed_on():
    def body(factor):
        total = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(total)
        return dist.get_rank() * factor, total.item(), dist.get_world_size()

    assert run_threads(body, 4, 10) == [(0, 6, 4), (10, 6, 4), (20, 6, 4), (30, 6, 4)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_any_number_of_ranks(world_size):
    def body():
        ones = torch.ones(3)
        dist.all_reduce(ones)
        return ones[0].item()

    assert run_threads(body, world_size) == [world_size] * world_size


def test_a_failing_rank_is_the_cause_and_releases_the_others_at_once():
    def body():
        if dist.get_rank() == 2:
            raise KeyError("lost")
        dist.barrier()

    failure = fails(body)
    assert failure.rank == 2
    assert isinstance(failure.__cause__, KeyError)
    outcomes = {report.rank: report.outcome for report in failure.reports}
    released = dict.fromkeys((0, 1, 3), Outcome.RELEASED)
    assert outcomes == {2: Outcome.FAILED, **released}
    text = str(failure)
    assert text.startswith("rank 2 failed: KeyError: 'lost' (world size 4)\n")
    assert 'raise KeyError("lost")' in text
    assert "it waited for barrier (call 0 on group '0' of ranks 0, 1, 2, 3, still without" in text
    assert text.index("cause: rank 2") < text.index("after that: rank 0")


def test_after_a_failure_the_next_run_is_untouched():
    def broken():
        dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), async_op=True)
        if dist.get_rank():
            raise ValueError

    fails(broken)
    test_results_come_in_rank_order_with_the_arguments_passed_on()


def test_ranks_that_can_go_on_after_a_failure_do():
    finished = []

    def body():
        if dist.get_rank() == 0:
            raise ValueError
        finished.append(dist.get_rank())

    fails(body)
    assert finished == [1, 2, 3]


def test_the_same_failure_on_all_ranks_is_reported_once():
    def body():
        raise ValueError("everywhere")

    text = str(fails(body))
    assert text.count("Traceback") == 1
    assert text.endswith("the same on rank 1, 2, 3")


def test_different_collectives_are_named_without_waiting():
    def body():
        if dist.get_rank() == 3:
            dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX)
        else:
            dist.all_reduce(torch.ones(2))

    failure = fails(body)
    assert isinstance(failure.__cause__, CollectiveMismatch)
    assert "rank 3 calls all_reduce max float32[2], rank 0 called all_reduce sum float32[2]" in str(
        failure
    )


def test_different_sizes_are_named_without_waiting():
    failure = fails(lambda: dist.all_reduce(torch.ones(2 + dist.get_rank() // 3)))
    assert "all_reduce sum float32[3], rank 0 called all_reduce sum float32[2]" in str(failure)


def test_ranks_that_wait_in_a_circle_are_reported_without_waiting():
    def body():
        first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
        for group in (first, second) if dist.get_rank() else (second, first):
            dist.barrier(group=group)

    failure = fails(body, 2)
    assert [report.outcome for report in failure.reports] == [Outcome.DEADLOCKED] * 2
    assert failure.__cause__ is None
    assert "rank 0 can't go on: it waits for barrier (call 0 on group '2'" in str(failure)


def test_a_rank_that_leaves_early_is_missed():
    def body():
        if dist.get_rank() != 1:
            dist.barrier()

    assert "still without rank 1)" in str(fails(body))


def test_a_collective_that_not_all_ranks_join_fails_even_if_no_rank_waits():
    def body():
        if dist.get_rank() == 1:
            dist.all_reduce(torch.ones(1), async_op=True)

    failure = fails(body)
    assert failure.rank == 1
    assert "returned while others had not joined all_reduce" in str(failure)


def test_a_rank_that_never_ends_is_found_by_the_deadline():
    def spin():
        while True:
            time.sleep(0.01)

    def body():
        if dist.get_rank() == 1:
            spin()
        dist.barrier()

    failure = fails(body, timeout_s=0.5)
    assert failure.rank == 1
    assert failure.reports[0].outcome is Outcome.UNFINISHED
    assert failure.reports[0].detail.rstrip().endswith("time.sleep(0.01)")
    test_results_come_in_rank_order_with_the_arguments_passed_on()


def test_no_thread_is_left_running_after_the_deadline():
    threads: list[threading.Thread] = []

    def body():
        threads.append(threading.current_thread())
        rank = dist.get_rank()
        while rank == 0:
            time.sleep(0.01)
        dist.barrier()

    fails(body, timeout_s=0.3)
    for thread in threads:
        thread.join(timeout=5)
        assert not thread.is_alive()


def test_a_skip_on_a_rank_skips():
    def body():
        raise unittest.SkipTest("not here")

    with pytest.raises(unittest.SkipTest, match="not here"):
        run_threads(body, 2)
    with pytest.raises(pytest.skip.Exception):
        run_threads(lambda: pytest.skip("nor here"), 2)


def test_ranks_have_no_ranks():
    failure = fails(lambda: run_threads(lambda: None, 2))
    assert "ranks can't have ranks of their own" in str(failure)
    with pytest.raises(ValueError, match="world_size must be at least 1, got 0"):
        run_threads(lambda: None, 0)


def test_a_foreign_thread_may_not_communicate():
    def body():
        group = dist.group.WORLD
        errors = []

        def communicate():
            try:
                group.allreduce([torch.ones(1)])
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=communicate)
        thread.start()
        thread.join()
        return errors[0]

    assert "process group was used from thread" in run_threads(body, 2)[0]


def test_each_rank_has_its_own_random_numbers_from_the_callers_seed():
    def body():
        draws = [torch.rand(()).item()]
        for _ in range(3):
            if dist.get_rank() == 1:
                torch.rand(5)
            dist.barrier()
            draws.append(torch.rand(()).item())
        return draws

    torch.manual_seed(3)
    first = torch.rand(())
    expected = [torch.rand(()).item() for _ in range(4)]
    torch.manual_seed(3)
    torch.rand(())
    draws = run_threads(body, 3)
    assert draws[0] == draws[2] == expected
    assert draws[1][0] == expected[0]
    assert draws[1][1:] != expected[1:]
    torch.manual_seed(3)
    assert torch.rand(()) == first


def test_the_callers_random_state_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    run_threads(lambda: torch.rand(3), 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_process_is_left_as_it_was():
    def body():
        warnings.simplefilter("always")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.barrier()

    world, filters = c10d._world, list(warnings.filters)
    run_threads(body, 4)
    assert c10d._world is world
    assert warnings.filters == filters
    assert not dist.is_initialized()


def test_ranks_may_wait_while_they_work_out_a_cached_property():
    """Python 3.11 has a single lock for all instances of a class."""

    class Rank:
        @cached_property
        def total(self) -> int:
            mine = torch.tensor([dist.get_rank()])
            dist.all_reduce(mine)
            return int(mine)

    def body() -> tuple[int, bool]:
        rank = Rank()
        return rank.total, rank.total is vars(rank)["total"]

    before = cached_property.__get__
    assert run_threads(body, 3, timeout_s=10) == [(3, True)] * 3
    assert cached_property.__get__ is before


CAST_OF_A_PRODUCT = """
import torch
from dtensor_core import DTensor, Partial
from dtensor_core.testing import kept_mesh, run_threads

def body():
    part = torch.full((4, 4), 2.0)
    x = DTensor.from_local(part, kept_mesh((2,)), [Partial("product")]).detach().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.mm(x, x)
    assert y.full_tensor().eq(64).all()

run_threads(body, 2)
"""


def test_ranks_may_wait_while_autocast_casts_a_parameter() -> None:
    # In a process of its own: where it waits for a lock, it has the interpreter's, too.
    subprocess.run([sys.executable, "-c", CAST_OF_A_PRODUCT], check=True, timeout=60)


def test_groups_of_one_run_are_gone_in_the_next():
    def names():
        groups = [dist.new_group([0, 1]), dist.new_group([1, 2, 3])]
        return [
            group.group_name for group in groups if group is not dist.GroupMember.NON_GROUP_MEMBER
        ]

    assert run_threads(names, 4) == run_threads(names, 4)


def test_sub_groups_communicate_among_themselves():
    def body():
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine = halves[dist.get_rank() // 2]
        value = torch.tensor([dist.get_rank()])
        dist.all_reduce(value, group=mine)
        return value.item()

    assert run_threads(body, 4) == [1, 1, 5, 5]


def test_meshes_of_two_axes_and_their_slices():
    def body():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        sums = []
        for group in (mesh.get_group("dp"), mesh["tp"].get_group()):
            value = torch.tensor([dist.get_rank()])
            dist.all_reduce(value, group=group)
            sums.append(value.item())
        return mesh.get_coordinate(), sums

    assert run_threads(body, 4) == [
        ((0, 0), [2, 1]),
        ((0, 1), [4, 1]),
        ((1, 0), [2, 5]),
        ((1, 1), [4, 5]),
    ]


def test_meshes_of_different_ranks_are_different_keys():
    meshes = run_threads(lambda: DeviceMesh("cpu", [0, 1]), 2)
    assert meshes[0] != meshes[1]
    assert hash(meshes[0]) != hash(meshes[1])


def test_a_kept_mesh_is_the_same_in_every_run_until_one_fails():
    def mesh():
        return kept_mesh((2, 2), ("a", "b"))

    def sums():
        value = torch.tensor([dist.get_rank()])
        dist.all_reduce(value, group=mesh().get_group("a"))
        return value.item()

    first = run_threads(mesh, 4)
    assert [a is b for a, b in zip(first, run_threads(mesh, 4), strict=True)] == [True] * 4
    assert run_threads(sums, 4) == [2, 4, 2, 4]
    fails(lambda: 1 / 0)
    assert [a is b for a, b in zip(first, run_threads(mesh, 4), strict=True)] == [False] * 4
    assert run_threads(sums, 4) == [2, 4, 2, 4]


def test_a_kept_mesh_needs_a_rank():
    with pytest.raises(RuntimeError, match="call it inside run_threads"):
        kept_mesh((2,))


def test_dtensors_of_an_equal_mesh_made_later_use_the_later_groups():
    """Group names are reused between runs, so caches must not return destroyed groups."""

    def body(others_first: bool):
        if others_first:
            dist.new_group([0, 1, 2])
        mesh = init_device_mesh("cpu", (2, 2))
        full = torch.arange(16.0).view(4, 4)
        placed = distribute_tensor(full, mesh, [Shard(0), Shard(1)])
        return torch.equal((placed + 1).full_tensor(), full + 1)

    for others_first in (False, True, False):
        assert run_threads(body, 4, others_first) == [True] * 4


def test_dispatch_modes_see_the_collectives():
    def body():
        with Collectives() as issued:
            dist.all_reduce(torch.ones(1))
            gathered = torch.ops._c10d_functional.all_gather_into_tensor(torch.ones(2), 2, "0")
            torch.ops._c10d_functional.wait_tensor(gathered)
        return issued == {"allreduce": 1, "all_gather_into_tensor": 1} or repr(issued)

    assert run_threads(body, 2) == [True, True]


def test_what_wraps_the_operators_of_c10d_sees_the_collectives():
    seen = []
    inner = torch.library.get_kernel("c10d::allreduce_", "CPU")

    def outer(keyset, tensors, group, *rest):
        seen.append((dist.get_rank(), dist.ProcessGroup.unbox(group).group_name))
        return inner.call_boxed(keyset, tensors, group, *rest)

    def body():
        value = torch.ones(1)
        dist.all_reduce(value)
        reduced = torch.ops._c10d_functional.all_reduce(value, "sum", "0")
        return torch.ops._c10d_functional.wait_tensor(reduced).item()

    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("allreduce_", outer, "CPU", with_keyset=True, allow_override=True)
    try:
        assert run_threads(body, 2) == [4, 4]
    finally:
        library._destroy()
    assert sorted(seen) == [(0, "0"), (0, "0"), (1, "0"), (1, "0")]


def test_a_path_around_the_group_is_an_error_and_not_silence():
    def body():
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        backend.allreduce([torch.ones(1)]).wait()

    assert "error_on_collective" in str(fails(body))


@on_threads(3)
def test_the_decorator_runs_a_test_on_ranks():
    assert dist.get_world_size() == 3


@pytest.mark.parametrize("value", [4])
@on_threads(2)
def test_the_decorator_passes_parameters_on(value):
    assert value == 4


def test_the_decorator_fails_the_test():
    @on_threads(2)
    def test():
        assert dist.get_rank() == 0

    with pytest.raises(RankFailure, match="rank 1 failed: AssertionError"):
        test()


def test_what_a_newer_c10d_adds_to_its_record_each_rank_has_of_its_own(monkeypatch) -> None:
    added = property(lambda self: self._pg_coalesce_state)
    monkeypatch.setattr(type(c10d._world), "added", added, raising=False)

    def body() -> dict:
        c10d._world.added[dist.get_rank()] = []  # pyright: ignore
        dist.barrier()
        return c10d._world.added  # pyright: ignore

    assert [list(each) for each in run_threads(body, 2)] == [[0], [1]]
    assert not c10d._world.added  # pyright: ignore
