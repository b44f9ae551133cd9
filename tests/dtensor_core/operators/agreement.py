"""Run a function on plain tensors and on DTensors of given layouts, and compare the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtensor_core import DTensor, Partial, Placement, Replicate, distribute_tensor
from dtensor_core.testing.threads import kept_mesh, run_threads

# Factors of partial sums over four ranks: of both signs, and not equal.
_SHARES = (2.0, -1.5, 0.75, -0.25)


def laid_out(tensor: torch.Tensor, mesh: Any, placements: Sequence[Placement]) -> DTensor:
    """Distribute a tensor; along a Partial(sum) axis the ranks hold different partial sums."""
    replicated = [Replicate() if isinstance(p, Partial) else p for p in placements]
    made = distribute_tensor(tensor.detach().clone(), mesh, replicated, src_data_rank=None)
    local = made.to_local()
    for axis, placement in enumerate(placements):
        if isinstance(placement, Partial):
            local = local * _SHARES[mesh.get_local_rank(axis)]
    made = DTensor.from_local(local, mesh, placements, shape=tensor.shape, stride=tensor.stride())
    return made.requires_grad_(tensor.requires_grad)


def assert_agrees(
    function: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    layouts: Sequence[Sequence[Placement]],
    *,
    mesh_shape: tuple[int, ...] = (4,),
    tolerance: float = 1e-6,
) -> None:
    """Assert that results and gradients on every rank match a single device.

    Args:
        layouts: The placements of every tensor.
    """
    given = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    results = _several(function(*given))
    expected = [result.detach() for result in results]
    expected += _gradients(results, given)

    def body() -> None:
        mesh = kept_mesh(mesh_shape)
        mine = [laid_out(t, mesh, p) for t, p in zip(tensors, layouts, strict=True)]
        results = _several(function(*mine))
        found = [_full(result).detach() for result in results]
        found += [_full(gradient) for gradient in _gradients(results, mine)]
        for got, wanted in zip(found, expected, strict=True):
            assert got.shape == wanted.shape
            torch.testing.assert_close(
                got, wanted, atol=tolerance / 100, rtol=tolerance, equal_nan=True
            )

    run_threads(body, torch.Size(mesh_shape).numel())


def _several(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _full(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _gradients(results: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Gradients of a sum of all results, weighted so that gradients differ between elements."""
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    used = [result for result in results if result.requires_grad]
    if not wanted or not used:
        return []
    total = sum((result.sin() if result.is_floating_point() else result).sum() for result in used)
    gradients = torch.autograd.grad(total, wanted, allow_unused=True)  # pyright: ignore
    return [torch.zeros(()) if each is None else each for each in gradients]
