"""Parts that several ranks hold, and scales of backward passes that are right but for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from commtrace.analyze import Frames
from commtrace.analyze.values import ValueComparison, compare
from tests.commtrace.analyze.values.rows import Tensors, held_by_one, on_ranks

BACKWARD = {"phase": "backward", "role": "output_gradient"}
OF_WEIGHT = {"module": "m", "name": "m.weight"}


def weight_of(values: Sequence[torch.Tensor]) -> Tensors:
    """A parameter, its gradient and its new values."""
    roles = ("parameter", "gradient", "updated")
    return [({**OF_WEIGHT, "role": role}, x) for role, x in zip(roles, values, strict=True)]


@pytest.mark.parametrize("fault", ["none", "unreduced", "one has it"])
def test_parts_that_several_ranks_hold_are_those_of_their_parameter(fault: str) -> None:
    """Pairs of ranks hold a half, as of few heads of keys under tensor parallelism."""
    weight, gradient, other = torch.randn(3, 8, 6).unbind()
    updated = weight - 0.1 * gradient
    ranks = []
    for rank in range(4):
        half = slice(0, 4) if rank < 2 else slice(4, 8)
        first = rank % 2 == 0
        own = {
            "none": gradient,
            "unreduced": other if first else gradient - other,
            "one has it": gradient if first else other,
        }[fault][half]
        is_right = fault != "unreduced"
        ranks.append(
            weight_of([weight[half], own, updated[half] if is_right else weight[half] - 0.1 * own])
        )
    found = compare(held_by_one(weight_of([weight, gradient, updated])), on_ranks(*ranks))
    if fault == "unreduced":
        assert found.fault is not None
        assert (found.fault.right["role"], found.fault.is_certain) == ("gradient", True)
    else:
        assert found.agrees, found.fault


def backward(
    scales: Sequence[float], wrong: float, num_right: int = 0, sizes: Sequence[int] = (2, 6)
) -> ValueComparison:
    """Compare backward passes of ranks whose losses are averages of their own samples.

    Args:
        scales: factor of each rank's gradients.
        wrong: factor of the reduced gradients, but for the first `num_right`.
        num_right: number of gradients that are right.
        sizes: samples of each rank.
    """
    modules = ["m", "n", "o"]
    samples = {name: torch.randn(sum(sizes), 5) for name in modules}
    gradients = {name: torch.randn(len(sizes), 4, 3) for name in modules}

    def run(ranks: Sequence[int], factors: Sequence[float], of_reduced: float) -> Frames:
        tensors = []
        for rank, factor in zip(ranks, factors, strict=True):
            own: Tensors = []
            bounds = [0, sum(sizes)] if len(ranks) == 1 else [sum(sizes[:rank]), 0]
            bounds[1] = bounds[1] or bounds[0] + sizes[rank]
            for name in modules:
                local = gradients[name].sum(0) if len(ranks) == 1 else gradients[name][rank]
                of_parameter = {"module": name, "name": f"{name}.weight"}
                own += [
                    ({**BACKWARD, "module": name, "inputs": "1" if own else ""},
                     factor * samples[name][slice(*bounds)]),
                    ({**of_parameter, "role": "local_gradient", "phase": "backward",
                      "inputs": "1"}, factor * local),
                ]  # fmt: skip
            for number, name in enumerate(modules):
                scale = 1.0 if number < num_right else of_reduced
                of_parameter = {"module": name, "name": f"{name}.weight", "role": "gradient"}
                own.append((of_parameter, scale * gradients[name].sum(0)))
            tensors.append(own)
        return on_ranks(*tensors) if len(ranks) > 1 else held_by_one(tensors[0])

    return compare(run([0], [1.0], 1.0), run(range(len(sizes)), scales, wrong))


@pytest.mark.parametrize("scales", [(2.0, 2.0), (4.0, 4 / 3)], ids=["one", "each rank's own"])
def test_backward_passes_of_other_scales_are_right(scales: Sequence[float]) -> None:
    assert backward(scales, wrong=1.0).agrees
    fault = backward(scales, wrong=3.0).fault
    assert fault is not None
    assert (fault.right["role"], fault.right["name"]) == ("gradient", "m.weight")


def test_a_backward_pass_that_is_wrong_on_a_rank_is_not_one_of_another_scale() -> None:
    fault = backward((2.0, -2.0), wrong=3.0).fault
    assert fault is not None
    assert fault.right["role"] == "output_gradient"


def test_gradients_inherit_the_scale_of_those_before_them() -> None:
    """The first gradient is right, so its scale is by design, and so are the others' scales."""
    fault = backward((2.0, 2.0), wrong=3.0, num_right=1).fault
    assert fault is not None
    assert (fault.right["role"], fault.right["name"]) == ("gradient", "n.weight")


