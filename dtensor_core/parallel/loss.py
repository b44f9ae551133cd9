"""`loss_parallel`: cross entropy over sharded classes, without gathering the logits.

Inside of it, log-softmax and negative log likelihood of such logits consist of operators that keep
the sharding: a maximum, a sum and a loss per sample are communicated, not the logits. The other
mesh axes may shard the batch or the sequence; means and weights count all samples of the mesh. Each
function here replaces the operator of its name and receives that operator's arguments.

Shapes: logits [N, C, ...], targets [N, ...], both global.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dtensor_core.dispatch.special.contexts import implicit_replication, rewriting
from dtensor_core.errors import PlacementError, four_parts
from dtensor_core.factories import full
from dtensor_core.placement import Placement, Replicate, Shard
from dtensor_core.tensor import DTensor

aten = torch.ops.aten

_NONE, _MEAN, _SUM = range(3)


@contextmanager
def loss_parallel() -> Iterator[None]:
    """Compute cross entropy on logits sharded along their classes while the body runs.

    The forward takes three all-reduces of at most one number per sample, the backward none. The
    loss is replicated along the axes that shard the classes. Call `F.cross_entropy` and its
    backward inside. All reductions, `ignore_index`, `weight` and `label_smoothing` work on meshes
    of any number of axes. Targets are class indices, as a DTensor or as a plain tensor that is the
    same on every rank.

    Raises:
        PlacementError: No axis shards the classes of a loss's logits (a ValueError).
    """
    with rewriting(_REWRITES), implicit_replication():
        yield


def _log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    """Compute x - log(sum(exp(x))), with two reductions of one number per sample."""
    if half_to_float or not _is_sharded(x, dim):
        return NotImplemented
    shifted = x - _full(x.amax(dim, keepdim=True))
    return shifted - _full(shifted.exp().sum(dim, keepdim=True)).log()


def _log_softmax_backward(grad: Any, output: Any, dim: int, dtype: torch.dtype) -> Any:
    """Compute grad - softmax(x) * sum(grad); the sum is known for a gradient from the loss."""
    if not _is_sharded(output, dim):
        return NotImplemented
    known = _known_sum(grad, dim)
    total = _full(grad.sum(dim, keepdim=True)) if known is None else known
    return grad - output.exp() * total


def _known_sum(grad: Any, dim: int) -> Any:
    """Return the sum over `dim` stored on a gradient that `_nll_loss_backward` made, or None.

    A loss of three, or of more than four, dims is computed as a loss of [N, C, 1, ...]. The
    gradient is then a view of the original gradient with another shape and the same order of
    elements.
    """
    made = grad._base if grad._is_view() else grad
    total, version, class_dim = getattr(made, "_class_sum", (None, -1, -1))
    dim %= max(grad.ndim, 1)
    if total is None or version != made._version or class_dim != dim:
        return None
    if made is grad:
        return total
    same_order = made.is_contiguous() and grad.is_contiguous() and made.numel() == grad.numel()
    if not same_order or made.shape[: dim + 1] != grad.shape[: dim + 1]:
        return None
    return total.reshape([1 if d == dim else size for d, size in enumerate(grad.shape)])


def _nll_loss(
    log_probabilities: Any, target: Any, weight: Any, reduction: int, ignore_index: int
) -> Any:
    """Return the loss (minus the log probability of each sample's class) and the total weight."""
    if not _is_sharded(log_probabilities, _class_dim(log_probabilities)):
        raise PlacementError(
            four_parts(
                summary="cross entropy under loss_parallel()",
                found=f"log probabilities {log_probabilities._spec.text}, classes in dim "
                f"{_class_dim(log_probabilities)}",
                why="loss_parallel() requires an axis of the mesh to shard the class dimension",
                hint="shard the logits by class, as ColwiseParallel(use_local_output=False) on "
                "the last layer does; or compute this loss outside of loss_parallel()",
            )
        )
    is_class, is_ignored, weights = _selection(log_probabilities, target, weight, ignore_index)
    # Selected, not multiplied: an excluded class has a log probability of -inf.
    chosen = log_probabilities.masked_fill(~is_class, 0.0)
    losses = -chosen.sum(_class_dim(log_probabilities)) * weights
    losses = losses.masked_fill(is_ignored, 0.0)
    if reduction == _NONE:
        losses = _full(losses)
        return losses, full((), 0.0, dtype=losses.dtype, device_mesh=losses.device_mesh)
    total = weights.sum()
    if reduction == _SUM:
        return _reduce_over_classes(losses.sum(), log_probabilities), total
    total = _full(total)
    return _reduce_over_classes(losses.sum() / total, log_probabilities), total


def _nll_loss_backward(
    grad: Any,
    log_probabilities: Any,
    target: Any,
    weight: Any,
    reduction: int,
    ignore_index: int,
    total_weight: Any,
) -> Any:
    """Return minus the weight at the class of each sample.

    Each sample has a single nonzero class, so the sum over the classes is known. It is stored on
    the result for `_log_softmax_backward`, which uses it if the result has not been modified.
    """
    dim = _class_dim(log_probabilities)
    if not _is_sharded(log_probabilities, dim):
        return NotImplemented
    is_class, _, weights = _selection(log_probabilities, target, weight, ignore_index)
    scale = -weights * (grad / total_weight if reduction == _MEAN else grad)
    scale = scale.unsqueeze(dim)
    result = is_class * scale
    result._class_sum = (scale, result._version, dim)
    return result


def _class_dim(log_probabilities: torch.Tensor) -> int:
    return 1 if log_probabilities.ndim > 1 else 0


def _is_sharded(x: Any, dim: int) -> bool:
    """True if an axis of the mesh shards this dimension."""
    dim %= max(x.ndim, 1)
    return any(placement.sharded_dim == dim for placement in x.placements)


def _full(x: Any) -> Any:
    """Reduce the partial sums of a tensor, keeping its sharding."""
    placements = [Replicate() if p.is_partial() else p for p in x.placements]
    return x.redistribute(placements=placements)


def _reduce_over_classes(loss: Any, log_probabilities: Any) -> Any:
    """Reduce a loss along the axes that shard classes; it stays partial over batches."""
    dim = _class_dim(log_probabilities)
    placements = [
        Replicate() if logits.sharded_dim == dim else placement
        for placement, logits in zip(loss.placements, log_probabilities.placements, strict=True)
    ]
    return loss.redistribute(placements=placements)


def _selection(
    log_probabilities: Any, target: Any, weight: Any, ignore_index: int
) -> tuple[Any, Any, Any]:
    """Return masks of each sample's class and of ignored samples, and the weight of every sample.

    The first mask has the layout of the log probabilities.
    """
    dim, mesh = _class_dim(log_probabilities), log_probabilities.device_mesh
    classes = log_probabilities.shape[dim]
    target = _as_dtensor(target, log_probabilities, dim)
    shape = [classes if d == dim else 1 for d in range(log_probabilities.ndim)]
    numbers = torch.arange(classes, device=target._local_tensor.device).view(shape)
    kept = [p if p.sharded_dim == dim else Replicate() for p in log_probabilities.placements]
    every = DTensor.from_local(numbers, mesh).redistribute(placements=kept)
    is_class = target.unsqueeze(dim) == every
    is_ignored = target == ignore_index
    counted = (~is_ignored).to(log_probabilities.dtype)
    if weight is not None:
        plain = weight.full_tensor() if isinstance(weight, DTensor) else weight
        local = target._local_tensor
        # An ignored target may be no class at all; it selects some weight, which counts 0 times.
        inside = local.clamp(0, classes - 1)
        counted = counted * DTensor(plain[inside].to(counted.dtype), counted._spec)
    return is_class, is_ignored, counted


def _as_dtensor(target: Any, log_probabilities: Any, dim: int) -> DTensor:
    """Return the targets, sharded like the samples of the log probabilities."""
    placements = [_of_sample(p, dim) for p in log_probabilities.placements]
    mesh = log_probabilities.device_mesh
    if not isinstance(target, DTensor):
        target = DTensor.from_local(target, mesh)
    return target.redistribute(placements=placements)


def _of_sample(placement: Placement, dim: int) -> Placement:
    """Convert a placement of [N, C, ...] to a placement of [N, ...]."""
    if not isinstance(placement, Shard) or placement.dim == dim:
        return Replicate()
    return Shard(placement.dim - (placement.dim > dim))


_REWRITES = {
    aten._log_softmax.default: _log_softmax,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten.nll_loss_forward.default: _nll_loss,
    aten.nll_loss_backward.default: _nll_loss_backward,
    aten.nll_loss2d_forward.default: _nll_loss,
    aten.nll_loss2d_backward.default: _nll_loss_backward,
}
