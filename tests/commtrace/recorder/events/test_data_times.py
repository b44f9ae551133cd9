"""Calls state when their data was ready, and when their result was first used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.recorder.events import data_times
from dtensor_core.testing import fake_world

SIZE = 4


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Another test of this process may have compiled a function.
    monkeypatch.setattr(data_times, "has_compiled", lambda: False)
    with fake_world(2), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def recorded(program: Callable[[], object], **options: Any) -> tuple[list[str], list[str]]:
    """Run a program; return for its last call the operators that it was ready after and used by.

    An operator is written by name; `call` is an earlier or a later call, and empty is unknown.
    """
    with commtrace.record(detail="op", **options) as recording:
        program()
    tables = recording.trace().tables
    ops, comm = tables["ops"], tables["comm"]
    names = [str(name).split(".")[1] for name in ops["op"]]
    begins = dict(zip(ops["start_ns"], names, strict=True))
    ends = {
        start + lasts: name
        for start, lasts, name in zip(ops["start_ns"], ops["duration_ns"], names, strict=True)
    }
    begins |= dict.fromkeys(comm["issue_ns"], "call")
    ends |= dict.fromkeys(comm["complete_ns"], "call")
    return (
        [ends[at] if at >= 0 else "" for at in comm["data_ready_ns"]],
        [begins.get(at, "call") if at >= 0 else "" for at in comm["result_used_ns"]],
    )


def test_data_is_ready_after_the_operator_that_wrote_it(world: None) -> None:
    def program() -> None:
        tensor = torch.ones(SIZE).mul(2)
        torch.zeros(SIZE).add(1)
        dist.all_reduce(tensor)

    assert recorded(program) == (["mul"], [""])


def test_writes_in_place_and_into_a_part_count_and_views_do_not(world: None) -> None:
    def program() -> None:
        tensor = torch.ones(2 * SIZE)
        tensor[SIZE:].copy_(torch.zeros(SIZE))
        dist.all_reduce(tensor.view(2, SIZE))

    assert recorded(program) == (["copy_"], [""])


def test_operators_that_return_nothing_or_several_tensors_write(world: None) -> None:
    def by_foreach() -> None:
        tensor = torch.ones(SIZE)
        torch._foreach_add_([tensor], 1.0)
        dist.all_reduce(tensor)

    def by_two() -> None:
        values, _ = torch.ones(SIZE, SIZE).sort()
        torch.ones(1)
        dist.all_reduce(values)

    assert recorded(by_foreach)[0] == ["_foreach_add_"]
    assert recorded(by_two)[0] == ["sort"]


def test_data_that_was_written_before_the_recording_is_of_unknown_age(world: None) -> None:
    tensor = torch.ones(SIZE)
    assert recorded(lambda: dist.all_reduce(tensor)) == ([""], [""])


def test_a_result_is_used_by_the_first_operator_that_is_given_it(world: None) -> None:
    def program() -> None:
        tensor, gathered = torch.ones(SIZE).mul(2), torch.empty(2 * SIZE)
        work = dist.all_gather_into_tensor(gathered, tensor, async_op=True)
        torch.zeros(SIZE).add(1)
        work.wait()
        tensor.neg()  # which was sent, not received
        gathered.view(2, SIZE).sum()
        gathered.exp()

    assert recorded(program) == (["mul"], ["sum"])


def test_a_list_of_results_is_used_by_the_first_use_of_one(world: None) -> None:
    def program() -> None:
        outputs = [torch.empty(SIZE), torch.empty(SIZE)]
        dist.all_gather(outputs, torch.ones(SIZE))
        torch.cat(outputs)

    assert recorded(program)[1] == ["cat"]


def test_a_result_that_is_sent_on_is_used_by_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_times, "has_compiled", lambda: False)

    def program() -> None:
        tensor = torch.ones(SIZE)
        dist.all_reduce(tensor)
        torch.zeros(SIZE).add(1)
        dist.all_reduce(tensor)

    # A fake group does not know when its calls end.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ready, used = recorded(program)
    finally:
        dist.destroy_process_group()
    assert ready == ["ones", "call"]
    assert used == ["call", ""]


def test_no_data_is_known_to_be_ready_once_a_function_was_compiled(
    world: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_times, "has_compiled", lambda: True)
    assert recorded(lambda: dist.all_reduce(torch.ones(SIZE))) == ([""], [""])


def test_a_sparse_tensor_disturbs_nothing(world: None) -> None:
    def program() -> None:
        torch.eye(SIZE).to_sparse().coalesce()
        dist.all_reduce(torch.ones(SIZE))

    assert recorded(program)[0] == ["ones"]


def test_without_operators_both_are_unknown(world: None) -> None:
    with commtrace.record(detail="collective") as recording:
        dist.all_reduce(torch.ones(SIZE))
    comm = recording.trace().tables["comm"]
    assert (list(comm["data_ready_ns"]), list(comm["result_used_ns"])) == ([-1], [-1])
