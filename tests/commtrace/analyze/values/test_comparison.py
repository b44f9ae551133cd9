"""ValueComparison of runs: the first wrong tensor, and its relation to the right tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from commtrace.analyze.values import agreement, compare, evidence, limits
from commtrace.errors import UsageError
from dtensor_core import Replicate, Shard
from tests.commtrace.analyze.rows import run_of
from tests.commtrace.analyze.values.rows import held_by_one, row, sharded

TP = {"tp": 4}


def some(num: int = 6, dtype: torch.dtype = torch.float32) -> list[tuple[dict[str, Any], Any]]:
    generator = torch.Generator().manual_seed(0)
    return [
        ({"module_class": "Linear"}, torch.randn(8, 12, generator=generator).to(dtype))
        for _ in range(num)
    ]


def with_changed(values: list[tuple[dict[str, Any], Any]], place: int, change: Any) -> Any:
    """Return the tensors, changed from a place on."""
    return [
        (columns, change(tensor) if number >= place else tensor)
        for number, (columns, tensor) in enumerate(values)
    ]


def test_equal_runs_agree_in_any_layout() -> None:
    found = compare(held_by_one(some()), sharded(some(), [Shard(1)], TP))
    assert found.agrees
    assert (found.num_paired, found.num_wrong, found.num_unknown) == (6, 0, 0)


def test_rounding_is_no_difference() -> None:
    rounded = [(columns, tensor * (1 + 3e-7)) for columns, tensor in some()]
    assert compare(held_by_one(some()), sharded(rounded, [Shard(0)], TP)).agrees


@pytest.mark.parametrize(
    ("kind", "change", "text"),
    [
        ("factor", lambda x: 2 * x, "it is 2 times what it should be"),
        ("factor", lambda x: 4 * x, "4 is the size of mesh axis tp, as if reduced over it once"),
        ("factor", lambda x: x / 4, "1/4 of what it should be: 4 is the size of mesh axis tp"),
        ("factor", lambda x: x * 1.01, "1.01 times"),
        ("factor", lambda x: -x, "it is -1 times"),
        ("zero", lambda x: 0 * x, "it is zero"),
        ("permuted", lambda x: x.roll(1, 0), "the same elements in other places"),
        ("permuted", lambda x: x.flip(1), "the same elements in other places"),
        ("other", lambda x: x + torch.randn(x.shape), "it differs by"),
        ("small", lambda x: x + 0.005 * torch.randn(x.shape), "more than by rounding"),
        ("non_finite", lambda x: x.masked_fill(x == x.max(), torch.inf), "1 elements are infinite"),
    ],
)  # fmt: skip
def test_the_relation_to_the_right_tensor_is_named(kind: str, change: Any, text: str) -> None:
    values = some()
    found = compare(held_by_one(values), sharded(with_changed(values, 2, change), [Shard(1)], TP))
    assert found.fault is not None
    assert found.fault.right["module"] == "layer2"
    assert found.fault.relation.kind == kind
    assert text in found.fault.relation.text
    assert found.num_wrong == 4
    assert found.fault.before is not None
    assert found.fault.before["module"] == "layer1"


def apart_by(distances: list[float], dtype: torch.dtype = torch.float32) -> Any:
    """Return two runs of tensors with these distances, relative to the norm."""
    values = some(len(distances), dtype)
    wrong = [
        (columns, tensor * (1 + distance))
        for (columns, tensor), distance in zip(values, distances, strict=True)
    ]
    return held_by_one(values), sharded(wrong, [Shard(0)], TP)


def test_differences_may_grow_as_far_as_all_before_them_were_accepted() -> None:
    growing = [3e-6, 9e-6, 3e-5, 9e-5]
    assert compare(*apart_by(growing)).agrees
    found = compare(*apart_by([3e-6, 0.5, *growing[1:]]))
    assert found.fault is not None
    assert found.fault.right["module"] == "layer1"
    assert found.pairs["is_wrong"].tolist() == [False, True, False, True, True]
    assert found.pairs["tolerance"].nunique() == 2
    assert (found.pairs["excess"] > 1).tolist() == found.pairs["is_wrong"].tolist()


def test_a_difference_of_unknown_layout_does_not_end_the_growth() -> None:
    left, right = apart_by([3e-6, 0.5, 9e-6, 3e-5])
    rows = right.fingerprints.astype({"placements": str})
    rows.loc[rows["id"] == 1, "placements"] = ""
    found = compare(left, replace(right, fingerprints=rows))
    assert found.pairs["is_wrong"].tolist() == [False, True, False, False]


def test_a_wrong_tensor_of_large_norm_does_not_hide_others() -> None:
    values = [({"role": "gradient", "name": str(place)}, x) for place, (_, x) in enumerate(some(3))]
    factors = (1e6, 1.001, 1.0)
    wrong = [(columns, x * factor) for (columns, x), factor in zip(values, factors, strict=True)]
    found = compare(held_by_one(values), sharded(wrong, [Shard(0)], TP))
    assert found.pairs["is_wrong"].tolist() == [True, True, False]


def test_a_value_of_an_earlier_step_is_named() -> None:
    first, second = torch.randn(4, 4), torch.randn(4, 4)
    columns = [{"module": "layer", "step": step} for step in (0, 1)]
    right = held_by_one(list(zip(columns, (first, second), strict=True)))
    wrong = sharded(list(zip(columns, (first, first), strict=True)), [Shard(0)], TP)
    found = compare(right, wrong).fault
    assert found is not None
    assert (found.relation.kind, found.relation.text) == ("stale", "it is the tensor of step 0")


@pytest.mark.parametrize(
    ("ranks", "text"), [((1,), "it is rank 1's part"), ((0, 1, 3), "it lacks rank 2's part")]
)
def test_contributions_that_were_lost_are_named(ranks: tuple[int, ...], text: str) -> None:
    contributions = [torch.randn(4, 4) for _ in range(4)]
    whole, lost = (
        torch.stack(contributions).sum(0),
        torch.stack([contributions[rank] for rank in ranks]).sum(0),
    )
    columns = [
        {"role": "result", "op": f"aten.{op}.default", "module": "m"} for op in ("mm", "add")
    ]
    right = held_by_one(list(zip(columns, (whole, whole), strict=True)))
    rows = [
        each._replace(mesh="tp=4:0,1,2,3")
        for rank, contribution in enumerate(contributions)
        for each in (
            row(rank, 0, columns[0], contribution, contribution)._replace(placements="P(sum)"),
            row(rank, 1, columns[1], lost, lost)._replace(placements="R"),
        )
    ]
    found = compare(right, run_of(num_ranks=4, fingerprints=rows)).fault
    assert found is not None
    assert found.relation.kind == "missing"
    assert text in found.relation.text


def test_operators_of_one_run_alone_are_passed_over() -> None:
    values = some(4)
    ops = [
        {"role": "result", "op": f"aten.op{number}.default", "module": "m"} for number in range(4)
    ]
    own = [(op, tensor) for op, (_, tensor) in zip(ops, values, strict=True)]
    more = [*own[:2], ({**ops[0], "op": "aten.clone.default"}, torch.ones(8, 12)), *own[2:]]
    found = compare(held_by_one(own), sharded(more, [Replicate()], TP))
    assert found.agrees
    assert found.num_paired == 4


def test_one_percent_is_seen_in_bfloat16_with_a_reference() -> None:
    exact = [(columns, tensor.double()) for columns, tensor in some(8)]
    rounded = [(columns, tensor.to(torch.bfloat16)) for columns, tensor in exact]
    again = [
        (columns, (tensor * (1 + 2e-3 * torch.randn_like(tensor))).to(torch.bfloat16))
        for columns, tensor in exact
    ]
    right, reference = held_by_one(rounded), held_by_one(exact)
    assert compare(right, sharded(again, [Shard(0)], TP), reference).agrees
    lost = with_changed(again, 5, lambda tensor: (tensor.double() * 0.95).to(torch.bfloat16))
    found = compare(right, sharded(lost, [Shard(0)], TP), reference)
    assert found.has_reference
    assert found.fault is not None
    assert found.fault.right["module"] == "layer5"


def test_what_is_left_of_numbers_that_cancel_is_no_difference() -> None:
    values = some(2)
    noise = torch.randn(8, 12) * 1e-9
    left = [*values, ({}, noise), *values]
    right = [*values, ({}, noise.flip(0)), *values]
    assert compare(held_by_one(left), sharded(right, [Shard(0)], TP)).agrees


def test_a_replica_that_is_wrong_on_another_rank_is_found() -> None:
    values = some(3)
    frames = sharded(values, [Replicate()], {"dp": 2})
    rows = frames.fingerprints.copy()
    rows.loc[(rows["rank"] == 1) & (rows["id"] >= 1), "sketch_0"] += 1.0
    found = compare(held_by_one(values), replace(frames, fingerprints=rows)).fault
    assert found is not None
    assert (found.right["module"], found.relation.kind) == ("layer1", "replica")
    assert "the replica on rank 1 differs" in found.relation.text


def test_data_of_ranks_is_paired_by_rank_whichever_is_earlier() -> None:
    columns = {"role": "input", "module": "m", "name": "0"}
    values = [torch.randn(4, 4) for _ in range(2)]

    def run(earlier: int) -> Any:
        rows = [row(rank, 0, columns, each, each) for rank, each in enumerate(values)]
        rows[earlier] = rows[earlier]._replace(at_ns=rows[earlier].at_ns - 500)
        return run_of(num_ranks=2, fingerprints=rows)

    assert compare(run(0), run(1)).agrees
    assert not compare(held_by_one([(columns, values[0] + 1)]), run(1)).agrees


@pytest.mark.parametrize("wrong_on", [0, 1, 2])
@pytest.mark.parametrize(
    ("columns", "is_certain"),
    [
        ({"role": "output", "module": "m"}, True),
        ({"role": "gradient", "name": "m.weight"}, True),
        ({"role": "result", "op": "aten.mul.Tensor", "module": "m"}, False),
    ],
    ids=["output", "gradient", "result"],
)
@pytest.mark.parametrize("left_ranks", [1, 3])
def test_a_tensor_of_unknown_layout_is_compared_on_each_rank(
    wrong_on: int, columns: dict[str, Any], is_certain: bool, left_ranks: int
) -> None:
    value = torch.randn(4, 4)

    def run(num_ranks: int, wrong_on: int) -> Any:
        rows = [
            row(rank, 0, {**columns, "step": 0}, each, each)
            for rank in range(num_ranks)
            for each in [3 * value if rank == wrong_on else value]
        ]
        return run_of(num_ranks=num_ranks, fingerprints=rows)

    assert compare(run(left_ranks, -1), run(3, -1)).agrees
    found = compare(run(left_ranks, -1), run(3, wrong_on)).fault
    assert found is not None
    right_on = 1 if wrong_on == 0 else 0
    on = f"it is right on rank {right_on}, but not on rank {wrong_on}"
    assert found.relation.text == f"{on}: it is 3 times what it should be"
    assert found.is_certain == is_certain


def test_a_result_is_wrong_for_certain_if_its_module_s_output_is() -> None:
    value = torch.randn(4, 4)
    result = {"role": "result", "op": "aten.mul.Tensor", "module": "m", "step": 0}
    output = {"role": "output", "module": "m", "step": 0}

    def run(num_ranks: int, wrong_on: int) -> Any:
        rows = [
            row(rank, number, columns, each, each)
            for rank in range(num_ranks)
            for each in [3 * value if rank == wrong_on else value]
            for number, columns in enumerate((result, output))
        ]
        return run_of(num_ranks=num_ranks, fingerprints=rows)

    found = compare(run(1, -1), run(2, 1)).fault
    assert found is not None
    assert (found.right["op"], found.is_certain) == ("aten.mul.Tensor", True)


@pytest.mark.parametrize(
    ("of_loss", "of_gradient", "expected"),
    [
        (0.5, 1.0, None),  # each rank adds its share
        (0.5, 0.5, "result"),
        (0.25, 1.0, "result"),
        (1.0, 0.5, "gradient"),
    ],
)
def test_a_loss_that_is_divided_by_the_number_of_ranks_is_no_difference_if_gradients_are_right(
    of_loss: float, of_gradient: float, expected: str | None
) -> None:
    value = torch.randn(4, 4)
    columns = {"step": 0}

    def run(num_ranks: int, *scales: float) -> Any:
        rows = [
            row(rank, number, {**columns, **own}, scale * value, scale * value)
            for rank in range(num_ranks)
            for number, (own, scale) in enumerate(
                [
                    ({"role": "result", "op": "aten.div.Tensor"}, scales[0]),
                    ({"role": "gradient", "name": "weight"}, scales[1]),
                ]
            )
        ]
        return run_of(num_ranks=num_ranks, fingerprints=rows)

    found = compare(run(1, 1, 1), run(2, of_loss, of_gradient)).fault
    assert (None if found is None else found.right["role"]) == expected
    if expected == "result" and of_loss == 0.5:
        assert found is not None
        assert "a program may scale by the number of ranks" in found.doubt


def test_outputs_of_inputs_of_each_rank_s_own_are_in_doubt() -> None:
    def run(*scales: float) -> Any:
        rows = [
            row(rank, number, {"role": role, "module": "m", "step": 0}, each, each)
            for rank, scale in enumerate(scales)
            for number, role in enumerate(("input", "output"))
            for each in [scale * torch.ones(4, 4).cumsum(0)]
        ]
        return run_of(num_ranks=len(scales), fingerprints=rows)

    found = compare(run(1), run(1, 2)).fault
    assert found is not None
    assert not found.is_certain


def test_parts_that_ranks_compute_in_another_order_are_no_difference() -> None:
    values = [torch.randn(4, 4) for _ in range(2)]
    columns = {"role": "output", "module": "m", "step": 0}

    def run(*orders: tuple[int, ...]) -> Any:
        rows = [
            row(rank, number, columns, values[each], values[each])
            for rank, order in enumerate(orders)
            for number, each in enumerate(order)
        ]
        return run_of(num_ranks=len(orders), fingerprints=rows)

    assert compare(run((0, 1)), run((0, 1), (1, 0))).agrees


def test_numbers_that_are_drawn_before_the_first_step_are_no_difference() -> None:
    drawn = {"role": "result", "op": "aten.uniform_.default", "step": -1}
    weight = {"role": "parameter", "name": "weight", "step": 0}
    value = torch.randn(4, 4)

    def run(seed: int, scale: float) -> Any:
        other = torch.rand(4, 4, generator=torch.Generator().manual_seed(seed))
        return held_by_one([(drawn, other), (weight, scale * value)])

    assert compare(run(0, 1), run(1, 1)).agrees
    found = compare(run(0, 1), run(1, 2)).fault
    assert found is not None
    assert found.right["name"] == "weight"


@pytest.mark.parametrize(("lost", "agrees"), [(0.0, True), (1.0, False)])
def test_results_of_unknown_layout_may_be_partial_sums(lost: float, agrees: bool) -> None:
    contributions = [torch.randn(4, 4) for _ in range(2)]
    columns = {"role": "result", "op": "aten.mm.default", "module": "m"}
    rows = [row(rank, 0, columns, each, each) for rank, each in enumerate(contributions)]
    right = held_by_one([(columns, contributions[0] + contributions[1] + lost)])
    found = compare(right, run_of(num_ranks=2, fingerprints=rows))
    assert found.agrees == agrees
    assert agrees or "its layout is unknown" in found.fault.doubt  # type: ignore[union-attr]


@pytest.mark.parametrize(("of_key", "agrees"), [(1e-9, True), (1.0, False)])
def test_a_parameter_without_influence_moves_by_rounding_errors(
    of_key: float, agrees: bool
) -> None:
    def run(seed: int) -> list[tuple[dict[str, Any], Any]]:
        noise = torch.randn(8, generator=torch.Generator().manual_seed(seed))
        key = {"module": "attention.k", "name": "attention.k.bias"}
        other = {"module": "attention.v", "name": "attention.v.bias"}
        ones = torch.ones(8)
        return [
            ({"role": "parameter", **key}, ones),
            ({"role": "gradient", **key}, of_key * noise),
            ({"role": "gradient", **other}, ones),
            ({"role": "updated", **key}, ones - 1e-3 * noise.sign()),
            ({"role": "updated", **other}, ones),
        ]

    assert compare(held_by_one(run(1)), sharded(run(2), [Replicate()], TP)).agrees == agrees


def test_parameters_without_influence_are_not_looked_for_after_a_fault() -> None:
    def run(seed: int, factor: float) -> list[tuple[dict[str, Any], Any]]:
        noise = 1e-9 * torch.randn(8, generator=torch.Generator().manual_seed(seed))
        names = {"module": "attention.k", "name": "attention.k.bias"}
        ones = torch.ones(8)
        return [
            ({"role": "parameter", **names}, ones),
            ({"role": "gradient", "name": "other"}, factor * ones),
            ({"role": "gradient", **names}, noise),
            ({"role": "updated", **names}, ones - 1e-2 * noise.sign()),
        ]

    right = held_by_one(run(1, 1.0))
    assert compare(right, sharded(run(2, 1.0), [Replicate()], TP)).agrees
    found = compare(right, sharded(run(2, 2.0), [Replicate()], TP))
    assert found.pairs["is_wrong"].tolist() == [False, True, False, True]


def test_a_choice_on_rounded_numbers_is_in_doubt() -> None:
    values = some(2)
    op = {"role": "result", "op": "aten.topk.default", "module": "m"}
    right = [*values, (op, torch.ones(4, 2)), ({"module": "n"}, torch.eye(4))]
    wrong = [*right[:3], ({"module": "n"}, torch.eye(4).roll(1, 0))]
    found = compare(held_by_one(right), sharded(wrong, [Replicate()], TP)).fault
    assert found is not None
    assert not found.is_certain
    assert "aten.topk.default decided before it" in found.doubt


def test_a_single_tensor_of_lower_precision_is_a_difference() -> None:
    values = some(20)
    lowered = with_changed(values, 19, lambda x: x.bfloat16())
    found = compare(held_by_one(values), sharded(lowered, [Replicate()], TP)).fault
    assert found is not None
    assert (found.right["module"], found.relation.kind) == ("layer19", "small")
    all_lowered = with_changed(values, 0, lambda x: x.bfloat16())
    assert compare(held_by_one(values), sharded(all_lowered, [Replicate()], TP)).agrees


def test_runs_without_values_are_refused() -> None:
    with pytest.raises(UsageError, match="found: no values") as raised:
        compare(held_by_one(some()), run_of())
    assert "--values" in str(raised.value)


def test_runs_of_different_programs_are_refused() -> None:
    other = [({"module": "elsewhere"}, torch.ones(3))]
    with pytest.raises(UsageError, match="no tensor of one has a counterpart") as raised:
        compare(held_by_one(some()), held_by_one(other))
    assert "modules elsewhere in steps 0 in the second\n" in str(raised.value)


def test_runs_without_a_step_in_common_are_refused() -> None:
    later = [({**columns, "step": step}, x) for step, (columns, x) in enumerate(some(3), 4)]
    with pytest.raises(UsageError, match="no step of one has a counterpart in the other") as raised:
        compare(held_by_one(some()), held_by_one(later))
    assert "steps 4 to 6 in the second\n" in str(raised.value)


def test_few_pairs_and_different_inputs_are_pointed_at() -> None:
    values = some(12)
    others = [({"module": f"other{place}"}, x) for place, (_, x) in enumerate(values[1:])]
    found = compare(held_by_one(values), held_by_one([(values[0][0], torch.ones(8, 12)), *others]))
    assert any("is it the same program?" in line for line in limits(found))
    assert not any("same program" in line for line in limits(compare(*apart_by([0.0] * 3))))
    assert found.fault is not None
    assert any(
        "are the inputs, seeds and weights the same?" in each for each in evidence(found.fault)
    )


def of_steps(*steps: int, dtype: torch.dtype = torch.float32) -> Any:
    values = some(3, dtype)
    return held_by_one([({**columns, "step": step}, x) for step in steps for columns, x in values])


@pytest.mark.parametrize(
    ("left", "right", "question"),
    [
        (of_steps(0, 1), of_steps(0, 1), ""),
        (of_steps(0, 1, 2), of_steps(0), "steps 1 to 2 are missing in the second run"),
        (of_steps(1), of_steps(1, 2), "step 2 is missing in the first run"),
        (*[of_steps(0, dtype=torch.bfloat16)] * 2, ""),
        (*apart_by([0.05] * 4, torch.bfloat16), "rounding may explain 0.25 of the norm"),
    ],
    ids=["equal", "died", "shorter", "bfloat16", "bfloat16 with large errors"],
)
def test_runs_of_which_too_little_was_compared_are_not_said_to_agree(
    left: Any, right: Any, question: str
) -> None:
    found = compare(left, right)
    assert found.agrees
    assert found.is_conclusive == (not question)
    assert agreement(found).startswith("undecided: nothing differs in" if question else "the runs")
    assert question in agreement(found)


def test_a_rank_that_did_not_close_its_recording_leaves_a_question() -> None:
    run = of_steps(0)
    found = compare(run, replace(run, ranks=run.ranks.assign(complete=False)))
    assert agreement(found).endswith("rank 0 of the second run did not close the recording")


def test_missing_ranks_make_pairs_unknown_not_wrong() -> None:
    frames = sharded(some(), [Shard(0)], TP)
    rows = frames.fingerprints
    found = compare(held_by_one(some()), replace(frames, fingerprints=rows[rows["rank"] != 2]))
    assert found.agrees
    assert found.num_unknown == 6


def test_runs_of_which_nothing_is_comparable_are_not_said_to_agree() -> None:
    columns = {"role": "output", "module": "m"}
    rows = [
        row(rank, 0, columns, x, x)._replace(mesh="data=2:0,1")
        for rank, x in enumerate(torch.randn(2, 4, 4))
    ]
    found = compare(
        held_by_one([(columns, torch.ones(4, 4))]), run_of(num_ranks=2, fingerprints=rows)
    )
    assert found.agrees
    assert not found.is_conclusive


def test_what_is_before_the_first_step_leaves_no_question() -> None:
    before = {"role": "result", "op": "aten.rand.default", "step": -1}
    value = {"role": "output", "module": "m", "step": 0}
    tensors = [(before, torch.rand(4)), (value, torch.rand(4))]
    assert compare(held_by_one(tensors[1:]), held_by_one(tensors)).is_conclusive


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_no_dtype_any_tensor_is_a_multiple_of_another(dtype: torch.dtype) -> None:
    columns = {"role": "output", "module": "m", "step": 0}
    value = torch.randn(16, 16).to(dtype)
    right = [row(rank, 0, columns, 3 * value, 3 * value) for rank in range(2)]
    found = compare(held_by_one([(columns, value)]), run_of(num_ranks=2, fingerprints=right))
    assert found.fault is not None
    assert found.fault.is_certain
