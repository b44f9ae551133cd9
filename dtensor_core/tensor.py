"""DTensor: a tensor of global shape, distributed over the ranks of a device mesh.

It holds `_local_tensor` and its interned `_spec`; operators on it go through `dispatch`. The
conversions from and to local tensors are autograd functions. The gradient of a conversion takes the
placements of the forward, with Partial read as Replicate, because every partial value receives the
full gradient. The file is long because the class and its conversions refer to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from textwrap import indent
from typing import Any

import torch
from torch.autograd import forward_ad

from dtensor_core import tensor_methods
from dtensor_core.dispatch import dispatcher, results
from dtensor_core.dispatch.special import autograd_zeros, composites, inplace, list_indexing
from dtensor_core.dispatch.special.materialized_views import LocalCopy, MaterializedView
from dtensor_core.errors import MixedTensorError, PlacementError, RedistributeError
from dtensor_core.gradients import gradient_placements, gradient_spec, gradient_target
from dtensor_core.mesh import DeviceMesh, axis_name, current_mesh, on_change
from dtensor_core.placement import Partial, Placement, Replicate, Shard, strided_shard
from dtensor_core.redistribute.async_tensor import Pending, waited
from dtensor_core.redistribute.execute import execute, execute_async, origin_of
from dtensor_core.redistribute.metadata_check import check_alike, check_parts, made_equal
from dtensor_core.redistribute.plan import Plan, plan_between
from dtensor_core.redistribute.transitions import gradient_placement
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.torch_internals.autograd import has_dual_level
from dtensor_core.torch_internals.tensors import no_torch_function
from dtensor_core.tracing import Node, outside_graphs, outside_transforms, untraced
from dtensor_core.validation import global_meta, normalize_placements

_TORCHS = ("torch.distributed.tensor", "DTensor")


class _Kind(type(torch.Tensor)):  # pyright: ignore[reportUntypedBaseClass]
    """Metaclass of DTensor, which makes it compare equal to torch's DTensor.

    torch's dispatch modes (its CommDebugMode, its memory tracker) test `cls == DTensor` to let a
    DTensor run first, so that they see the operators on its local tensors. This makes them do so
    with ours, and with the class of copied views, which has the name of DTensor.
    """

    def __eq__(cls, other: object) -> bool:
        if cls is other:
            return True
        name = getattr(other, "__module__", ""), getattr(other, "__name__", "")
        return name in (_TORCHS, (cls.__module__, cls.__name__))

    # A class that defines `__eq__` alone has no hash.
    __hash__ = type.__hash__


class DTensor(torch.Tensor, metaclass=_Kind):
    """A tensor distributed over the ranks of a device mesh.

    Shape, stride and dtype are global. Each rank holds `_local_tensor`, laid out as `placements`,
    one per mesh axis. Use `distribute_tensor`, `DTensor.from_local` or a factory, rather than
    calling the class.
    """

    _local_tensor: torch.Tensor
    _spec: Spec
    __slots__ = ("_local_tensor", "_spec")
    # The base of a view that had to be copied; set by `dispatch`.
    _copied: MaterializedView | LocalCopy | None = None
    # True for partial sums given by the user, which are not reduced in place.
    _given_partial_sums: bool = False
    # Set by `nn.Parameter`.
    _is_param = False

    __torch_function__ = no_torch_function

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing; `__new__` initialises the tensor."""

    @staticmethod
    def __new__(
        cls, local_tensor: torch.Tensor, spec: Spec, *, requires_grad: bool = False
    ) -> DTensor:
        """Wrap a local tensor with the layout of `spec`, without checks."""
        return results.from_first(cls, local_tensor, spec, requires_grad)

    @staticmethod
    @outside_transforms
    def from_local(
        local_tensor: torch.Tensor,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        grad_placements: Sequence[Placement] | None = None,
    ) -> DTensor:
        """Make a DTensor from the local tensors of all ranks, without a copy; differentiable.

        Args:
            local_tensor: This rank's local tensor, which the result aliases.
            device_mesh: The mesh; from the innermost `with mesh:` by default.
            placements: One placement per mesh axis; Replicate by default.
            run_check: Compare all ranks by communication. Dtypes, and without `shape` also local
                shapes, must be the same; replicated axes receive the data of their first rank.
            shape: The global shape. Without `shape` and `stride` all shards are assumed to be
                equal: a dim sharded over n ranks is n times as long.
            stride: The global stride; required with `shape`.
            grad_placements: The placements of the gradient (default: as `placements`, with Partial
                read as Replicate).

        Raises:
            PlacementError: The placements don't fit, `run_check` finds ranks that differ, or the
                local tensor is no part of `shape` (with `run_check` raised on every rank). A
                ValueError.
            RedistributeError: Only one of `shape` and `stride` is given.
            MixedTensorError: `local_tensor` is a DTensor.
        """
        mesh = current_mesh(device_mesh)
        if torch.compiler.is_dynamo_compiling():
            make = _from_checked if run_check else Node
            return make(  # pyright: ignore
                "from_local", local_tensor, mesh, placements,
                run_check=run_check, shape=shape, stride=stride, grad_placements=grad_placements,
            )  # fmt: skip
        if has_dual_level():
            dual = _dual(
                local_tensor,
                lambda part: DTensor.from_local(
                    part, mesh, placements, run_check=run_check, shape=shape, stride=stride
                ),
            )
            if dual is not None:
                return dual
        if isinstance(local_tensor, DTensor):
            raise MixedTensorError(
                "DTensor.from_local of a DTensor",
                found=local_tensor._spec.text,
                why="the local_tensor argument only accepts torch.Tensor: the local tensor of "
                "a rank",
                hint="redistribute it, or pass its to_local()",
            )
        normal = normalize_placements(placements, mesh, local_tensor.ndim)
        grads = _normal_or_none(grad_placements, mesh, local_tensor.ndim)
        if (shape is None) != (stride is None):
            raise RedistributeError(
                "DTensor.from_local with a global shape",
                found=f"shape={shape} and stride={stride}",
                why="shape and stride cannot be derived from each other",
                hint="Please pass both shape and stride at the same time. Or none",
            )
        if run_check and mesh.get_coordinate() is not None:
            check_alike(local_tensor, mesh, shape, stride)
        meta = global_meta(local_tensor, mesh, normal, shape, stride)
        spec = Spec(mesh, normal, meta)
        if spec.coords is None:
            needs_grad = local_tensor.requires_grad
            local_tensor = local_tensor.new_zeros(spec.local_shape, requires_grad=needs_grad)
        else:
            if shape is not None:
                check_parts(local_tensor, spec, of_all=run_check)
            if run_check:
                local_tensor = made_equal(local_tensor, mesh, normal)
        if torch.is_grad_enabled() and local_tensor.requires_grad:
            made = _FromLocal.apply(local_tensor, spec, grads)  # pyright: ignore
        else:
            made = results.from_first(DTensor, local_tensor.detach(), spec)
        if spec.sums:
            made._given_partial_sums = True
        return made

    @untraced
    def to_local(self, *, grad_placements: Sequence[Placement] | None = None) -> torch.Tensor:
        """Return the local tensor, without a copy; differentiable.

        `grad_placements` are the placements of the local tensor's gradient (default: this tensor's,
        with Partial read as Replicate). The local tensor of an `nn.Parameter` is a parameter too.
        """
        if has_dual_level():
            here = self._spec.placements
            dual = _dual(self, lambda part: brought_to(part, here).to_local())
            if dual is not None:
                return dual
        if torch.is_grad_enabled() and self.requires_grad:
            grads = _normal_or_none(grad_placements, self._spec.mesh, self.ndim)
            local: Any = _ToLocal.apply(self, grads)
        else:
            local = self._local_tensor
        if self._is_param:
            local = local.view_as(local)
            local._is_param = True
        return local

    @outside_transforms
    @untraced
    def redistribute(
        self,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        async_op: bool = False,
        forward_dtype: torch.dtype | None = None,
        backward_dtype: torch.dtype | None = None,
    ) -> DTensor:
        """Return the same tensor with other placements; differentiable.

        Args:
            device_mesh: If given, must be this tensor's mesh.
            placements: One placement per mesh axis.
            async_op: Return before the communication is complete, if possible.
            forward_dtype: Convert to this dtype before communicating.
            backward_dtype: Convert the gradient to this dtype before communicating.

        Raises:
            RedistributeError: The target is Partial where this tensor is not (a RuntimeError).
            PlacementError: The mesh is not this tensor's.
        """
        mesh = self._spec.mesh
        if device_mesh is not None and device_mesh != mesh:
            raise PlacementError(
                f"redistribute to {device_mesh}",
                found=f"a tensor on {mesh}",
                why="redistribution moves data within a mesh",
            )
        if placements is None:
            raise RedistributeError("placements is needed for redistribute: one per mesh axis")
        target = normalize_placements(placements, mesh, self.ndim)
        for axis, (before, after) in enumerate(zip(self._spec.placements, target, strict=True)):
            if isinstance(after, Partial) and before is not after:
                raise RedistributeError(
                    f"Can not redistribute from {before} to {after} on {axis_name(mesh, axis)}",
                    found=self._spec.text,
                    why="redistributing to Partial is for internal use only: partial sums have "
                    "no meaning of their own",
                    hint="redistribute to Replicate() or Shard(dim)",
                )
        if has_dual_level():
            to = forward_dtype
            dual = _dual(self, lambda part: brought_to(part if to is None else part.to(to), target))
            if dual is not None:
                return dual
        if forward_dtype is None and backward_dtype is None and not self.requires_grad:
            return _moved(self, target, "redistribute", async_op)
        return _Redistribute.apply(  # pyright: ignore[reportReturnType]
            self, target, forward_dtype, backward_dtype, async_op
        )

    @untraced
    def full_tensor(self, *, grad_placements: Sequence[Placement] | None = None) -> torch.Tensor:
        """Return the full tensor on every rank, as a plain tensor; differentiable."""
        # If the tensor is replicated already, nothing below would wait for it.
        self._local_tensor = waited(self._local_tensor)
        replicate = (Replicate(),) * self._spec.mesh.ndim
        return self.redistribute(placements=replicate).to_local(grad_placements=grad_placements)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh that this tensor is on."""
        return self._spec.mesh

    @property
    def placements(self) -> tuple[Placement, ...]:
        """One placement per mesh axis."""
        return self._spec.placements

    @property
    def data(self) -> DTensor:
        """The tensor outside of autograd; assign a DTensor to replace the data.

        Raises:
            MixedTensorError: A plain tensor is assigned.
        """
        return torch.Tensor.data.__get__(self)  # pyright: ignore

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if not isinstance(value, DTensor):
            raise MixedTensorError(
                f"the data of {self._spec.text} to be replaced",
                found=f"a plain tensor of shape {tuple(value.shape)}",
                why="the layout of a plain tensor on the mesh is unknown",
                hint="assign a DTensor, or use copy_, which accepts the full tensor",
            )
        torch.Tensor.data.__set__(self, value)  # pyright: ignore
        self._local_tensor, self._spec = value._local_tensor, value._spec

    @untraced
    def __repr__(self, *, tensor_contents: Any = None) -> str:  # pyright: ignore
        about: dict[str, Any] = {
            "shape": tuple(self.shape),
            "dtype": self.dtype,
            "placements": self._spec.placements,
            "device_mesh": self._spec.mesh,
        }
        if self.grad_fn is not None:
            about["grad_fn"] = f"<{type(self.grad_fn).__name__}>"
        elif self.requires_grad:
            about["requires_grad"] = True
        local = repr(self._local_tensor)
        if "\n" in local:
            about["local_shape"] = tuple(self._local_tensor.shape)
            local = "\n" + indent(local, "    ")
        about["local_tensor"] = local
        text = ", ".join(f"{name}={value}" for name, value in about.items())
        return f"Parameter containing:\nDTensor({text})" if self._is_param else f"DTensor({text})"

    def data_ptr(self) -> int:
        """Return 0, which marks a tensor without memory of its own when torch copies it."""
        return 0

    @untraced
    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        self._local_tensor = waited(self._local_tensor)
        return ["_local_tensor"], (self._spec, self.requires_grad, self.storage_offset())

    @staticmethod
    @untraced
    def __tensor_unflatten__(
        inner: Mapping[str, torch.Tensor], context: Any, shape: Any, stride: Any
    ) -> DTensor:
        spec, requires_grad, offset = context
        meta = TensorMeta(torch.Size(shape), tuple(stride), spec.dtype)
        return results.from_first(
            DTensor,
            inner["_local_tensor"],
            Spec(spec.mesh, spec.placements, meta),
            requires_grad,
            offset,
        )

    def _stable_hash_for_caching(self) -> str:
        """Refuse a cache key for compiled graphs on disk.

        The communication of a graph also depends on rules, costs, rewrites and this rank's
        coordinates.
        """
        raise RuntimeError("graphs of DTensors are compiled anew in each process")

    def __coerce_tangent_metadata__(self) -> DTensor:
        """Return this output in the layout of its gradient in a compiled backward.

        Partial becomes Replicate.
        """
        return self.redistribute(
            placements=[gradient_placement(placement) for placement in self.placements]
        )

    def __coerce_same_metadata_as_tangent__(
        self, expected: Any, expected_type: type | None = None
    ) -> DTensor | None:
        """Return this gradient as a compiled backward expects it; None if it can't be."""
        spec: Spec = expected[0]
        if expected_type is not None or self.device_mesh != spec.mesh:
            return None
        moved = self.redistribute(placements=spec.placements)
        local = moved._local_tensor.contiguous() if moved._spec is not spec else moved._local_tensor
        return DTensor(local, spec)


