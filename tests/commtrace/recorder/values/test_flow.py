"""Flow of data between observed tensors: by storage at level op, else by autograd's graph."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import commtrace
from tests.commtrace.recorder.values.test_observer import rows


class Net(nn.Module):
    """Two layers beside each other, added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x))
        return self.left(x) + self.right(x)


def sources(recording: commtrace.Recording) -> dict[str, set[str]]:
    """Return, by output, the modules of those that it was computed from."""
    found = rows(recording)
    by_id = {each["id"]: each for each in found}

    def outputs(each: dict[str, Any]) -> set[str]:
        known: set[str] = set()
        for back in filter(None, each["inputs"].split(",")):
            before = by_id[each["id"] - int(back)]
            known |= {before["module"]} if before["role"] == "output" else outputs(before)
        return known

    return {each["module"]: outputs(each) for each in found if each["role"] == "output"}


@pytest.mark.parametrize("values", ["module", "op"])
def test_outputs_have_those_that_they_were_computed_from(values: str) -> None:
    with commtrace.record(values=values) as recording:
        Net()(torch.randn(2, 4))
    found = sources(recording)
    assert found["left"] == found["right"] == {"first"}
    assert found[""] == {"left", "right"}


def test_what_is_filled_anew_was_computed_from_nothing() -> None:
    with commtrace.record(values="op") as recording:
        x = nn.Linear(2, 2)(torch.ones(1, 2)).detach() * 2
        y = torch.zeros_like(x) + 1
        x.fill_(3.0)
        x + y
    found = rows(recording, role="result")
    by_op = {each["op"]: each for each in found}
    assert by_op["aten.mul.Tensor"]["inputs"]
    assert by_op["aten.zeros_like.default"]["inputs"] == ""
    assert by_op["aten.fill_.Scalar"]["inputs"] == ""


def test_lists_are_followed_each_on_its_own() -> None:
    with commtrace.record(values="op") as recording:
        one, other = torch.ones(2) * 2, torch.ones(2) * 3
        torch._foreach_mul_([one, other], 2.0)
        one + 1
    found = rows(recording, role="result")
    last = found[-1]
    assert [found[-1]["id"] - int(back) for back in last["inputs"].split(",")] == [
        each["id"] for each in found if each["op"] == "aten.mul.Tensor"
    ][:1]


def test_results_of_an_operator_on_lists_are_followed_each_on_its_own() -> None:
    with commtrace.record(values="op") as recording:
        torch._foreach_norm([torch.ones(2) * 2, torch.ones(2) * 3])
    found = rows(recording, role="result")
    norms = [each for each in found if each["op"].startswith("aten._foreach_norm")]
    sources = [[each["id"] - int(back) for back in each["inputs"].split(",")] for each in norms]
    assert sources == [[each["id"]] for each in found if each["op"] == "aten.mul.Tensor"]


def test_no_graph_of_a_model_that_is_only_called_is_kept() -> None:
    model = nn.Linear(2, 2)
    kept = []
    with commtrace.record(values="module"):
        for _ in range(8):
            x = torch.ones(1, 2)  # which the graph needs for the gradient of the weight
            kept.append(weakref.ref(x))
            model(x)
            del x
    assert [each() for each in kept] == [None] * 8


def test_parts_of_a_bucket_have_sources_of_their_own() -> None:
    with commtrace.record(values="op") as recording:
        first, last = torch.full((2, 3), 2.0).exp(), torch.full((4,), 3.0).exp()
        bucket = torch.zeros(10)
        views = bucket[:6].view(2, 3), bucket[6:]
        for view, own in zip(views, (first, last), strict=True):
            torch.mul(own, 0.5, out=view)
        for view in views:
            view.cos()
        bucket.cos()
    found = rows(recording, role="result")
    by_id = {each["id"]: each for each in found}

    def shapes(each: dict[str, Any]) -> set[str]:
        back = [int(number) for number in each["inputs"].split(",") if number]
        return {by_id[each["id"] - number]["shape"] for number in back}

    cosines = [shapes(each) for each in found if "cos" in each["op"]]
    assert [each - {"[10]"} for each in cosines] == [{"[2,3]"}, {"[4]"}, {"[2,3]", "[4]"}]
