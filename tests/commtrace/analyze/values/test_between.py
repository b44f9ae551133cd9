"""Communication between the last tensor that agrees and a wrong gradient, from hand-made runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from commtrace.analyze.comparisons.compared import compare
from commtrace.analyze.values import evidence
from tests.commtrace.analyze.rows import START_NS, call, run_of
from tests.commtrace.analyze.values.rows import held_by_one, row

SHAPE = "[4,4]"


def observed(role: str, name: str, at: int, tensor: torch.Tensor) -> Any:
    columns = {"role": role, "name": name, "module": "layer", "phase": "backward"}
    rows = [row(rank, 0, columns, tensor, tensor) for rank in range(2)]
    return [
        each._replace(id=at, at_ns=START_NS + at, mesh="dp=2:0,1", placements="R") for each in rows
    ]


def wrong_gradient(*calls: Any, factor: float = 2.0) -> Any:
    """Return the fault of a gradient that is a multiple of the right gradient, with these calls."""
    generator = torch.Generator().manual_seed(0)
    output, other, gradient = (torch.randn(4, 4, generator=generator) for _ in range(3))
    right = [
        ({"role": "output_gradient", "module": "layer", "phase": "backward", "name": "0"}, output),
        *[
            ({"role": "gradient", "name": name, "module": "layer", "phase": "backward"}, tensor)
            for name, tensor in (("other", other), ("weight", gradient))
        ],
    ]
    rows = [
        *observed("output_gradient", "0", 10, output),
        *observed("local_gradient", "other", 19, other),
        *observed("local_gradient", "weight", 20, gradient),
        *observed("gradient", "other", 89, other),
        *observed("gradient", "weight", 90, factor * gradient),
    ]
    made = [
        call(id=number, step=0, phase="backward", **columns) for number, columns in enumerate(calls)
    ]
    found = compare(held_by_one(right), run_of(made, num_ranks=2, fingerprints=rows)).fault
    assert found is not None
    assert found.right["name"] == "weight"
    return found


def reduction(at: int, shape: str = SHAPE, **columns: Any) -> dict[str, Any]:
    return {
        "at": at, "input_shapes": shape, "output_shapes": shape, "reduce_op": "sum",
        "source_file": "train.py", "source_line": at // 30,
    } | columns  # fmt: skip


def lines_of(fault: Any) -> list[int]:
    return [each["source_line"] for each in fault.communication]


def test_reductions_that_carried_a_gradient_are_those_of_its_name_or_shape() -> None:
    calls = (reduction(30, "[8]"), reduction(31), reduction(32), reduction(60), reduction(95))
    found = wrong_gradient(*calls)
    assert [(each["source_line"], each["count"]) for each in found.communication] == [
        (1, 2),
        (2, 1),
    ]
    assert all(each["has_carried"] for each in found.communication)
    assert found.is_certain
    assert "before it: 2 all_reduce (sum) over tp, train.py:1" in evidence(found)
    named = wrong_gradient(*calls, reduction(70, "[8]", parameters="bias,weight", source_line=7))
    assert lines_of(named) == [7]
    assert lines_of(wrong_gradient(reduction(40, parameters="bias"))) == []


def test_a_bucket_may_have_carried_a_gradient() -> None:
    bucket, scalar = reduction(40, "[100]", source_line=8), reduction(41, "[]", source_line=9)
    assert lines_of(wrong_gradient(bucket, scalar)) == [8]


@pytest.mark.parametrize(("at", "lines"), [(5, []), (15, [5])])
def test_the_backward_pass_communicates_before_the_gradient_is_computed(
    at: int, lines: list[int]
) -> None:
    found = wrong_gradient(reduction(at, "[3]", source_line=5))
    assert lines_of(found) == lines
    assert found.is_certain == (not lines)


def test_no_sum_of_ranks_gives_a_gradient_another_scale() -> None:
    before = reduction(15, "[3]", source_line=5)
    assert not wrong_gradient(before).is_certain
    assert not wrong_gradient(before, factor=0.5).is_certain
    assert wrong_gradient(before, factor=1.13).is_certain


@pytest.mark.parametrize("is_right", [True, False])
def test_a_right_tensor_vouches_for_the_calls_that_it_was_computed_from(is_right: bool) -> None:
    """The call is made while `up` computes the gradient of its input, which `norm` has returned."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        (role, module): torch.randn(4, 4, generator=generator)
        for role in ("output", "output_gradient")
        for module in ("low", "norm", "up")
    }
    order = [("output", module) for module in ("low", "norm", "up")]
    order += [("output_gradient", module) for module in ("up", "norm", "low")]
    inputs, x = {"norm": "1", "up": "1"}, torch.randn(4, 4)

    def columns(role: str, module: str) -> dict[str, Any]:
        phase = "forward" if role == "output" else "backward"
        return {
            "role": role, "module": module, "name": "0", "phase": phase,
            "inputs": inputs.get(module, "") if role == "output" else "",
        }  # fmt: skip

    wrong = ("output_gradient", "low" if is_right else "norm")
    right = [(columns(*each), tensors[each]) for each in order]
    rows = [
        row(rank, 0, columns(*each), tensor, tensor)._replace(
            id=place, at_ns=START_NS + 10 * place, mesh="dp=2:0,1", placements="R"
        )
        for rank in range(2)
        for place, each in enumerate(order)
        for tensor in [torch.rand(4, 4) if each == wrong else tensors[each]]
    ]
    # The gradient of a weight is computed before the call, too.
    rows += [each._replace(module="up") for each in observed("local_gradient", "up.weight", 33, x)]
    made = [call(id=0, step=0, phase="backward", module="up", **reduction(35))]
    found = compare(held_by_one(right), run_of(made, num_ranks=2, fingerprints=rows)).fault
    assert found is not None
    assert (found.right["role"], found.right["module"]) == wrong
    assert found.is_certain == is_right


@pytest.mark.parametrize("is_combined", [True, False])
def test_parts_vouch_for_an_exchange_only_if_its_result_was_combined(*, is_combined: bool) -> None:
    """A reduction that gives ranks each other's parts leaves sums and norms as they are."""
    x, moved, after, last = torch.rand(4, 8, 6).unbind()
    inputs = "10,20" if is_combined else "10"
    modules = {
        "begin": (x, ""), "proj": (moved, "1"), "after": (after, inputs), "last": (last, "10"),
    }  # fmt: skip
    tensors = [
        ({"role": "output", "module": name, "inputs": own}, each)
        for name, (each, own) in modules.items()
    ]
    rows = [
        row(rank, place, {"step": 0, **columns}, part, part)._replace(
            id=10 * place, at_ns=START_NS + 100 * place
        )
        for place, (columns, whole) in enumerate(tensors)
        for rank, part in enumerate((whole + 1 if place == 3 else whole).chunk(2))
    ]
    # Operators of the module precede its call.
    rows += [
        row(rank, 4, {"step": 0, "role": "result", "op": "aten.mm.default", "module": "proj"}, y, y)
        ._replace(id=9, at_ns=START_NS + 90, inputs="")
        for rank, y in enumerate(torch.rand(2, 3))
    ]  # fmt: skip
    calls = [
        call(id=0, step=0, kind="reduce_scatter", phase="forward", module="proj", at=95, rank=rank)
        for rank in range(2)
    ]
    fault = compare(held_by_one(tensors), run_of(calls, num_ranks=2, fingerprints=rows)).fault
    assert fault is not None
    assert fault.right["module"] == "last"
    assert [each["is_right"] for each in fault.communication] == [is_combined]
    assert ("communication in proj" in fault.doubt) != is_combined