Node.functions["from_local"] = DTensor.from_local


@outside_graphs("from_local(run_check=True) compares the local tensors of all ranks")
def _from_checked(name: str, *args: Any, **kwargs: Any) -> DTensor:
    return Node.functions[name](*args, **kwargs)


dispatcher.install(DTensor, composites.install(DTensor))
autograd_zeros.install(DTensor)
inplace.install(DTensor)
list_indexing.install(DTensor)
tensor_methods.install(DTensor)
torch.serialization.add_safe_globals(
    [DTensor, Spec, TensorMeta, DeviceMesh, Shard, Replicate, Partial, strided_shard]
)


def _moved(
    tensor: DTensor, target: tuple[Placement, ...], operator: str, async_op: bool = False
) -> DTensor:
    """Redistribute a tensor outside of autograd; an unchanged layout aliases it."""
    goal, plan = _journey(tensor._spec, target)
    before = tensor._local_tensor
    run = execute_async if async_op else execute
    local = run(before, tensor._spec, plan, origin_of(operator))
    if local is before and local.requires_grad:
        local = local.detach()
    moved = results.from_first(DTensor, local, goal)
    if async_op and type(local) is Pending:
        local.owned_by(moved)
    return moved


def _normal_or_none(
    placements: Sequence[Placement] | None, mesh: DeviceMesh, ndim: int
) -> tuple[Placement, ...] | None:
    return None if placements is None else normalize_placements(placements, mesh, ndim)


