"""What `torch.distributed.checkpoint` needs to know of DTensors: which pieces a rank holds, where.

A rank's local tensor is written as boxes: the product, over the dimensions, of the extents that it
holds. That is one box, but for strided shards, and none where nothing is held. Any boxes can be
read back into any others, so a checkpoint moves between meshes, placements, and torch's DTensor.

The helpers of `torch.distributed.checkpoint.state_dict` tell DTensors by torch's class; once they
are loaded, the names that they use for that know ours too. Installed by the package, once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dtensor_core.api import distribute_tensor
from dtensor_core.errors import PlacementError, four_parts
from dtensor_core.integrations.when_loaded import when_loaded
from dtensor_core.placement import Placement
from dtensor_core.spec import Spec
from dtensor_core.tensor import DTensor

_HELPERS = "torch.distributed._state_dict_utils"


@dataclass(frozen=True, slots=True)
class Box:
    """A piece of the whole tensor, and where the local tensor has it."""

    offsets: torch.Size
    sizes: torch.Size
    local_offsets: tuple[int, ...]


def boxes(spec: Spec) -> list[Box]:
    """The boxes that this rank holds; an empty tensor is one empty box on every rank.

    Raises PlacementError (a ValueError) for a tensor that is Partial.
    """
    if spec.sums:
        raise PlacementError(
            four_parts(
                asked=f"a checkpoint of {spec.text}",
                found="addends along an axis",
                why="Any checkpointing related operations are not supported for DTensor with "
                "partial placements!",
                hint="redistribute to Replicate() or Shard(dim) first",
            )
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
    """The extents of a dimension that this rank holds, and where each starts locally."""
    start = 0
    for extent in spec.held(dim):
        yield extent, start
        start += extent.size


def write_items(self: DTensor, fqn: str, tensor: DTensor) -> list[Any]:
    """What this rank writes of a tensor stored as `fqn`; replicas are dropped by the planner."""
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
    """The pieces of the whole tensor that this rank holds."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return [ChunkStorageMetadata(box.offsets, box.sizes) for box in boxes(self._spec)]


def tensor_shard(self: DTensor, index: Any) -> torch.Tensor:
    """The view of the local tensor with the piece at `index.offset`."""
    part = self._local_tensor
    if 0 in self._spec.shape:
        return part.new_empty(self._spec.shape)
    for box in boxes(self._spec):
        if index.offset is None or box.offsets == index.offset:
            for dim, (start, size) in enumerate(zip(box.local_offsets, box.sizes, strict=True)):
                part = part.narrow(dim, start, size)
            return part
    raise PlacementError(
        four_parts(
            asked=f"the piece of {index.fqn} at {tuple(index.offset)}",
            found=f"{self._spec.text}, of which this rank holds {boxes(self._spec)}",
        )
    )


def install() -> None:
    """Let DTensors answer the checkpoint's questions, and its helpers know DTensors."""
    for name, method in (
        ("__create_write_items__", write_items),
        ("__create_chunk_list__", chunk_list),
        ("__get_tensor_shard__", tensor_shard),
    ):
        setattr(DTensor, name, method)
    when_loaded(_HELPERS, teach)


def teach(helpers: Any) -> None:
    """Let a module that knows torch's DTensor treat ours alike, where it asks for the class.

    It distributes a whole tensor like one that it has, in two ways: each must make our class of
    ours.
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


def _filled(tensor: DTensor, whole: torch.Tensor) -> DTensor:
    """The tensor with this rank's part of `whole`: itself, unless it has no storage yet."""
    part = tensor._spec.part_of(whole)
    if tensor.is_meta:
        return DTensor(part.detach().clone(), tensor._spec)
    tensor._local_tensor.copy_(part)
    return tensor
