"""Support for `torch.distributed.checkpoint`: the pieces that a rank holds, and their positions.

A rank's local tensor is written as boxes: products, over the dimensions, of the extents that it
holds. This is a single box, except for strided shards, and none if the shard is empty. Boxes can be
read back into any other boxes, so a checkpoint can move between meshes, placements, and torch's
DTensor.

The helpers in `torch.distributed.checkpoint.state_dict` test for torch's DTensor class. Once they
are loaded, the names they use for it are patched to accept ours too. Installed by the package,
once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dtensor_core.api import distribute_tensor
from dtensor_core.errors import PlacementError
from dtensor_core.integrations.when_loaded import when_loaded
from dtensor_core.placement import Placement
from dtensor_core.spec import Spec
from dtensor_core.tensor import DTensor

_HELPERS = "torch.distributed._state_dict_utils"


@dataclass(frozen=True, slots=True)
class Box:
    """A piece of the full tensor, and its position in the local tensor."""

    offsets: torch.Size
    sizes: torch.Size
    local_offsets: tuple[int, ...]


def boxes(spec: Spec) -> list[Box]:
    """Return the boxes that this rank holds; an empty tensor is a single empty box on every rank.

    Raises:
        PlacementError: The tensor is Partial (a ValueError).
    """
    if spec.sums:
        raise PlacementError(
            f"a checkpoint of {spec.text}",
            found="partial sums along an axis",
            why="Any checkpointing related operations are not supported for DTensor with "
            "partial placements!",
            hint="redistribute to Replicate() or Shard(dim) first",
        )
    if spec.coords is None:
        return []
    if 0 in spec.shape:
        origin = (0,) * spec.ndim
        return [Box(torch.Size(origin), spec.shape, origin)]
    return [
        Box(
            torch.Size(extent.offset for extent, _ in piece),
            torch.Size(extent.size for extent, _ in piece),
            tuple(start for _, start in piece),
        )
        for piece in itertools.product(*(_located(spec, dim) for dim in range(spec.ndim)))
        if math.prod(extent.size for extent, _ in piece)
    ]


def _located(spec: Spec, dim: int) -> Iterator[Any]:
    """Yield the extents of a dimension that this rank holds, each with its local start."""
    start = 0
    for extent in spec.extents(dim):
        yield extent, start
        start += extent.size


def write_items(self: DTensor, fqn: str, tensor: DTensor) -> list[Any]:
    """Return this rank's write items of a tensor stored as `fqn`; the planner drops replicas."""
    # Imported at the call, so that programs without checkpoints don't load the package.
    from torch.distributed.checkpoint import metadata, planner

    properties = metadata.TensorProperties.create_from_tensor(tensor._local_tensor)
    return [
        planner.WriteItem(
            index=metadata.MetadataIndex(fqn, chunk.offsets),
            type=planner.WriteItemType.SHARD,
            tensor_data=planner.TensorWriteData(
                chunk=chunk, properties=properties, size=tensor._spec.shape
            ),
        )
        for chunk in chunk_list(tensor)
    ]


def chunk_list(self: DTensor) -> list[Any]:
    """Return the pieces of the full tensor that this rank holds."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return [ChunkStorageMetadata(box.offsets, box.sizes) for box in boxes(self._spec)]


def tensor_shard(self: DTensor, index: Any) -> torch.Tensor:
    """Return a view of the local tensor with the piece at `index.offset`."""
    part = self._local_tensor
    if 0 in self._spec.shape:
        return part.new_empty(self._spec.shape)
    for box in boxes(self._spec):
        if index.offset is None or box.offsets == index.offset:
            for dim, (start, size) in enumerate(zip(box.local_offsets, box.sizes, strict=True)):
                part = part.narrow(dim, start, size)
            return part
    raise PlacementError(
        f"the piece of {index.fqn} at {tuple(index.offset)}",
        found=f"{self._spec.text}; this rank holds {boxes(self._spec)}",
    )


def install() -> None:
    """Add the checkpoint protocol to DTensors, and patch the checkpoint's helpers."""
    for name, method in (
        ("__create_write_items__", write_items),
        ("__create_chunk_list__", chunk_list),
        ("__get_tensor_shard__", tensor_shard),
    ):
        setattr(DTensor, name, method)
    when_loaded(_HELPERS, patch)


def patch(helpers: Any) -> None:
    """Patch a module so that it treats our DTensors like torch's.

    It distributes full tensors like a given DTensor in two ways; both must make our class for ours.
    """
    theirs, distribute, distribute_all = (
        helpers.DTensor,
        helpers.distribute_tensor,
        helpers._distribute_tensors,
    )

    class OfEither(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, (theirs, DTensor))

        def __getattr__(cls, name: str) -> Any:
            return getattr(theirs, name)

    def distribute_either(tensor: torch.Tensor, mesh: Any, placements: Any, **how: Any) -> Any:
        ours = all(isinstance(placement, Placement) for placement in placements)
        return (distribute_tensor if ours else distribute)(tensor, mesh, placements, **how)

    def distribute_all_either(
        local_state: dict[str, Any], keys: list[str], device: Any, pg: Any = None
    ) -> None:
        for key in keys:
            pair = local_state.get(key)
            if isinstance(pair, tuple) and isinstance(pair[0], DTensor):
                local_state[key] = _filled(*pair)
        distribute_all(local_state, keys, device, pg)

    helpers.DTensor = OfEither("DTensor", (), {})
    helpers.distribute_tensor = distribute_either
    helpers._distribute_tensors = distribute_all_either


def _filled(tensor: DTensor, full: torch.Tensor) -> DTensor:
    """Write this rank's part of `full` into the tensor, or a new tensor if it has no storage."""
    part = tensor._spec.part_of(full)
    if tensor.is_meta:
        return DTensor(part.detach().clone(), tensor._spec)
    tensor._local_tensor.copy_(part)
    return tensor