@pytest.mark.parametrize(("number", "agrees"), [(32.0, False), (32.5, True)])
def test_a_count_does_not_show_that_what_comes_before_it_is_right(
    number: float, agrees: bool
) -> None:
    part, last = torch.randn(8, 6), torch.tensor(number)
    output = {"role": "output", "module": "a"}
    of_loss = {"role": "output", "module": "loss", "inputs": "1"}
    left = held_by_one([(output, part), (of_loss, last)])
    right = on_ranks(*[[(output, part * s), (of_loss, last)] for s in (3.0, 0.25)])
    assert compare(left, right).agrees == agrees


def output(module: str, *, call: int = 0, inputs: str = "") -> dict[str, object]:
    return {"role": "output", "module": module, "module_call": call, "inputs": inputs}


@pytest.mark.parametrize("has_graph", [False, True])
def test_modules_follow_each_other_where_no_graph_is_recorded(has_graph: bool) -> None:
    """A lookup in a graph has no source: it was not computed from the module before it."""
    before, part, after = torch.randn(3, 8, 6).unbind()

    def run(*scales: float) -> Frames:
        ranks = [
            [
                (output("c"), before),
                (output("", inputs="1"), before),
                (output("a", call=1), part * scale),
                (output("b", call=1), after),
                (output("", call=1, inputs="1" if has_graph else ""), after),
            ]
            for scale in scales
        ]
        return on_ranks(*ranks) if len(scales) > 1 else held_by_one(ranks[0])

    assert compare(run(1.0), run(3.0, 0.25)).agrees != has_graph


@pytest.mark.parametrize("is_averaged", [True, False])
def test_workers_that_step_alone_are_right_if_their_mean_is(is_averaged: bool) -> None:
    weight, mean = torch.randn(4, 4), torch.randn(4, 4)
    own = [torch.randn(4, 4)]
    own.append(2 * mean - own[0])

    def tensors(gradient: torch.Tensor, after: torch.Tensor) -> Tensors:
        values = weight_of([weight, gradient, weight - 0.1 * gradient])
        return [*values, ({**OF_WEIGHT, "role": "updated", "step": 1}, after)]

    left = held_by_one(tensors(mean, weight - 0.1 * mean))
    ranks = [
        tensors(each, weight - 0.1 * (mean if is_averaged else each)) for each in own
    ]  # fmt: skip
    fault = compare(left, on_ranks(*ranks)).fault
    assert (fault is None) == is_averaged
    if fault is not None:
        assert fault.right["role"] == "gradient"


@pytest.mark.parametrize("fault", ["none", "one element", "decay"])
def test_parts_that_decay_otherwise_are_not_scattered_by_an_optimizer(fault: str) -> None:
    weight, gradient = torch.randn(40, 8), torch.randn(40, 8)
    updated = weight - 0.01 * gradient.sign()
    wrong = {"none": updated, "one element": updated.clone(), "decay": updated - 0.01 * weight}
    wrong["one element"][3, 3] += 0.02

    def run(step: torch.Tensor, *, is_whole: bool) -> Frames:
        state = ({**OF_WEIGHT, "role": "state", "name": "m.weight.exp_avg_sq"}, gradient**2)
        whole = [*weight_of([weight, gradient, step]), state]
        halves = [[(names, each.chunk(2)[rank]) for names, each in whole] for rank in range(2)]
        return held_by_one(whole) if is_whole else on_ranks(*halves)

    found = compare(run(updated, is_whole=True), run(wrong[fault], is_whole=False))
    assert found.agrees == (fault != "decay"), found.fault
