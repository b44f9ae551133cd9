"""The only module that issues communication: a function per collective, on plain local tensors.

Each takes the contiguous local tensor and the name of a group, and returns at once; `wait` returns
the result. Sizes are in elements along dim 0, ranks in the order of the group. Called by
`redistribute` alone. All run below autograd: a redistribution defines its gradient, and a
functional operator skips its Python autograd kernel there.

There are three ways to issue a collective. The functional operators of c10d are used if anything
observes the call, since traces and dispatch modes know these. Otherwise the group is called
directly, which takes a quarter of the time. If a recorder is notified of the call
(`observe.issuer`), the group's backend is called, since the recorder has all it could observe on
the way there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from dtensor_core import observe
from dtensor_core.compiled_agreement import compare_compilations
from dtensor_core.torch_internals.compilation import (
    current_transform,
    never_merge,
    traced_in_place,
)
from dtensor_core.torch_internals.dispatcher import (
    below_autograd,
    dispatch_mode_at,
    num_dispatch_modes,
)
from dtensor_core.torch_internals.groups import AllgatherOptions, functional_ops, resolve_group

Issued = torch.Tensor | tuple[torch.Tensor, dist.Work]
"""The result of a pending collective, with its handle if it was issued by the group directly."""


# One entry per context in force, since lists change atomically. Not per thread: other threads then
# issue functional operators too, which is slower but correct.
_functional: list[None] = []


@contextmanager
def functional() -> Iterator[None]:
    """Issue functional operators while the body runs; their results may be passed on unwaited."""
    _functional.append(None)
    try:
        yield
    finally:
        _functional.pop()


def _direct_group(local: torch.Tensor, name: str) -> Any:
    """Return the group, or None if the functional operator is needed.

    It is needed if a mode or a transform is active, for tensors without data, for complex numbers
    (which groups send as pairs), and for groups written in Python, which have their own methods.
    """
    if (
        _functional
        or _is_observed()
        or type(local) is not torch.Tensor
        or local.is_meta
        or local.is_complex()
        or current_transform() is not None
    ):
        return None
    group = resolve_group(name)  # pyright: ignore[reportArgumentType]
    return group if type(group) is dist.ProcessGroup else None


def _is_observed() -> bool:
    """True if a dispatch mode is active, unless it also records direct calls of groups."""
    num_modes = num_dispatch_modes()
    return num_modes > 1 or (
        num_modes == 1 and not getattr(dispatch_mode_at(0), "sees_groups", False)
    )


def _operator(operator: Any, *args: Any) -> torch.Tensor:
    """Call a functional operator, which stays as and where it is in a compiled graph.

    Compilers decide by their own rank's shapes, so they must not merge, move or repeat it. Ranks
    compare the outcome.
    """
    if not torch.compiler.is_compiling():
        return operator(*args)
    never_merge(operator)
    compare_compilations()
    with traced_in_place():
        return operator(*args)


def _issued(
    native_op: str, group: Any, method: str, given: tuple[Any, ...], args: tuple[Any, ...]
) -> dist.Work:
    """Issue a collective by the group, or if a recorder is notified, by its backend.

    `given` are the arguments that the group would pass to `native_op`. Returns the handle.
    """
    issuer = observe.issuer
    if issuer is None:
        return getattr(group, method)(*args)
    return issuer(native_op, given, getattr(group._get_backend(_first(given).device), method), args)


def _first(given: tuple[Any, ...]) -> torch.Tensor:
    return given[0][0] if type(given[0]) is list else given[0]


@lru_cache(maxsize=64)
def _options(kind: Callable[[], Any], reduce_op: str = "", source: int = -1) -> Any:
    options = kind()
    if reduce_op:
        options.reduceOp = getattr(dist.ReduceOp, reduce_op.upper())
    if source >= 0:
        options.rootRank, options.rootTensor = source, 0
    return options


def wait(issued: Issued) -> torch.Tensor:
    """Wait for a collective, and return its result."""
    if type(issued) is tuple:
        result, work = issued
        work.wait()
        return result
    with below_autograd():
        return _operator(functional_ops.wait_tensor, issued)


def all_reduce(local: torch.Tensor, reduce_op: str, group: str) -> Issued:
    """Reduce the tensors of all ranks."""
    with below_autograd():
        direct = _direct_group(local, group)
        if direct is None:
            return _operator(functional_ops.all_reduce, local, reduce_op, group)
        # The group reduces in place, and the argument keeps its values.
        result = local.clone()
        options = _options(dist.AllreduceOptions, reduce_op)
        given = ([result], direct, reduce_op)
        return result, _issued("c10d::allreduce_", direct, "allreduce", given, ([result], options))


def all_gather(local: torch.Tensor, ranks: int, group: str) -> Issued:
    """Concatenate the tensors of all ranks along dim 0; their shapes must be equal."""
    with below_autograd():
        direct = _direct_group(local, group)
        if direct is None:
            return _operator(functional_ops.all_gather_into_tensor, local, ranks, group)
        result = local.new_empty((local.shape[0] * ranks, *local.shape[1:]))
        options = _options(AllgatherOptions)
        given = (result, local, direct)
        args = (result, local, options)
        return result, _issued("c10d::_allgather_base_", direct, "_allgather_base", given, args)


def reduce_scatter(local: torch.Tensor, reduce_op: str, ranks: int, group: str) -> Issued:
    """Reduce the tensors of all ranks, and return this rank's equal part along dim 0."""
    with below_autograd():
        direct = _direct_group(local, group)
        if direct is None:
            return _operator(functional_ops.reduce_scatter_tensor, local, reduce_op, ranks, group)
        result = local.new_empty((local.shape[0] // ranks, *local.shape[1:]))
        options = _options(dist.ReduceScatterOptions, reduce_op)
        given = (result, local, direct, reduce_op)
        args = (result, local, options)
        native_op, method = "c10d::_reduce_scatter_base_", "_reduce_scatter_base"
        return result, _issued(native_op, direct, method, given, args)


def all_to_all(
    local: torch.Tensor, output_sizes: list[int], input_sizes: list[int], group: str
) -> Issued:
    """Exchange parts with all ranks; the received parts are concatenated along dim 0."""
    if not sum(input_sizes) and sum(output_sizes) and _is_fake(group):
        # The fake group fills the output from the input, and raises if that is empty.
        local, input_sizes = local.new_zeros(1, *local.shape[1:]), [1, *input_sizes[1:]]
    with below_autograd():
        direct = _direct_group(local, group)
        if direct is None:
            return _operator(
                functional_ops.all_to_all_single, local, output_sizes, input_sizes, group
            )
        result = local.new_empty((sum(output_sizes), *local.shape[1:]))
        options = _options(dist.AllToAllOptions)
        given = (result, local, direct, output_sizes, input_sizes)
        args = (result, local, output_sizes, input_sizes, options)
        return result, _issued("c10d::alltoall_base_", direct, "alltoall_base", given, args)


def _is_fake(group: str) -> bool:
    return dist.get_backend(resolve_group(group)) == "fake"


def broadcast(local: torch.Tensor, source: int, group: str) -> Issued:
    """Return the tensor of rank `source` of the group."""
    with below_autograd():
        direct = _direct_group(local, group)
        if direct is None:
            return _operator(functional_ops.broadcast, local, source, group)
        result = local.clone()
        options = _options(dist.BroadcastOptions, source=source)
        given = ([result], direct, source)
        return result, _issued("c10d::broadcast_", direct, "broadcast", given, ([result], options))


def scatter(
    parts: list[torch.Tensor] | None, out: torch.Tensor, source: int, group: dist.ProcessGroup
) -> torch.Tensor:
    """Write to `out` the part that rank `source` of the group has for this rank, and return it."""
    dist.scatter(out, parts, group=group, group_src=source)
    return out