def _moved_back(
    grad: DTensor, target: tuple[Placement, ...], operator: str, async_op: bool = False
) -> DTensor:
    """Redistribute a gradient, by an autograd function only if it is differentiated again."""
    if has_dual_level() or (torch.is_grad_enabled() and grad.requires_grad):
        return _Redistribute.apply(  # pyright: ignore[reportReturnType]
            grad, target, None, None, async_op, operator
        )
    return _moved(grad, target, operator, async_op)


def _dual(tensor: Any, crossing: Callable[[Any], Any]) -> Any:
    """Convert a dual number, or return None for any other; linear, so the tangent converts
    alike.
    """
    primal, tangent = forward_ad.unpack_dual(tensor)
    return None if tangent is None else forward_ad.make_dual(crossing(primal), crossing(tangent))


def brought_to(tensor: DTensor, target: tuple[Placement, ...]) -> DTensor:
    """Redistribute a primal or its tangent, whose layouts may differ, to the target placements."""
    if tensor._spec.placements == target:
        return tensor
    return _Redistribute.apply(tensor, target, None, None, False)  # pyright: ignore


@lru_cache(maxsize=16384)
def _journey(spec: Spec, target: tuple[Placement, ...]) -> tuple[Spec, Plan]:
    """Return the spec with other placements, and the plan that leads there."""
    goal = spec.with_placements(target)
    return goal, plan_between(spec, goal)


