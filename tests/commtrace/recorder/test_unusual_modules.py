"""Modules with unusual methods compute the same with and without a recording."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import commtrace
from commtrace.recorder.values.weak_identities import WeakIdentities

RAISING = (
    *("named_modules", "named_parameters", "parameters", "modules", "named_buffers", "buffers"),
    *("children", "named_children", "__repr__", "__len__", "__bool__", "__hash__", "__eq__"),
    *("__iter__", "__contains__", "__dir__", "_get_name", "state_dict"),
)
OPTIONS: tuple[dict[str, Any], ...] = (
    {"detail": "collective"},
    {"detail": "op"},
    {"values": "module"},
    {"detail": "op", "values": "op"},
)


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.linear(tensor) + self.offset


def refuse(*_: Any, **__: Any) -> Any:
    raise RuntimeError("not for others")


def with_raising(method: str) -> nn.Module:
    return type(f"No_{method}", (Part,), {method: refuse})()


class RaisingAttributes(Part):
    def __getattr__(self, name: str) -> Any:
        if name in ("linear", "offset"):
            return super().__getattr__(name)
        raise RuntimeError(f"no {name}")


def inside_of_itself() -> nn.Module:
    part = Part()
    part.linear.register_module("owner", part)
    return part


def gradient(model: nn.Module) -> torch.Tensor:
    tensor = torch.ones(2, 4, requires_grad=True)
    for _ in range(2):
        model(tensor).sum().backward()
    assert tensor.grad is not None
    return tensor.grad


@pytest.mark.parametrize("is_inner", [False, True])
@pytest.mark.parametrize("method", [*RAISING, "__getattr__", "itself"])
def test_a_recording_changes_nothing(method: str, is_inner: bool) -> None:
    torch.manual_seed(0)
    made = {"__getattr__": RaisingAttributes, "itself": inside_of_itself}.get(method)
    part = made() if made else with_raising(method)
    model = nn.Sequential(part) if is_inner else part
    expected = gradient(model)
    for options in OPTIONS:
        with warnings.catch_warnings(), commtrace.record(**options) as recording:
            warnings.simplefilter("error")
            assert torch.equal(gradient(model), expected), options
        if "values" in options:
            named = set(recording.trace().tables["fingerprints"]["name"])
            assert f"{'0.' if is_inner else ''}linear.weight" in named


def test_what_is_gone_is_new_again_under_its_number() -> None:
    known, part = WeakIdentities(), with_raising("__hash__")
    assert known.add(part)
    assert not known.add(part)
    assert len(known) == 1
    del part
    assert len(known) == 0
