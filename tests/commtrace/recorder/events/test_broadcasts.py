"""A broadcast's data is ready since an earlier broadcast that all of it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import commtrace
from commtrace.recorder.events import data_times

NUM_STEPS = 4
Change = Callable[[list[Tensor]], object]


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(data_times, "has_compiled", lambda: False)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def are_unchanged(program: Callable[[], object]) -> list[bool]:
    """Return for each broadcast but the first whether an earlier broadcast wrote its data."""
    with commtrace.record(detail="op") as recording:
        program()
    comm = recording.trace().tables["comm"]
    ends: list[int] = []
    found = []
    for kind, ready, end in zip(
        comm["kind"], comm["data_ready_ns"], comm["complete_ns"], strict=True
    ):
        if kind == "broadcast":
            found.append(ready in ends)
            ends.append(end)
    return found[1:]


def by_hand(change: Change, sizes: tuple[int, ...] = (5, 5)) -> None:
    """Broadcast tensors as a single tensor of all of them, and copy them back, as libraries do."""
    tensors = [torch.ones(size) for size in sizes]
    for _ in range(NUM_STEPS):
        flat = torch.cat([each.view(-1) for each in tensors])
        dist.broadcast(flat, 0)
        for tensor, part in zip(tensors, flat.split(sizes), strict=True):
            tensor.copy_(part)
        change(tensors)


@pytest.mark.parametrize("sizes", [(4, 6), (5, 1, 3), (7,)])
def test_what_is_only_copied_between_broadcasts_is_unchanged(sizes: tuple[int, ...]) -> None:
    assert are_unchanged(lambda: by_hand(lambda _: None, sizes)) == [True] * (NUM_STEPS - 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors[0].add_(1),
        lambda tensors: tensors[1][2:].zero_(),
        lambda tensors: tensors[1].copy_(tensors[1].flip(0)),
        lambda tensors: tensors.reverse(),
        lambda tensors: tensors[1][1:].copy_(tensors[1][:-1].clone()),
        lambda tensors: tensors.append(tensors.pop().clone().neg()),
    ],
    ids=["written", "in part", "in another order", "exchanged", "moved", "another tensor"],
)
def test_what_was_written_to_or_comes_in_another_order_has_changed(change: Change) -> None:
    assert not any(are_unchanged(lambda: by_hand(change)))


def test_a_part_or_a_repetition_of_what_was_broadcast_is_something_else() -> None:
    def program() -> None:
        tensor = torch.ones(8)
        dist.broadcast(tensor, 0)
        dist.broadcast(tensor[:4].clone(), 0)
        dist.broadcast(tensor[4:].clone(), 0)
        dist.broadcast(torch.cat([tensor, tensor]), 0)

    assert are_unchanged(program) == [False, False, False]


@pytest.mark.parametrize(
    ("make", "is_unchanged"),
    [
        (lambda: nn.Identity(), True),
        (lambda: nn.BatchNorm1d(6, affine=False), False),
        (lambda: nn.BatchNorm1d(6, affine=False).eval(), True),
        (lambda: nn.BatchNorm1d(6, affine=False, track_running_stats=False), True),
    ],
    ids=["masks", "running statistics", "statistics that are used", "no statistics"],
)
def test_buffers_of_ddp_change_only_if_an_operator_writes_to_them(
    make: Callable[[], nn.Module], is_unchanged: bool
) -> None:
    model = nn.Sequential(nn.Linear(6, 6), make())
    for number in range(2):
        model.register_buffer(f"mask{number}", torch.ones(6))
    parallel = nn.parallel.DistributedDataParallel(model)

    def program() -> None:
        for _ in range(NUM_STEPS):
            parallel(torch.ones(3, 6))

    parallel.train(mode=model[1].training)  # type: ignore[arg-type]
    found = are_unchanged(program)
    in_step = (len(found) + 1) // NUM_STEPS  # one for each element type
    later = found[in_step - 1 :]
    assert len(later) == in_step * (NUM_STEPS - 1) > 0
    assert all(later) if is_unchanged else not any(later)
