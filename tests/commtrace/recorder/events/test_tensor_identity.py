"""Sent tensors are numbered: equal numbers for unchanged tensors, and for nothing else."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.recorder.events.tensor_identity import TensorIdentity
from dtensor_core.testing import fake_world


@pytest.fixture
def world() -> Iterator[None]:
    with fake_world(2), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def numbers(recording: commtrace.Recording) -> list[int]:
    return list(recording.trace().tables["comm"]["sent_id"])


def gather(tensor: torch.Tensor) -> None:
    dist.all_gather_into_tensor(tensor.new_empty(2 * tensor.shape[0], *tensor.shape[1:]), tensor)


def test_a_tensor_has_its_number_until_something_is_written(world: None) -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    with commtrace.record(detail="op") as recording:
        gather(weight.detach())
        gather(weight.detach())
        with torch.no_grad():
            weight.add_(1)
        gather(weight.detach())
        gather(weight.detach()[:2])
        gather(weight.detach()[:2])
    assert numbers(recording) == [0, 0, 1, 2, 2]


def test_a_collective_that_writes_into_a_tensor_changes_it(world: None) -> None:
    tensor, other = torch.ones(4), torch.zeros(4)
    with commtrace.record(detail="op") as recording:
        gather(tensor)
        dist.all_reduce(tensor)
        gather(tensor)
        dist.all_reduce(other)
        gather(tensor)
    assert numbers(recording) == [0, 0, 1, 2, 1]


def test_optimizers_change_what_they_step(world: None) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    optimizer = torch.optim.AdamW([weight])
    with commtrace.record(detail="op") as recording:
        gather(weight.detach())
        optimizer.step()
        gather(weight.detach())
    assert numbers(recording) == [0, 1]


def test_memory_that_is_given_out_again_is_not_taken_for_what_it_was() -> None:
    identity = TensorIdentity()
    found = []
    for _ in range(50):
        tensor = torch.ones(1000)
        found.append(identity.of([tensor]))
        del tensor
    assert found == list(range(50))


def test_no_memory_lives_longer() -> None:
    identity = TensorIdentity()
    tensor = torch.ones(1000)
    storage = weakref.ref(tensor)
    identity.of([tensor])
    held = tensor.untyped_storage()._weak_ref()
    del tensor
    gc.collect()
    assert storage() is None
    assert torch.UntypedStorage._expired(held)
    torch.UntypedStorage._free_weak_ref(held)


def test_what_is_forgotten_is_new_when_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commtrace.recorder.events.tensor_identity._MAX_STORAGES", 2)
    identity, tensors = TensorIdentity(), [torch.ones(1) for _ in range(3)]
    assert [identity.of([each]) for each in tensors] == [0, 1, 2]
    assert [identity.of([each]) for each in tensors[1:]] == [1, 2]
    assert identity.of([tensors[0]]) == 3


def test_inference_tensors_and_recordings_of_collectives_have_none(world: None) -> None:
    with torch.inference_mode():
        tensor = torch.ones(4)
        with commtrace.record(detail="op") as recording:
            gather(tensor)
    assert numbers(recording) == [-1]
    with commtrace.record(detail="collective") as recording:
        gather(torch.ones(4))
    assert numbers(recording) == [-1]


def test_what_an_optimizer_writes_is_seen_by_whatever_name_it_is_sent(world: None) -> None:
    weight = torch.nn.Parameter(torch.ones(8))
    frozen = torch.ones(8)
    optimizer = torch.optim.SGD([weight], lr=0.0)  # writes the same values
    weight.grad = torch.ones(8)
    with commtrace.record(detail="op") as recording:
        for _ in range(3):
            gather(weight.data)
            gather(frozen)
            optimizer.step()
    sent = numbers(recording)
    assert len(set(sent[::2])) == 3
    assert len(set(sent[1::2])) == 1


def test_what_is_written_through_data_is_seen_when_it_is_gathered(world: None) -> None:
    weight = torch.nn.Parameter(torch.ones(8))
    with commtrace.record(detail="op") as recording:
        for _ in range(2):
            gather(weight.detach())
            weight.data -= 0.1
        gather(weight.detach())
        gather(weight.detach())
    sent = numbers(recording)
    assert len(set(sent)) == 3
    assert sent[2] == sent[3]


def test_a_tensor_whose_memory_is_gone_is_not_read(world: None) -> None:
    freed = torch.ones(8)[2:]
    freed.untyped_storage().resize_(0)
    assert TensorIdentity().of([freed], are_read=True) == 0
