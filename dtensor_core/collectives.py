"""The only file that issues communication: one function a collective, on plain local tensors.

Each takes the contiguous local tensor and the name of a group, and returns at once what `wait`
makes ready. Sizes are in elements along dim 0, ranks in the order of the group. Called by
`redistribute` alone. The functional operators of c10d are used wherever someone looks on, for they
are what traces and dispatch modes know; where nobody does, the group is asked directly for what
the same, which takes a quarter of the time; and where a recorder is told of it, which is all that
anyone could learn on the way there, the group's backend is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, _resolve_process_group

from dtensor_core import observe

_ops = torch.ops._c10d_functional
# A collective has no gradient of its own: that of a redistribution is another one. Below autograd
# its operator also does without the Python kernel that it has there.
_below_autograd = torch._C._AutoDispatchBelowAutograd
_num_modes = torch._C._len_torch_dispatch_stack  # pyright: ignore
_mode_at = torch._C._get_dispatch_stack_at  # pyright: ignore
_transform = torch._C._functorch.peek_interpreter_stack  # pyright: ignore

Issued = torch.Tensor | tuple[torch.Tensor, dist.Work]
"""The result of a collective that is under way, with the handle to wait by where it has its own."""


_num_functional = 0


@contextmanager
def functional() -> Iterator[None]:
    """Issue functional operators for the body: what they return may be passed on unwaited."""
    global _num_functional
    _num_functional += 1
    try:
        yield
    finally:
        _num_functional -= 1


def _asked_directly(local: torch.Tensor, name: str) -> Any:
    """The group itself; None where the functional operator is needed.

    That is where a mode, a transform or a tensor without data looks on, for complex numbers, which
    groups take in pairs, and for groups written in Python, which have methods of their own.
    """
    if (
        _num_functional > 0
        or _is_looked_at()
        or type(local) is not torch.Tensor
        or local.is_meta
        or local.is_complex()
        or _transform() is not None
    ):
        return None
    group = _resolve_process_group(name)  # pyright: ignore[reportArgumentType]
    return group if type(group) is dist.ProcessGroup else None


def _is_looked_at() -> bool:
    """Whether a dispatch mode looks on, other than one that sees what groups are asked for too."""
    num_modes = _num_modes()
    return num_modes > 1 or (num_modes == 1 and not getattr(_mode_at(0), "sees_groups", False))


def _issued(
    native_op: str, group: Any, method: str, given: tuple[Any, ...], args: tuple[Any, ...]
) -> dist.Work:
    """The handle of a collective that a group is asked for, or where it is told of, its backend.

    `given` is what `native_op` would be given on the way from the one to the other.
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
    """The result of a collective, once it is there."""
    if type(issued) is tuple:
        result, work = issued
        work.wait()
        return result
    with _below_autograd():
        return _ops.wait_tensor(issued)


def all_reduce(local: torch.Tensor, reduce_op: str, group: str) -> Issued:
    """The reduction of every rank's tensor."""
    with _below_autograd():
        direct = _asked_directly(local, group)
        if direct is None:
            return _ops.all_reduce(local, reduce_op, group)
        result = local.clone()
        options = _options(dist.AllreduceOptions, reduce_op)
        given = ([result], direct, reduce_op)
        return result, _issued("c10d::allreduce_", direct, "allreduce", given, ([result], options))


def all_gather(local: torch.Tensor, ranks: int, group: str) -> Issued:
    """Every rank's tensor, joined along dim 0; shapes must be equal."""
    with _below_autograd():
        direct = _asked_directly(local, group)
        if direct is None:
            return _ops.all_gather_into_tensor(local, ranks, group)
        result = local.new_empty((local.shape[0] * ranks, *local.shape[1:]))
        options = _options(AllgatherOptions)
        given = (result, local, direct)
        args = (result, local, options)
        return result, _issued("c10d::_allgather_base_", direct, "_allgather_base", given, args)


def reduce_scatter(local: torch.Tensor, reduce_op: str, ranks: int, group: str) -> Issued:
    """This rank's equal part, along dim 0, of the reduction of every rank's tensor."""
    with _below_autograd():
        direct = _asked_directly(local, group)
        if direct is None:
            return _ops.reduce_scatter_tensor(local, reduce_op, ranks, group)
        result = local.new_empty((local.shape[0] // ranks, *local.shape[1:]))
        options = _options(dist.ReduceScatterOptions, reduce_op)
        given = (result, local, direct, reduce_op)
        args = (result, local, options)
        native_op, method = "c10d::_reduce_scatter_base_", "_reduce_scatter_base"
        return result, _issued(native_op, direct, method, given, args)


def all_to_all(
    local: torch.Tensor, output_sizes: list[int], input_sizes: list[int], group: str
) -> Issued:
    """What each rank has for this one, joined along dim 0."""
    if not sum(input_sizes) and sum(output_sizes) and _is_fake(group):
        # It makes up what arrives of what is sent, and raises where that is nothing.
        local, input_sizes = local.new_zeros(1, *local.shape[1:]), [1, *input_sizes[1:]]
    with _below_autograd():
        direct = _asked_directly(local, group)
        if direct is None:
            return _ops.all_to_all_single(local, output_sizes, input_sizes, group)
        result = local.new_empty((sum(output_sizes), *local.shape[1:]))
        options = _options(dist.AllToAllOptions)
        given = (result, local, direct, output_sizes, input_sizes)
        args = (result, local, output_sizes, input_sizes, options)
        return result, _issued("c10d::alltoall_base_", direct, "alltoall_base", given, args)


def _is_fake(group: str) -> bool:
    resolve = torch._C._distributed_c10d._resolve_process_group  # pyright: ignore
    return dist.get_backend(resolve(group)) == "fake"


def broadcast(local: torch.Tensor, source: int, group: str) -> Issued:
    """The tensor of the rank `source` of the group."""
    with _below_autograd():
        direct = _asked_directly(local, group)
        if direct is None:
            return _ops.broadcast(local, source, group)
        result = local.clone()
        options = _options(dist.BroadcastOptions, source=source)
        given = ([result], direct, source)
        return result, _issued("c10d::broadcast_", direct, "broadcast", given, ([result], options))


def scatter(
    parts: list[torch.Tensor] | None, out: torch.Tensor, source: int, group: dist.ProcessGroup
) -> torch.Tensor:
    """The part that the rank `source` of the group has for this one, written to `out`."""
    dist.scatter(out, parts, group=group, group_src=source)
    return out
