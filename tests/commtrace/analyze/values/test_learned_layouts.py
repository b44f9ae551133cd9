"""Layouts and names that a comparison learns from values, and what flow of data shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from commtrace.analyze import Frames
from commtrace.analyze.values import ValueComparison, compare
from commtrace.event import FingerprintRow
from tests.commtrace.analyze.rows import run_of
from tests.commtrace.analyze.values.rows import Tensors, held_by_one, on_ranks, row

OUTPUT = {"role": "output", "module": "m"}
RESULT = {"role": "result", "op": "aten.mul.Tensor", "module": ""}


def value(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (8, 12)))


def halves(tensor: torch.Tensor, dim: int = 0) -> Sequence[torch.Tensor]:
    return [each.contiguous() for each in tensor.chunk(2, dim)]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_parts_are_compared_by_their_sums_and_norms(dim: int, is_reversed: bool) -> None:
    whole = value()
    parts = halves(whole, dim)[:: -1 if is_reversed else 1]
    assert compare(held_by_one([(OUTPUT, whole)]), on_ranks(*[[(OUTPUT, x)] for x in parts])).agrees


@pytest.mark.parametrize(
    ("columns", "is_certain"),
    [(OUTPUT, False), ({"role": "parameter", "name": "m.weight", "module": "m"}, True)],
)
def test_a_part_twice_is_a_difference(columns: dict[str, Any], is_certain: bool) -> None:
    whole = value()
    first, _ = halves(whole)
    found = compare(
        held_by_one([(columns, whole)]), on_ranks([(columns, first)], [(columns, first)])
    ).fault
    assert found is not None
    assert found.right["layout"] == "in parts on ranks"
    assert found.is_certain == is_certain


def test_micro_batches_of_ranks_are_parts_of_the_batch_together() -> None:
    batch = value(8, 4)
    calls = [{**OUTPUT, "module_call": call} for call in range(2)]
    left = held_by_one(list(zip(calls, batch.chunk(2), strict=True)))
    ranks = [list(zip(calls, half.chunk(2), strict=True)) for half in batch.chunk(2)]
    assert compare(left, on_ranks(*ranks)).agrees


def test_sums_over_different_numbers_of_ranks_are_equal() -> None:
    whole = value()

    def parts(number: int) -> Frames:
        some = [value() for _ in range(number - 1)]
        return on_ranks(*[[(RESULT, x)] for x in (*some, whole - sum(some))])

    assert compare(parts(2), parts(4)).agrees


def stages(scale: float, name: str = "0") -> ValueComparison:
    """Compare two layers with a pipeline that numbers its layers from 0."""
    weights = [value(4, 4) for _ in range(2)]

    def of(layer: str, weight: torch.Tensor, factor: float = 1.0) -> Tensors:
        columns = {"name": f"{layer}.weight", "module": layer}
        return [
            ({**columns, "role": "parameter"}, weight),
            ({**columns, "role": "gradient"}, factor * weight.sin()),
        ]

    left = held_by_one([*of("0", weights[0]), *of("1", weights[1])])
    return compare(left, on_ranks(of("0", weights[0]), of(name, weights[1], scale)))


@pytest.mark.parametrize("name", ["0", "stage.0"])
def test_a_stage_may_number_its_layers_from_zero(name: str) -> None:
    found = stages(1.0, name)
    assert found.agrees, found.fault
    assert set(found.pairs["name"]) == {"0.weight", "1.weight"}
    fault = stages(2.0, name).fault
    assert fault is not None
    assert (fault.right["name"], fault.relation.kind) == ("1.weight", "factor")
    assert fault.is_certain


def test_a_layer_that_two_ranks_have_keeps_its_name() -> None:
    weights = [value(4, 4) for _ in range(2)]
    names = [{"role": "parameter", "name": f"{n}.weight", "module": f"{n}"} for n in range(2)]
    left = held_by_one(list(zip(names, weights, strict=True)))
    wrong = list(zip(names, [weights[1], weights[1]], strict=True))
    fault = compare(left, on_ranks(list(zip(names, weights, strict=True)), wrong)).fault
    assert fault is not None
    assert fault.right["name"] == "0.weight"
    assert fault.relation.text.startswith("it is right on rank 0, but not on rank 1")


@pytest.mark.parametrize("is_first", [False, True])
def test_a_gradient_that_one_run_does_not_have_is_a_difference(is_first: bool) -> None:
    names = ["a", "b"]
    weights = [({"role": "parameter", "name": name, "module": ""}, value(4)) for name in names]
    gradients = [({"role": "gradient", "name": name, "module": ""}, value(4)) for name in names]
    runs = [held_by_one([*weights, *gradients]), held_by_one([*weights, gradients[0]])]
    fault = compare(*(runs[::-1] if is_first else runs)).fault
    assert fault is not None
    assert (fault.right["name"], fault.relation.kind) == ("b", "absent")
    assert fault.relation.text == f"the {'first' if is_first else 'second'} run has none"


@pytest.mark.parametrize(("own", "agrees"), [("range", True), ("a", False)])
def test_a_gradient_is_not_absent_if_the_optimizer_has_other_tensors(
    own: str, *, agrees: bool
) -> None:
    weights = [({"role": "parameter", "name": name, "module": ""}, value(4)) for name in "ab"]
    gradients = [({"role": "gradient", "name": name, "module": ""}, value(4)) for name in "ab"]
    computed = [({**columns, "role": "local_gradient"}, each) for columns, each in gradients]
    of_optimizer = ({"role": "gradient", "name": own, "module": ""}, gradients[0][1])
    found = compare(
        held_by_one([*weights, *computed, *gradients]),
        held_by_one([*weights, *computed, of_optimizer]),
    )
    assert found.agrees == agrees, found.fault


@pytest.mark.parametrize(
    ("inputs", "agrees"), [("1", True), ("", False)], ids=["computed from it", "unrelated"]
)
def test_only_what_was_computed_from_a_tensor_shows_that_it_is_right(
    inputs: str, agrees: bool
) -> None:
    part, after, other = value(), value(), value()
    first = {"role": "output", "module": "a"}
    left = held_by_one([({**first, "inputs": "1"}, part), (OUTPUT, after), (RESULT, other)])
    ranks = [
        [
            ({**first, "module": "before"}, other),
            ({**first, "inputs": "1"}, part * scale),
            ({**OUTPUT, "inputs": inputs}, after),
            *[(RESULT | {"source_line": line}, other) for line in range(6)],
        ]
        for scale in (3.0, 0.25)
    ]
    found = compare(left, on_ranks(*ranks))
    assert found.agrees == agrees
    if found.fault is not None:
        assert (found.fault.right["module"], found.fault.is_certain) == ("a", False)


def test_a_sum_that_other_layers_have_reduced_is_wrong() -> None:
    values = [value() for _ in range(3)]
    layers = [{"role": "output", "module": f"layers.{n}", "module_class": "Mlp"} for n in range(3)]
    left = held_by_one(list(zip(layers, values, strict=True)))
    addends = value()
    ranks = [
        list(zip(layers, [values[0], part, values[2]], strict=True))
        for part in (addends, values[1] - addends)
    ]
    fault = compare(left, on_ranks(*ranks)).fault
    assert fault is not None
    assert (fault.right["module"], fault.is_certain) == ("layers.1", True)
    assert (
        fault.relation.text == "ranks have parts of a sum that is right, and nothing reduces them"
    )


def test_replicas_that_a_step_leaves_different_are_wrong_in_any_precision() -> None:
    weight = value(8, 8).bfloat16().float()
    columns = {"name": "m.weight", "module": "m", "dtype": "bfloat16"}
    start = ({**columns, "role": "parameter"}, weight)
    step = {**columns, "role": "updated"}

    def run(*values: torch.Tensor) -> Frames:
        rows = [
            row(
                rank,
                number,
                {"step": 0, "role": own["role"], "name": own["name"], "module": "m"},
                x,
                x,
            )
            for rank, each in enumerate(values)
            for number, (own, x) in enumerate([start, (step, each)])
        ]
        return run_of(
            num_ranks=len(values), fingerprints=[r._replace(dtype="bfloat16") for r in rows]
        )

    assert compare(run(weight), run(weight * 1.001, weight * 1.001)).agrees
    fault = compare(run(weight), run(weight * 1.001, weight * 1.002)).fault
    assert fault is not None
    assert (fault.right["role"], fault.is_certain) == ("updated", True)


@pytest.mark.parametrize(
    ("direction", "agrees"), [("none", True), ("step", False), ("parameter", False)]
)
def test_an_adaptive_optimizer_scatters_rounding(direction: str, agrees: bool) -> None:
    weight, step, other = value(16, 16), 0.01 * value(16, 16), 0.004 * value(16, 16)
    apart = {"none": other, "step": 0.5 * step, "parameter": 0.001 * weight}[direction]

    def run(updated: torch.Tensor) -> Frames:
        names = {"name": "m.weight", "module": "m"}
        return held_by_one(
            [
                ({**names, "role": "parameter"}, weight),
                ({**names, "role": "gradient"}, step),
                ({**names, "role": "updated"}, updated),
                ({**names, "role": "state", "name": "m.weight.exp_avg_sq"}, step**2),
            ]
        )

    found = compare(run(weight - step), run(weight - step + apart))
    assert found.agrees == agrees, found.fault


def test_gradients_explain_a_norm_that_was_computed_from_them() -> None:
    gradients = [value(8) for _ in range(5)]
    norm = {"role": "named", "name": "grad_norm", "phase": "other", "module": ""}

    def run(wrong: float, clip: float, number: float) -> Frames:
        own = [x * (wrong if place == 3 else 1) * clip for place, x in enumerate(gradients)]
        names = [{"role": "gradient", "name": f"p{n}", "phase": "optimizer"} for n in range(5)]
        return held_by_one([(norm, torch.tensor([number])), *zip(names, own, strict=True)])

    fault = compare(run(1, 0.5, 2.0), run(3, 0.25, 4.0)).fault
    assert fault is not None
    assert fault.right["name"] == "p3"
    fault = compare(run(1, 0.5, 2.0), run(1, 0.25, 4.0)).fault
    assert fault is not None
    assert fault.right["name"] == "grad_norm"


def test_replicas_that_part_in_both_runs_do_so_by_design() -> None:
    """Workers of local SGD have weights of their own until they are averaged."""
    weight, steps = value(8, 8), [value(8, 8) for _ in range(2)]
    columns = {"name": "m.weight", "module": "m"}

    def run(scale: float) -> Frames:
        return on_ranks(
            *[
                [
                    ({**columns, "role": "parameter"}, weight),
                    ({**columns, "role": "updated"}, weight + scale * own),
                ]
                for own in steps
            ]
        )

    assert compare(run(0.1), run(0.1)).agrees
    assert not compare(run(0.1), run(0.2)).agrees


@pytest.mark.parametrize(
    ("apart", "is_cleared"), [(0.0, True), (0.04, False)], ids=["equal", "within tolerance"]
)
def test_in_coarse_dtypes_only_a_close_tensor_shows_that_others_are_right(
    apart: float, is_cleared: bool
) -> None:
    part, after = value(), value()
    first = {"role": "output", "module": "a"}

    def run(tensors: Sequence[Tensors]) -> Frames:
        made = on_ranks(*tensors) if len(tensors) > 1 else held_by_one(tensors[0])
        coarse = made.fingerprints.assign(dtype="bfloat16")
        return run_of(
            num_ranks=len(tensors),
            fingerprints=[FingerprintRow(**each) for each in coarse.to_dict("records")],
        )

    left = run([[({**first, "inputs": "1"}, part), (OUTPUT, after)]])
    ranks = [
        [
            ({**first, "inputs": ""}, part * scale),
            ({**OUTPUT, "inputs": "1"}, after * (1 + apart)),
        ]
        for scale in (3.0, 0.25)
    ]
    assert compare(left, run(ranks)).agrees == is_cleared


@pytest.mark.parametrize("step", [-1, 0])
def test_parameters_before_any_activation_are_compared_whatever_their_step(step: int) -> None:
    weight, other = value(4, 4), value(4, 4)
    columns = {"name": "m.weight", "module": "m", "role": "parameter"}

    def run(step: int, parameter: torch.Tensor) -> Frames:
        return held_by_one([({**columns, "step": step}, parameter), (OUTPUT, other)])

    assert compare(run(-1, weight), run(step, weight)).num_paired == 2
    fault = compare(run(-1, weight), run(step, other)).fault
    assert fault is not None
    assert fault.right["role"] == "parameter"
