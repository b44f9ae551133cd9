"""Calls state the type of 16 bits that their data was cast from, or their result to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import commtrace
from commtrace.recorder.events import data_times
from dtensor_core.testing import fake_world

HALF = torch.bfloat16


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(data_times, "has_compiled", lambda: False)
    with fake_world(2), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def reduced(tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    out = torch.empty(2 * len(tensor), *tensor.shape[1:], dtype=tensor.dtype)
    dist.all_gather_into_tensor(out, tensor)
    return out


def listed(tensor: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(tensor) for _ in range(2)]
    dist.all_gather(parts, tensor)
    return torch.cat(parts, dim=1)


def half() -> torch.Tensor:
    return torch.ones(4, 6, dtype=HALF)


def copied(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(source.shape, dtype=dtype).copy_(source)


PROGRAMS: dict[str, tuple[Callable[[], Any], str]] = {
    "cast before": (lambda: reduced(half().float()), "bfloat16"),
    "cast before, of float16": (lambda: reduced(half().half().float()), "float16"),
    "copied before": (lambda: reduced(copied(half(), torch.float32)), "bfloat16"),
    "cast and laid out": (lambda: gathered(half().float().t().contiguous()), "bfloat16"),
    "two that were cast": (lambda: gathered(torch.cat([half().float()] * 2)), "bfloat16"),
    "one that was cast": (lambda: gathered(torch.cat([half().float(), torch.ones(4, 6)])), ""),
    "cast and used": (lambda: reduced(half().float().mul(2)), ""),
    "cast, then overwritten": (lambda: reduced(half().float().mul_(2)), ""),
    "result cast": (lambda: gathered(torch.ones(4, 6)).to(HALF), "bfloat16"),
    "part of a result cast": (lambda: gathered(torch.ones(4, 6))[:4].to(HALF), "bfloat16"),
    "result copied": (lambda: copied(gathered(torch.ones(4, 6)), HALF), "bfloat16"),
    "result laid out and cast": (lambda: listed(torch.ones(4, 6)).to(HALF), "bfloat16"),
    "functional result cast": (
        lambda: all_gather_tensor(torch.ones(4, 6), 1, dist.group.WORLD).to(HALF),
        "bfloat16",
    ),
    "result used and cast": (lambda: reduced(torch.ones(4, 6)).rsqrt().to(HALF), ""),
    "result cast to 64 bits": (lambda: reduced(torch.ones(4, 6)).double(), ""),
    "16 bits": (lambda: reduced(half()).float(), ""),
    "float32": (lambda: reduced(torch.ones(4, 6)).mul(2), ""),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_states_that_its_data_or_its_result_was_cast(name: str, world: None) -> None:
    program, expected = PROGRAMS[name]
    reduced(torch.ones(1))  # what is found out at first calls
    all_gather_tensor(torch.ones(1), 0, dist.group.WORLD)
    with commtrace.record(detail="op") as recording:
        program()
    assert list(recording.trace().tables["comm"]["cast_dtype"]) == [expected]


def sharded(policy: MixedPrecisionPolicy) -> nn.Module:
    return fully_shard(nn.Linear(8, 8), mp_policy=policy)


def casts(model: nn.Module, dtype: torch.dtype | None) -> dict[tuple[str, str, str], str]:
    """Cast of each kind of call in the second step, by phase and type of the message."""
    with commtrace.record(detail="op") as recording:
        for _ in range(2):
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                loss = model(torch.ones(2, 8)).float().sum()
            loss.backward()
            recording.step()
    calls = recording.frames().comm
    calls = calls[calls["step"] == 1]
    names = ("kind", "phase", "dtype", "cast_dtype")
    return {tuple(key): cast for *key, cast in zip(*(calls[name] for name in names), strict=True)}


def test_parameters_that_autocast_casts_are_gathered_wider_than_they_are_used(world: None) -> None:
    found = casts(sharded(MixedPrecisionPolicy()), HALF)
    assert found[("all_gather", "forward", "float32")] == "bfloat16"
    assert found[("reduce_scatter", "backward", "float32")] == ""


def test_the_policy_of_fsdp_gathers_16_bits_and_reduces_32_without_a_waste(world: None) -> None:
    policy = MixedPrecisionPolicy(param_dtype=HALF, reduce_dtype=torch.float32)
    assert casts(sharded(policy), None) == {
        ("all_gather", "forward", "bfloat16"): "",
        ("reduce_scatter", "backward", "float32"): "",
    }


def test_gradients_that_a_hook_reduces_in_32_bits_are_wide_by_choice(world: None) -> None:
    model = nn.Linear(8, 8, dtype=HALF)

    def reduce(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.copy_(reduced(parameter.grad.float()))

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(reduce)
    with commtrace.record(detail="op") as recording:
        model(torch.ones(2, 8, dtype=HALF)).sum().backward()
    assert list(recording.trace().tables["comm"]["cast_dtype"]) == ["", ""]
