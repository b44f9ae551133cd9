"""Embedding bags on shards of the indices or of the table's rows.

The operands are as in the family's rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local, by_name
from dtensor_core.operators.kernels.local_positions import LocalPositions
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending

aten = torch.ops.aten


class Share:
    """The indices and rows that a rank contributes.

    Args:
        op: The operator.
        how: Three settings: bags are means; the offsets end with the last bag; the padding index or
            -1.
        indices: The spec of the indices.
        weight: The spec of the table, if it is an argument.
        others: The specs of the results after the first.

    Attributes:
        is_part: True if the rank holds only some of the indices or rows.
        padding: The padding index, or -1.
    """

    def __init__(
        self,
        op: Local,
        how: tuple[bool, bool, int],
        indices: Spec,
        weight: Spec | None,
        others: Sequence[Spec | None],
    ) -> None:
        self.op, self._others = op, others
        self._num_indices = indices.shape[0]
        self._positions = indices.extents(0)
        self._rows = None if weight is None else LocalPositions(op, weight, 0)
        self.is_part = indices.local_shape != tuple(indices.shape) or (
            weight is not None and weight.local_shape[0] != weight.shape[0]
        )
        self._is_mean, self._ends_given, self.padding = how

    def bags(self, indices: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return bag, local row and weight of every local index, and the counts of all bags.

        The weight is 0 if the row is on another rank.
        """
        total = offsets.new_tensor([self._num_indices])
        bounds = offsets if self._ends_given else torch.cat([offsets, total])
        counts = bounds.diff()
        positions = [
            torch.arange(at.size, device=counts.device) + at.offset for at in self._positions
        ]
        bag = torch.searchsorted(bounds[1:], torch.cat(positions).to(bounds.dtype), right=True)
        counted = (bag < len(counts)) & (indices != self.padding)
        bag = bag.clamp_(max=len(counts) - 1)
        if self._is_mean and self.padding >= 0:
            counts = torch.zeros_like(counts).index_add_(0, bag, counted.to(counts.dtype))
        row = indices
        if self._rows is not None:
            row, elsewhere = self._rows.local(indices)
            counted &= ~elsewhere
        share = counted.to(torch.float64)
        return bag, row, share / counts[bag].clamp_(min=1) if self._is_mean else share, counts

    def others(self, offsets: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the kernels' further results: the bag of every index, and the counts twice."""
        made = [offsets.new_zeros(each.local_shape) for each in self._others if each is not None]
        if made[0].numel():
            places = torch.arange(self._num_indices, device=offsets.device, dtype=offsets.dtype)
            found = torch.searchsorted(offsets, places, right=True) - 1
            made[0].copy_(found)
        for each in made[1:] if self._is_mean else ():
            each[: len(counts)].copy_(counts[: len(each)])
        return tuple(made)


def add_up_rows(share: Share) -> Local:
    """Make the forward, which sums rows of the table into bags."""

    def add_up(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        given = by_name(share.op, args, kwargs)
        weight, indices, offsets = given["weight"], given["indices"], given["offsets"]
        bag, row, part, counts = share.bags(indices, offsets)
        wide = torch.promote_types(weight.dtype, torch.float32)
        result = weight.new_zeros((len(counts), weight.shape[1]), dtype=wide)
        if weight.shape[0]:
            rows = weight[row].to(wide).masked_fill_((part == 0)[:, None], 0)
            result.index_add_(0, bag, rows.mul_(_scale(part, given)[:, None]))
        result = depending(result.to(weight.dtype), weight, indices)
        return result, *share.others(offsets, counts)

    return add_up


def add_up_gradients(share: Share) -> Local:
    """Make the gradient of the table from its bags' gradients."""

    def add_up(*args: Any, **kwargs: Any) -> torch.Tensor:
        given = by_name(share.op, args, kwargs)
        grad, size = given["grad"], given["num_weights"]
        bag, row, part, _ = share.bags(given["indices"], given["offsets"])
        rows = grad[bag] * _scale(part, given)[:, None].to(grad.dtype)
        return aten.embedding_dense_backward(rows, row, size, share.padding, False)

    return add_up


def _scale(part: torch.Tensor, given: Mapping[str, Any]) -> torch.Tensor:
    weights = given["per_sample_weights"]
    return part if weights is None else part * weights


def gradients_of_weights(share: Share) -> Local:
    """Make the gradient of the per-sample weights."""

    def product(
        grad: torch.Tensor,
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        *unused: Any,
    ) -> torch.Tensor:
        bag, row, part, _ = share.bags(indices, offsets)
        if not weight.shape[0]:
            return depending(grad.new_zeros(indices.shape), grad, weight, indices)
        return (grad[bag] * weight[row]).sum(1).masked_fill_(part == 0, 0)

    return product
