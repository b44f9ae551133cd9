"""Gradients are observed before anything reduces or clips them, and no hook is left behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import commtrace
from commtrace.recorder.values.gradient_hooks import GradientHooks


@pytest.fixture
def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def norms(recording: Any, role: str) -> dict[str, float]:
    """Return the norms of tensors of a role by name."""
    table = recording.trace().tables["fingerprints"]
    rows = zip(table["role"], table["name"], table["norm"], strict=True)
    return {name: norm for of, name, norm in rows if of == role}


def test_a_gradient_is_observed_before_the_hooks_of_the_program(model: nn.Linear) -> None:
    model.weight.register_hook(lambda gradient: 10 * gradient)
    with commtrace.record(values="module") as recording:
        model(torch.ones(4, 3)).sum().backward()
        recording.step()
    assert norms(recording, "local_gradient")["weight"] == pytest.approx(4 * 6**0.5)
    assert norms(recording, "gradient")["weight"] == pytest.approx(40 * 6**0.5)


def test_each_backward_pass_of_a_step_is_observed(model: nn.Linear) -> None:
    with commtrace.record(values="module") as recording:
        for number in (1, 2):
            (number * model(torch.ones(4, 3)).sum()).backward()
        recording.step()
    table = recording.trace().tables["fingerprints"]
    found = [
        norm
        for role, name, norm in zip(table["role"], table["name"], table["norm"], strict=True)
        if (role, name) == ("local_gradient", "bias")
    ]
    assert found == pytest.approx([4 * 2**0.5, 8 * 2**0.5])
    assert norms(recording, "gradient")["bias"] == pytest.approx(12 * 2**0.5)
    assert table["role"].count("loss") == 2


@pytest.mark.parametrize("detail", ["op", "collective"])
def test_gradients_are_observed_before_and_after_clipping(model: nn.Linear, detail: str) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with commtrace.record(values="module", detail=detail) as recording:
        model(torch.ones(4, 3)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    norm = (16 * 6 + 16 * 2) ** 0.5
    assert norms(recording, "clipping") == pytest.approx({"norm": norm, "most": 0.5})
    before, after = norms(recording, "unclipped"), norms(recording, "gradient")
    assert before == pytest.approx({"weight": 4 * 6**0.5, "bias": 4 * 2**0.5})
    assert after == pytest.approx({key: each * 0.5 / norm for key, each in before.items()})


def test_a_recording_leaves_no_hook_behind(model: nn.Linear) -> None:
    functions = torch.autograd.backward, torch.nn.utils.clip_grads_with_norm_
    with commtrace.record(values="module") as recording:
        assert torch.autograd.backward is not functions[0]
        model(torch.ones(4, 3)).sum().backward()
    assert (torch.autograd.backward, torch.nn.utils.clip_grads_with_norm_) == functions
    assert not model.weight._backward_hooks
    model(torch.ones(4, 3)).sum().backward()
    assert len(norms(recording, "local_gradient")) == 2


def test_a_function_that_others_replaced_stays_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.autograd.backward
    hooks = GradientHooks(*[lambda *args: None] * 5)  # type: ignore[arg-type]
    hooks.install()
    theirs = object()
    monkeypatch.setattr(torch.autograd, "backward", theirs)
    hooks.remove()
    assert torch.autograd.backward is theirs
    monkeypatch.setattr(torch.autograd, "backward", original)
