"""Wrong gradients behind a norm that the program computes of them by hand."""

from __future__ import annotations

import pytest
import torch

from commtrace.analyze.values import compare
from tests.commtrace.analyze.values.rows import Tensors, held_by_one

OTHER = {"step": 0, "phase": "other"}
NUM_ALIKE = 4


def clipped(scale: float, num_scaled: int, of_norm: float = 1.0) -> Tensors:
    """A norm of gradients, and the gradients; the last ones have another factor."""
    torch.manual_seed(0)
    names = [f"layers.{number}.weight" for number in range(NUM_ALIKE + 2)]
    gradients = [torch.randn(6, 5) for _ in names]
    for gradient in gradients[len(names) - num_scaled :]:
        gradient *= scale
    norm = torch.stack([each.norm() for each in gradients]).norm()
    result = {**OTHER, "role": "result", "op": "aten.sqrt.default", "module": ""}
    return [
        (result, norm * of_norm),
        *(
            ({"step": 0, "phase": "optimizer", "role": "gradient", "module": name[:-7],
              "name": name}, gradient)
            for name, gradient in zip(names, gradients, strict=True)
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("num_scaled", "of_norm", "first"),
    [
        pytest.param(NUM_ALIKE, 1.0, "gradient", id="experts that are not averaged"),
        pytest.param(NUM_ALIKE + 2, 2.0, "result", id="all gradients clipped by a wrong norm"),
    ],
)
def test_a_factor_that_some_gradients_lack_is_not_from_the_norm(
    num_scaled: int, of_norm: float, first: str
) -> None:
    right = held_by_one(clipped(1.0, 0))
    fault = compare(right, held_by_one(clipped(4.0, num_scaled, of_norm))).fault
    assert fault is not None
    assert fault.right["role"] == first
    if first == "gradient":
        assert fault.right["name"] == "layers.2.weight"
