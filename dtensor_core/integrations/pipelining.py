"""Pipeline stages (`torch.distributed.pipelining`) that exchange DTensors.

Stages send the local tensor of a DTensor. Its layout is exchanged once, before the first
micro-batch, and makes it a DTensor again where it is received. torch does this for its own class;
the patches here make stages do it with ours, too, and find the mesh by themselves, for which torch
wants a callback `get_mesh`. What a stage sends is brought to the layout that was announced, and is
contiguous. Installed by the package, once.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial, wraps
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist

from dtensor_core.errors import MeshError
from dtensor_core.integrations.union_class import UnionClass
from dtensor_core.integrations.when_loaded import when_loaded
from dtensor_core.mesh import DeviceMesh
from dtensor_core.placement import Placement
from dtensor_core.redistribute.async_tensor import waited
from dtensor_core.tensor import DTensor, brought_to

_PACKAGE = "torch.distributed.pipelining"


def install() -> None:
    """Patch stages once the program has loaded them."""
    when_loaded(f"{_PACKAGE}.stage", patch)


def patch(stages: Any) -> None:
    """Make stages exchange DTensors of both classes."""
    utils: Any = sys.modules[f"{_PACKAGE}._utils"]
    either = _EitherStageTensor("DTensor", (), {"ours": DTensor, "theirs": utils.DTensor})
    local_of = _local_of(utils.to_local_if_dtensor)
    for module in (utils, stages):
        module.DTensor = either
        module.to_local_if_dtensor = local_of
    metadata = utils._DTensorMeta
    metadata.from_dtensor = staticmethod(_metadata_of(metadata.from_dtensor))
    base = stages._PipelineStageBase
    base.forward_maybe_with_nosync = _forward(base.forward_maybe_with_nosync)
    base.backward_maybe_with_nosync = _backward(base.backward_maybe_with_nosync)
    stages.PipelineStage.__init__ = _finding_meshes(stages.PipelineStage.__init__)


class _EitherStageTensor(UnionClass):
    """Metaclass for DTensors; `from_local` makes the class whose placements are given."""

    def from_local(cls, local: torch.Tensor, *, placements: Any, **how: Any) -> Any:
        ours = all(isinstance(each, Placement) for each in placements)
        return (cls.ours if ours else cls.theirs).from_local(local, placements=placements, **how)


def _local_of(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(original)
    def local_of(tensor: torch.Tensor, detach: bool = False) -> torch.Tensor:
        if not isinstance(tensor, DTensor):
            return original(tensor, detach)
        return waited(tensor._local_tensor).detach().contiguous()

    return local_of


def _metadata_of(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(original)
    def metadata_of(tensor: Any) -> Any:
        made = original(tensor)
        if not isinstance(tensor, DTensor):
            return made
        return replace(made, stride=torch.empty(made.shape, device="meta").stride())

    return metadata_of


def _forward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Bring the outputs of a micro-batch to the layouts that the next stage expects."""

    @wraps(original)
    def forward_maybe_with_nosync(stage: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(stage, *args, **kwargs)
        if stage.is_last:
            return output
        outputs = tuple(output) if isinstance(output, (tuple, list)) else (output,)
        sent = _as_announced(outputs, stage._stage_meta.outputs)
        return output if sent is outputs else sent

    return forward_maybe_with_nosync


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Bring the gradients of a micro-batch to the layouts that the stage before expects."""

    @wraps(original)
    def backward_maybe_with_nosync(stage: Any, *args: Any, **kwargs: Any) -> Any:
        grads, groups = original(stage, *args, **kwargs)
        if stage.is_first or not grads:
            return grads, groups
        return _as_announced(tuple(grads), stage._stage_meta.input_grads), groups

    return backward_maybe_with_nosync


def _as_announced(tensors: tuple[Any, ...], metas: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """Return the tensors in the layouts of their metadata; the same tuple if they already are.

    Gradients of keyword arguments, which follow the positional arguments', have no metadata.
    """
    places: list[Any] = [getattr(meta, "placements", None) for meta in metas or ()]
    pairs: list[Any] = list(zip_longest(tensors, places))
    if all(_is_placed(each, place) for each, place in pairs):
        return tensors
    return tuple(
        each if _is_placed(each, place) else brought_to(each, place) for each, place in pairs
    )


def _is_placed(tensor: Any, placements: tuple[Placement, ...] | None) -> bool:
    return not isinstance(tensor, DTensor) or placements in (None, tensor.placements)


def _finding_meshes(original: Callable[..., None]) -> Callable[..., None]:
    """Give a stage without `get_mesh` a callback that finds the meshes of this rank."""

    @wraps(original)
    def __init__(stage: Any, *args: Any, **kwargs: Any) -> None:
        original(stage, *args, **kwargs)
        if stage._mesh_cache._get_mesh_cb is None:
            stage._mesh_cache._get_mesh_cb = partial(mesh_like, stage.submod)

    return __init__


def mesh_like(module: torch.nn.Module, names: tuple[str, ...], layout: Any) -> DeviceMesh:
    """Return this rank's mesh of the given names and strides of ranks.

    The meshes of the module's DTensors come first, then all that the program holds.

    Raises:
        MeshError: There is none, or there are several of different ranks.
    """
    for meshes in (_meshes_of(module), _all_meshes()):
        fitting = {
            mesh
            for mesh in meshes
            if tuple(mesh.mesh_dim_names or ()) == names
            and mesh._layout == layout
            and mesh.get_coordinate() is not None
            and mesh._rank == dist.get_rank()
            and mesh._thread_id in (None, threading.get_ident())
        }
        if len(fitting) == 1:
            return fitting.pop()
        if fitting:
            break
    raise MeshError(
        f"the mesh of a DTensor that a pipeline stage receives: axes {names}, {layout}",
        found=f"{len(fitting)} such meshes that include this rank",
        why="a stage receives the layout of a DTensor, but the mesh consists of its own ranks",
        hint="pass get_mesh=lambda names, layout: mesh to PipelineStage",
    )


def _meshes_of(module: torch.nn.Module) -> Iterator[DeviceMesh]:
    for tensor in (*module.parameters(), *module.buffers()):
        mesh = getattr(tensor, "device_mesh", None)
        if mesh is not None:
            yield mesh


def _all_meshes() -> Iterable[DeviceMesh]:
    return [each for each in gc.get_objects() if type(each) is DeviceMesh]
