"""Matrix operators that solve or compare row by row or column by column send nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dtensor_core import Replicate, Shard
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

R = Replicate()


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _matrices(*batch: int) -> torch.Tensor:
    return _t(*batch, 3, 3) + 4 * torch.eye(3, dtype=torch.float64)


def _definite(*batch: int) -> torch.Tensor:
    root = _matrices(*batch)
    return root @ root.mT


# The call, its arguments, their placements, and the placement of the result.
FREE: dict[str, tuple[Callable[..., Any], list[torch.Tensor], list[Any], Any]] = {
    "batches of inv": (torch.linalg.inv, [_matrices(4)], [Shard(0)], Shard(0)),
    "batches of eigvalsh": (torch.linalg.eigvalsh, [_definite(4)], [Shard(0)], Shard(0)),
    "columns of solve": (torch.linalg.solve, [_matrices(), _t(3, 4)], [R, Shard(1)], Shard(1)),
    "batches of solve": (
        torch.linalg.solve, [_matrices(4), _t(4, 3, 2)], [Shard(0), Shard(0)], Shard(0),
    ),
    "vectors of solve": (
        torch.linalg.solve, [_matrices(4), _t(4, 3)], [Shard(0), Shard(0)], Shard(0),
    ),
    "rows of solve": (
        lambda a, b: torch.linalg.solve(a, b, left=False),
        [_matrices(), _t(4, 3)], [R, Shard(0)], Shard(0),
    ),
    "columns for all of a batch": (
        torch.linalg.solve, [_matrices(2), _t(3, 4)], [R, Shard(1)], Shard(2),
    ),
    "columns of solve_triangular": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
        [_matrices().triu(), _t(3, 4)], [R, Shard(1)], Shard(1),
    ),
    "columns of cholesky_solve": (
        torch.cholesky_solve,
        [_t(3, 4), torch.linalg.cholesky(_definite())], [Shard(1), R], Shard(1),
    ),
    "rows of cdist": (torch.cdist, [_t(4, 3), _t(5, 3)], [Shard(0), R], Shard(0)),
    "other rows of cdist": (torch.cdist, [_t(4, 3), _t(5, 3)], [R, Shard(0)], Shard(1)),
    "rows of cross": (torch.linalg.cross, [_t(4, 3), _t(4, 3)], [Shard(0), Shard(0)], Shard(0)),
}  # fmt: skip


@pytest.mark.parametrize("name", FREE)
def test_what_is_independent_may_be_sharded_and_nothing_is_sent(name: str) -> None:
    call, tensors, layouts, result = FREE[name]

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        given = [laid_out(t, mesh, [p]) for t, p in zip(tensors, layouts, strict=True)]
        with Collectives() as issued:
            found = call(*given)
        assert found.placements == (result,)
        # All ranks agree on whether any matrix is singular.
        assert sum(issued.counts.values()) <= ("batches" in name or "vectors" in name)
        torch.testing.assert_close(found.full_tensor(), call(*tensors))

    body()


@pytest.mark.parametrize("name", FREE)
def test_gradients_are_those_of_one_device(name: str) -> None:
    call, tensors, layouts, _ = FREE[name]
    given = [each.clone().requires_grad_() for each in tensors]
    assert_agrees(call, given, [[layout] for layout in layouts])


SOUGHT: dict[str, tuple[Callable[..., Any], str]] = {
    "searchsorted": (torch.searchsorted, "sum"),
    "bucketize": (lambda line, x: torch.bucketize(x, line, right=True), "sum"),
    "isin": (lambda line, x: torch.isin(x, line), "max"),
    "not isin": (lambda line, x: torch.isin(x, line, invert=True), "min"),
}


@pytest.mark.parametrize("name", SOUGHT)
def test_every_shard_of_a_sorted_sequence_counts_its_own_elements(name: str) -> None:
    call, reduce_op = SOUGHT[name]
    line, x = _t(7).sort().values, torch.cat([_t(7)[:2], _t(3)])

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        for line_at, x_at in ((Shard(0), R), (R, Shard(0))):
            with Collectives() as issued:
                found = call(laid_out(line, mesh, [line_at]), laid_out(x, mesh, [x_at]))
            assert issued == {}
            if x_at is R:
                assert found.placements[0].is_partial(reduce_op)
            else:
                assert found.placements == (Shard(0),)
            assert found.full_tensor().tolist() == call(line, x).tolist()

    body()


def test_a_histogram_within_bounds_counts_local_elements() -> None:
    @on_threads(4)
    def body() -> None:
        x = laid_out(_t(5, 3), kept_mesh((4,)), [Shard(0)])
        with Collectives() as issued:
            counts = x.histc(4, -1, 1)
        assert issued == {}
        assert counts.placements[0].is_partial("sum")  # pyright: ignore
        assert counts.full_tensor().tolist() == _t(5, 3).histc(4, -1, 1).tolist()  # pyright: ignore
        assert x.histc(4).full_tensor().tolist() == _t(5, 3).histc(4).tolist()  # pyright: ignore

    body()


def test_what_kernels_conjugate_within_is_conjugated() -> None:
    """torch ignores lazy conjugation within `__torch_dispatch__`."""
    matrices = torch.complex(_matrices(4), _t(4, 3, 3))
    assert_agrees(torch.linalg.pinv, [matrices], [[R]])
    solved = lambda a, b: torch.linalg.lstsq(a, b, driver="gelss").solution  # noqa: E731
    assert_agrees(solved, [matrices, matrices + 1], [[R], [R]])


@pytest.mark.parametrize("name", ["baddbmm", "addbmm"])
def test_ranks_without_a_part_of_a_sum_of_integers_scale_by_fractions_as_others(name: str) -> None:
    """Kernels truncate such factors to integers; kernels of empty sums refuse them."""
    call: Any = getattr(torch, name)
    added, left, right = (
        torch.arange(n).reshape(s) for n, s in ((4, (2, 2)), (12, (3, 2, 2)), (12, (3, 2, 2)))
    )
    added = added.expand(3, 2, 2).clone() if name == "baddbmm" else added
    for sharding in (Shard(0), Shard(2)):
        assert_agrees(
            lambda *x: call(*x, beta=1.6, alpha=2.5), [added, left, right], [[R], [sharding], [R]]
        )


MAKING_CONSTANTS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "householder_product": (torch.linalg.householder_product, [_t(5, 4), _t(3)]),
    "ormqr": (torch.ormqr, [_t(5, 2), _t(2), _t(5, 2)]),
    "as_strided_copy": (lambda x: torch.as_strided_copy(x, (2, 3), (4, 2)), [_t(4, 4)]),
}


@pytest.mark.parametrize("name", MAKING_CONSTANTS)
def test_what_formulas_of_gradients_make_of_sizes_is_replicated(name: str) -> None:
    call, tensors = MAKING_CONSTANTS[name]
    given = [each.clone().requires_grad_() for each in tensors]
    assert_agrees(call, given, [[R] for _ in given])
