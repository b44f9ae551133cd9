"""Data movement of each collective, given the tensors of all ranks.

`MOVES[kind]` takes the ranks' parts in group order and fills in their outputs. Results follow the
c10d documentation; reductions accumulate in rank order. Nothing here communicates, waits or depends
on threads: `in_flight` collects the parts and calls once all are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.distributed import ReduceOp

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class RankArguments:
    """One rank's arguments of a collective: outputs, inputs, and split sizes if uneven."""

    outputs: Any = ()
    inputs: Any = ()
    output_splits: Sequence[int] = ()
    input_splits: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class CollectiveTerms:
    """Parameters that all ranks of a collective must agree on."""

    kind: str
    reduce_op: Any = None
    root: int | None = None
    shapes: tuple[tuple[torch.dtype, int | None], ...] = ()

    def __str__(self) -> str:
        op = f" {self.reduce_op.name.lower()}" if self.reduce_op is not None else ""
        root = f" root {self.root}" if self.root is not None else ""
        sizes = " ".join(_text(dtype, size) for dtype, size in self.shapes)
        return f"{self.kind}{op}{root} {sizes}".rstrip()


def _text(dtype: torch.dtype, size: int | None) -> str:
    name = str(dtype).removeprefix("torch.")
    return name if size is None else f"{name}[{size}]"


