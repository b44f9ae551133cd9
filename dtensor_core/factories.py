"""Factories of DTensors over a mesh: `zeros`, `ones`, `empty`, `full`, `rand`, `randn`.

Sizes are global. Random values match a single device with the same seed, in any layout. Nothing is
communicated. The mesh defaults to the innermost `with mesh:`, and placements to Replicate on every
axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from dtensor_core.layout import contiguous_stride
from dtensor_core.mesh import DeviceMesh, current_mesh
from dtensor_core.placement import Placement, Replicate
from dtensor_core.redistribute.execute import execute, origin_of
from dtensor_core.redistribute.plan import plan_between
from dtensor_core.sharded_rng import draw
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.tensor import DTensor
from dtensor_core.tracing import as_node
from dtensor_core.validation import normalize_placements

__all__ = ["empty", "full", "ones", "rand", "randn", "zeros"]

Size = int | Sequence[int]


@as_node
def zeros(
    *size: Size,
    requires_grad: bool = False,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
) -> DTensor:
    """Return a DTensor of global shape `size` filled with zeros.

    Args:
        *size: The global shape, as `zeros(2, 3)` or `zeros((2, 3))`.
        requires_grad: True if autograd is to record operations on the result.
        dtype: The dtype; chosen as in torch if None.
        layout: The memory layout, as in torch.
        device_mesh: The mesh; from the enclosing `with mesh:` if None.
        placements: One placement per mesh axis; replicated if None.

    Raises:
        MeshError: No mesh was passed, and no `with mesh:` is active.
        PlacementError: The placements do not fit the shape or the mesh.
    """
    return _make(torch.zeros, size, dtype, layout, device_mesh, placements, requires_grad)


@as_node
def ones(
    *size: Size,
    requires_grad: bool = False,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
) -> DTensor:
    """Return a DTensor of global shape `size` filled with ones.

    Args:
        *size: The global shape, as `ones(2, 3)` or `ones((2, 3))`.
        requires_grad: True if autograd is to record operations on the result.
        dtype: The dtype; chosen as in torch if None.
        layout: The memory layout, as in torch.
        device_mesh: The mesh; from the enclosing `with mesh:` if None.
        placements: One placement per mesh axis; replicated if None.

    Raises:
        MeshError: No mesh was passed, and no `with mesh:` is active.
        PlacementError: The placements do not fit the shape or the mesh.
    """
    return _make(torch.ones, size, dtype, layout, device_mesh, placements, requires_grad)


@as_node
def empty(
    *size: Size,
    requires_grad: bool = False,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
) -> DTensor:
    """Return an uninitialized DTensor of global shape `size`.

    Args:
        *size: The global shape, as `empty(2, 3)` or `empty((2, 3))`.
        requires_grad: True if autograd is to record operations on the result.
        dtype: The dtype; chosen as in torch if None.
        layout: The memory layout, as in torch.
        device_mesh: The mesh; from the enclosing `with mesh:` if None.
        placements: One placement per mesh axis; replicated if None.

    Raises:
        MeshError: No mesh was passed, and no `with mesh:` is active.
        PlacementError: The placements do not fit the shape or the mesh.
    """
    return _make(torch.empty, size, dtype, layout, device_mesh, placements, requires_grad)


@as_node
def full(
    size: Size,
    fill_value: float | bool,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
) -> DTensor:
    """Return a DTensor of global shape `size` filled with `fill_value`.

    Args:
        size: The global shape.
        fill_value: The value of all elements.
        dtype: The dtype; chosen as in torch if None.
        layout: The memory layout, as in torch.
        requires_grad: True if autograd is to record operations on the result.
        device_mesh: The mesh; from the enclosing `with mesh:` if None.
        placements: One placement per mesh axis; replicated if None.

    Raises:
        MeshError: No mesh was passed, and no `with mesh:` is active.
        PlacementError: The placements do not fit the shape or the mesh.
    """
    fill = partial(torch.full, fill_value=fill_value)
    return _make(fill, (size,), dtype, layout, device_mesh, placements, requires_grad)


@as_node
def rand(
    *size: Size,
    requires_grad: bool = False,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    generator: torch.Generator | None = None,
) -> DTensor:
    """Return a DTensor of global shape `size`, drawn uniformly from [0, 1).

    Args:
        *size: The global shape, as `rand(2, 3)` or `rand((2, 3))`.
        requires_grad: True if autograd is to record operations on the result.
        dtype: The dtype; chosen as in torch if None.
        layout: The memory layout, as in torch.
        device_mesh: The mesh; from the enclosing `with mesh:` if None.
        placements: One placement per mesh axis; replicated if None.
        generator: The generator to draw from; the device's default generator if None.

    Raises:
        MeshError: No mesh was passed, and no `with mesh:` is active.
        PlacementError: The placements do not fit the shape or the mesh.
    """
    sampled = _Sampled(torch.Tensor.uniform_, 1, generator)
    return _make(sampled, size, dtype, layout, device_mesh, placements, requires_grad)


@as_node
def randn(
    *size: Size,
    requires_grad: bool = False,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    generator: torch.Generator | None = None,
) -> DTensor:
    """Return a DTensor of global shape `size`, drawn from the standard normal distribution.

    Args:
        *size: The global shape, as `randn(2, 3)` or `randn((2, 3))`.
        requires_grad: True if autograd is to record operations on the result.
        dtype: The dtype; chosen as in torch if None.
        layout: The memory layout, as in torch.
        device_mesh: The mesh; from the enclosing `with mesh:` if None.
        placements: One placement per mesh axis; replicated if None.
        generator: The generator to draw from; the device's default generator if None.

    Raises:
        MeshError: No mesh was passed, and no `with mesh:` is active.
        PlacementError: The placements do not fit the shape or the mesh.
    """
    sampled = _Sampled(torch.Tensor.normal_, 16, generator)
    return _make(sampled, size, dtype, layout, device_mesh, placements, requires_grad)


@dataclass(frozen=True, slots=True)
class _Sampled:
    """An in-place sampler with its grain (see `sharded_rng`) and generator."""

    sampler: Callable[..., torch.Tensor]
    grain: int
    generator: torch.Generator | None

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.sampler(tensor, generator=self.generator)


def _make(
    make: Callable[..., torch.Tensor] | _Sampled,
    size: Sequence[Size],
    dtype: torch.dtype | None,
    layout: torch.layout,
    device_mesh: DeviceMesh | None,
    placements: Sequence[Placement] | None,
    requires_grad: bool,
) -> DTensor:
    mesh = current_mesh(device_mesh)
    shape = _shape(size)
    normal = normalize_placements(placements, mesh, len(shape))
    expected = dtype or torch.get_default_dtype()
    goal = Spec(mesh, normal, TensorMeta(shape, contiguous_stride(shape), expected))
    # Partial values are made from a tensor that is replicated along their axes.
    before = goal.with_placements([Replicate() if p.is_partial() else p for p in normal])
    fill = torch.empty if isinstance(make, _Sampled) else make
    local = fill(before.local_shape, dtype=dtype, layout=layout, device=mesh.device_type)
    if isinstance(make, _Sampled) and before.coords is not None:
        local = draw(make, local, before, make.grain, make.generator)
    if local.dtype is not expected:
        meta = before.tensor_meta._replace(dtype=local.dtype)
        before, goal = Spec(mesh, before.placements, meta), Spec(mesh, normal, meta)
    local = execute(local, before, plan_between(before, goal), origin_of("factory"))
    return DTensor(local, goal, requires_grad=requires_grad)


def _shape(size: Sequence[Size]) -> torch.Size:
    """Return the shape, given as a sequence or as separate integers."""
    if len(size) == 1 and not isinstance(size[0], int):
        return torch.Size(size[0])
    return torch.Size([each for each in size if isinstance(each, int)])
