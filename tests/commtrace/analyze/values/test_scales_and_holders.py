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


@pytest.mark.parametrize(
    ("numbers", "agrees"), [(32.0, False), (32.5, True), ([3.0, 5.0], False), ([3.5, 5.0], True)]
)
def test_a_count_does_not_show_that_what_comes_before_it_is_right(
    numbers: float | list[float], agrees: bool
) -> None:
    part, last = torch.randn(8, 6), torch.tensor(numbers)
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


def test_shares_that_follow_from_counts_show_nothing_of_what_was_counted() -> None:
    part, counts = torch.randn(8, 6), torch.tensor([3.0, 5.0])
    output = {"role": "output", "module": "a"}
    after = [
        ({"role": "output", "module": name, "inputs": "1"}, x)
        for name, x in (("counts", counts), ("shares", counts / 8))
    ]
    left = held_by_one([(output, part), *after])
    assert not compare(left, on_ranks(*[[(output, part * s), *after] for s in (3.0, 0.25)])).agrees


@pytest.mark.parametrize(("scale", "agrees"), [(1e-9, False), (1.0, True)])
def test_a_sum_over_ranks_that_cancels_shows_nothing(scale: float, agrees: bool) -> None:
    """A bias before a normalization has no gradient, whatever the ranks' activations are."""
    part, whole, own = torch.randn(8, 6), scale * torch.randn(6), torch.randn(6)
    output = {"role": "output", "module": "a"}
    bias = {"role": "result", "op": "aten.sum.dim_IntList", "module": "b", "inputs": "1"}
    left = held_by_one([(output, part), (bias, whole)])
    ranks = [[(output, part * s), (bias, x)] for s, x in ((3.0, own), (0.25, whole - own))]
    assert compare(left, on_ranks(*ranks)).agrees == agrees


@pytest.mark.parametrize("is_reversed", [False, True])
def test_backward_passes_may_go_through_the_calls_in_any_order(*, is_reversed: bool) -> None:
    calls = [({**BACKWARD, "module": "m", "module_call": n}, torch.randn(4, 3)) for n in range(3)]
    left = held_by_one(calls)
    assert compare(left, held_by_one(calls[:: -1 if is_reversed else 1])).agrees
    exchanged = [(columns, x) for (columns, _), (_, x) in zip(calls, calls[::-1], strict=True)]
    assert not compare(left, held_by_one(exchanged[:: -1 if is_reversed else 1])).agrees


@pytest.mark.parametrize(("wrong", "agrees"), [(1.0, True), (3.0, False)])
def test_gradients_of_micro_batches_may_be_divided_by_their_number_later(
    wrong: float, *, agrees: bool
) -> None:
    values, gradient = torch.randn(2, 3, 4, 3), torch.randn(4, 3)

    def run(scale: float, of_reduced: float) -> Tensors:
        calls = [
            ({"role": role, "phase": phase, "module": "m", "module_call": n}, factor * x)
            for role, phase, factor, own in (
                ("output", "forward", 1.0, values[0]),
                ("output_gradient", "backward", scale, values[1]),
            )
            for n, x in enumerate(own)
        ]
        return [*calls, ({**OF_WEIGHT, "role": "gradient"}, of_reduced * gradient)]

    ranks: Sequence[Tensors] = (
        run(3.0, wrong), [({"role": "output", "module": "other"}, torch.randn(2))],
    )  # fmt: skip
    assert compare(held_by_one(run(1.0, 1.0)), on_ranks(*ranks)).agrees == agrees


def test_inputs_before_the_first_step_and_after_the_last_are_other_inputs() -> None:
    """A part of the batch of an evaluation has the size of a micro-batch."""
    first, last, output = torch.randn(4, 3), torch.randn(8, 3), torch.randn(4, 3)
    outside = {"role": "input", "module": "", "name": "0", "step": -1}
    step = ({"role": "output", "module": "m", "step": 0}, output)

    def run(*tensors: torch.Tensor) -> Frames:
        return held_by_one([(outside, tensors[0]), step, (outside, tensors[1])])

    assert compare(run(first, last), run(first[:2], last[:4])).agrees
    assert not compare(run(first, last), run(first, last + 1)).agrees


def test_a_missing_reduction_is_seen_behind_the_gradient_of_an_outer_module() -> None:
    """A module that returns what another one does has its gradient observed after that one's."""
    outputs, (right, other, own) = torch.randn(3, 8, 6), torch.randn(3, 8, 6)
    order = ["inner", "outer", "norm"]

    def run(gradients: Sequence[torch.Tensor]) -> Tensors:
        """Outputs, each computed from the one before, and gradients as they are observed."""
        forward = [
            ({"role": "output", "module": name, "inputs": "1" * (name != "inner")}, x)
            for name, x in zip(order, outputs, strict=True)
        ]
        modules = ["norm", "inner", "outer"]
        observed = zip(modules, gradients, strict=True)
        return [*forward, *[({**BACKWARD, "module": name}, x) for name, x in observed]]

    ranks = [run([x, other + x, other + x]) for x in (own, right - own)]
    fault = compare(held_by_one(run([right, other, other])), on_ranks(*ranks)).fault
    assert fault is not None
    assert (fault.right["module"], fault.relation.kind) == ("norm", "missing")