def _sum(total: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return total.add_(other)


def _product(total: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return total.mul_(other)


_COMBINE: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ReduceOp.SUM: _sum,
    ReduceOp.AVG: _sum,
    ReduceOp.PRODUCT: _product,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def reduced(tensors: Tensors, reduce_op: Any) -> torch.Tensor:
    """Return the reduction over `tensors`, in order, as a new tensor."""
    combine = _COMBINE.get(reduce_op)
    if combine is None:
        raise NotImplementedError(f"thread groups do not reduce by {reduce_op}")
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = combine(total, tensor)
    if reduce_op == ReduceOp.AVG:
        full = not (total.is_floating_point() or total.is_complex())
        total.div_(len(tensors), rounding_mode="trunc" if full else None)
    return total


def _all_reduce(parts: Sequence[RankArguments], terms: CollectiveTerms) -> None:
    for tensors in zip(*(part.outputs for part in parts), strict=True):
        total = reduced(tensors, terms.reduce_op)
        for tensor in tensors:
            write(tensor, total)


def _reduce(parts: Sequence[RankArguments], terms: CollectiveTerms) -> None:
    for tensors in zip(*(part.outputs for part in parts), strict=True):
        write(tensors[_root(terms)], reduced(tensors, terms.reduce_op))


def _broadcast(parts: Sequence[RankArguments], terms: CollectiveTerms) -> None:
    sent = parts[_root(terms)].outputs
    for part in parts:
        if part.outputs is not sent:
            copy_each(part.outputs, sent)


def _all_gather_lists(parts: Sequence[RankArguments], terms: CollectiveTerms) -> None:
    """All-gather where outputs are a list of `world_size` tensors for each input tensor."""
    for part in parts:
        for i, outputs in enumerate(part.outputs):
            copy_each(outputs, [source.inputs[i] for source in parts])


def _all_gather_coalesced(parts: Sequence[RankArguments], terms: CollectiveTerms) -> None:
    """All-gather where outputs are `world_size` lists, with a tensor per input tensor."""
    for part in parts:
        for outputs, source in zip(part.outputs, parts, strict=True):
            copy_each(outputs, source.inputs)


def _all_gather_single(parts: Sequence[RankArguments], terms: CollectiveTerms) -> None:
    for part in parts:
        for i, output in enumerate(part.outputs):
            sent = [source.inputs[i].reshape(-1) for source in parts]
            copy_each(_blocks(output, len(parts)), sent)


def _gather(parts: Sequence[RankArguments], terms: CollectiveTerms) -> None:
    copy_each(parts[_root(terms)].outputs, [part.inputs[0] for part in parts])


def _scatter(parts: Sequence[RankArguments], terms: CollectiveTerms) -> None:
    for part, sent in zip(parts, parts[_root(terms)].inputs, strict=True):
        write(part.outputs[0], sent)


def _reduce_scatter_lists(parts: Sequence[RankArguments], terms: CollectiveTerms) -> None:
    totals = [
        [reduced(blocks, terms.reduce_op) for blocks in zip(*lists, strict=True)]
        for lists in zip(*(part.inputs for part in parts), strict=True)
    ]
    for rank, part in enumerate(parts):
        copy_each(part.outputs, [total[rank] for total in totals])


def _reduce_scatter_single(parts: Sequence[RankArguments], terms: CollectiveTerms) -> None:
    totals: list[list[torch.Tensor]] = []
    for tensors in zip(*(part.inputs for part in parts), strict=True):
        split = [_blocks(tensor, len(parts)) for tensor in tensors]
        totals.append([reduced(blocks, terms.reduce_op) for blocks in zip(*split, strict=True)])
    for rank, part in enumerate(parts):
        copy_each(part.outputs, [total[rank] for total in totals])


def _all_to_all_lists(parts: Sequence[RankArguments], terms: CollectiveTerms) -> None:
    for rank, part in enumerate(parts):
        copy_each(part.outputs, [source.inputs[rank] for source in parts])


def _all_to_all_single(parts: Sequence[RankArguments], terms: CollectiveTerms) -> None:
    size = len(parts)
    sent = [_rows(part.inputs[0], part.input_splits, size) for part in parts]
    for rank, part in enumerate(parts):
        received = _rows(part.outputs[0], part.output_splits, size)
        copy_each(received, [blocks[rank] for blocks in sent])


def _barrier(parts: Sequence[RankArguments], terms: CollectiveTerms) -> None:
    """Move nothing; the arrival of all ranks is the result."""


DataMovement = Callable[[Sequence[RankArguments], CollectiveTerms], None]

MOVES: dict[str, DataMovement] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather_lists,
    "all_gather_coalesced": _all_gather_coalesced,
    "all_gather_single": _all_gather_single,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter_lists,
    "reduce_scatter_single": _reduce_scatter_single,
    "all_to_all": _all_to_all_lists,
    "all_to_all_single": _all_to_all_single,
    "barrier": _barrier,
}


def _root(terms: CollectiveTerms) -> int:
    if terms.root is None:
        raise ValueError(f"{terms.kind} needs a root")
    return terms.root


def copy_each(targets: Tensors, sources: Tensors) -> None:
    """Write each source to its target, which may have another shape of the same size."""
    for target, source in zip(targets, sources, strict=True):
        if target.numel() != source.numel():
            raise ValueError(
                f"a rank expects {list(target.shape)} where {list(source.shape)} is sent to it"
            )
        write(target, source.reshape(target.shape))


def write(target: torch.Tensor, source: torch.Tensor) -> None:
    """Fill a tensor as a network does, without advancing autograd's version counter."""
    target.data.copy_(source)


def have_memory(values: Any) -> bool:
    """Return whether every tensor in nested sequences has memory; fake tensors have none."""
    if not isinstance(values, torch.Tensor):
        return all(map(have_memory, values))
    return values.layout != torch.strided or values.untyped_storage().device.type != "meta"


def _blocks(tensor: torch.Tensor, size: int) -> Tensors:
    """Split `tensor` into `size` equal flat blocks; they are views if it is contiguous."""
    if tensor.numel() % size:
        raise ValueError(f"{list(tensor.shape)} can't be split evenly among {size} ranks")
    return tensor.reshape(-1).split(tensor.numel() // size) if tensor.numel() else (tensor,) * size


def _rows(tensor: torch.Tensor, splits: Sequence[int], size: int) -> Tensors:
    """Split `tensor` along dim 0, evenly if `splits` is empty."""
    if not splits:
        if tensor.size(0) % size:
            raise ValueError(f"{list(tensor.shape)} can't be split evenly among {size} ranks")
        splits = [tensor.size(0) // size] * size
    starts = accumulate(splits, initial=0)
    return [tensor.narrow(0, start, n) for start, n in zip(starts, splits, strict=False)]
