"""Gradients that are constructed as sums of some ranks' own gradients are told to be these sums."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd
import pytest
import torch

from commtrace.analyze.gradients import gradients, summary
from tests.commtrace.analyze.rows import call, group, run_of
from tests.commtrace.analyze.values.rows import row

SHAPE = (6, 5)


class Run:
    """Fingerprints of ranks, in order of time."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.rows: list[Any] = []
        self._ids = [0] * num_ranks

    def add(self, rank: int, role: str, tensor: torch.Tensor, name: str = "w") -> None:
        """Add a tensor of a rank."""
        columns = {"role": role, "name": name, "step": 0}
        self.rows.append(row(rank, self._ids[rank], columns, tensor, tensor))
        self._ids[rank] += 1

    def table(self, *, module: str | None = None) -> pd.DataFrame:
        """Return table `gradients` of a run whose ranks communicate in a module, if any."""
        ranks = tuple(range(self.num_ranks))
        calls = [call(rank=rank, module=module) for rank in ranks if module]
        groups = [group("g", ranks)]
        num_ranks = self.num_ranks
        return gradients(run_of(calls, num_ranks=num_ranks, fingerprints=self.rows, groups=groups))


@pytest.mark.parametrize("seed", range(30))
def test_a_sum_is_told_with_its_ranks_and_its_factor(seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    num_ranks = chance.randint(2, 6)
    # Ranks of one class computed the same; those of one set hold replicas.
    classes = [chance.randrange(num_ranks) for _ in range(num_ranks)]
    sets = [chance.randrange(2) for _ in range(num_ranks)]
    values = {number: torch.randn(SHAPE) for number in set(sets)}
    contributions = {key: torch.randn(SHAPE) for key in set(zip(sets, classes, strict=True))}
    factor = chance.choice((1.0, 0.5, 1 / 3, 2.0, -1.0))
    run = Run(num_ranks)
    for rank in range(num_ranks):
        own = {key: each for key, each in contributions.items() if key[0] == sets[rank]}
        total = torch.stack(list(own.values())).sum(0)
        run.add(rank, "parameter", values[sets[rank]])
        run.add(rank, "local_gradient", contributions[sets[rank], classes[rank]])
        run.add(rank, "gradient", total * factor)
    table = run.table().set_index("ranks")
    assert len(table) == len(values)
    for number in values:
        ranks = [rank for rank in range(num_ranks) if sets[rank] == number]
        found = table.loc[",".join(map(str, ranks))]
        num_contributions = len({classes[rank] for rank in ranks})
        assert (found["num_contributions"], found["num_reduced"]) == (
            num_contributions,
            num_contributions,
        )
        assert found["scale"] == pytest.approx(factor, rel=1e-4)
        assert found["replicated_on"] == ",".join(map(str, ranks))


def _with_zeros(gradients_: list[torch.Tensor], reduced: list[torch.Tensor], name: str) -> Run:
    run = Run(len(reduced))
    for rank, (own, result) in enumerate(zip(gradients_, reduced, strict=True)):
        torch.manual_seed(rank)
        run.add(rank, "parameter", torch.randn(SHAPE), "layer.weight")
        run.add(rank, "parameter", torch.zeros(SHAPE), name)
        run.add(rank, "local_gradient", own, name)
        run.add(rank, "gradient", result, name)
    return run


def test_a_bias_of_zeros_may_be_a_shard_like_the_weight_of_its_module() -> None:
    own = [torch.randn(SHAPE) for _ in range(2)]
    table = _with_zeros(own, own, "layer.bias").table()
    assert set(table["state"]) == {"right"}
    # Stages of a pipeline have layers of the same names.
    found = _with_zeros(own, own, "norm.bias")
    for module, is_fault in ((None, False), ("layer", True)):
        table = found.table(module=module)
        assert set(table["state"]) == {"missing"}
        assert (table["is_fault"] == is_fault).all()


def test_ranks_with_a_parameter_in_common_hold_constants_alike() -> None:
    own = [torch.randn(SHAPE) for _ in range(2)]
    run = _with_zeros(own, own, "norm.bias")
    table_of = torch.randn(SHAPE)
    for rank in range(2):
        run.add(rank, "parameter", table_of, "table")
    assert run.table()["is_fault"].all()


@pytest.mark.parametrize(("factor", "num_reduced"), [(1.0, 4), (0.25, 4), (None, 1)])
def test_the_factor_of_a_single_number_tells_which_ranks_are_in_it(
    factor: float | None, num_reduced: int
) -> None:
    own = [torch.tensor([number]) for number in (1.0, -3.0, 7.0, 2.5)]
    run = Run(4)
    for rank in range(4):
        run.add(rank, "parameter", torch.ones(1))
        run.add(rank, "local_gradient", own[rank])
    for rank in range(4):
        run.add(rank, "gradient", own[rank] if factor is None else sum(own) * factor)
    assert set(run.table()["num_reduced"]) == {num_reduced}


def test_gradients_whose_contributions_are_not_known_are_unknown() -> None:
    run = Run(2)
    for rank in range(2):
        run.add(rank, "gradient", torch.ones(SHAPE))
    (found,) = run.table().to_dict("records")
    assert (found["state"], found["num_contributions"], found["num_reduced"]) == ("unknown", -1, -1)
    assert not found["is_fault"]
    assert found["scale"] != found["scale"]


def test_a_gradient_that_is_no_sum_is_unknown() -> None:
    run = Run(2)
    for rank in range(2):
        run.add(rank, "parameter", torch.ones(SHAPE))
        run.add(rank, "local_gradient", torch.randn(SHAPE))
    reduced = torch.randn(SHAPE)
    for rank in range(2):
        run.add(rank, "gradient", reduced)
    (found,) = run.table().to_dict("records")
    assert (found["state"], found["is_fault"]) == ("unknown", False)
    assert "no multiple" in found["explanation"]


def test_what_is_reduced_alike_is_one_line() -> None:
    run = Run(2)
    own = [torch.randn(SHAPE) for _ in range(2)]
    for name in ("a", "b", "c", "d"):
        for rank in range(2):
            run.add(rank, "parameter", torch.ones(SHAPE), name)
            run.add(rank, "local_gradient", own[rank], name)
    for name in ("a", "b", "c", "d"):
        for rank in range(2):
            run.add(rank, "gradient", own[rank] if name == "d" else own[0] + own[1], name)
    lines = summary(run.table())
    assert [line.state for line in lines] == ["missing", "missing", "right"]
    assert [line.is_fault for line in lines] == [True, True, False]
    assert lines[-1].text == (
        "3 gradients, step 0: the sum over tp (ranks 0, 1) of 2 contributions, factor 1 (a, b, c)"
    )


def test_a_gradient_of_zeros_is_said_to_be_zero() -> None:
    run = Run(2)
    for rank in range(2):
        run.add(rank, "parameter", torch.ones(SHAPE))
        run.add(rank, "local_gradient", torch.zeros(SHAPE))
    for rank in range(2):
        run.add(rank, "gradient", torch.zeros(SHAPE))
    (line,) = summary(run.table())
    assert (line.state, line.text) == ("right", "1 gradient, step 0: it is zero (w)")


def test_a_gradient_that_has_those_of_others_says_so() -> None:
    run = Run(2)
    own = [torch.randn(SHAPE) for _ in range(2)]
    for rank in range(2):
        run.add(rank, "parameter", torch.randn(SHAPE))
        run.add(rank, "local_gradient", own[rank])
    for rank in range(2):
        run.add(rank, "gradient", own[0] + own[1])
    for line in summary(run.table()):
        assert line.state == "mixed"
        assert "hold other elements of the parameter" in line.text
