"""The only file that issues communication: one function a collective, on plain local tensors.

Each takes the contiguous local tensor and the name of a group, and returns at once what `wait`
makes ready. Sizes are in elements along dim 0, ranks in the order of the group. Called by
`redistribute` alone; the functional operators of c10d are used because they are seen by tracing
and by every recorder.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

_ops = torch.ops._c10d_functional
# A collective has no gradient of its own: that of a redistribution is another one. Below autograd
# its operator also does without the Python kernel that it has there.
_below_autograd = torch._C._AutoDispatchBelowAutograd


def wait(issued: torch.Tensor) -> torch.Tensor:
    """The result of a collective, once it is there."""
    with _below_autograd():
        return _ops.wait_tensor(issued)


def all_reduce(local: torch.Tensor, reduce_op: str, group: str) -> torch.Tensor:
    """The reduction of every rank's tensor."""
    with _below_autograd():
        return _ops.all_reduce(local, reduce_op, group)


def all_gather(local: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """Every rank's tensor, joined along dim 0; shapes must be equal."""
    with _below_autograd():
        return _ops.all_gather_into_tensor(local, ranks, group)


def reduce_scatter(local: torch.Tensor, reduce_op: str, ranks: int, group: str) -> torch.Tensor:
    """This rank's equal part, along dim 0, of the reduction of every rank's tensor."""
    with _below_autograd():
        return _ops.reduce_scatter_tensor(local, reduce_op, ranks, group)


def all_to_all(
    local: torch.Tensor, output_sizes: list[int], input_sizes: list[int], group: str
) -> torch.Tensor:
    """What each rank has for this one, joined along dim 0."""
    with _below_autograd():
        return _ops.all_to_all_single(local, output_sizes, input_sizes, group)


def broadcast(local: torch.Tensor, source: int, group: str) -> torch.Tensor:
    """The tensor of the rank `source` of the group."""
    with _below_autograd():
        return _ops.broadcast(local, source, group)


def scatter(
    parts: list[torch.Tensor] | None, out: torch.Tensor, source: int, group: dist.ProcessGroup
) -> torch.Tensor:
    """The part that the rank `source` of the group has for this one, written to `out`."""
    dist.scatter(out, parts, group=group, group_src=source)
    return out