on_change(_journey.cache_clear)


class _FromLocal(torch.autograd.Function):
    """Conversion of a local tensor to a DTensor."""

    @staticmethod
    @untraced
    def forward(ctx: Any, local: torch.Tensor, spec: Spec, grads: Any) -> DTensor:  # pyright: ignore
        ctx.placements = grads or gradient_placements(spec.placements)
        ctx.is_leaf = local.is_leaf
        ctx.set_materialize_grads(False)  # they would be plain zeros
        return results.from_first(DTensor, local.detach(), spec)

    @staticmethod
    @untraced
    def backward(ctx: Any, grad: Any) -> Any:  # pyright: ignore
        if grad is None:
            return None, None, None
        if grad._spec.placements != ctx.placements:
            grad = _moved_back(grad, ctx.placements, "from_local.backward")
        local = grad.to_local()
        if ctx.is_leaf and not local.requires_grad:
            local = waited(local)  # it is kept as `.grad`
        return local, None, None


class _ToLocal(torch.autograd.Function):
    """Conversion of a DTensor to its local tensor."""

    @staticmethod
    @untraced
    def forward(ctx: Any, tensor: DTensor, grads: Any) -> torch.Tensor:  # pyright: ignore
        ctx.spec = spec = tensor._spec
        ctx.placements = grads or gradient_placements(spec.placements)
        # A view, since autograd attaches its node to what is returned, and the DTensor's own local
        # tensor stays outside of the graph.
        return tensor._local_tensor.view_as(tensor._local_tensor)

    @staticmethod
    @untraced
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # pyright: ignore
        goal = gradient_spec(ctx.spec, ctx.placements, grad.stride(), grad.dtype)
        if torch.is_grad_enabled() and grad.requires_grad:
            return _FromLocal.apply(grad, goal, None), None
        local = grad.detach() if grad.requires_grad else grad
        return results.from_first(DTensor, local, goal), None


