"""FLOPs of products, forward and backward, compared with numbers derived by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import commtrace
from commtrace.recorder.events.operator_costs import flops_of
from tests.commtrace.recorder.recorded import ops

aten: Any = torch.ops.aten


def flops(program: Callable[[], object]) -> list[tuple[str, int]]:
    """The operators with FLOPs that a program runs, by name."""
    with commtrace.record(detail="op") as recording:
        program()
    found = [(span.op.split(".")[1], span.flops) for span in ops(recording)]
    return [each for each in found if each[1] >= 0]


def x(*shape: int) -> torch.Tensor:
    return torch.ones(shape, requires_grad=True)


def test_a_product_of_matrices_and_its_gradients() -> None:
    product = 2 * 2 * 3 * 5
    assert flops(lambda: (x(2, 3) @ x(3, 5)).sum().backward()) == [("mm", product)] * 3


def test_a_linear_layer_and_its_gradients() -> None:
    product = 2 * 2 * 3 * 5
    found = flops(lambda: F.linear(x(2, 3), x(5, 3), x(5)).sum().backward())
    assert found == [("addmm", product), ("mm", product), ("mm", product)]


def test_batches_of_products_and_their_gradients() -> None:
    product = 2 * 7 * 2 * 3 * 5
    assert (
        flops(lambda: torch.bmm(x(7, 2, 3), x(7, 3, 5)).sum().backward()) == [("bmm", product)] * 3
    )
    added = flops(lambda: torch.baddbmm(x(7, 2, 5), x(7, 2, 3), x(7, 3, 5)))
    assert added == [("baddbmm", product)]


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_and_its_gradients(stride: int) -> None:
    # 2 images, 3 channels to 5, kernels of 3 by 3 without padding, on 9 by 9.
    side = (9 - 3) // stride + 1
    forward = 2 * 2 * 5 * 3 * 3 * 3 * side * side
    found = flops(lambda: F.conv2d(x(2, 3, 9, 9), x(5, 3, 3, 3), stride=stride).sum().backward())
    assert [name for name, _ in found] == ["convolution", "convolution_backward"]
    assert found[0][1] == forward
    # The gradient of the input and that of the weights take as much each.
    assert found[1][1] == 2 * forward


def test_attention_and_its_gradients() -> None:
    # 2 batches, 3 heads, 4 queries on 5 keys of size 8: two products, and five in the backward.
    batches, queries, keys, size = 2 * 3, 4, 5, 8
    product = 2 * batches * queries * keys * size

    def program() -> None:
        query, key, value = x(2, 3, queries, size), x(2, 3, keys, size), x(2, 3, keys, size)
        F.scaled_dot_product_attention(query, key, value).sum().backward()

    name = "_scaled_dot_product_flash_attention_for_cpu"
    assert flops(program) == [(name, 2 * product), (f"{name}_backward", 5 * product)]


@pytest.mark.parametrize(
    ("name", "left", "right", "expected"),
    [
        ("_grouped_mm", (12, 3), (4, 3, 5), 2 * 12 * 3 * 5),  # rows in four groups
        ("_grouped_mm", (4, 2, 3), (3, 20), 2 * 2 * 3 * 20),  # columns in four groups
        ("_grouped_mm", (2, 12), (12, 5), 2 * 2 * 12 * 5),  # what is summed, in groups
        ("_grouped_mm", (4, 2, 3), (4, 3, 5), 2 * 4 * 2 * 3 * 5),
        ("mv", (2, 3), (3,), 2 * 2 * 3),
        ("dot", (3,), (3,), 2 * 3),
    ],
)
def test_products_that_torch_has_no_formula_for(
    name: str, left: tuple[int, ...], right: tuple[int, ...], expected: int
) -> None:
    op = getattr(aten, name).default
    assert flops_of(op, (torch.empty(left), torch.empty(right)), {}, None) == expected


def test_operators_that_are_whole_in_inference_mode() -> None:
    def program() -> None:
        with torch.inference_mode():
            F.linear(torch.ones(2, 3), torch.ones(5, 3))
            torch.matmul(torch.ones(7, 2, 3), torch.ones(3, 5))
            F.conv1d(torch.ones(2, 3, 9), torch.ones(5, 3, 3))

    assert [number for _, number in flops(program)] == [
        2 * 2 * 3 * 5, 2 * 7 * 2 * 3 * 5, 2 * 2 * 5 * 3 * 3 * 7,
    ]  # fmt: skip


def test_elementwise_operators_and_shapes_that_no_formula_takes_have_none() -> None:
    assert flops(lambda: torch.ones(4).exp().add(1).sum()) == []
    assert flops_of(aten.mm.default, (torch.empty(3), torch.empty(3)), {}, None) == -1


def test_bytes_are_of_all_arguments_and_results() -> None:
    with commtrace.record(detail="op") as recording:
        (torch.ones(2, 3) @ torch.ones(3, 5)).add_(1).bfloat16()
    found = [(span.op.split(".")[1], span.shapes, span.bytes) for span in ops(recording)]
    assert found == [
        ("ones", "", 24), ("ones", "", 60), ("mm", "[2,3];[3,5]", 24 + 60 + 40),
        ("add_", "[2,5]", 40 + 40), ("_to_copy", "[2,5]", 40 + 20),
    ]  # fmt: skip
