"""Faults of what rules of dtensor_core share: positions of rows, halos, draws of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dtensor_core.operators.kernels.local_positions import LocalPositions
from dtensor_core.operators.loss import local as losses
from dtensor_core.operators.random import local as draws
from dtensor_core.redistribute import halo_exchange


@dataclass(frozen=True)
class RuleFault:
    """A function that is replaced, and where this must be found.

    Attributes:
        layout: the layout of a model.
        owner: the class or module that has the function.
        name: its name there.
        changed: the faulty function, made from the right function.
        op: the operator whose result is wrong.
        module: its module.
    """

    layout: str
    owner: Any
    name: str
    changed: Callable[[Any], Any]
    op: str
    module: str = ""


def _other_rows_kept(original: Any) -> Any:
    """Look up a row for the positions of other ranks, too."""

    def local(self: Any, index: torch.Tensor, instead: int = 0) -> Any:
        found, elsewhere = original(self, index, instead)
        return found, torch.zeros_like(elsewhere)

    return local


def _off_by_one(original: Any) -> Any:
    """Look up the row behind, in all shards but the first."""

    def local(self: Any, index: torch.Tensor, instead: int = 0) -> Any:
        found, elsewhere = original(self, index, instead)
        shift = int(self.pieces[0].offset > 0)
        return (found + shift).clamp(max=self.count - 1), elsewhere

    return local


def _with_halo(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    """Return what changes the rows that other ranks have sent."""

    def changed(original: Any) -> Any:
        def joined(exchange: Any, pieces: Any, blocks: Any) -> Any:
            own = exchange.owned[0][dist.get_rank()]
            kept = [
                (number, at, part if 0 <= at.offset - own.offset < own.size else change(part))
                for number, at, part in pieces
            ]
            return original(exchange, kept, blocks)

        return joined

    return changed


def _flipped(rows: torch.Tensor) -> torch.Tensor:
    return rows.flip(1)


def _drawn_for_the_part(_: Any) -> Any:
    """Draw only as many numbers as the part has."""

    def draw(fill: Any, local: torch.Tensor, *args: Any) -> torch.Tensor:
        fill(local)
        return local

    return draw


def _by_local_count(original: Any) -> Any:
    """Divide by the number of elements of the part."""

    def execute(count: torch.Tensor, *args: Any) -> torch.Tensor:
        original(count, *args)
        return count

    return execute


_EMBEDDING, _CONVOLUTION = "aten.embedding.default", "aten.convolution.default"
RULE_FAULTS = {
    "mask of an embedding": RuleFault(
        "tables rows", LocalPositions, "local", _other_rows_kept, _EMBEDDING, "of_token"
    ),
    "row of an embedding": RuleFault(
        "tables rows", LocalPositions, "local", _off_by_one, _EMBEDDING, "of_token"
    ),
    "forgotten halo": RuleFault(
        "convolution cp",
        halo_exchange,
        "_joined",
        _with_halo(torch.zeros_like),
        _CONVOLUTION,
        "first",
    ),
    "wrong halo": RuleFault(
        "convolution cp", halo_exchange, "_joined", _with_halo(_flipped), _CONVOLUTION, "first"
    ),
    "draw of a part": RuleFault(
        "dense dp", draws, "draw", _drawn_for_the_part, "aten.bernoulli_.float", "dropout"
    ),
    "mean of a part": RuleFault(
        "dense dp", losses, "execute", _by_local_count, "aten.nll_loss_forward.default"
    ),
}
