"""`ExpertParallel`: each rank holds some of the experts; tokens travel to them and back.

Two all-to-alls of exact sizes go forward (and two backward), after an all-to-all of counts. Ranks
may have different numbers of tokens, and experts may get none. Experts are sharded as in
`torch.chunk`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn

from dtensor_core.errors import four_parts
from dtensor_core.layout import local_extent
from dtensor_core.mesh import DeviceMesh
from dtensor_core.parallel.base import StyleInputError, UnsupportedModuleError
from dtensor_core.parallel.local import LocalParameters, place
from dtensor_core.placement import Placement, Replicate, Shard
from dtensor_core.redistribute.all_to_all import all_to_all_rows
from dtensor_core.tensor import DTensor

_OPERATOR = "ExpertParallel"


@dataclass(frozen=True, slots=True)
class _Sent:
    """State of a dispatch, for the way back."""

    sent: list[int]
    received: list[int]
    order: torch.Tensor | None = None
    """The position of each received row, if they were sorted by expert."""
    weights: torch.Tensor | None = None
    """[tokens, choices], if each token was sent to several experts."""
    pairs: torch.Tensor | None = None
    """The number of the (token, choice) pair of each row sent."""
    num_tokens: int = 0
    is_padded: bool = False


class ExpertParallel(LocalParameters):
    """Experts with parameters sharded along dim 0, on ranks that send tokens to each other.

    The module's forward takes one of

    - `(tokens, counts)`: tokens [T, D] sorted by expert, and the number for each expert [E];
    - `(tokens, chosen, weights)`: tokens [T, D], the numbers of each token's experts [T, K] and the
      weights of their outputs [T, K], as the experts of transformers do.

    The forward runs on the tokens of its rank's experts, with local expert numbers. A call returns
    [T, D] for the tokens it was given.

    Args:
        input_layouts: Shard(0) (default) if each rank has its own tokens, or Replicate() if all
            ranks have the same. In the latter case each rank sends its share of them, and the
            outputs are gathered.

    Raises UnsupportedModuleError if a rank would get no expert.
    """

    def __init__(self, *, input_layouts: Placement | None = None) -> None:
        self.input_layouts = input_layouts or Shard(0)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        numbers = {name: each.shape[0] for name, each in module.named_parameters(recurse=False)}
        ranks, sizes = device_mesh.size(), {*numbers.values()}
        owned = [_owned(size, ranks) for size in sizes]
        if len(owned) != 1 or 0 in owned[0]:
            raise UnsupportedModuleError(
                four_parts(
                    summary=f"{self} of a {type(module).__name__} over {ranks} ranks",
                    found=f"sizes along dim 0 {numbers}; ranks get {owned}",
                    why="dim 0 of each parameter is the expert, and each rank needs at least one",
                    hint="apply the style to the module that owns the experts' parameters",
                )
            )
        for name in numbers:
            place(module, name, device_mesh, Shard(0), self.src_data_rank)
        placements = {name: module.get_parameter(name).placements for name in numbers}  # pyright: ignore
        if {*placements.values()} != {(Shard(0),)}:
            raise UnsupportedModuleError(
                four_parts(
                    summary=f"{self} of a {type(module).__name__}",
                    found=f"parameters that already have another layout: {placements}",
                    why="ranks hold complete experts, so parameters must be Shard(0)",
                )
            )
        if hasattr(module, "num_experts"):  # read by the forward of transformers' experts
            module.num_experts = owned[0][device_mesh.get_local_rank()]  # pyright: ignore
        return super()._apply(module, device_mesh)

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh
    ) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Send tokens to their experts, and return the rows for this rank's experts."""
        given = inspect.signature(module.forward).bind(*args, **kwargs).args
        if len(given) not in (2, 3) or not all(isinstance(e, torch.Tensor) for e in given):
            raise StyleInputError(
                four_parts(
                    summary=f"a call of a {type(module).__name__} under {self}",
                    found=f"arguments {[type(each).__name__ for each in given]}",
                    hint="(tokens, counts) or (tokens, chosen, weights)",
                )
            )
        parameter = next(each for each in module._parameters.values() if each is not None)
        owned = _owned(parameter.shape[0], mesh.size())
        num_tokens = given[0].shape[0]
        if len(given) == 2:
            tokens, counts = given
            return self._dispatch_sorted(tokens, counts, owned, mesh)
        if self.input_layouts.is_replicate():
            given = tuple(_share(each, mesh) for each in given)
        tokens, chosen, weights = given
        return self._dispatch_chosen((tokens, chosen, weights), num_tokens, owned, mesh)

    def _dispatch_sorted(
        self, tokens: Any, counts: Any, owned: tuple[int, ...], mesh: DeviceMesh
    ) -> Any:
        if self.input_layouts.is_replicate():
            raise StyleInputError(
                "tokens sorted by expert are each rank's own; ExpertParallel(input_layouts="
                "Shard(0)) takes them"
            )
        arrived, sent, received, by_source = _exchange(tokens, counts, owned, mesh)
        experts = _experts_of(by_source, arrived)
        order = experts.argsort(stable=True)
        state = _Sent(sent, received, order)
        return (arrived[order], by_source.sum(0).to(counts.dtype)), {}, state

    def _dispatch_chosen(
        self,
        given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        num_tokens: int,
        owned: tuple[int, ...],
        mesh: DeviceMesh,
    ) -> Any:
        tokens, chosen, weights = given
        pairs = chosen.reshape(-1).argsort(stable=True)
        counts = torch.bincount(chosen.reshape(-1), minlength=sum(owned))
        rows = tokens[pairs // chosen.shape[1]]
        arrived, sent, received, by_source = _exchange(rows, counts, owned, mesh)
        experts = _experts_of(by_source, arrived)
        is_padded = not len(arrived)
        if is_padded:  # so that parameters get a gradient on this rank too
            arrived = torch.cat([arrived, arrived.new_zeros(1, arrived.shape[1])])
            experts = experts.new_zeros(1)
        state = _Sent(sent, received, None, weights, pairs, num_tokens, is_padded)
        ones = torch.ones(len(arrived), 1, dtype=weights.dtype, device=weights.device)
        return (arrived, experts.unsqueeze(1), ones), {}, state

    def leave(self, module: nn.Module, output: Any, state: Any, mesh: DeviceMesh) -> Any:
        """Return outputs to the ranks of their tokens, and combine each token's outputs."""
        if state.is_padded:
            output = output[:0]
        if state.order is not None:
            output = torch.zeros_like(output).index_copy(0, state.order, output)
        back = all_to_all_rows(output, state.received, state.sent, mesh, _OPERATOR)
        if state.weights is None:
            return back
        chosen = torch.zeros_like(back).index_copy(0, state.pairs, back)
        chosen = chosen.view(*state.weights.shape, back.shape[1])
        mine = (chosen * state.weights.unsqueeze(2)).sum(1).to(output.dtype)
        if not self.input_layouts.is_replicate():
            return mine
        return _gathered(mine, state.num_tokens, mesh)

    def __repr__(self) -> str:
        return f"ExpertParallel(input_layouts={self.input_layouts})"


@lru_cache(maxsize=1024)
def _owned(experts: int, ranks: int) -> tuple[int, ...]:
    """Return the number of experts of each rank."""
    return tuple(local_extent(experts, ranks, at).size for at in range(ranks))


def _exchange(
    rows: torch.Tensor, counts: torch.Tensor, owned: tuple[int, ...], mesh: DeviceMesh
) -> tuple[torch.Tensor, list[int], list[int], torch.Tensor]:
    """Send rows that are sorted by expert to its rank.

    Returns:
        The received rows, the numbers sent to and received from each rank, and the number received
        by [rank, expert].
    """
    mine = owned[mesh.get_local_rank()]
    announced = counts.detach().long().unsqueeze(1)
    # The counts travel first, since the all-to-all of the rows needs the sizes on both ends.
    announced = all_to_all_rows(announced, owned, [mine] * mesh.size(), mesh, _OPERATOR)
    by_source = announced.view(mesh.size(), mine)
    to_experts = counts.tolist()
    bounds = [0, *accumulate(owned)]
    sent = [sum(to_experts[start:end]) for start, end in pairwise(bounds)]
    received = by_source.sum(1).tolist()
    arrived = all_to_all_rows(rows, sent, received, mesh, _OPERATOR, to_experts)
    return arrived, sent, received, by_source


def _experts_of(by_source: torch.Tensor, arrived: torch.Tensor) -> torch.Tensor:
    """Return the local expert number of each received row, in order of rank and then of expert."""
    ranks, experts = by_source.shape
    numbers = torch.arange(experts, device=arrived.device).repeat(ranks)
    return numbers.repeat_interleave(by_source.reshape(-1))


def _share(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return this rank's share of the rows of a tensor that all ranks have."""
    full = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
    return full.redistribute(placements=[Shard(0)]).to_local()


def _gathered(rows: torch.Tensor, total: int, mesh: DeviceMesh) -> torch.Tensor:
    """Gather the rows of all ranks on each of them."""
    shape = (total, rows.shape[1])
    sharded = DTensor.from_local(
        rows.contiguous(), mesh, [Shard(0)], run_check=False, shape=shape, stride=(shape[1], 1)
    )
    return sharded.full_tensor()
