"""Communication between the last tensor that agrees and a wrong gradient, from hand-made runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from commtrace.analyze.compared import compare
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


def wrong_gradient(*calls: Any) -> Any:
    """Return the fault of a gradient that is twice the right one, in a run with these calls."""
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
        *observed("gradient", "weight", 90, 2 * gradient),
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
