"""A letter that all operands have sharded is sharded in the result, or summed."""

from __future__ import annotations

import itertools

import pytest
import torch

from dtensor_core import Partial, Replicate, Shard
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

EQUATIONS = (
    "ij,jk->ik",
    "ij,kj->ikj",
    "ij,ij->",
    "ij->ji",
    "ij->i",
    "i,j->ij",
    "bij,bjk->bik",
    "bhqd,bhkd->bhqk",
    "bqhd,bkhd->bhqk",
    "bhqk,bkhd->bqhd",
    "bld,dhk->blhk",
    "blhk,hkd->bld",
    "tec,td->ecd",
    "ecd,edf->ecf",
    "ij,jk,kl->il",
)
SIZES = dict(zip("abcdefhijklqt", (4, 4, 8, 4, 8, 8, 4, 8, 4, 12, 4, 8, 4), strict=True))


def _operands(equation: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(equation))
    return [
        torch.randn([SIZES[c] for c in term], generator=generator, dtype=torch.float64)
        for term in equation.split("->")[0].split(",")
    ]


def _placement(term: str, letter: str, absent: Replicate | Partial) -> Shard | Replicate | Partial:
    return Shard(term.index(letter)) if letter in term else absent


@pytest.mark.parametrize("equation", EQUATIONS)
def test_every_letter_may_be_sharded_and_nothing_is_sent(equation: str) -> None:
    left, result = equation.split("->")
    terms = left.split(",")
    tensors = _operands(equation)
    wanted = torch.einsum(equation, *tensors)

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        for letter in sorted(set(left) - {","}):
            given = [
                laid_out(tensor, mesh, [_placement(term, letter, Replicate())])
                for term, tensor in zip(terms, tensors, strict=True)
            ]
            with Collectives() as issued:
                found = torch.einsum(equation, *given)
            assert issued == {}, letter
            assert found.placements == (_placement(result, letter, Partial()),), letter  # pyright: ignore
            torch.testing.assert_close(found.full_tensor(), wanted)  # pyright: ignore

    body()


@pytest.mark.parametrize(
    "equation", ["bhqd,bhkd->bhqk", "bhqk,bkhd->bqhd", "bld,dhk->blhk", "ij,jk->ik"]
)
def test_two_letters_may_be_sharded_by_two_axes(equation: str) -> None:
    left, result = equation.split("->")
    terms = left.split(",")
    tensors = _operands(equation)
    wanted = torch.einsum(equation, *tensors)

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((2, 2))
        for pair in itertools.permutations(sorted(set(left) - {","}), 2):
            given = [
                laid_out(tensor, mesh, [_placement(term, each, Replicate()) for each in pair])
                for term, tensor in zip(terms, tensors, strict=True)
            ]
            with Collectives() as issued:
                found = torch.einsum(equation, *given)
            assert issued == {}, pair
            assert found.placements == tuple(_placement(result, each, Partial()) for each in pair)  # pyright: ignore
            torch.testing.assert_close(found.full_tensor(), wanted)  # pyright: ignore

    body()


def test_an_ellipsis_stands_for_dims_that_may_be_sharded() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        generator = torch.Generator().manual_seed(0)
        x, y = (torch.randn(s, generator=generator) for s in ((4, 3, 5), (4, 5, 2)))
        with Collectives() as issued:
            found = torch.einsum(
                "...ij,...jk->...ik", *(laid_out(each, mesh, [Shard(0)]) for each in (x, y))
            )
        assert issued == {}
        assert found.placements == (Shard(0),)  # pyright: ignore
        torch.testing.assert_close(found.full_tensor(), x @ y)  # pyright: ignore

    body()


@pytest.mark.parametrize("equation", ["bhqd,bhkd->bhqk", "ij,jk->ik", "blhk,hkd->bld"])
def test_uneven_letters_give_what_one_device_gives(equation: str) -> None:
    left, _ = equation.split("->")
    terms = left.split(",")
    sizes = dict(zip(sorted(set(left) - {","}), (5, 3, 2, 7, 6), strict=False))
    generator = torch.Generator().manual_seed(1)
    tensors = [
        torch.randn([sizes[c] for c in term], generator=generator, dtype=torch.float64)
        for term in terms
    ]
    for letter in sizes:
        layouts = [[_placement(term, letter, Replicate())] for term in terms]
        given = [tensor.clone().requires_grad_() for tensor in tensors]
        assert_agrees(lambda *t: torch.einsum(equation, *t), given, layouts)
