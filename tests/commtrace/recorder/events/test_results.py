"""Calls state which part of their results operators used, and uses before they are complete."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.recorder.events import data_times
from dtensor_core import Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.testing import fake_world, run_processes


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(data_times, "has_compiled", lambda: False)
    with fake_world(2, rank=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def reduced(*shape: int) -> torch.Tensor:
    tensor = torch.ones(shape)
    dist.all_reduce(tensor)
    return tensor


def gathered(*shape: int) -> torch.Tensor:
    out = torch.empty(2 * shape[0], *shape[1:])
    dist.all_gather_into_tensor(out, torch.ones(shape))
    return out


def beside(tensor: torch.Tensor) -> torch.Tensor:
    """The gathered parts side by side, as of a tensor that is sharded along its last dim."""
    return torch.cat(tensor.chunk(2), dim=-1)


def listed(*shape: int) -> list[torch.Tensor]:
    parts = [torch.empty(shape) for _ in range(2)]
    dist.all_gather(parts, torch.ones(shape))
    return parts


PROGRAMS: dict[str, tuple[Callable[[], Any], int]] = {
    "all of it": (lambda: reduced(4, 6).sum(), 0),
    "all of it, behind pointwise operators": (lambda: reduced(4, 6).mul(2).relu().sum(), 0),
    "own rows behind pointwise operators": (lambda: reduced(4, 6).mul(2).relu()[2:].sum(), 1),
    "own columns of a sum": (lambda: (reduced(4, 6) + torch.ones(6))[:, 3:].sum(), 2),
    "own columns, of what is larger": (lambda: (reduced(6) + torch.ones(4, 6))[:, 3:].sum(), 0),
    "joined parts": (lambda: torch.cat(listed(4, 6), dim=1)[:, 6:].sum(), 2),
    "stacked parts": (lambda: torch.stack(listed(4, 6))[1].sum(), 1),
    "all joined parts": (lambda: torch.cat(listed(4, 6), dim=1).sum(), 0),
    "parts joined with others": (
        lambda: torch.cat([*listed(4, 6), torch.ones(4, 6)], dim=1)[:, 6:12].sum(),
        0,
    ),
    "in place": (lambda: reduced(4, 6).mul_(2), 0),
    "own rows": (lambda: reduced(4, 6)[2:].mul(2), 1),
    "own columns": (lambda: reduced(4, 6)[:, 3:].mul(2), 2),
    "own rows, uneven": (lambda: reduced(5, 6)[3:].mul(2), 1),
    "own rows in another shape": (lambda: reduced(4, 6)[2:].view(12).mul(2), 1),
    "rows of the other rank": (lambda: reduced(4, 6)[:2].mul(2), 0),
    "both": (lambda: [part.mul(2) for part in reduced(4, 6).chunk(2)], 0),
    "own rows, then all": (
        lambda: [each.sum() for t in [reduced(4, 6)] for each in (t[2:], t)],
        0,
    ),
    "own rows of a copy, and all of what was copied": (
        lambda: [each.sum() for t in [reduced(4, 6)] for each in (t.relu()[2:], t)],
        0,
    ),
    "two copies at once": (lambda: [t.relu() @ (t * 2).t() for t in [reduced(4, 6)]], 0),
    "a copy and what was copied": (lambda: [t.relu() @ t.t() for t in [reduced(4, 6)]], 0),
    "own rows of two copies": (
        lambda: [each.sum() for t in [reduced(4, 6)] for each in (t.relu()[2:], (t * t)[2:])],
        1,
    ),
    "gathered": (lambda: gathered(4, 6)[4:].clone(), 1),
    "gathered and laid out": (lambda: beside(gathered(4, 6))[:, 6:].clone(), 2),
    "laid out and used": (lambda: beside(gathered(4, 6)).sum(), 0),
    "own rows overwritten": (lambda: reduced(4, 6)[2:].copy_(torch.ones(2, 6)), -1),
    "own rows zeroed": (lambda: reduced(4, 6)[2:].zero_(), -1),
    "nothing": (lambda: reduced(4, 6), -1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_states_which_part_of_its_result_was_used(name: str, world: None) -> None:
    program, expected = PROGRAMS[name]
    with commtrace.record(detail="op") as recording:
        program()
    assert list(recording.trace().tables["comm"]["used_shard"]) == [expected]


def late(num_others: int, is_stepped: bool) -> list[tuple[int, bool]]:
    """Calls of a program whose first result is used after the calls have been flushed."""
    with commtrace.record(detail="op") as recording:
        tensors = [reduced(4, 6) for _ in range(1 + num_others)]
        if is_stepped:
            parameter = torch.nn.Parameter(torch.ones(2))
            parameter.grad = torch.ones(2)
            torch.optim.SGD([parameter]).step()
        recording._output.flush()
        tensors[0][:, :3].mul(2)
        recording._output.flush()
        del tensors
    comm = recording.trace().tables["comm"]
    assert list(comm["id"]) == [*range(1 + num_others)]
    return [*zip(comm["used_shard"], [used >= 0 for used in comm["result_used_ns"]], strict=True)]


@pytest.mark.parametrize(
    ("num_others", "is_stepped", "expected"),
    [
        (1, False, [(2, True), (-1, False)]),
        (0, True, [(-1, False)]),
        (400, False, [(-1, False)] * 401),
    ],
    ids=["waits", "not past a step", "not behind many others"],
)
def test_a_call_is_written_once_its_result_was_used(
    num_others: int, is_stepped: bool, expected: list[tuple[int, bool]]
) -> None:
    found, _ = run_processes(late, 2, num_others, is_stepped, timeout_s=60)
    assert found == expected


def activated(uses_rows: bool) -> list[int]:
    """Gather, activate and use the own rows, forward and backward."""

    class Gathered(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return gather(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return (grad[2:] if uses_rows else grad[:2] + grad[2:]).clone()

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x[2:].clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return gather(grad)

    def gather(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(4, 6)
        dist.all_gather_into_tensor(out, x.contiguous())
        return out

    x = torch.ones(2, 6, requires_grad=True)
    with commtrace.record(detail="op") as recording:
        (Own.apply(torch.relu(Gathered.apply(x))) * 2).sum().backward()
    return list(recording.trace().tables["comm"]["used_shard"])


@pytest.mark.parametrize(("uses_rows", "expected"), [(True, [1, 1]), (False, [0, 0])])
def test_results_are_followed_through_the_backward_of_an_activation(
    uses_rows: bool, expected: list[int], world: None
) -> None:
    assert activated(uses_rows) == expected


def test_memory_that_is_given_out_again_holds_no_result(world: None) -> None:
    with commtrace.record(detail="op") as recording:
        tensor = reduced(4, 6)
        address = tensor.untyped_storage().data_ptr()
        times = commtrace.recorder.recorder.RECORDER.data_times
        times.written[address] = 1  # an operator's
        tensor.mul(2)
    comm = recording.trace().tables["comm"]
    assert (list(comm["used_shard"]), list(comm["result_used_ns"])) == ([-1], [-1])


def racing(kind: str) -> list[tuple[bool, bool]]:
    """Calls of a program: whether its data is used, and before the call is complete.

    Rank 1 issues its call later, so that rank 0's call is in progress until then.
    """
    size = 1 << 10
    with commtrace.record(detail="op") as recording:
        tensor, out = torch.ones(size), torch.empty(2 * size)
        if dist.get_rank() == 1:
            time.sleep(1.0)
        if kind == "gathered":
            work = dist.all_gather_into_tensor(out, tensor, async_op=True)
            tensor.add_(1)
        elif kind == "other part":
            work = dist.all_reduce(out[:size], async_op=True)
            out[size:].add_(1)
        else:
            work = dist.all_reduce(tensor, async_op=True)
        if kind == "read":
            tensor.mul(2)
        if kind == "future":
            work.get_future().wait()
        work.wait()
        if kind == "future":
            tensor.mul(2)
    comm = recording.trace().tables["comm"]
    return [
        (used >= 0, 0 <= used < ended)
        for used, ended in zip(comm["result_used_ns"], comm["complete_ns"], strict=True)
    ]


@pytest.mark.parametrize(
    ("kind", "is_used", "is_early"),
    [
        ("read", True, True),
        ("gathered", True, True),
        ("other part", False, False),
        ("future", True, False),
    ],
)
def test_a_use_before_completion_is_known(kind: str, is_used: bool, is_early: bool) -> None:
    (found,), _ = run_processes(racing, 2, kind, timeout_s=60)
    assert found == (is_used, is_early)


def sharded_again() -> list[int]:
    """Gather a DTensor of dtensor_core and shard it again, with the backend's copies recorded."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    x = distribute_tensor(torch.randn(64, 32), mesh, [Shard(0)])
    with commtrace.record() as recording:
        gathered = torch.tanh(x).redistribute(mesh, [Replicate()])
        torch.tanh(gathered.redistribute(mesh, [Shard(0)]))
    return [*recording.trace().tables["comm"]["used_shard"]]


def test_copies_of_the_backend_to_a_result_do_not_overwrite_it() -> None:
    assert run_processes(sharded_again, 2, timeout_s=60) == [[1], [1]]
