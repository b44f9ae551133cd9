"""Consistency check of local tensors: the communication of `from_local(run_check=True)`.

Every rank receives the metadata of all others, so all decide alike. Afterwards replicated axes take
the data of their first rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core import collectives, observe
from dtensor_core.errors import PlacementError, four_parts
from dtensor_core.mesh import DeviceMesh, channel
from dtensor_core.placement import Placement
from dtensor_core.redistribute.distribute import broadcast, reason_of_transfer
from dtensor_core.spec import Spec
from dtensor_core.torch_internals.tensors import FakeTensor


def check_parts(local: torch.Tensor, spec: Spec, *, of_all: bool) -> None:
    """Raise PlacementError if a local tensor does not have the shape that the spec implies.

    Checks this rank's tensor only, or with `of_all` every rank's, in which case every rank raises.
    Only then does it communicate.
    """
    found = _misfit(local, spec)
    if of_all and not isinstance(local, FakeTensor):
        texts = _gather_texts(found, spec.mesh, "from_local")
        numbered = zip(spec.mesh.mesh.flatten().tolist(), texts, strict=True)
        found = "; ".join(f"{text} on rank {rank}" for rank, text in numbered if text)
    if found:
        raise PlacementError(
            four_parts(
                summary=f"DTensor.from_local with shape={tuple(spec.shape)} as {spec.text}",
                found=found,
                why="the local tensors of all ranks must be the torch.chunk shards of the same "
                "tensor",
                hint="pass the shape of the full tensor; omit shape and stride if all shards are "
                "equal",
            )
        )


def _misfit(local: torch.Tensor, spec: Spec) -> str:
    """Return a text with the actual and the expected local shape; empty if equal or symbolic."""
    held, wanted = tuple(local.shape), spec.local_shape
    if any(type(size) is not int for size in (*held, *wanted)) or held == wanted:
        return ""
    return f"a local tensor of shape {list(held)} where {list(wanted)} is held"


def check_alike(
    local: torch.Tensor,
    mesh: DeviceMesh,
    shape: Sequence[int] | None,
    stride: Sequence[int] | None,
) -> None:
    """Raise PlacementError on every rank unless all local tensors have the same metadata.

    Compares the global shape and stride if given, otherwise the local shape and stride. Fake
    tensors pass, since the metadata of other ranks is not available.
    """
    if isinstance(local, FakeTensor):
        return
    mine = f"{local.dtype}, requires_grad={local.requires_grad}"
    if shape is None or stride is None:
        mine += f", shape {list(local.shape)}, stride {list(local.stride())}"
    else:
        mine += f", {local.ndim} dims of the global shape {list(shape)}, stride {list(stride)}"
    texts = _gather_texts(mine, mesh, "from_local")
    ranks: dict[str, list[int]] = {}
    for rank, text in zip(mesh.mesh.flatten().tolist(), texts, strict=True):
        ranks.setdefault(text, []).append(rank)
    if len(ranks) > 1:
        raise PlacementError(
            four_parts(
                summary="DTensor.from_local(run_check=True)",
                found="Inconsistent tensor metadata across ranks: "
                + "; ".join(f"{text} on ranks {where}" for text, where in ranks.items()),
                why="the local tensors of all ranks must be shards of the same tensor",
                hint="use equal metadata on all ranks; for uneven shards pass shape and stride",
            )
        )


def made_equal(
    local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]
) -> torch.Tensor:
    """Return the local tensor with the first rank's data along replicated axes; differentiable."""
    equal = local.detach()
    for axis, placement in enumerate(placements):
        if placement.is_replicate() and mesh.size(axis) > 1:
            equal = broadcast(equal, mesh, axis, 0, "from_local")
    if torch.is_grad_enabled() and local.requires_grad:
        return _Received.apply(local, equal)  # pyright: ignore
    return equal


class _Received(torch.autograd.Function):
    """Autograd function that replaces a tensor's data; the gradient passes through."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, data: torch.Tensor) -> torch.Tensor:  # pyright: ignore
        return data.view_as(data)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # pyright: ignore
        return grad, None


def _gather_texts(text: str, mesh: DeviceMesh, operator: str) -> list[str]:
    """Gather a text of at most 256 bytes from every rank of the mesh, in rank order."""
    # The length is fixed, since ranks whose metadata differ could not agree on one.
    encoded_text = torch.zeros(256, dtype=torch.uint8)
    encoded = text.encode()[:256]
    encoded_text[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
    gathered = encoded_text.to(mesh.device_type)
    for axis in reversed(range(mesh.ndim)):
        if mesh.size(axis) > 1:
            line = channel(mesh, (axis,))
            ranks = mesh.size(axis)
            with observe.announced(
                reason_of_transfer(operator, "all_gather", mesh, axis, gathered)
            ):
                arrived = collectives.wait(collectives.all_gather(gathered, ranks, line.name))
            numbers = sorted(range(ranks), key=line.coords.__getitem__)
            gathered = arrived.view(ranks, -1)[numbers].flatten()
    rows = gathered.view(-1, 256).tolist()
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]
