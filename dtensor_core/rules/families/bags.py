"""Bags of embeddings: sums, means and maxima of the rows that each bag names.

Weight [v, e], indices [i], offsets [b], weights of the indices [i] -> [b, e]. Each index adds its
row to one bag, so a rank that holds some indices, or some rows, adds up those; where bags begin all
ranks know. A maximum needs all rows. What the kernels return besides is for their backward, which
makes it anew of the offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtensor_core.local.held import Held
from dtensor_core.local.operator import Local
from dtensor_core.rules.call import Call
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Operand, Rule
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending

aten = torch.ops.aten
_MEAN, _MAX = 1, 2
_OPERANDS: dict[str, Operand] = {
    "weight": (("v",), ("e",)),
    "grad": ((), ("e",)),
    "indices": (("i",),),
    "per_sample_weights": (("i",),),
}


def _rule(call: Call, output: Operand, maker: Callable[[Share], Local]) -> Rule:
    """Operands by name; what has none is whole, as are all results but the first.

    `maker` makes what runs where indices or rows are cut.
    """
    names, weight, mode = call.names, call.argument("weight"), call.argument("mode")
    at, bags = names.index("indices"), call.specs[0].shape[0]
    if len(call.outputs) > 1:
        bags = call.outputs[0].shape[0]
    vocabulary = weight.shape[0] if isinstance(weight, Spec) else call.argument("num_weights")
    sizes = {"v": vocabulary, "i": call.specs[at].shape[0], "e": call.specs[0].shape[1]}
    # How many count is known of all indices only.
    counts = mode == _MEAN and call.argument("padding_idx") >= 0
    blocked = {"i", "v"} if mode == _MAX else {"i"} if counts else set[str]()
    if call.argument("scale_grad_by_freq") and not isinstance(weight, Spec):
        blocked |= {"i"}
    of_max = ((), ("e",)) if mode == _MAX else None

    def operand(name: str, ndim: int) -> Operand:
        known = of_max if name == "maximum_indices" else _OPERANDS.get(name)
        return known or ((),) * ndim

    def local(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        table = inputs[names.index("weight")] if isinstance(weight, Spec) else None
        share = Share(call, bags, inputs[at], table, outputs[1:])
        return maker(share) if share.is_part else op

    others = zip(("", "", "maximum_indices"), call.outputs[1:], strict=False)
    return Rule(
        inputs=tuple(operand(n, spec.ndim) for n, spec in zip(names, call.specs, strict=True)),
        outputs=(output, *(operand(name, len(meta.shape)) for name, meta in others)),
        sizes=sizes,
        blocked=frozenset(blocked if isinstance(weight, Spec) else {*blocked, "v"}),
        settled=frozenset((1, 2, 3)),
        local=local,
    )


class Share:
    """Which indices and rows a rank has a part in."""

    def __init__(
        self,
        call: Call,
        bags: int,
        indices: Spec,
        weight: Spec | None,
        others: Sequence[Spec | None],
    ) -> None:
        self._others = others
        self._num_indices = indices.shape[0]
        self._positions = indices.held(0)
        self._rows = None if weight is None else Held(weight, 0)
        self.is_part = indices.local_shape != tuple(indices.shape) or (
            weight is not None and weight.local_shape[0] != weight.shape[0]
        )
        self._is_mean = call.argument("mode") == _MEAN
        self._ends_given = call.argument("offsets").shape[0] > bags
        self._padding = int(call.argument("padding_idx"))

    def bags(self, indices: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The bag of every index that is held; its row here; the number by which it counts: 0 if
        the row is elsewhere; how many there are in each bag.
        """
        total = offsets.new_tensor([self._num_indices])
        bounds = offsets if self._ends_given else torch.cat([offsets, total])
        counts = bounds.diff()
        held = [torch.arange(at.size, device=counts.device) + at.offset for at in self._positions]
        bag = torch.searchsorted(bounds[1:], torch.cat(held).to(bounds.dtype), right=True)
        counted = (bag < len(counts)) & (indices != self._padding)
        bag = bag.clamp_(max=len(counts) - 1)
        if self._is_mean and self._padding >= 0:
            counts = torch.zeros_like(counts).index_add_(0, bag, counted.to(counts.dtype))
        row = indices
        if self._rows is not None:
            row, elsewhere = self._rows.local(indices)
            counted &= ~elsewhere
        share = counted.to(torch.float64)
        return bag, row, share / counts[bag].clamp_(min=1) if self._is_mean else share, counts

    def others(self, offsets: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The bag of every index, how many each has, twice, as kernels say it."""
        made = [offsets.new_zeros(each.local_shape) for each in self._others if each is not None]
        if made[0].numel():
            places = torch.arange(self._num_indices, device=offsets.device, dtype=offsets.dtype)
            found = torch.searchsorted(offsets, places, right=True) - 1
            made[0].copy_(found)
        for each in made[1:] if self._is_mean else ():
            each[: len(counts)].copy_(counts[: len(each)])
        return tuple(made)


def _embedding_bag(share: Share) -> Local:
    def add_up(
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        scale_grad_by_freq: bool = False,
        mode: int = 0,
        sparse: bool = False,
        per_sample_weights: torch.Tensor | None = None,
        *unused: Any,
    ) -> tuple[torch.Tensor, ...]:
        bag, row, part, counts = share.bags(indices, offsets)
        wide = torch.promote_types(weight.dtype, torch.float32)
        result = weight.new_zeros((len(counts), weight.shape[1]), dtype=wide)
        if weight.shape[0]:
            rows = weight[row].to(wide).masked_fill_((part == 0)[:, None], 0)
            scale = part if per_sample_weights is None else part * per_sample_weights
            result.index_add_(0, bag, rows.mul_(scale[:, None]))
        result = depending(result.to(weight.dtype), weight, indices)
        return result, *share.others(offsets, counts)

    return add_up


def _backward(share: Share) -> Local:
    def add_up(
        grad: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        offset2bag: torch.Tensor,
        bag_size: torch.Tensor,
        maximum_indices: torch.Tensor,
        num_weights: int,
        scale_grad_by_freq: bool,
        mode: int,
        sparse: bool,
        per_sample_weights: torch.Tensor | None,
        padding_idx: int = -1,
    ) -> torch.Tensor:
        bag, row, part, _ = share.bags(indices, offsets)
        scale = part if per_sample_weights is None else part * per_sample_weights
        rows = grad[bag] * scale[:, None].to(grad.dtype)
        return aten.embedding_dense_backward(rows, row, num_weights, padding_idx, False)

    return add_up


def _of_weights(share: Share) -> Local:
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


def _bag_row(call: Call) -> Rule:
    return _rule(call, ((), ("e",)), _embedding_bag)


def _bag_backward(call: Call) -> Rule:
    return _rule(call, (("v",), ("e",)), _backward)


def _weights_backward(call: Call) -> Rule:
    return _rule(call, (("i",),), _of_weights)


_FORWARD = Row(_bag_row, "v e, i, b, i -> b! e")
ROWS = {
    "_embedding_bag": _FORWARD,
    "_embedding_bag_forward_only": _FORWARD,
    "_embedding_bag_backward": Row(_bag_backward, "b! e, i, b, .., i -> v! e"),
    "_embedding_bag_per_sample_weights_backward": Row(_weights_backward, "b! e, v e, i, b -> i"),
}