class _Redistribute(torch.autograd.Function):
    """Redistribution of a DTensor to other placements."""

    @staticmethod
    @untraced
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        tensor: DTensor,
        target: tuple[Placement, ...],
        forward_dtype: torch.dtype | None,
        backward_dtype: torch.dtype | None,
        async_op: bool,
        operator: str = "redistribute",
    ) -> DTensor:
        ctx.placements = tensor._spec.placements
        ctx.dtype = tensor.dtype
        ctx.backward_dtype = backward_dtype
        ctx.async_op = async_op
        ctx.set_materialize_grads(False)  # they would be plain zeros
        if forward_dtype is not None:
            tensor = tensor.to(forward_dtype)  # pyright: ignore[reportAssignmentType]
        return _moved(tensor, target, operator, async_op)

    @staticmethod
    @untraced
    def backward(ctx: Any, grad: Any) -> Any:  # pyright: ignore
        if grad is None:
            return None, None, None, None, None, None
        if ctx.backward_dtype is not None:
            grad = grad.to(ctx.backward_dtype)
        target = gradient_target(ctx.placements, grad._spec.placements)
        moved = _moved_back(grad, target, "redistribute.backward", ctx.async_op)
        if moved.dtype is not ctx.dtype:
            moved = moved.to(ctx.dtype)
        return moved, None, None, None, None, None
